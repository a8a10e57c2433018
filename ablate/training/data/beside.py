"""Sets that are tested on beside a run's own (`eval.also`): their labels in the classes that are
learnt, and which of their images are trained on."""

from __future__ import annotations

import dataclasses
import hashlib

import torch

from ablate.shared.errors import UserError
from ablate.shared.sections import Data
from ablate.training.data.cached import Cached, Split

_AT_ONCE = 4096  # images


def renumbered(data: Data, cached: Cached, own: Data, learnt: Cached) -> tuple[list[int], str]:
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
            f"{place}: has {data.classes} classes, which are no names of classes of "
            f"data={own.name} ({own.classes} classes): "
            f"{_some(theirs)}; there: {_some(ours)}"
        )
    pairs = [*zip(theirs or [], ours or [], strict=False)]
    if moved := [a for a, b in pairs if a != b and (a in (ours or []) or b in (theirs or []))]:
        raise UserError(
            f"{place}: has the class {moved[0]!r} at another number than data={own.name}, and "
            f"classes that are not there: {_some(theirs)}; there: {_some(ours)}"
        )
    said = ""
    if other := next(((a, b) for a, b in pairs if a != b), None):
        said = (
            f"{place}: its classes are called otherwise ({other[0]} for {other[1]}) and are taken "
            f"by their numbers"
        )
    return [*range(data.classes)], said


def _some(names: list[str] | None) -> str:
    if names is None:
        return "no names"
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def in_classes(split: Split, numbers: list[int]) -> Split:
    """Its labels, by class numbers of its own, as those of `renumbered`."""
    return dataclasses.replace(split, labels=torch.tensor(numbers)[split.labels])


def shared_images(train: Split, other: Split) -> int:
    """How many images of `other` are in `train`, too, pixel for pixel.

    One row of an image tells most apart: the others' pages are never read.
    """
    middle = train.images.shape[1] // 2
    rows = {row.tobytes() for row in other.images[:, middle].numpy()}
    seen = set()
    for first in range(0, len(train), _AT_ONCE):
        images = train.images[first : first + _AT_ONCE]
        for image, row in zip(images, images[:, middle].numpy(), strict=True):
            if row.tobytes() in rows:
                seen.add(_digest(image))
    return sum(_digest(image) in seen for image in other.images) if seen else 0


def _digest(image: torch.Tensor) -> bytes:
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()
