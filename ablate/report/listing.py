"""Lists every choice for `ablate list`: name, a line of help, source.

Used by cli/choosing.py (`ablate list`) and cli/options.py (completion of words). A choice gets its
line in the table that it is of, such as run/choices.py; a new kind needs its entry in
CATALOGUE_KINDS.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from statistics import mode
from typing import Any, Literal, Union, get_args, get_origin

from ablate.analysis import list_papers
from ablate.planning import (
    DEFAULT_TRIALS,
    DRIVER_KEYS,
    LAUNCHERS,
    LOGGERS,
    SHARED_LOGGER_KEYS,
    TUNER_KEYS,
    Analysis,
    Tune,
    other_app_trainers,
    shipped_folder,
    user_conf_folder,
)
from ablate.report.plot import FIGURE_KINDS as PLOTS
from ablate.run import (
    ARCHS,
    CHOICES,
    DEFAULT_TASK,
    NAMED_VALUES,
    PART_KINDS,
    PROBE_METRICS,
    PROBES,
    TASKS,
    TRAINER,
    Bounds,
    Choice,
    Model,
    Param,
    Run,
    TaskChoice,
    Text,
    Weights,
    added_fields,
    field_keys,
    field_types,
)
from ablate.shared import (
    UserError,
    did_you_mean,
    install_command,
    unknown_value,
)

Lines = Iterator[tuple[str, str, str]]


def _choices(table: dict[str, Choice]) -> Lines:
    for name, choice in table.items():
        settings = ", ".join(
            f"{key}={_value_text(param.default)}" for key, param in choice.params.items()
        )
        yield name, choice.line + (f" [{settings}]" if settings else ""), choice.source


def _named_values(kind: str) -> Lines:
    for name, value in NAMED_VALUES[kind][1].items():
        yield name, value.line, value.source


def _tasks() -> Lines:
    for name, task in TASKS.items():
        yield name, task.line, task.source


def _metrics() -> Lines:
    """List the metrics of each task, then the numbers of probes, which need the probe."""
    for name, task in TASKS.items():
        curve = (key.replace("SHARE", "0.9") for key in task.curve)
        for key in (*(metric.key for metric in task.metrics), *curve):
            yield key, f"{_metric_line(task, key)}; task={name}", "-"
    for probe, probe_metrics in PROBE_METRICS.items():
        example = TASKS[DEFAULT_TASK]
        for key in probe_metrics.names:
            line = _metric_line(example, key.replace("LAYER", "1")).replace("layer 1", "one layer")
            yield key, f"{line}; probe=[{probe}]", PROBES[probe].source


def _metric_line(task: TaskChoice, key: str) -> str:
    metric = task.find(key)
    assert metric is not None
    better = "no better direction" if metric.neutral else "less is better" * (metric.sign < 0)
    return ", ".join(filter(None, (metric.name, metric.unit, better)))


def _with_shared(
    kind: str, table: Mapping[str, Choice], shared_params: Mapping[str, Param]
) -> Lines:
    """List the choices of a kind with their settings, then the settings that all of them share."""
    for name, choice in table.items():
        yield name, choice.line, choice.source
        yield from _params(kind, choice.params)
    yield "all", f"shared by every {kind}:", "-"
    yield from _params(kind, shared_params)


def _params(group: str, params: Mapping[str, Param]) -> Lines:
    for key, param in params.items():
        yield f"  {group}.{key}={_value_text(param.default)}", param.line, "-"


def _launchers() -> dict[str, Choice]:
    """Return every launcher; those of files with the first sentence and the place of the file.
    Raises UserError where a file of `./conf` can't be composed."""
    from ablate.planning import Composer

    files = {name: (line, path) for name, line, path in _files("launcher")}
    choices = {}
    for name, choice in Composer(Path("runs")).launchers().items():
        line, path = files.get(name, (choice.line, choice.source))
        choices[name] = replace(choice, line=line, source=path)
    return choices


def _launcher_lines(launchers: Mapping[str, Choice]) -> Lines:
    """List the launchers with their settings; those that all clusters share stand only once."""
    clusters = [name for name in launchers if name not in LAUNCHERS]
    common_params: dict[str, Param] = {}
    for key in launchers[clusters[0]].params:
        params = [launchers[name].params.get(key) for name in clusters]
        if None not in params:
            common_params[key] = mode(filter(None, params))
    for name, choice in launchers.items():
        yield name, choice.line, choice.source
        for key, param in choice.params.items():
            if name in LAUNCHERS or param != common_params.get(key):
                yield from _params("launcher", {key: param})
    yield "clusters", f"shared by {', '.join(clusters)}:", "-"
    yield from _params("launcher", common_params)
    yield "all", "shared by every launcher:", "-"
    yield from _params("launcher", DRIVER_KEYS)


