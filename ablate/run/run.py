"""A run as values: its sections, with types. Plain values and the standard library only.

Both halves import this file: the control half to say what the user asked for, the training half to
read it back from `run.json`. `build` makes a `Run` from a plain tree; `checks` checks its fields
against one another; `spec` answers questions about the tree. A new field of `Run` also needs a
place in spec.LEFT_OUT, so that the ids of runs without it stay as they are.

Used by run/build.py, which makes every `Run`, and by the whole training half.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from ablate.run import metrics
from ablate.run.choices import CHOICES
from ablate.run.schema import Key
from ablate.run.sections import (
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
from ablate.run.spec import LEFT_OUT, OwnSpec, ShippedSpec


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
    # not the run that has it.
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
    # What the recipe says of itself, in lines of text: settings that its source does not state and
    # that were inferred, and what of the source it does not follow. Not part of the id.
    inferred: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()

    @property
    def spec(self) -> ShippedSpec:
        """The run as a plain tree."""
        return ShippedSpec(to_tree(self))

    @property
    def id(self) -> str:
        """The id of `spec`."""
        return self.spec.id


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


@dataclass(frozen=True)
class OwnRun:
    """A training by a function or a command of the user's own. The fields are the sections of its
    tree.

    trainer: `name` ("module:function", or the command) and its settings.
    keys: the values that each setting may have.
    metrics: what it measures.
    code: the files that are run (by path, a hash), the distributions that they import, the folder
    in which they lie, and whether a process with torch loaded may run them. The code of a command
    also has its `program`, as declared, and the hashes of its `data`.
    """

    trainer: Mapping[str, Any]
    keys: Mapping[str, Mapping[str, Any]]
    metrics: tuple[Mapping[str, Any], ...]
    code: Mapping[str, Any]
    seed: int

    @property
    def spec(self) -> OwnSpec:
        return OwnSpec(to_tree(self))


# Keys that composition derives from others: nobody types them.
UNTYPED = ("parent", "weights", "own_probes", "inferred", "not_followed")


def to_tree(run: Any) -> dict[str, Any]:
    """Return a run, or a section of one, as plain dicts, for JSON. A choice is written flat: name
    and settings. A field in LEFT_OUT is missing where it has its default."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(run):
        value = getattr(run, field.name)
        if isinstance(run, Run) and field.name in LEFT_OUT and value == field.default:
            continue
        if isinstance(run, Run) and field.name in CHOICES and value is None:
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
