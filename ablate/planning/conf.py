"""The groups of `conf`, as Hydra composes them: ours, the user's, and those of spec's tables.

Used by `planning/compose.py` and `planning/sweep_file.py`, for every command that makes a plan, and
by `report/listing.py` (`ablate list`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.planning.launcher import LAUNCHERS, launcher_params
from ablate.run import CHOICES, TRAINER, Param
from ablate.shared import UserError

RESOLVER = re.compile(r"\$\{\s*[\w.]+\s*:[^{}\s]*\}?")  # not ${key.of.the.config}
VARIABLE = re.compile(r"\$\{oc\.env:\w+\}")
# Keys of where data lie, which is no part of a run's id. A trainer's key of this name is a setting
# like any other.
_PLACE = re.compile(r"(?!.*\btrainer\b)(.*\.)?data\.path")
_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_folder(name: str) -> Path:
    """Return the shipped folder `conf` or `sweeps`: in the package (a wheel), else next to it."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def user_conf_folder() -> Path | None:
    """Return the folder `./conf`; None where it is another Hydra application's.

    A config at its top marks it as such. Only the trainers of such a folder are read.
    """
    return None if any(Path("conf").glob("*.yaml")) else Path("conf")


@functools.cache
def _search_user_conf_first() -> None:
    """Register, once, a plugin that puts the current `./conf` before ours on Hydra's search path.

    (`hydra.searchpath` in a config would put it last.)
    """
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserConf(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            user = user_conf_folder()
            if user is not None and user.is_dir() and user.resolve() != shipped_folder("conf"):
                search_path.prepend(provider="user", path=f"file://{user.resolve()}")

    Plugins.instance().register(UserConf)


_stored: dict[str, dict[str, dict[str, Any]]] = {}  # the part of `generated` in Hydra's store


@contextlib.contextmanager
def hydra_on_conf() -> Iterator[None]:
    """Initialise Hydra on our folder, the user's, and the groups that spec's tables generate."""
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    _search_user_conf_first()
    store = ConfigStore.instance()
    for kind, options in generated().items():
        if _stored.get(kind) == options and kind in store.repo:
            continue
        store.repo.pop(kind, None)  # it is global, and would keep old options
        for name, node in options.items():
            store.store(group=kind, name=name, node=node, provider="ablate")
        _stored[kind] = options
    store.repo.pop(TRAINER, None)
    if user_conf_folder() is None:
        for name, section in other_app_trainers().items():
            store.store(group=TRAINER, name=name, node=section, provider="user")
    OmegaConf.clear_resolver("oc.env")  # Hydra would resolve it in a list of defaults
    try:
        with initialize_config_dir(str(shipped_folder("conf")), version_base="1.3"):
            yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env)


def other_app_trainers() -> dict[str, Any]:
    """Read the trainers in a `./conf` that is another application's: name -> section.

    Options of a group `trainer` that is that application's own are left out.
    """
    sections = {file.stem: _loaded(file) for file in Path("conf", TRAINER).glob("*.yaml")}
    return {
        name: section
        for name, section in sections.items()
        if not section or "command" in section or {"name", "metrics"} <= {*section}
    }


def _loaded(file: Path) -> Any:
    from omegaconf import OmegaConf

    with hydra_errors(str(file)):
        return OmegaConf.load(file)


def generated() -> dict[str, dict[str, dict[str, Any]]]:
    """Return kind -> name -> the section that choosing it makes: its name and its defaults.

    Options that have a file are left out: Hydra would take the section for that file's schema.
    """
    folders = [*filter(None, (shipped_folder("conf"), user_conf_folder()))]
    tables: dict[str, dict[str, Mapping[str, Param]]] = {
        **{k: {name: c.params for name, c in table.items()} for k, table in CHOICES.items()},
        "launcher": {name: launcher_params(name) for name in LAUNCHERS},
    }
    return {
        kind: {
            name: {"name": name, **{key: p.default for key, p in params.items()}}
            for name, params in table.items()
            if not any((folder / kind / f"{name}.yaml").exists() for folder in folders)
        }
        for kind, table in tables.items()
    }


def compose_config(name: str, words: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a config's plain tree, interpolations unresolved, and the choice of each group.

    Raises UserError for whatever Hydra refuses, and for resolvers.
    """
    from hydra import compose
    from omegaconf import OmegaConf

    with hydra_errors(f"conf: {' '.join([name, *words])}"), hydra_on_conf():
        config = compose(name, words, return_hydra_config=True)
    group_choices = {str(group): choice for group, choice in config.hydra.runtime.choices.items()}
    keys = [str(key) for key in config if key != "hydra"]
    container: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, keys), resolve=False)
    tree = {str(key): value for key, value in container.items()}
    choices = {k: choice for k, choice in group_choices.items() if not k.startswith("hydra/")}
    check_resolvers(tree, "conf")
    return tree, choices


@contextlib.contextmanager
def hydra_errors(place: str) -> Iterator[None]:
    """Raise the errors of Hydra and of the libraries below it as UserError, `place` first."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise UserError(f"{place}: {first_line(error)}") from error
    except RecursionError as error:
        raise UserError(f"{place}: its `defaults` include themselves") from error


DEEP = 50  # most levels of a file
MOST_VALUES = 100_000  # values of a word, combinations of a sweep, nodes of a file: more is a slip


def check_yaml(path: Path, place: str) -> None:
    """Raise UserError where loading the file would fill the memory or the stack.

    Aliases (`*name`) count as the values that they stand for. Other mistakes are left to the
    loader.
    """
    import yaml

    sizes: dict[str | None, int] = {}  # anchor -> number of values in its node
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
                    if any(anchor == open_anchor for open_anchor, _ in open_nodes):
                        raise UserError(
                            f"{place}: the alias *{anchor} is inside its own anchor &{anchor}"
                        )
                    size = sizes.get(anchor, 1)
                sizes[anchor] = size
                above, so_far = open_nodes.pop()
                open_nodes.append((above, so_far + size))
            if len(open_nodes) > DEEP or open_nodes[-1][1] > MOST_VALUES:
                raise UserError(
                    f"{place}: more than {MOST_VALUES:,} values or {DEEP} levels, aliases (*name) "
                    f"expanded"
                )
    except (yaml.YAMLError, OSError):
        return


def check_resolvers(tree: Any, place: str = "", key: str = "") -> None:
    """Raise UserError for a text such as ${oc.env:HOME}.

    It would mean something else elsewhere, or disclose what nobody should read. Only `data.path`
    may have variables. `place` and `key`: how the error names the tree.
    """
    if isinstance(tree, str) and (match := RESOLVER.search(tree)):
        if _PLACE.fullmatch(key) and not RESOLVER.search(VARIABLE.sub("", tree)):
            return
        raise UserError(
            f"{': '.join(filter(None, (place, key)))}: {match[0]!r}: resolvers are refused, since "
            f"a configuration must mean the same everywhere; write the value"
        )
    parts: Iterable[tuple[Any, Any]] = tree.items() if isinstance(tree, Mapping) else ()
    for name, part in enumerate(tree) if isinstance(tree, list) else parts:
        check_resolvers(name, place, key)
        check_resolvers(part, place, f"{key}.{name}" if key else f"{name}")


def interpolate(tree: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {first_line(error)}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def first_line(error: BaseException) -> str:
    """Return the first line of Hydra's message, without its lists of what the grammar expects."""
    lines = [re.sub(r" expecting \{.*", "", line.strip()) for line in str(error).splitlines()]
    return next((line.rstrip(".:;") for line in lines if line), type(error).__name__)
