"""The definition of a run. Plain values and the standard library only.

Both halves import this file: the control half to say what the user asked for, the training half to
read it back from `run.json`. `build` makes a `Run` from a plain tree; `checks` checks its fields
against one another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from ablate.shared import metrics, own
from ablate.shared.choices import CHOICES, OPTIMIZERS
from ablate.shared.idle import without_idle
from ablate.shared.parts import PART_KINDS, PROBE
from ablate.shared.schema import Key, added_fields, field_types
from ablate.shared.sections import (
    Augment,
    Chosen,
    Data,
    Eval,
    Model,
    Optim,
    OwnProbes,
    Text,
    Train,
    Weights,
    Whole,
)


@dataclass(frozen=True)
class Run:
    """A single training: recipe + variant + seed."""

    data: Data
    model: Model | Whole
    norm: Chosen | None  # of the shipped model: a whole model brings its own
    stem: Chosen | None
    block: Chosen | None
    optim: Optim
    train: Train
    augment: Augment
    eval: Eval
    seed: Annotated[int, Key("key of every random draw of the training", least=0)]
    # It changes no weight, yet it is part of the id: a finished run without a probe's file is
    # another run than one that has it.
    probe: Annotated[
        tuple[str, ...],
        Key(
            "probes: measurements besides the metrics, a list",
            form="a list such as [gradnorm,scales]",
        ),
    ] = ()
    task: Annotated[str, Key("the task to learn, one of `metrics.TASKS`")] = metrics.DEFAULT_TASK
    # The weights at the first step: those that its parent ended with, or those of a file.
    parent: Run | None = None
    weights: Weights | None = None
    own_probes: OwnProbes | None = None  # of those in `probe` that are the user's own
    text: Text | None = None  # of a task that reads texts
    # Notes of its recipe, in addition to its source; not part of the id.
    inferred: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id: 16 hex digits of a sha256 of what the training depends on. Data counts by its
        content, a parent by what its own id is made of."""
        return run_id(identity(self), self.seed)


class ShippedRun(Run):
    """A run of the shipped model: a type for those who read the model's parts. It is never
    instantiated."""

    model: Model
    norm: Chosen
    stem: Chosen
    block: Chosen


def shipped(run: Run) -> ShippedRun:
    """Return the run as a `ShippedRun`. The caller has checked that it is of the shipped model."""
    assert isinstance(run.model, Model)
    return cast(ShippedRun, run)


# Part of the id of every run that takes steps. Increased when the same configuration would train
# differently.
DRAWS = 2

# Keys left out of a run's tree where they have their defaults.
LEFT_OUT = ("task", "parent", "weights", "own_probes", "text", "inferred", "not_followed")

# Keys that composition derives from others: nobody types them.
UNTYPED = ("parent", "weights", "own_probes", "inferred", "not_followed")

# Fields that are not part of the id: places of files, and names for what other fields say in full.
NOT_IDENTITY = {
    ("data", "path"),
    ("data", "rows"),
    ("data", "overlap"),
    ("model", "arch"),
    ("own_probes", "folder"),
    *((kind.section, kind.computed[1]) for kind in PART_KINDS if kind is not PROBE),
}


def identity(run: Run) -> str:
    """Return canonical JSON of everything in the id but the seed: equal for all seeds of a cell."""
    return tree_identity(to_tree(run))


