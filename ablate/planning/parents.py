"""Runs that start from another run: which settings are their parent's, and what they inherit.

`from.KEY` is a key of the parent, `from.from.KEY` of the parent's own parent. Settings of the model
hold for parent and child: a child has the model of its parent, whatever the recipes of the two say
of models, apart from the settings that don't concern weights.

Used by `planning/compose.py` for every command that makes a plan, and by `planning/tuning.py` and
`planning/search.py` for `from.tune`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ablate.planning.settings import Layers, SettingsLayer, bare, value_text
from ablate.run import (
    CHOICES,
    DEFAULT_TASK,
    TASKS,
    RunSpec,
    is_whole,
)
from ablate.shared import UserError, unknown_value

FROM_PREFIX = "from."
SHARED_SECTIONS = ("model", *CHOICES)  # sections and groups that parent and child share
CHILD_KEYS = TASKS[DEFAULT_TASK].says  # keys of `model` that a child sets for itself
OWN_OF_ANY = tuple({key: None for task in TASKS.values() for key in task.says})
OF_FILE = ("weights", "names")  # keys of `from` for a start from a file of weights


def split(layers: Layers) -> tuple[list[SettingsLayer], list[SettingsLayer]]:
    """Return (the run's own layers, those of its parent).

    The latter are [] where no key declares a parent. Raises UserError for keys that only a composed
    tree has.
    """
    for key in (key for layer in layers for key in layer.settings):
        if key.partition(".")[0] in ("parent", "weights"):
            raise UserError(
                f"{key}: no such key; what a run starts from is said by {FROM_PREFIX}KEY"
            )
    own_layers = [
        SettingsLayer(layer.place, {k: v for k, v in layer.settings.items() if not _above(k)})
        for layer in layers
    ]
    if not any(_above(key) for layer in layers for key in layer.settings):
        return own_layers, []
    above = []
    for layer in layers:
        check_once(layer.settings, layer.place)
        shared_settings = {
            k: v for k, v in layer.settings.items() if k.partition(".")[0] in SHARED_SECTIONS
        }
        parent_settings = {
            k.removeprefix(FROM_PREFIX): v for k, v in layer.settings.items() if _above(k)
        }
        above.append(SettingsLayer(layer.place, shared_settings | parent_settings))
    return own_layers, above


def check_once(settings: Mapping[str, Any], place: str) -> None:
    """Raise UserError where a key that parent and child share has two values on one level."""
    first_keys: dict[str, str] = {}
    for key, value in settings.items():
        sibling = first_keys.setdefault(bare(key), key)
        if _is_shared(bare(key), OWN_OF_ANY) and settings[sibling] != value:
            above = f"{place}: " if place else ""
            raise UserError(
                f"{above}{sibling} is {settings[sibling]!r}, but {key} is {value!r}: a run has the "
                f"model of the one that it starts from; leave one of them out"
            )


def _above(key: str) -> bool:
    return key.startswith(FROM_PREFIX)


@contextmanager
def of_parent() -> Iterator[None]:
    """Mark a UserError raised in the block as one about a key of the parent."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{FROM_PREFIX}{error}") from error


def descend(
    tree: dict[str, Any], above: Layers, compose: Callable[[Layers], dict[str, Any]]
) -> None:
    """Put the parent, or the weights, that a run starts from into its composed tree.

    `compose`: makes the tree of layers. Raises UserError as `compose` does, where a run would start
    from two things, and for a typed bias of a head that starts at zero.
    """
    settings = {key: value for layer in above for key, value in layer.settings.items()}
    if "weights" in settings:
        for key in settings:
            if key not in OF_FILE and key.partition(".")[0] not in SHARED_SECTIONS:
                raise unknown_value(f"{FROM_PREFIX}{key}", key, OF_FILE, "with from.weights one of")
        typed = {k: v for layer in above if not layer.place for k, v in layer.settings.items()}
        if (bias := typed.get("model.head_bias", 0)) != 0 and not is_whole(tree["model"]):
            raise UserError(
                f"model.head_bias: {value_text(bias)} has no effect with from.weights, whose head "
                f"starts at zero; leave it out"
            )
        tree["model"] = _headless(tree["model"])
        tree["weights"] = {"names": "ablate"} | {k: settings[k] for k in OF_FILE if k in settings}
        return
    with of_parent():
        parent = compose(above)
    if "seed" not in settings:  # it is that of its child
        del parent["seed"]
    tree["parent"] = parent
    task = TASKS.get(str(tree.get("task")))
    keys = CHILD_KEYS if task is None else task.says
    has_whole_model = is_whole(parent["model"])
    own_settings = (
        {} if has_whole_model else {key: tree["model"][key] for key in keys if key in tree["model"]}
    )
    tree["model"] = _headless({**parent["model"], **own_settings})
    for kind in CHOICES:
        tree.pop(kind, None)
        tree |= {kind: parent[kind]} if kind in parent else {}


def _headless(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of a model whose head starts anew."""
    return dict(model) if is_whole(model) else {**model, "head_bias": 0.0}


def is_of_parent(key: str) -> bool:
    """Return whether another value of this key would make a run start from another run."""
    bare = key.removeprefix(FROM_PREFIX)
    return _above(key) or _is_shared(bare)


def trees_of(spec: RunSpec, key: str) -> tuple[list[Mapping[str, Any]], str]:
    """Return the trees of a spec in which a key is set, and its name there.

    `from.KEY` is set in the parent's tree; a key of the model in the run's and those of all runs
    that it starts from. The list is [] where no run has the key.
    """
    chain, depth = [spec.tree, *(parent.tree for parent in spec.ancestors())], 0
    while _above(key):
        key, depth = key.removeprefix(FROM_PREFIX), depth + 1
    return (chain if _is_shared(key) else chain[depth : depth + 1]), key


def _is_shared(key: str, child_keys: Collection[str] = CHILD_KEYS) -> bool:
    return key.partition(".")[0] in SHARED_SECTIONS and key not in [
        f"model.{name}" for name in child_keys
    ]