def _archs() -> Lines:
    for name, arch in ARCHS.items():
        size = f"width {arch.width}, depth {arch.depth}"
        if arch.kind == "mlp":
            yield f"{name}/DEPTHxWIDTH", size, arch.source
        else:
            size = f"{size}, {arch.heads} heads"
            yield name if arch.patch else f"{name}/PATCH", size, arch.source
    yield "timm:NAME", f"a model of timm; {install_command('timm')}", "-"
    yield "module:Class", "a model of your own; docs/extending.md", "-"


def _files(group: str) -> Lines:
    """List the options that are files in conf/, the user's first, each with its first sentence."""
    paths: dict[str, Path] = {}
    if user_conf_folder() is None and group == TRAINER:  # of another application's `./conf`
        paths |= {name: Path("conf", group, f"{name}.yaml") for name in other_app_trainers()}
    for folder in filter(None, (user_conf_folder(), shipped_folder("conf"))):
        for path in sorted((folder / group).glob("*.yaml")):
            paths.setdefault(path.stem, path)
    for name, path in sorted(paths.items()):
        comment = " ".join(
            line.strip("# ")
            for line in path.read_text().splitlines()
            if line.startswith("#") and "@package" not in line
        )
        yield name, comment.partition(". ")[0].rstrip("."), str(path)


def _keys() -> Lines:
    """Yield the lines of all keys. The defaults are those of a run without choices: a recipe, a
    data set and a size have their own. Raises UserError where a file of `./conf` can't be
    composed."""
    from ablate.planning import resolve_run

    yield from key_lines(resolve_run([], Path("runs"))[0], _launchers())


# kind -> (how it is chosen on the command line, its lines)
CATALOGUE_KINDS: dict[str, tuple[str, Callable[[], Lines]]] = {
    "norms": ("norm=NAME", lambda: _choices(CHOICES["norm"])),
    "stems": ("stem=NAME", lambda: _choices(CHOICES["stem"])),
    "blocks": ("block=NAME", lambda: _choices(CHOICES["block"])),
    "archs": ("model=NAME", _archs),
    **{
        kind: (usage, functools.partial(_named_values, kind))
        for kind, (usage, _) in NAMED_VALUES.items()
    },
    "tasks": ("task=NAME", _tasks),
    "data": ("data=NAME", lambda: _files("data")),
    "recipes": ("recipe=NAME", lambda: _files("recipe")),
    "trainers": ("trainer=NAME", lambda: _files("trainer")),
    "launchers": ("launcher=NAME", lambda: _launcher_lines(_launchers())),
    "loggers": ("logger=[NAME, ...]", lambda: _with_shared("logger", LOGGERS, SHARED_LOGGER_KEYS)),
    "paper": ("paper: {table: NAME} in a sweep file", list_papers),
    "metrics": ("analysis.metric=NAME", _metrics),
    "probes": ("probe=[NAME, ...]", lambda: _choices(PROBES)),
    "plots": (
        "ablate plot [SWEEP] NAME",
        lambda: ((name, kind.line, kind.source) for name, kind in PLOTS.items()),
    ),
}


# Kinds of which the user may have own ones, by import path.
OWN_CHOICES = {
    **{f"{kind}s": f"{kind}=module:Class" for kind in CHOICES},
    **{
        kind: usage.replace("NAME", "module:name")
        for kind, (usage, _) in NAMED_VALUES.items()
        if usage.partition("=")[0] in {part_kind.key for part_kind in PART_KINDS}
    },
    "augmentations": "augment.extra=[module:name]",
    "metrics": "analysis.metric=module:function",
    "probes": "probe=[module:Class]",
}


@dataclass(frozen=True)
class Catalogue:
    """The choices of one kind, and how to choose one on the command line."""

    name: str
    usage: str
    choices: Sequence[tuple[str, str, str]]  # name, line, source ("-": none)

    def text(self) -> str:
        own_form = f", or {OWN_CHOICES[self.name]} of your own" if self.name in OWN_CHOICES else ""
        lines = [f"{self.name}  ({self.usage}{own_form})"]
        width = min(36, max((len(name) for name, *_ in self.choices), default=0))
        for name, line, source in self.choices:
            lines.append(f"  {name:<{width}}  {line}" + (f"  -- {source}" if source != "-" else ""))
        if not self.choices:  # of trainers, which are the user's own
            lines.append(f"  none yet; `ablate new {self.name.removesuffix('s')} NAME` writes one")
        return "\n".join(lines)

    def tree(self) -> dict[str, Any]:
        """Keys: choose: how to choose one; choices: {name, line, source (null: none)}."""
        choices = [
            {"name": name, "line": line, "source": None if source == "-" else source}
            for name, line, source in self.choices
        ]
        return {"choose": self.usage, "choices": choices}


