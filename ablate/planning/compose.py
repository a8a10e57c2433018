"""Composition of runs: Hydra composes the groups (`conf`), values are put on its plain tree.

A compose takes as long as hundreds of builds, so it is done once per distinct set of group choices.
Mistakes that Hydra would let pass (`+typo=1`, `optim.lr=abc`, `~recipe`) are refused here or in
`build_run`.

Used by `planning/expand.py` for every command that makes a plan, and by `cli/choosing.py`
(`ablate config`, `ablate prepare`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.planning import analysis_keys, hydra_app, parents
from ablate.planning.conf import (
    check_resolvers,
    check_yaml,
    compose_config,
    generated,
    hydra_on_conf,
    interpolate,
)
from ablate.planning.data_section import complete, ours
from ablate.planning.declared import Declared
from ablate.planning.launcher import LAUNCHERS, launcher_choice, launcher_settings
from ablate.planning.logger import read_logger_words, split_logger_words
from ablate.planning.settings import (
    Layers,
    SettingsLayer,
    by_arch,
    drop_overridden_caveats,
    leaves,
    no_key_in_vain,
    no_length_in_vain,
    parse_word,
    put,
    put_whole_model,
    same_length,
    single_values,
    split_launcher,
    value_at,
    value_text,
    with_one_model,
)
from ablate.run import (
    CHOICES,
    FINGERPRINTS_FILE,
    SHOWN_KEYS,
    TRAINER,
    Choice,
    OwnRun,
    OwnSpec,
    Run,
    RunSpec,
    is_plugin,
    is_whole,
    list_local,
    plugin,
    split_command,
    tasks_for_labels,
    trainer,
    validated_run,
)
from ablate.shared import UserError, sha256_of, spelling, unknown_value

if TYPE_CHECKING:
    from hydra.core.object_type import ObjectType
    from hydra.plugins.config_source import ConfigSource


@dataclass(frozen=True)
class Merged:
    """Layers merged, the later ones over the earlier: choices of groups, and values.

    `height`: key -> the number of the last layer that sets it. `typed`: the keys that words set,
    and not a file.
    """

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    height: Mapping[str, int]
    typed: Set[str]


@contextlib.contextmanager
def placed(layers: Layers, otherwise: str) -> Iterator[None]:
    """Put the place where a UserError's key was set, or its group chosen, before the error.

    `otherwise`: the place where neither was. Where all settings are words it is the label of a
    variant, and stands after the error.
    """
    try:
        yield
    except UserError as error:
        key = str(error).partition(":")[0]
        places = [
            layer.place
            for layer in reversed(layers)
            if key in layer.settings or any(name.startswith(f"{key}.") for name in layer.settings)
        ] + [layer.place for layer in reversed(layers) if key.partition(".")[0] in layer.settings]
        if places and places[0]:
            raise UserError(f"{places[0]}: {error}") from error
        if places or not otherwise:
            raise
        of_words = not any(layer.place for layer in layers)
        line = f"{error} (variant {otherwise})" if of_words else f"{otherwise}: {error}"
        raise UserError(line) from error


class Composer:
    """A composer of runs, with caches of what Hydra and the data's files have said."""

    def __init__(self, store: Path, allow_missing: bool = False) -> None:
        """List the groups of `conf`. `allow_missing`: see `data_section.complete`.

        Raises UserError where a file of `./conf` can't be composed.
        """
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.object_type import ObjectType

        for file in Path("conf").rglob("*.yaml"):
            check_yaml(file, str(file))
        self._notes: list[str] = []
        self._allow_missing = allow_missing
        self._store = store.resolve()
        self._memo = store / FINGERPRINTS_FILE
        self._data: dict[str, dict[str, Any]] = {}
        self._sha256 = functools.cache(sha256_of)
        self._keys = functools.cache(_keys)
        self._trainer = functools.cache(_section)
        self._codes: dict[str, dict[str, Any]] = {}  # function or command -> its code section
        self._apps: dict[str, hydra_app.HydraApp] = {}  # trainer -> its Hydra application
        self._composed: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        with hydra_on_conf():
            # Ask the sources: the loader copies all of them each time it lists a group.
            sources = GlobalHydra.instance().config_loader().get_sources()
            self.groups = {
                group: _names_in(sources, group, ObjectType.CONFIG)
                for group in _names_in(sources, "", ObjectType.GROUP)
                if group != "hydra"
            }
        self.groups.setdefault(TRAINER, [])
        tree, self.defaults = compose_config("config", [])
        self._composed[tuple(sorted(self.defaults.items()))] = tree
        # An option that our tables generate fills one section, so it needs no compose.
        self._generated = {
            (kind, name): section
            for kind, options in generated().items()
            for name, section in options.items()
        }

    @property
    def notes(self) -> list[str]:
        """The lines for the user on what is done beyond, or instead of, the request, and why."""
        return [*self._notes, *ours(self._data.values())]

    def merge(self, layers: Layers) -> Merged:
        """Return the layers as one.

        Raises UserError for an unknown choice, and where a choice would overwrite a value of a
        lower layer.
        """
        choices: dict[str, Any] = {}
        values: dict[str, Any] = {}
        height: dict[str, int] = {}
        for n, layer in enumerate(layers):
            for key, value in layer.settings.items():
                (choices if key in self.groups else values)[key] = value
                height[key] = n
        for group, name in choices.items():
            if group == TRAINER and is_plugin(name):
                raise trainer.undeclared(name)
            if group in CHOICES and is_plugin(name):
                self._generated.setdefault((group, name), {"name": name})
            elif name not in self.groups[group]:
                if group == TRAINER and not self.groups[group]:
                    raise UserError(
                        f"{TRAINER}: got {spelling(name)}, and there is no conf/trainer/*.yaml "
                        "here; `ablate new trainer` writes one"
                    )
                for choice in CHOICES.get(group, {}).values():
                    if keys := choice.spellings.get(str(name)):
                        raise UserError(f"{group}: {spelling(name)} is spelled {keys}")
                plugin_forms = ["module:Class"] if group in CHOICES else []
                raise unknown_value(group, name, [*self.groups[group], *plugin_forms])
            for key in values:
                if height[key] >= height[group]:
                    continue
                above = f"{group}={name} ({layers[height[group]].place or 'command line'})"
                if self.sets(group, name, key):
                    raise UserError(
                        f"{key}: would be overwritten by {above}; give {key} there as well"
                    )
                if any(self.sets(group, name, length_key) for length_key in same_length(key)):
                    raise UserError(
                        f"{key}: {above} sets another length; give {key} there as well "
                        f"(null leaves the other)"
                    )
        typed = {key for key, n in height.items() if not layers[n].place}
        return Merged(choices, values, height, typed)

    def tree(self, layers: Layers) -> dict[str, Any]:
        """Return the plain tree of a run.

        It holds the tree of the run's parent, where keys `from.KEY` declare one. Interpolations are
        resolved; values are not yet validated. Raises UserError as `merge` does, and for keys that
        have no effect, such as a length that another one overrides.
        """
        below, above = parents.split(layers)
        merged = self.merge(with_one_model(below))
        if TRAINER in merged.choices:
            return self._own_tree(merged, [key for layer in layers for key in layer.settings])
        tree = self._composed_tree(merged)
        if above:
            parents.descend(tree, above, self.tree)
        return tree

    def _own_tree(self, merged: Merged, typed_keys: Iterable[str]) -> dict[str, Any]:
        """Return the tree of a run of the user's own trainer, its code not yet read.

        Raises UserError for keys that such a run does not have.
        """
        name = merged.choices[TRAINER]
        below = f"{TRAINER}."
        section, overrides = self._trainer(name), None
        keys = value_at({TRAINER: section}, f"{below}keys")
        for key in typed_keys:
            if not (key in (TRAINER, "seed") or key.startswith(below)):
                leaf = key.rpartition(".")[2]
                hint = (
                    f"; did you mean {below}{leaf}?"
                    if isinstance(keys, Mapping) and leaf in keys
                    else ""
                )
                raise UserError(
                    f"{key}: applies to no run of trainer={name}, which has {below}KEY and a "
                    f"seed{hint}"
                )
        settings = {k.removeprefix(below): v for k, v in merged.values.items() if k != "seed"}
        if keys == "hydra" and "command" in section:
            declares, overrides = hydra_app.keys_of(self._hydra_app(name, section), settings)
            section = {**section, "keys": declares}
        tree = trainer.declared_tree(name, section, settings, of_hydra=overrides is not None)
        if overrides is not None:
            tree["code"]["overrides"] = overrides
        tree["seed"] = merged.values.get("seed", 0)
        if "${" in repr(tree):
            check_resolvers(tree)
            tree = interpolate(tree)
        return tree

    def _hydra_app(self, name: str, section: Mapping[str, Any]) -> hydra_app.HydraApp:
        """Return the application of a trainer, with the hashes of its code as it is now."""
        if name not in self._apps:
            keyless = OwnSpec(trainer.declared_tree(name, {**section, "keys": {}}, {}))
            variables = section.get("env") or {}
            self._apps[name] = hydra_app.HydraApp(
                split_command(section["command"], "command"),
                Path.cwd() / (section.get("cwd") or ""),
                {key: str(value) for key, value in variables.items() if "{" not in str(value)},
                self._store,
                self._code(keyless)["files"],
            )
        return self._apps[name]

    def declares(self, spec: OwnSpec) -> bool:
        """Return whether a run's command is that of a trainer here; True where it has none."""
        if not spec.is_command:
            return True
        sections = map(self._trainer, self.groups[TRAINER])
        commands = ((section or {}).get("command") for section in sections)
        words = split_command(spec.trainer, "command")
        return any(
            command is not None and split_command(command, "command") == words
            for command in commands
        )

    def _composed_tree(self, merged: Merged) -> dict[str, Any]:
        for key in merged.values:
            if key.startswith(f"{TRAINER}."):
                raise UserError(
                    f"{key}: of which trainer? give trainer=NAME of conf/trainer/NAME.yaml"
                )
        generated = {k: v for k, v in merged.choices.items() if (k, v) in self._generated}
        composed = {k: v for k, v in merged.choices.items() if k not in generated}
        tree = dict(self._compose(composed))
        del tree["launcher"]
        for kind, name in generated.items():
            tree[kind] = self._generated[kind, name]
        values = dict(merged.values)
        if (whole_model := values.pop("model", None)) is not None:
            put_whole_model(tree, whole_model)
        drop_overridden_caveats(tree, values)
        if "by_arch" in tree:
            values = {**by_arch(tree, values), **values}
        # Of `optim.lr_mult=null` and a path in it, the higher counts, and the path on one level.
        for key in sorted(values, key=lambda key: (merged.height.get(key, -1), key)):
            put(tree, key, values[key])
        if "data.hub" in values and "data.rows" not in values:  # those are the group's own
            tree["data"] = {**tree["data"], "rows": None}
        if whole_model is None and is_whole(tree["model"]):
            raise UserError("model.name: a whole model is said by model=NAME, in words or a sweep")
        if "${" in repr(tree):
            check_resolvers(tree)
            tree = interpolate(tree)
        no_length_in_vain(tree, merged.height)
        no_key_in_vain(tree, merged.height, merged.typed)
        return tree

    def run(self, tree: Mapping[str, Any], seed: int | None = None) -> Run | OwnRun:
        """Return the validated run of a tree that `tree` made, with `seed` if it is given.

        Raises UserError, key first.
        """
        spec = RunSpec.of(tree)
        if isinstance(spec, OwnSpec):
            spec = OwnSpec({**tree, "code": {**tree["code"], **self._code(spec)}})
        else:
            spec = RunSpec.of(self._completed(tree))
        return validated_run(spec.with_seed(tree["seed"] if seed is None else seed))

    def _completed(self, tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return the tree with what files say of its data, the user's own classes, and weights.
        `prefix`: before its keys, where it is the tree of a parent."""
        run = {**tree, "data": self._of_files(tree.get("data"), prefix=prefix)}
        if also := value_at(tree, "eval.also"):
            run["eval"] = {**tree["eval"], "also": self._tested(also, run["data"])}
        run |= plugin.complete(run, Path.cwd())
        if "own_probes" in tree:
            raise UserError("own_probes: is read from the files of probes; leave it out")
        probes = tree.get("probe")
        if (
            isinstance(probes, list)
            and (own_probes := analysis_keys.complete_probes(probes, Path.cwd())) is not None
        ):
            run["own_probes"] = own_probes
        if "weights" in tree:
            run["weights"] = self._hashed(tree["weights"])
        if "parent" in tree:
            with parents.of_parent():
                run["parent"] = self._completed(tree["parent"], prefix + parents.FROM_PREFIX)
        return run

    def _code(self, spec: OwnSpec) -> dict[str, Any]:
        """Return what `trainer.code_of` reads, once a plan: so all of its runs have the same."""
        name = spec.trainer
        if name not in self._codes:
            self._codes[name] = trainer.code_of(spec, Path.cwd(), self._store)
        return self._codes[name]

    def _of_files(self, data: Any, tested: bool = False, prefix: str = "") -> dict[str, Any]:
        key = json.dumps([data, tested, prefix], sort_keys=True, default=repr)
        if key not in self._data:
            self._data[key] = complete(
                data, self._memo, self._notes, tested, self._allow_missing, prefix
            )
        return self._data[key]

    def _tested(self, also: Any, data: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the sections of the sets of `eval.also`, shown as the run's own data is.

        `also`: a list of names of data, each with its folder where that is NAME:FOLDER, and of
        folders. Raises UserError where it is no such list.
        """
        if not isinstance(also, list):
            raise UserError(f"eval.also: expected a list of names of data, got {also!r}")
        sections = []
        names = self.groups["data"]
        for name in also:
            is_named = isinstance(name, str) and name.partition(":")[0] in names
            is_folder = isinstance(name, str) and (os.sep in name or os.path.isdir(name))
            if not (is_named or is_folder):
                choices = [*names, "NAME:FOLDER", "DIR/NAME of a folder"]
                raise unknown_value("eval.also", name, choices)
            try:
                section = self._set(name, data)
                for key in SHOWN_KEYS:
                    section.pop(key, None)
                presentation = {key: data[key] for key in SHOWN_KEYS if key in data}
                sections.append(
                    self._of_files({"cache_size": None, **section, **presentation}, tested=True)
                )
            except UserError as error:
                raise UserError(f"eval.also: {name}: {error}") from error
        return sections

    def _set(self, name: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section of one set of `eval.also`, as the files of `conf` have it."""
        group, has_folder, place = name.partition(":")
        if group in self.groups["data"]:
            settings = {"data": group, "data.path": place} if has_folder else {"data": group}
            return dict(self._composed_tree(self.merge([SettingsLayer("", settings)]))["data"])
        if os.sep not in name:
            raise UserError(f"is no name of data; the folder is ./{name}")
        if not (folder := Path(name).expanduser()).is_dir():
            raise UserError("no such folder")
        tree = self._composed_tree(self.merge([SettingsLayer("", {"data": "imagefolder"})]))
        section = {**tree["data"], "path": name, "name": _set_name(folder)}
        if list_local(folder).kind != "folder":
            section["classes"] = data["classes"]
        return section

    def _hashed(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section of a file of weights, with its hash.

        Raises UserError where there is no such file.
        """
        file = weights["weights"]
        path = os.path.abspath(os.path.expanduser(str(file)))
        if not os.path.isfile(path):
            raise UserError(f"from.weights: {file}: no such file")
        return {"path": path, "sha256": self._sha256(Path(path)), "names": weights["names"]}

    def launcher(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the launcher's settings, from `launcher=NAME` and `launcher.KEY=VALUE` alone."""
        merged = self.merge([SettingsLayer("", settings)])
        tree = dict(self._compose(merged.choices))
        for key, value in merged.values.items():
            put(tree, key, value)
        choice = merged.choices.get("launcher", self.defaults["launcher"])
        return launcher_settings({"name": choice, **tree["launcher"]}, self.launchers)

    def launchers(self) -> dict[str, Choice]:
        """Return every launcher with the settings of its own, those of files without a line."""
        names = sorted(self.groups["launcher"], key=lambda name: (name not in LAUNCHERS, name))
        sections = {name: self._compose({"launcher": name}) for name in names}
        return {name: launcher_choice(name, tree["launcher"]) for name, tree in sections.items()}

    def _compose(self, choices: Mapping[str, str]) -> dict[str, Any]:
        key = tuple(sorted({**self.defaults, **choices}.items()))
        if key not in self._composed:
            words = [
                # "+" appends a group of the user's own that the defaults do not list
                f"{'' if group in self.defaults else '+'}{group}={name}"
                for group, name in choices.items()
            ]
            self._composed[key], _ = compose_config("config", words)
        return self._composed[key]

    def sets(self, group: str, name: str, key: str) -> bool:
        """Return whether choosing `group=name` sets `key`."""
        if (group, name) in self._generated or group == TRAINER:
            return key.startswith(f"{group}.")
        return key in self._keys(group, name)


def _set_name(folder: Path) -> str:
    """Return the name of a set of `eval.also` that lies in a folder: the folder's, below that of
    its parent where it is a number, as the severities of ImageNet-C are."""
    place = Path(os.path.abspath(folder))
    return f"{place.parent.name}-{place.name}" if place.name.isdecimal() else place.name


def _keys(group: str, name: str) -> set[str]:
    """Return every dotted key that choosing `group=name` sets."""
    return {key for key, _ in leaves(compose_config(f"{group}/{name}", [])[0])}


def _section(trainer: str) -> Any:
    """Return the section that `conf/trainer/NAME.yaml` composes, or None."""
    return compose_config(f"{TRAINER}/{trainer}", [])[0].get(TRAINER)


def _names_in(sources: Iterable[ConfigSource], group: str, kind: ObjectType) -> list[str]:
    """Return the names in a group, of options or of groups, that any of Hydra's sources has."""
    names = (source.list(group, kind) for source in sources if source.is_group(group))
    return sorted({*itertools.chain.from_iterable(names)})


def resolve_run(words: Sequence[str], store: Path) -> tuple[dict[str, Any], str]:
    """Return the whole plain tree of one run, and its id: what `ablate config` prints.

    Raises UserError, one line, for a word that is wrong, or that belongs to a sweep.
    """
    composer = Composer(store)
    words, logger_words = split_logger_words(words)
    read_logger_words(logger_words)
    parsed = [parse_word(word, composer.groups) for word in words]
    for key in Declared(words=tuple(parsed)).sweep:
        if key == "seeds":
            raise UserError(f"{key}: belongs to a sweep; for one run give seed=N")
        owner = "the table of a sweep" if f"{key}.".startswith("analysis.") else "a sweep"
        raise UserError(f"{key}: belongs to {owner}; leave it out")
    for word in parsed:
        if word.swept and word.key in composer.groups:
            raise UserError(
                f"{word.text}: `ablate config` shows one run; choose one {word.key}, such as "
                f"{word.key}={value_text(word.values[0])}"
            )
    settings = single_values(parsed)
    launcher, settings = split_launcher(settings)
    composer.launcher(launcher)
    spec = composer.run(composer.tree([SettingsLayer("", settings)])).spec
    return dict(spec.tree), spec.id


def resolve_data(name: str, words: Sequence[str], store: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the plain tree of a run on `data=NAME data.KEY=VALUE ...`, and the notes.

    Its model is any that fits the data. Raises UserError, one line, for a word that is wrong, or
    that is not about the data.
    """
    composer = Composer(store)
    settings = single_values(parse_word(word, composer.groups) for word in words)
    for key in settings:
        if not key.startswith("data."):
            raise UserError(f"{key}: belongs to a run; `ablate data prepare` takes data.KEY=VALUE")
    tree = composer.tree([SettingsLayer("", {"data": name, **settings})])
    size = tree["data"].get("size") if isinstance(tree["data"], Mapping) else None
    if isinstance(size, int) and size > 0:  # one patch as large as the image, which fits any size
        tree["model"] = {**tree["model"], "arch": f"mu/{size}"}
    if value_at(tree, "data.labels") == "masks":  # only some tasks learn from masks
        tree["task"] = tasks_for_labels("masks")[0]
    return dict(composer.run(tree).spec.tree), composer.notes