def tree_identity(tree: Mapping[str, Any]) -> str:
    """Return the `identity` of a run from the tree that `to_tree` made, or from a cell's tree,
    which has no seed. A field of a section is left out where it has its default, so that fields can
    be added and ids stay."""
    if own.is_own(tree):
        return own.identity(tree)
    excluded_keys = ("seed", "probe", *LEFT_OUT)
    content = {key: value for key, value in effective(tree).items() if key not in excluded_keys}
    if trains(tree):
        content["train"] = {**content["train"], "draws": DRAWS}
        if _may_split(tree["train"]):
            content["train"]["sum"] = "tree"
    extra = {"probe": tree["probe"]} if tree.get("probe") else {}
    if (probes := tree.get("own_probes")) is not None:
        extra["own_probes"] = probes["versions"]
    if task_of(tree) != metrics.DEFAULT_TASK:
        extra["task"] = tree["task"]
    if (parent := tree.get("parent")) is not None:
        extra["parent"] = json.loads(tree_identity(parent))
        if parent.get("seed") not in (None, tree.get("seed")):
            extra["parent"]["seed"] = parent["seed"]
    if (weights := tree.get("weights")) is not None:
        extra["weights"] = {key: value for key, value in weights.items() if key != "path"}
    if (text := tree.get("text")) is not None:
        extra["text"] = {key: value for key, value in text.items() if key != "arch"}
    content = {
        section: _identity_fields(section, settings) for section, settings in content.items()
    }
    if also := also_of(tree):
        content["eval"]["also"] = [_identity_fields("data", data) for data in also]
    return json.dumps(content | extra, sort_keys=True, separators=(",", ":"))


def _may_split(train: Mapping[str, Any]) -> bool:
    """Return whether a batch may be four micro-batches or more, whose gradients are summed in a
    tree."""
    micro = train["micro_batch"]
    return micro == "auto" or (micro is not None and train["batch"] >= 4 * micro)


