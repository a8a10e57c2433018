"""Every key of a run and of a sweep's analysis, explained from where it is declared."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Tune
from ablate.planning.launcher import DRIVER, LAUNCHERS
from ablate.planning.tuning import OWN, TRIALS
from ablate.shared.choices import CHOICES
from ablate.shared.schema import Bounds, Param, added, hints, keys
from ablate.shared.sections import Model, Text, Weights
from ablate.shared.spec import Run

WHOLE_LINE = "a size such as S/16 (model.arch), or a whole model: timm:NAME, module:Class"
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true, false"}


def key_lines(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(`key=default`, what it does and what it takes, "-") of every key. `tree`: the configuration
    that has the defaults; of {} they are null."""
    for section, hint in hints(Run).items():
        if section in CHOICES:
            names = ", ".join([*CHOICES[section], "module:Class"])
            default = tree.get(section, {}).get("name")
            yield f"{section}={default}", f"the {section} [{names}]", "-"
            yield from _of_choices(section, {n: c.params for n, c in CHOICES[section].items()})
        elif section in keys(Run):
            yield from _of_fields("", Run, tree, [section])
        elif is_dataclass(cls := Model if section == "model" else hint):  # not a whole model
            yield from _of_fields(f"{section}.", cls, tree.get(section, {}), keys(cls))
    yield from _of_fields("text.", Text, {}, keys(Text))
    yield from _of_choices("launcher", {name: choice.params for name, choice in LAUNCHERS.items()})
    for key, param in DRIVER.items():
        yield f"launcher.{key}={_shown(param.default)}", _line(param.line, param.type, param), "-"
    yield from _of_fields("analysis.", Analysis, {}, keys(Analysis))
    yield (
        f"tune.trials={TRIALS}",
        "trials of all searches of a cell [a whole number at least 1]",
        "-",
    )
    yield from _of_fields("tune.", Tune, {}, OWN)
    yield "model=NAME", WHOLE_LINE, "-"
    yield "model.SETTING", "of a whole model: a parameter of its constructor", "-"
    yield "trainer=NAME", "a training loop of your own, of conf/trainer/NAME.yaml", "-"
    yield "trainer.KEY", "a setting of it; `ablate config trainer=NAME` prints all of them", "-"
    yield "from.KEY", "a key of the run that a run starts from, or its seed", "-"
    yield "from.weights", _line(keys(Weights)["path"].line, str, keys(Weights)["path"]), "-"
    yield from _of_fields("from.", Weights, {}, ["names"])


def _of_fields(
    prefix: str, cls: Any, defaults: Mapping[str, Any], names: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    for name in names:
        said, default = keys(cls)[name], defaults.get(name, added(cls).get(name))
        yield f"{prefix}{name}={_shown(default)}", _line(said.line, hints(cls)[name], said), "-"


def _of_choices(
    kind: str, params: Mapping[str, Mapping[str, Param]]
) -> Iterator[tuple[str, str, str]]:
    """The settings of choices; those that several have alike are one line."""
    owners: dict[tuple[str, str], list[str]] = {}
    for name, own in params.items():
        for key, param in own.items():
            named = f"{kind}.{key}={_shown(param.default)}"
            owners.setdefault((named, _line(param.line, param.type, param)), []).append(name)
    for (key, line), names in sorted(owners.items(), key=lambda one: one[0][0].partition("=")[0]):
        yield key, f"{line} of {kind}={', '.join(names)}", "-"


def _line(line: str, hint: Any, bounds: Bounds) -> str:
    return f"{line} [{_takes(hint, bounds)}]"


def _takes(hint: Any, bounds: Bounds) -> str:
    """What a key takes, in words: a type, its bounds, or its choices."""
    kind = get_origin(hint)
    if kind is Literal:
        return ", ".join(_shown(choice) for choice in get_args(hint))
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


def _shown(value: Any) -> str:
    """A value as a command line and YAML have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_shown, value))}]"
    return "{}" if isinstance(value, Mapping) and not value else str(value)
