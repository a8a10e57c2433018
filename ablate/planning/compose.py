"""From settings to a run: Hydra composes the groups, values are put on its plain tree.

A compose takes as long as hundreds of builds, so it is done once per distinct set of group choices.
What Hydra would let pass (`+typo=1`, `optim.lr=abc`, `~recipe`) is refused here or in `spec.build`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ablate.shared import plugin, spec
from ablate.shared.choices import CHOICES
from ablate.shared.errors import UserError, unknown
from ablate.shared.fingerprint import (
    BUNDLED,
    class_folders,
    fingerprint,
    local_files,
    local_splits,
    parse_slice,
    unread,
    wanted,
)

RESOLVER = re.compile(r"\$\{\s*[\w.]+\s*:[^{}\s]*\}?")  # not ${key.of.the.config}
_HERE = Path(__file__).resolve().parent.parent


def shipped(name: str) -> Path:
    """The folder `conf` or `sweeps` that came with us: in the package (a wheel), else beside it."""
    inside = _HERE / name
    return inside if inside.is_dir() else _HERE.parent / name


# --- Words of the command line ------------------------------------------------------------------


@dataclass(frozen=True)
class Word:
    """`key=value` as Hydra's grammar reads it; several values where it is a sweep (`a,b`)."""

    text: str
    key: str
    values: tuple[Any, ...]
    swept: bool = False
    glob: bool = False

    @property
    def value(self) -> Any:
        """The one value. Raises UserError where there are several."""
        if self.swept:
            raise UserError(
                f"{self.key}: expected one value, got {self.text.partition('=')[2]!r}; "
                f"a list is bracketed: {self.key}=[{','.join(map(show, self.values))}]"
            )
        return self.values[0]


def parse(text: str, groups: Mapping[str, Sequence[str]]) -> Word:
    """One word. `groups`: what `glob` expands to. Raises UserError where it can't be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob
    from hydra.errors import HydraException

    key, equals, value = text.partition("=")
    if text.startswith("~"):
        raise UserError(f"{text}: a key cannot be removed; give {key[1:]}=VALUE")
    if not equals or not key.strip("+ "):
        raise UserError(f"{text}: expected KEY=VALUE")
    try:
        override = OverridesParser.create().parse_override(text)
        parsed = override.value()
    except HydraException as error:
        if key == "data.path":  # a path that the grammar can't read is meant as it stands
            return Word(text, key, (value,))
        raise UserError(
            f"{key}: cannot read {value!r}: {_first_line(error)}; "
            f"quote a text with special characters: {key}='...'"
        ) from error
    key = override.key_or_group
    if override.package is not None:
        raise UserError(f"{text}: expected KEY=VALUE, got a package ({override.package})")
    if not override.is_sweep_override():
        return Word(text, key, (plain(parsed, key),))
    if isinstance(parsed, Glob):
        if key not in groups:
            raise UserError(
                f"{key}: glob() lists the choices of a group, one of {', '.join(groups)}"
            )
        return Word(text, key, tuple(parsed.filter(list(groups[key]))), swept=True, glob=True)
    if override.is_interval_sweep():
        raise UserError(f"{key}: interval() has no values; list values with commas, or use range()")
    if getattr(parsed, "shuffle", False):
        raise UserError(f"{key}: shuffle() would change the sweep each time; leave shuffle() out")
    values = [plain(v, key) for v in itertools.islice(override.sweep_iterator(), MOST + 1)]
    if len(values) > MOST:
        raise UserError(f"{key}: {value} has more than {MOST:,} values")
    return Word(text, key, tuple(values), swept=True)


def plain(value: Any, key: str) -> Any:
    """A value as JSON has it. Raises UserError for settings where a value belongs."""
    if isinstance(value, Mapping):
        dotted = ", ".join(f"{key}.{name}" for name in value)
        raise UserError(f"{key}: expected a value, got settings; write each key in full: {dotted}")
    if isinstance(value, list | tuple):
        return [plain(item, key) for item in value]
    value = getattr(value, "text", value)  # Hydra's quoted strings
    return "pre+post" if value == "pre_post" else value  # a shell-friendly spelling


def show(value: Any) -> str:
    """A value as it is written in labels and on command lines."""
    if isinstance(value, list):
        return f"[{','.join(map(show, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


# --- Files --------------------------------------------------------------------------------------

MOST = 100_000  # values of a word, combinations of a sweep, nodes of a file: more is a slip
DEEP = 50  # levels of a file


def check_yaml(path: Path, place: str) -> None:
    """Raises UserError where loading the file would fill the memory or the stack: its aliases
    (`*name`) counted as what they stand for. Other mistakes are left to whoever loads it."""
    import yaml

    sizes: dict[str | None, int] = {}  # of whole nodes, by anchor
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]
    try:
        for event in yaml.parse(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, 1))
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                anchor, size = getattr(event, "anchor", None), 1
                if isinstance(event, yaml.CollectionEndEvent):
                    anchor, size = open_nodes.pop()
                elif isinstance(event, yaml.AliasEvent):
                    if any(anchor == other for other, _ in open_nodes):
                        raise UserError(
                            f"{place}: the alias *{anchor} is inside its own anchor &{anchor}"
                        )
                    size = sizes.get(anchor, 1)
                sizes[anchor] = size
                above, so_far = open_nodes.pop()
                open_nodes.append((above, so_far + size))
            if len(open_nodes) > DEEP or open_nodes[-1][1] > MOST:
                raise UserError(
                    f"{place}: more than {MOST:,} values or {DEEP} levels, aliases (*name) expanded"
                )
    except (yaml.YAMLError, OSError):
        return


# --- Composition --------------------------------------------------------------------------------


class Layer(NamedTuple):
    """Settings (`recipe: quick, optim.lr: 0.1`) and where they were written ("": command line)."""

    place: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Merged:
    """Layers, the later ones over the earlier: choices of groups, and values. `height`: the last
    layer, by its number, that says a key."""

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    height: Mapping[str, int]


@dataclass(frozen=True)
class Launcher:
    """What `launcher` may say. None of it changes a result."""

    name: Literal["local", "inline"]
    attempts: int
    hang_s: float
    checkpoint_s: float
    runs_per_gpu: int


@contextlib.contextmanager
def placed(layers: Sequence[Layer], otherwise: str) -> Iterator[None]:
    """Put before a UserError's key the place where that key was set, or its group chosen."""
    try:
        yield
    except UserError as error:
        key = str(error).partition(":")[0]
        places = [
            layer.place
            for layer in reversed(layers)
            if key in layer.settings or any(name.startswith(f"{key}.") for name in layer.settings)
        ] + [layer.place for layer in reversed(layers) if key.partition(".")[0] in layer.settings]
        place = places[0] if places else otherwise
        if not place:
            raise
        raise UserError(f"{place}: {error}") from error


