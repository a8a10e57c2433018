"""What of images and masks a training is shown: resized, cut and mirrored, both alike, on the host.

mmsegmentation's Resize, RandomCrop and RandomFlip (mmseg/datasets/pipelines/transforms.py), by
draws in the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ablate.data.augment import crop
from ablate.data.draws import Draws
from ablate.shared.recipe import Augment
from ablate.shared.sections import NO_CLASS

REDRAWS = 10
LONGEST = 4  # the longer side is at most so many times the size, before it is scaled
SCALE, PLACE, FLIP = 0, 1, 1 + 2 * (1 + REDRAWS)  # where each of an image's uniforms begins
DRAWN = FLIP + 1


@dataclass(frozen=True)
class MaskedCrops:
    """How each image of a batch is shown: by `drawn`, its DRAWN uniforms."""

    drawn: Sequence[np.ndarray]
    size: int
    augment: Augment

    def take(self, places: Tensor) -> MaskedCrops:
        """Of some of the batch."""
        return replace(self, drawn=[self.drawn[place] for place in places.tolist()])

    def show_both(
        self, place: int, picture: Image.Image, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """uint8 (h, w, C) and (h, w), at most size x size, of the picture at this place of the
        batch and its mask (H, W)."""
        uniform = self.drawn[place]
        shape = self._shape(mask.shape, float(uniform[SCALE]))
        (y, x), (tall, wide) = self._box(mask, shape, uniform[PLACE:FLIP])
        rows, columns = (nearest(*lengths) for lengths in zip(mask.shape, shape, strict=True))
        labels = mask[rows[y : y + tall, None], columns[x : x + wide]]
        levels = np.asarray(picture).reshape(*mask.shape, -1)
        if shape != mask.shape:
            levels = crop.bilinear(torch.from_numpy(levels.copy())[None], shape)[0].numpy()
        pixels = levels[y : y + tall, x : x + wide]
        if self.augment.flip and uniform[FLIP] < 0.5:
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        return pixels, labels

    def _shape(self, shape: tuple[int, ...], uniform: float) -> tuple[int, int]:
        """Height and width that the image is resized to."""
        tall, wide = shape
        most = self.augment.rescale
        if most is None:
            return tall, wide
        return resized(tall, wide, self.size, 1 / most + uniform * (most - 1 / most))

    def _box(
        self, mask: np.ndarray, shape: tuple[int, int], uniform: np.ndarray
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where the crop begins in the resized image, and how large it is: the first of those drawn
        in which no class has `class_share` of the pixels with a class, or the last of all."""
        rows, columns = (nearest(*lengths) for lengths in zip(mask.shape, shape, strict=True))
        tall, wide = (min(self.size, length) for length in shape)
        for place in uniform.reshape(-1, 2):
            y, x = (
                int(u * (length - part + 1))
                for u, length, part in zip(place, shape, (tall, wide), strict=True)
            )
            if self.augment.class_share == 1:
                break
            part = mask[rows[y : y + tall, None], columns[x : x + wide]]
            pixels = np.bincount(part.reshape(-1), minlength=NO_CLASS + 1)[:NO_CLASS]
            if pixels.max() < self.augment.class_share * pixels.sum():  # so there are two, too
                break
        return (y, x), (tall, wide)


def resized(tall: int, wide: int, size: int, scale: float) -> tuple[int, int]:
    """Height and width of an image that is made to fit `scale` times (LONGEST x size, size), its
    longer side in the first and its shorter in the second, as large as it can be."""
    longer, shorter = int(LONGEST * size * scale), int(size * scale)
    factor = min(longer / max(tall, wide), shorter / min(tall, wide))
    return max(1, int(tall * factor + 0.5)), max(1, int(wide * factor + 0.5))


def nearest(length: int, new: int) -> np.ndarray:
    """int64 (new,): which of `length` pixels each of `new` ones shows, the nearest by its left edge
    (OpenCV's INTER_NEAREST, torch's "nearest")."""
    return np.arange(new) * length // new


class MaskedCuts:
    """How each step cuts the images of its batch."""

    def __init__(self, size: int, augment: Augment, draws: Draws) -> None:
        """`draws`: on the host."""
        self._size, self._augment, self._draws = size, augment, draws

    def __call__(self, rows: Tensor, step: int) -> MaskedCrops:
        drawn = self._draws.uniform("masked crop", step, DRAWN, len(rows)).double().numpy()
        return MaskedCrops([*np.ascontiguousarray(drawn.T)], self._size, self._augment)
