"""Augmentations by import path, `augment.extra`: called with the images of a global batch.

An augmentation gets images float32 (B, H, W, C) in [0, 1], whatever `model.input` is, and a
`Chance`, from which it draws the numbers for each image. It returns images of the same shape. It
runs after the changes of levels and geometry (crop, flip, RandAugment) and before erasing and
mixing.

Used by training/training.py in every step of a run that has some, and by training/answers.py, which
tries them before `ablate sweep` starts. Another argument also needs a change of run/parts.py
`AUGMENTATION` and templates/augmentation.py.txt.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from ablate.data import Draws, constants_on, normal_of, uniform_of
from ablate.run import (
    Augment,
    Run,
    UsedPart,
    own_parts,
    part_name,
)
from ablate.shared import UserError
from ablate.training.plugin import blame, make_part

AT_ONCE = 1 << 20  # numbers that a step keeps for the next, at most


class Chance:
    """The random numbers of an augmentation in a step: B rows, one for each image of the batch.

    A number depends on (seed, the augmentation's name, how many times it has drawn, step, row)
    alone, so it is the same on every device, for every split of the batch, and in a resumed run.
    """

    def __init__(self, draws: Draws, name: str, step: int, batch: int) -> None:
        self._draws, self._name, self._step, self._batch = draws, name, step, batch
        self._draw_count = 0

    def uniform(self, *shape: int) -> Tensor:
        """Draw from U[0, 1), float32 (B, *shape)."""
        purpose, count = self._next_purpose(), prod(shape)
        if count * self._batch <= AT_ONCE:
            numbers = self._draws.uniform(purpose, self._step, count, self._batch).T
        else:
            rows = max(1, AT_ONCE // count)
            parts = []
            for start in range(0, self._batch, rows):
                part_rows = range(start, min(start + rows, self._batch))
                words = self._draws.words(purpose, self._step, part_rows, count)[0]
                parts.append(uniform_of(words).T)
            numbers = torch.cat(parts)
        return numbers.reshape(self._batch, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Draw from N(0, 1), float32 (B, *shape): one of 65,536 values within +-4.33."""
        lanes = self._draws.lanes(self._next_purpose(), self._step, range(self._batch), prod(shape))
        return normal_of(lanes).reshape(self._batch, *shape)

    def _next_purpose(self) -> str:
        self._draw_count += 1
        return f"extra {self._name} {self._draw_count}"


Augmentation = Callable[[Tensor, Chance], Tensor]


class Augmentations:
    """The augmentations of a run, one after the other."""

    def __init__(self, augment: Augment) -> None:
        """Make the augmentations. Raises UserError where one can't be made."""
        self._augmentations = [
            (used, make_part(used)) for used in own_parts("augment.extra", augment)
        ]

    def __bool__(self) -> bool:
        return bool(self._augmentations)

    @torch.no_grad()
    def __call__(self, images: Tensor, draws: Draws, step: int) -> Tensor:
        """Return the augmented images: uint8 (B, H, W, C) to float32 levels of that shape, which
        needn't be whole numbers. Raises UserError where an augmentation returns no such batch."""
        levels = constants_on((255.0,), images.device)
        shares = images.to(torch.float32).div_(levels)
        for used, augmentation in self._augmentations:
            shares = _applied(used, augmentation, shares, draws, step)
        return shares * levels


def _applied(
    used: UsedPart, augmentation: Augmentation, images: Tensor, draws: Draws, step: int
) -> Tensor:
    """Return the images as the augmentation changes them. Raises UserError where they have another
    shape, type or device."""
    with blame(used):
        chance = Chance(draws, part_name(used.name), step, len(images))
        augmented = augmentation(images.clone(), chance)
    if not (isinstance(augmented, Tensor) and augmented.shape == images.shape):
        output_shape = (
            list(augmented.shape) if isinstance(augmented, Tensor) else type(augmented).__name__
        )
        raise UserError(
            f"{used.key}: {used.name}: expected images of {list(images.shape)}, got {output_shape}"
        )
    if (augmented.dtype, augmented.device) != (images.dtype, images.device):
        raise UserError(
            f"{used.key}: {used.name}: expected {images.dtype} on {images.device}, got "
            f"{augmented.dtype} on {augmented.device}"
        )
    return augmented


TRIED = 4  # images


def check_extra(run: Run) -> None:
    """Call each augmentation by import path twice with the same images and numbers. Raises
    UserError where that fails or gives two results, since a run could not be resumed."""
    draws = Draws(run.seed)
    side, channels = run.data.size, run.data.channels
    words = draws.words("tried", 0, range(TRIED), side * side * channels)[0]
    images = (uniform_of(words).T * 256).to(torch.uint8).view(TRIED, side, side, channels)
    for used in own_parts("augment.extra", run.augment):
        augmentation, shares = make_part(used), images.float() / 255
        with torch.no_grad():
            augmented = _applied(used, augmentation, shares, draws, 0)
            repeated = _applied(used, augmentation, shares, draws, 0)
        if not torch.equal(augmented, repeated):
            raise UserError(
                f"{used.key}: {used.name}: gives other images for the same ones and the same "
                f"numbers; take all random numbers from draw.uniform(...) and draw.normal(...)"
            )