class Composer:
    """Composes runs, and remembers what Hydra and the data's files have said."""

    def __init__(self, store: Path) -> None:
        """Raises UserError where a file of `./conf` can't be composed."""
        from hydra.core.global_hydra import GlobalHydra

        for file in Path("conf").rglob("*.yaml"):
            check_yaml(file, str(file))
        self.notes: list[str] = []  # what else is done than was asked for, and why
        self._memo = store / "cache" / "fingerprints.json"
        self._data: dict[str, dict[str, Any]] = {}
        self._composed: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        self._keys: dict[tuple[str, str], set[str]] = {}
        with _hydra():
            loader = GlobalHydra.instance().config_loader()
            self.groups: dict[str, list[str]] = {
                group: loader.get_group_options(group)
                for group in loader.list_groups("")
                if group != "hydra"
            }
        tree, self.defaults = _compose("config", [])
        self._composed[tuple(sorted(self.defaults.items()))] = tree
        # The options that spec's tables generate stand in one section each: they need no compose.
        self._generated = {
            (kind, name): section
            for kind, options in _generated().items()
            for name, section in options.items()
        }

    def merge(self, layers: Sequence[Layer]) -> Merged:
        """The layers as one. Raises UserError for a choice that there is not, and where a choice
        would overwrite a value of a lower layer."""
        choices: dict[str, Any] = {}
        values: dict[str, Any] = {}
        height: dict[str, int] = {}
        for n, layer in enumerate(layers):
            for key, value in layer.settings.items():
                (choices if key in self.groups else values)[key] = value
                height[key] = n
        for group, name in choices.items():
            if group in CHOICES and spec.is_plugin(name):
                self._generated.setdefault((group, name), {"name": name})
            elif name not in self.groups[group]:
                own = ["module:Class"] if group in CHOICES else []
                raise unknown(group, name, [*self.groups[group], *own])
            for key in values:
                if height[key] >= height[group]:
                    continue
                above = f"{group}={name} ({layers[height[group]].place or 'command line'})"
                if self.sets(group, name, key):
                    raise UserError(
                        f"{key}: would be overwritten by {above}; give {key} there as well"
                    )
                if any(self.sets(group, name, other) for other in _same_length(key)):
                    raise UserError(
                        f"{key}: {above} sets another length; give {key} there as well "
                        f"(null leaves the other)"
                    )
        return Merged(choices, values, height)

    def tree(self, merged: Merged) -> dict[str, Any]:
        """The plain tree of a run, interpolations resolved, not yet validated. Raises UserError for
        a length that another one makes void."""
        generated = {k: v for k, v in merged.choices.items() if (k, v) in self._generated}
        composed = {k: v for k, v in merged.choices.items() if k not in generated}
        tree = dict(self._compose(composed))
        del tree["launcher"]
        for kind, name in generated.items():
            tree[kind] = self._generated[kind, name]
        values = merged.values
        if "by_arch" in tree:
            values = {**_by_arch(tree, values), **values}
        for key, value in values.items():
            _put(tree, key, value)
        if "${" in repr(tree):
            check_resolvers(tree)
            tree = _resolve(tree)
        _no_length_in_vain(tree, merged.height)
        return tree

    def run(self, tree: Mapping[str, Any], seed: int | None = None) -> spec.Run:
        """The validated run of a tree that `tree` made. Raises UserError, key first."""
        key = json.dumps(tree.get("data"), sort_keys=True, default=repr)
        if key not in self._data:
            self._data[key] = complete(tree.get("data"), self._memo, self.notes)
        run = {**tree, "data": self._data[key]}
        for kind in CHOICES:
            chosen = tree.get(kind)
            if isinstance(chosen, Mapping) and spec.is_plugin(chosen.get("name")):
                run[kind] = plugin.complete(kind, chosen, Path.cwd())
        if seed is not None:
            run["seed"] = seed
        return spec.build(spec.of_today(run))

    def launcher(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The launcher's settings, from `launcher=NAME` and `launcher.KEY=VALUE` alone."""
        merged = self.merge([Layer("", settings)])
        tree = dict(self._compose(merged.choices))
        for key, value in merged.values.items():
            _put(tree, key, value)
        chosen = asdict(spec.section(Launcher, tree["launcher"], "launcher"))
        for key, value in chosen.items():
            if key != "name" and not value > 0:
                raise UserError(f"launcher.{key}: must be more than 0, got {value}")
        return chosen

    def _compose(self, choices: Mapping[str, str]) -> dict[str, Any]:
        key = tuple(sorted({**self.defaults, **choices}.items()))
        if key not in self._composed:
            words = [
                # a group of the user's own that the defaults do not list is appended
                f"{'' if group in self.defaults else '+'}{group}={name}"
                for group, name in choices.items()
            ]
            self._composed[key], _ = _compose("config", words)
        return self._composed[key]

    def sets(self, group: str, name: str, key: str) -> bool:
        """Does choosing `group=name` set `key`?"""
        if (group, name) in self._generated:
            return key.startswith(f"{group}.")
        if (group, name) not in self._keys:
            self._keys[group, name] = set(_leaves(_compose(f"{group}/{name}", [])[0]))
        return key in self._keys[group, name]


def resolve(words: Sequence[str], store: Path) -> tuple[dict[str, Any], str]:
    """What `ablate config` prints: the whole plain tree of one run, and its id.

    Raises UserError, one line, for a word that is wrong, or that belongs to a sweep.
    """
    composer = Composer(store)
    parsed = [parse(word, composer.groups) for word in words]
    settings = once(parsed)
    for key in settings:
        if key == "seeds" or key.partition(".")[0] == "analysis":
            raise UserError(f"{key}: belongs to a sweep; for one run give seed=N")
    launcher, settings = split_launcher(settings)
    composer.launcher(launcher)
    run = composer.run(composer.tree(composer.merge([Layer("", settings)])))
    return spec.to_tree(run), run.id


def resolve_data(name: str, words: Sequence[str], store: Path) -> tuple[dict[str, Any], list[str]]:
    """The plain tree of a run on `data=NAME data.KEY=VALUE ...`, whatever the model, and notes.

    Raises UserError, one line, for a word that is wrong, or that is not about the data.
    """
    composer = Composer(store)
    settings = once(parse(word, composer.groups) for word in words)
    for key in settings:
        if not key.startswith("data."):
            raise UserError(f"{key}: belongs to a run; `ablate data prepare` takes data.KEY=VALUE")
    tree = composer.tree(composer.merge([Layer("", {"data": name, **settings})]))
    size = tree["data"].get("size") if isinstance(tree["data"], Mapping) else None
    if isinstance(size, int) and size > 0:  # a patch that divides the image, whatever its size
        tree["model"] = {**tree["model"], "arch": f"mu/{size}"}
    return spec.to_tree(composer.run(tree)), composer.notes


def once(words: Iterable[Word]) -> dict[str, Any]:
    """key -> value of words of one value. Raises UserError for a key that is given twice."""
    settings: dict[str, Any] = {}
    for word in words:
        if word.key in settings:
            raise UserError(f"{word.key}: given twice")
        settings[word.key] = word.value
    return settings


def split_launcher(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the launcher's settings, all others): where a run is trained is not what it is."""
    ours = {k: v for k, v in settings.items() if k.partition(".")[0] == "launcher"}
    return ours, {k: v for k, v in settings.items() if k not in ours}


def complete(data: Any, memo: Path | None, notes: list[str]) -> dict[str, Any]:
    """The `data` section with what its files say: path, classes, splits, fingerprint.

    Local files that lack a split of the hub's set are cut anew, and that is added to `notes`, as
    are images that are not read.
    Raises UserError for keys and types that are wrong and for data that is not there.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"data: expected settings (key: value), got {data!r}")
    if "fingerprint" in data:
        raise UserError("data.fingerprint: is computed; leave it out")
    filled = {**data, "fingerprint": ""}
    if "classes" in data and data["classes"] is None:
        filled["classes"] = 0
    spec.section(spec.Data, filled, "data")  # before any file is looked at
    data = dict(data)
    if data["path"] is not None:
        if data["source"] != "datasets":
            raise UserError(f"data.path: data={data['name']} is bundled and takes no path")
        data["path"] = os.path.abspath(os.path.expanduser(data["path"]))
    if data["classes"] is None:
        folder = _folder(data, "classes")
        names = class_folders(folder)
        if len(names) < 2:
            raise UserError(
                f"data.path: {folder}: expected a folder for each of at least two classes, found "
                f"{', '.join(names) or 'no folder'}"
            )
        data["classes"] = len(names)
    present = BUNDLED.get(data["source"])  # None where only fetching the set would tell
    if data["path"] is not None:
        present = local_splits(Path(data["path"]), data["name"])
    for key in ("validation", "test"):
        if data[key] == "auto":
            if present is None:
                _folder(data, key)  # says why it can't be
            data[key] = key if key in (present or ()) else 0.1
    named = {
        key: parse_slice(key, data[key]).split
        for key in ("train", "validation", "test")
        if isinstance(data[key], str)
    }
    if data["path"] is not None and data["hub"] is not None and present is not None:
        missing = sorted(set(named.values()) - set(present))
        if missing and len(present) == 1:
            shares = {key: 0.1 for key in ("validation", "test") if key in named}
            data = {**data, "train": present[0], **shares}
            note = (
                f"data={data['name']}: {data['path']} has only split {present[0]!r}: "
                f"{' and '.join(shares)} are cut from it, a tenth each; not the published split"
            )
            if note not in notes:
                notes.append(note)
    if present is not None:
        wanted(data, present)
    taken = fingerprint(data, memo)
    if data["path"] is not None:
        found = unread(Path(data["path"]))
        note = f"data={data['name']}: {data['path']}: {found}"
        if found and note not in notes:
            notes.append(note)
    return {**data, "fingerprint": taken}


def _folder(data: Mapping[str, Any], key: str) -> Path:
    if data["path"] is None:
        fingerprint(dict(data))  # where files are needed anyway, it says so
        raise UserError(f"data.{key}: planning does not ask the hub; give data.{key}=VALUE")
    path = Path(data["path"])
    kind, _ = local_files(path, data["name"])
    if key == "classes" and kind != "folder":
        raise UserError(
            f"data.classes: {path} holds no class folders to count; give data.classes=N"
        )
    return path


# --- Hydra --------------------------------------------------------------------------------------


@functools.cache
def _search_user_conf_first() -> None:
    """Register, once, what puts `./conf` of the moment before ours in Hydra's search path.

    (`hydra.searchpath` in a config would put it last.)
    """
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserConf(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            user = Path("conf").resolve()
            if user.is_dir() and user != shipped("conf"):
                search_path.prepend(provider="user", path=f"file://{user}")

    Plugins.instance().register(UserConf)


@contextlib.contextmanager
def _hydra() -> Iterator[None]:
    """Hydra, initialised on our folder, the user's, and the groups that spec's tables generate."""
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    _search_user_conf_first()
    store = ConfigStore.instance()
    for kind, options in _generated().items():
        store.repo.pop(kind, None)  # it is global: what tables held once would stay
        for name, section in options.items():
            store.store(group=kind, name=name, node=section, provider="ablate")
    OmegaConf.clear_resolver("oc.env")  # in a list of defaults Hydra resolves it by itself
    try:
        with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
            yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env)


def _generated() -> dict[str, dict[str, dict[str, Any]]]:
    """kind -> name -> the section that choosing it makes: its name and its defaults.

    Without those that have a file: Hydra would take the other for that file's schema.
    """
    folders = [shipped("conf"), Path("conf")]
    return {
        kind: {
            name: {"name": name, **{key: p.default for key, p in choice.params.items()}}
            for name, choice in table.items()
            if not any((folder / kind / f"{name}.yaml").exists() for folder in folders)
        }
        for kind, table in CHOICES.items()
    }


def _compose(name: str, words: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(plain tree, interpolations unresolved; what was chosen of each group)."""
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with _hydra():
            config = compose(name, words, return_hydra_config=True)
            choices = OmegaConf.to_container(config.hydra.runtime.choices)
            kept = [str(key) for key in config if key != "hydra"]
            tree = OmegaConf.to_container(OmegaConf.masked_copy(config, kept), resolve=False)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(f"conf: {' '.join([name, *words])}: {_first_line(error)}") from error
    except RecursionError as error:
        place = " ".join([name, *words])
        raise UserError(f"conf: {place}: its `defaults` include themselves") from error
    assert isinstance(tree, dict)
    assert isinstance(choices, dict)
    check_resolvers(tree, "conf")
    chosen = {str(k): v for k, v in choices.items() if not str(k).startswith("hydra/")}
    return {str(key): value for key, value in tree.items()}, chosen


def check_resolvers(tree: Any, place: str = "", key: str = "") -> None:
    """Raises UserError for a text such as ${oc.env:HOME}, which says something else elsewhere, or
    what nobody was to read. `place` and `key` are how the error names the tree."""
    if isinstance(tree, str) and (found := RESOLVER.search(tree)):
        raise UserError(
            f"{': '.join(filter(None, (place, key)))}: {found[0]!r}: resolvers are refused, since "
            f"a configuration must mean the same everywhere; write the value"
        )
    parts: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, Mapping) else ()
    for name, part in enumerate(tree) if isinstance(tree, list) else parts:
        check_resolvers(name, place, key)
        check_resolvers(part, place, f"{key}.{name}" if key else f"{name}")


def _resolve(tree: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {_first_line(error)}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _by_arch(tree: dict[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that a recipe has for one architecture, taken out of the tree.

    Raises UserError where it has none for this one.
    """
    rows = tree.pop("by_arch")
    arch = str(values.get("model.arch", tree["model"]["arch"]))
    if not isinstance(rows, Mapping) or not all(isinstance(r, Mapping) for r in rows.values()):
        raise UserError("by_arch: expected SIZE/PATCH: {key: value, ...}, one per line")
    if arch not in rows:
        raise unknown("model.arch", arch, rows, "for this recipe one of")
    settings: Mapping[str, Any] = rows[arch]
    return settings


def _same_length(key: str) -> tuple[str, ...]:
    """The keys that say the same length as `key` does, in another unit."""
    return next((keys for keys in spec.LENGTHS if key in keys), ())


def _no_length_in_vain(tree: Mapping[str, Any], height: Mapping[str, int]) -> None:
    """Raises UserError for a length that has no effect beside another, unless that one was given
    over it: in a higher layer (`height`)."""
    for keys in spec.LENGTHS:
        given = [key for key in keys if value_at(tree, key) is not None]
        for key in given[1:]:
            first = given[0]
            if key in height and height[key] >= height.get(first, -1):
                both = height[key] == height.get(first)
                remedy = "give one of them" if both else f"leave it out, or add {first}=null"
                raise UserError(
                    f"{key}: {show(value_at(tree, key))} has no effect beside "
                    f"{first}={show(value_at(tree, first))}; {remedy}"
                )


def value_at(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; what lies on the way is copied, since composed trees are shared."""
    *parents, last = key.split(".")
    section = tree
    for n, parent in enumerate(parents):
        below = section.get(parent, {})
        if not isinstance(below, dict):
            raise UserError(f"{key}: {'.'.join(parents[: n + 1])} is a value, not a section")
        section[parent] = dict(below)
        section = section[parent]
    section[last] = value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _first_line(error: BaseException) -> str:
    """Hydra's message without the lines that point to its manual."""
    lines = [re.sub(r" expecting \{.*", "", line.strip()) for line in str(error).splitlines()]
    return next((line.rstrip(".:;") for line in lines if line), type(error).__name__)