def catalogue(kind: str | None, prefix: str, sweeps: Callable[[], Lines]) -> list[Catalogue]:
    """List the choices of one kind whose names begin with `prefix`, or of every kind for None, but
    not the keys, which are many. `sweeps` gives (name, title, file).

    Raises UserError for an unknown kind, and where no name begins with `prefix`.
    """
    kinds = {"sweeps": ("ablate sweep NAME", sweeps), **CATALOGUE_KINDS}
    if kind is None:
        return [Catalogue(name, usage, list(lines())) for name, (usage, lines) in kinds.items()]
    kinds["keys"] = ("KEY=VALUE", _keys)
    if kind not in kinds:
        raise unknown_value("list", kind, kinds)
    usage, lines = kinds[kind]
    all_lines = list(lines())
    matches = [line for line in all_lines if line[0].strip().startswith(prefix)]
    if prefix and not matches:
        names = [line[0].strip().partition("=")[0] for line in all_lines]
        raise UserError(f"list {kind}: no name begins with {prefix!r}{did_you_mean(prefix, names)}")
    return [Catalogue(kind, usage, matches)]


WHOLE_LINE = "a size such as S/16 (model.arch), or a whole model: timm:NAME, module:Class"
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true, false"}


def key_lines(
    tree: Mapping[str, Any], launchers: Mapping[str, Choice] = LAUNCHERS
) -> Iterator[tuple[str, str, str]]:
    """Yield (`key=default`, what it does and what it takes, "-") for every key. `tree`: the
    configuration that has the defaults; for {} they are null."""
    for section, hint in field_types(Run).items():
        if section in CHOICES:
            names = ", ".join([*CHOICES[section], "module:Class"])
            default = tree.get(section, {}).get("name")
            yield f"{section}={default}", f"the {section} [{names}]", "-"
            yield from _of_choices(section, {n: c.params for n, c in CHOICES[section].items()})
        elif section in field_keys(Run):
            yield from _of_fields("", Run, tree, [section])
        elif is_dataclass(cls := Model if section == "model" else hint):  # not a whole model
            yield from _of_fields(f"{section}.", cls, tree.get(section, {}), field_keys(cls))
    yield from _of_fields("text.", Text, {}, field_keys(Text))
    yield from _of_choices("launcher", {name: choice.params for name, choice in launchers.items()})
    for key, param in DRIVER_KEYS.items():
        yield (
            f"launcher.{key}={_value_text(param.default)}",
            _line(param.line, param.type, param),
            "-",
        )
    yield from _of_fields("analysis.", Analysis, {}, field_keys(Analysis))
    trials = "trials of all searches of a cell [a whole number at least 1]"
    yield f"tune.trials={DEFAULT_TRIALS}", trials, "-"
    yield from _of_fields("tune.", Tune, {}, TUNER_KEYS)
    yield "model=NAME", WHOLE_LINE, "-"
    yield "model.SETTING", "of a whole model: a parameter of its constructor", "-"
    yield "trainer=NAME", "a training loop of your own, of conf/trainer/NAME.yaml", "-"
    yield "trainer.KEY", "a setting of it; `ablate config trainer=NAME` prints all of them", "-"
    yield "from.KEY", "a key of the run that a run starts from, or its seed", "-"
    yield (
        "from.weights",
        _line(field_keys(Weights)["path"].line, str, field_keys(Weights)["path"]),
        "-",
    )
    yield from _of_fields("from.", Weights, {}, ["names"])


def _of_fields(
    prefix: str, cls: Any, defaults: Mapping[str, Any], names: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    for name in names:
        key, default = field_keys(cls)[name], defaults.get(name, added_fields(cls).get(name))
        yield (
            f"{prefix}{name}={_value_text(default)}",
            _line(key.line, field_types(cls)[name], key),
            "-",
        )


def _of_choices(
    kind: str, params: Mapping[str, Mapping[str, Param]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of choices; those that are alike in several choices share one line."""
    owners: dict[tuple[str, str], list[str]] = {}
    for name, choice_params in params.items():
        for key, param in choice_params.items():
            setting = f"{kind}.{key}={_value_text(param.default)}"
            owners.setdefault((setting, _line(param.line, param.type, param)), []).append(name)
    for (key, line), names in sorted(owners.items(), key=lambda item: item[0][0].partition("=")[0]):
        yield key, f"{line} of {kind}={', '.join(names)}", "-"


def _line(line: str, hint: Any, bounds: Bounds) -> str:
    return f"{line} [{_takes(hint, bounds)}]"


def _takes(hint: Any, bounds: Bounds) -> str:
    """Return what values a key takes, in words: a type with its bounds, or its choices."""
    kind = get_origin(hint)
    if kind is Literal:
        return ", ".join(_value_text(choice) for choice in get_args(hint))
    if kind in (types.UnionType, Union):
        return ", ".join(dict.fromkeys(_takes(part, bounds) for part in get_args(hint)))
    if hint is type(None):
        return "null"
    if kind is tuple:
        return "a list"
    if kind is not None:
        return "settings"
    limits = str(bounds) if hint in (int, float) else ""
    return f"{WORDS[hint]} {limits}".rstrip()


def _value_text(value: Any) -> str:
    """Write a value as in a command line and YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value_text, value))}]"
    return "{}" if isinstance(value, Mapping) and not value else str(value)
