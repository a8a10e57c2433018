"""A run that starts from another: which settings are its parent's, and what it has of it.

`from.KEY` is a key of the parent, `from.from.KEY` of the parent's own. What is said of the model
holds for parent and child: so a child has the model of its parent, whatever the recipes of the two
say of models, but for what is no matter of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ablate.planning.cell import spec_parents
from ablate.planning.settings import Layers, SettingsLayer
from ablate.shared import CHOICES, DEFAULT_TASK, TASKS, UserError, is_whole, unknown_value

FROM_PREFIX = "from."
SHARED = ("model", *CHOICES)  # sections, and groups, of both
OWN = TASKS[DEFAULT_TASK].says  # keys of `model` that a child says for itself
OWN_OF_ANY = tuple({key: None for task in TASKS.values() for key in task.says})
OF_FILE = ("weights", "names")  # keys of a start from a file


def split(layers: Layers) -> tuple[list[SettingsLayer], list[SettingsLayer]]:
    """(the run's own layers, those of its parent: [] where no key says that there is one). Raises
    UserError for keys that only a composed tree has."""
    for key in (key for layer in layers for key in layer.settings):
        if key.partition(".")[0] in ("parent", "weights"):
            raise UserError(
                f"{key}: no such key; what a run starts from is said by {FROM_PREFIX}KEY"
            )
    own = [
        SettingsLayer(layer.place, {k: v for k, v in layer.settings.items() if not _above(k)})
        for layer in layers
    ]
    if not any(_above(key) for layer in layers for key in layer.settings):
        return own, []
    above = []
    for layer in layers:
        check_once(layer.settings, layer.place)
        shared = {k: v for k, v in layer.settings.items() if k.partition(".")[0] in SHARED}
        said = {k.removeprefix(FROM_PREFIX): v for k, v in layer.settings.items() if _above(k)}
        above.append(SettingsLayer(layer.place, shared | said))
    return own, above


def check_once(settings: Mapping[str, Any], place: str) -> None:
    """Raises UserError where a key that parent and child share has two values on one level."""
    said: dict[str, str] = {}
    for key, value in settings.items():
        first = said.setdefault(bare(key), key)
        if _is_shared(bare(key), OWN_OF_ANY) and settings[first] != value:
            above = f"{place}: " if place else ""
            raise UserError(
                f"{above}{first} is {settings[first]!r}, but {key} is {value!r}: a run has the "
                f"model of the one that it starts from; leave one of them out"
            )


def bare(key: str) -> str:
    """The key, in whichever run of the chain it is set: `data.path` of `from.from.data.path`."""
    while _above(key):
        key = key.removeprefix(FROM_PREFIX)
    return key


def _above(key: str) -> bool:
    return key.startswith(FROM_PREFIX)


@contextmanager
def of_parent() -> Iterator[None]:
    """A UserError inside is about a key of the parent."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{FROM_PREFIX}{error}") from error


def descend(
    tree: dict[str, Any], above: Layers, compose: Callable[[Layers], dict[str, Any]]
) -> None:
    """Put into the composed tree of a run what it starts from. `compose`: the tree of layers.

    Raises UserError as `compose` does, and where a run would start from two things.
    """
    said = {key: value for layer in above for key, value in layer.settings.items()}
    if "weights" in said:
        for key in said:
            if key not in OF_FILE and key.partition(".")[0] not in SHARED:
                raise unknown_value(f"{FROM_PREFIX}{key}", key, OF_FILE, "with from.weights one of")
        tree["model"] = _headless(tree["model"])
        tree["weights"] = {"names": "ablate"} | {k: said[k] for k in OF_FILE if k in said}
        return
    with of_parent():
        parent = compose(above)
    if "seed" not in said:  # its child's
        del parent["seed"]
    tree["parent"] = parent
    task = TASKS.get(str(tree.get("task")))
    keys = OWN if task is None else task.says
    whole = is_whole(parent["model"])
    own = {} if whole else {key: tree["model"][key] for key in keys if key in tree["model"]}
    tree["model"] = _headless({**parent["model"], **own})
    for kind in CHOICES:
        tree.pop(kind, None)
        tree |= {kind: parent[kind]} if kind in parent else {}


def _headless(model: Mapping[str, Any]) -> dict[str, Any]:
    """The section of a model whose head starts anew."""
    return dict(model) if is_whole(model) else {**model, "head_bias": 0.0}


def is_of_parent(key: str) -> bool:
    """Does a run start from another one where this key has another value?"""
    bare = key.removeprefix(FROM_PREFIX)
    return _above(key) or _is_shared(bare)


def trees_of(tree: Mapping[str, Any], key: str) -> tuple[list[Mapping[str, Any]], str]:
    """The trees in which a key is set, of a run's and those that it starts from, and its name
    there: `from.KEY` is set in the parent's, a key of the model in all. [] where no run has it."""
    chain, depth = [tree, *spec_parents(tree)], 0
    while _above(key):
        key, depth = key.removeprefix(FROM_PREFIX), depth + 1
    return (chain if _is_shared(key) else chain[depth : depth + 1]), key


def _is_shared(key: str, own: Collection[str] = OWN) -> bool:
    return key.partition(".")[0] in SHARED and key not in [f"model.{each}" for each in own]
