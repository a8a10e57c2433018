"""Sets that are tested on beside a run's own (`eval.also`): their labels in the classes that are
learnt, and which of their images are trained on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from hashlib import blake2b

import torch

from ablate.data.splits import AnySplit, Cached, EncodedSplit
from ablate.data.stored_set import few
from ablate.shared.errors import UserError
from ablate.shared.sections import Data

_AT_ONCE = 4096  # images


def match_classes(data: Data, cached: Cached, own: Data, learnt: Cached) -> tuple[list[int], str]:
    """By class of the set `data`: the number of that class among those that are learnt, of `own`;
    and, where their names can't be told to be the same, what is taken for the same, in words.

    Classes of one name are one class. Sets that are called otherwise, or not at all, agree by
    number. Raises UserError for sets that agree in neither way.
    """
    theirs, ours = cached.class_names, learnt.class_names
    if theirs is not None and ours is not None and {*theirs} <= {*ours}:
        return [ours.index(name) for name in theirs], ""
    place = f"eval.also: {data.name}"
    if data.classes != own.classes:
        raise UserError(
            f"{place}: its {data.classes} classes ({_some(theirs)}) are not among the "
            f"{own.classes} of data={own.name} ({_some(ours)}); rename the classes, or leave the "
            f"set out"
        )
    pairs = [*zip(theirs or [], ours or [], strict=False)]
    if moved := [a for a, b in pairs if a != b and (a in (ours or []) or b in (theirs or []))]:
        raise UserError(
            f"{place}: the class {moved[0]!r} has another number than in data={own.name}, and not "
            f"all class names agree ({_some(theirs)}; there {_some(ours)}); give equal names to "
            f"equal classes"
        )
    said = ""
    if other := next(((a, b) for a, b in pairs if a != b), None):
        said = (
            f"{place}: its classes have other names ({other[0]} for {other[1]}) and are matched by "
            f"their numbers"
        )
    return [*range(data.classes)], said


def check_names(data: Data, names: Sequence[str] | None) -> list[str]:
    """What is to be said where texts ask for the classes of a set of `eval.also`, by these names.
    Raises UserError where it has none."""
    place = f"eval.also: {data.name}"
    if names is None:
        raise UserError(
            f"{place}: texts ask for classes by their names, and those of this set have none; give "
            f"a folder for each class, or leave the set out"
        )
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        return [
            f"{place}: its classes are called by WordNet's ids, and texts ask for them so "
            f"({names[0]!r} for the first); give the folders names in words"
        ]
    return []


def _some(names: list[str] | None) -> str:
    return "no names" if names is None else few(names, 5)


def relabel(split: AnySplit, numbers: list[int]) -> AnySplit:
    """Its labels, by class numbers of its own, as those of `match_classes`."""
    return dataclasses.replace(split, labels=torch.tensor(numbers)[split.labels])


def shared_images(
    train: AnySplit, other: AnySplit, beat: Callable[[int], None] = lambda row: None
) -> int:
    """How many images of `other` are in `train`, too, pixel for pixel; where files' own bytes are
    kept, byte for byte. `beat`: told from time to time which row of `train` is looked at."""
    assert isinstance(train, EncodedSplit) == isinstance(other, EncodedSplit)
    marks, seen = {*other.marks()}, set()  # which tell most images apart: no more is read of these
    for row, mark in enumerate(train.marks()):
        if row % _AT_ONCE == 0:
            beat(row)
        if mark in marks:
            seen.add(blake2b(train.kept(row)).digest())
    if not seen:
        return 0
    return sum(blake2b(other.kept(row)).digest() in seen for row in range(len(other)))