def _identity_fields(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a section of a run's tree that are part of its id, but for the sets of
    `eval.also`."""
    defaults = _added_in(section, settings)
    return {
        key: value
        for key, value in settings.items()
        if (section, key) not in NOT_IDENTITY
        and (section, key) != ("eval", "also")
        and not (key in defaults and value == defaults[key])
    }


def seeded(tree: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the whole tree of a cell's run with this seed. A parent without a seed of its own
    takes its child's."""
    run_tree = {**tree, "seed": seed}
    if (parent := tree.get("parent")) is not None:
        run_tree["parent"] = seeded(parent, parent.get("seed", seed))
    return run_tree


def pinned(tree: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a cell's tree in which a parent without a seed of its own has this one."""
    if (parent := tree.get("parent")) is None:
        return dict(tree)
    return {**tree, "parent": {"seed": seed, **parent}}


def unseeded(run_tree: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a cell from that of one of its runs, without the run's seed. A parent
    keeps its seed only where it has one in `like`, a tree of the same cell."""
    tree = {key: value for key, value in run_tree.items() if key != "seed"}
    if (parent := tree.get("parent")) is not None:
        alike = like["parent"]
        pinned = {"seed": parent["seed"]} if "seed" in alike else {}
        tree["parent"] = unseeded(parent, alike) | pinned
    return tree


def ids_of(tree: Mapping[str, Any], seeds: Iterable[int]) -> dict[int, str]:
    """Return the id of every run of a cell by seed, given the cell's tree."""
    if tree.get("parent") is not None:  # it may be a certain one: then it counts whose it is
        return {s: run_id(tree_identity(seeded(tree, s)), s) for s in seeds}
    identity = tree_identity(tree)
    return {seed: run_id(identity, seed) for seed in seeds}


def task_of(tree: Mapping[str, Any]) -> str:
    """Return the name of the task in the plain tree of a run."""
    return own.task_name(tree) if own.is_own(tree) else str(tree.get("task", metrics.DEFAULT_TASK))


def task_in(tree: Mapping[str, Any]) -> metrics.TaskChoice:
    """Return the task of the plain tree of a run. Raise LookupError where it is not known here."""
    return own.task(tree) if own.is_own(tree) else metrics.TASKS[task_of(tree)]


def also_of(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the sections of the sets on which a run of the plain tree is tested in addition to its
    own."""
    return list(tree.get("eval", {}).get("also", ()))


def datasets_of(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the sections of all sets that a run of the plain tree reads, its own first. [] for a
    trainer of the user's own, which reads what it likes."""
    return [] if own.is_own(tree) else [tree["data"], *also_of(tree)]


def trains(tree: Mapping[str, Any]) -> bool:
    """Return whether the run of the plain tree takes steps. A task that is not known here is
    assumed to."""
    task = metrics.TASKS.get(task_of(tree))
    return task is None or task.trains


def classes_of(tree: Mapping[str, Any]) -> int:
    """Return the number of classes of the data in the plain tree of a run; 0 where the tree names
    no data."""
    return 0 if own.is_own(tree) else int(tree["data"]["classes"])


def guesses_of(tree: Mapping[str, Any]) -> int:
    """Return the number of classes among which a guess chooses in the test of the run of the plain
    tree."""
    task = metrics.TASKS.get(task_of(tree))
    learnt = classes_of(tree)
    return learnt if task is None else task.among(learnt, tree["data"].get("test_classes"))


def last_measured(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the last line of `metrics.jsonl` says of a run's result: step, training loss,
    scores on validation."""
    line = lines[-1] if lines else {}
    scores = {name[4:]: line[name] for name in line if name.startswith("val_")}
    return {"step": line.get("step"), "train_loss": line.get("train_loss"), "validation": scores}


def effective(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a run without what has no effect in it: keys that nothing reads and, where
    the run takes no steps, keys of how steps are taken."""
    tree = without_idle(tree)
    if trains(tree):
        return tree
    evaluated = {key: value for key, value in tree["eval"].items() if key != "every"}
    return {
        **{key: value for key, value in tree.items() if key != "optim"},
        "train": {key: tree["train"][key] for key in ("precision", "deterministic")},
        "augment": tree["augment"] if evaluated.get("augment") else {},
        "eval": evaluated,
    }


def as_read(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a run, and of its ancestors in it, without the keys of `optim` that only
    other optimisers read."""
    reduced_tree = dict(tree)
    if "optim" in tree:
        moves = OPTIMIZERS.get(str(tree["optim"]["name"]))
        all_keys = {key for optimizer in OPTIMIZERS.values() for key in optimizer.keys}
        idle = all_keys - {*(moves.keys if moves else ())}
        reduced_tree["optim"] = {
            key: value for key, value in tree["optim"].items() if key not in idle
        }
    if tree.get("parent") is not None:
        reduced_tree["parent"] = as_read(tree["parent"])
    return reduced_tree


def run_id(identity: str, seed: int) -> str:
    """Return the id of one seed of a cell, given the cell's `identity`."""
    return hashlib.sha256(f"{identity}#{seed}".encode()).hexdigest()[:16]


def to_tree(spec: Any) -> dict[str, Any]:
    """Return a spec as plain dicts, for JSON. A choice is written flat: name and settings. A field
    in LEFT_OUT is missing where it has its default."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if isinstance(spec, Run) and field.name in LEFT_OUT and value == field.default:
            continue
        if isinstance(spec, Run) and field.name in CHOICES and value is None:
            continue
        if isinstance(value, Chosen):
            plugin_fields = dataclasses.asdict(value.plugin) if value.plugin else {}
            tree[field.name] = {"name": value.name, **plugin_fields, **value.settings}
        elif isinstance(value, Whole):
            tree[field.name] = whole_tree(value)
        elif dataclasses.is_dataclass(value):
            tree[field.name] = to_tree(value)
        else:
            tree[field.name] = list(map(_plain, value)) if isinstance(value, tuple) else value
    return tree


def whole_tree(model: Whole) -> dict[str, Any]:
    """Return the section of a whole model: its settings next to the fields that every one has."""
    fields = {key: value for key, value in vars(model).items() if key != "settings"}
    return {**fields, **model.settings}


def _plain(value: Any) -> Any:
    return to_tree(value) if dataclasses.is_dataclass(value) else value


def _added_in(section: str, tree: Any) -> dict[str, Any]:
    """Return the `added_fields` of a section of a run's tree; {} for a choice and a whole model."""
    if section == "model":
        return {} if "name" in tree else added_fields(Model)
    return {} if section in CHOICES else added_fields(field_types(Run)[section])
