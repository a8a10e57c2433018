"""The article's augmentation of MNIST (BatchNorm_in_Transformers_CV, REFERENCE.md D.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ablate.data.augment import layout
from ablate.data.augment.crop import resample, to_levels
from ablate.data.augment.layout import count
from ablate.data.augment.warp import rotation, translation, warp

SHAKE = 7  # uniforms that an image takes


def shake(
    images: Tensor,
    uniform: Tensor,
    degrees: float = 20.0,
    shift: float = 0.2,
    probability: float = 0.2,
    factor: tuple[float, float] = (2.0, 3.0),
) -> Tensor:
    """Rotated, translated, sometimes zoomed out by `uniform` (SHAKE, B), on black: uint8
    (B, H, W, C) to the same.

    mlflow_modules/train_augs_simple.py: RandomRotation(20), RandomAffine(0, translate=(.2, .2)),
    RandomZoomOut(0, (2, 3), p=.2), Resize(28), all on PIL images. The first two take the nearest
    pixel, one after the other (what the rotation turns out of the image is lost); the translation
    is by whole pixels. `zoom_out` is the rest.
    """
    height, width = images.shape[1:3]
    turned = warp(images, rotation((2 * uniform[0] - 1) * degrees, height, width), 0)
    right = ((2 * uniform[1] - 1) * shift * width).round()
    down = ((2 * uniform[2] - 1) * shift * height).round()
    moved = warp(turned, translation(-right, -down), 0)
    away, larger = uniform[4] < probability, factor[0] + uniform[3] * (factor[1] - factor[0])
    if not layout.by_groups(images):
        zoomed = zoom_out(moved, larger, uniform[5], uniform[6], math.ceil(factor[1]))
        return zoomed.where(away[:, None, None, None], moved)
    rows = away.nonzero()[:, 0]
    larger, left, top = torch.stack([larger, uniform[5], uniform[6]]).index_select(1, rows)
    zoomed = zoom_out(moved.index_select(0, rows), larger, left, top, math.ceil(factor[1]))
    return moved.index_copy(0, rows, zoomed)


def zoom_out(images: Tensor, factor: Tensor, left: Tensor, top: Tensor, most: int = 3) -> Tensor:
    """On a black canvas `factor` (B,) times as large, resized back: uint8 (B, H, W, C) to the same.

    factor from 1, which changes nothing, to `most`; left, top (B,): where on the canvas, as shares
    of the room there is (torchvision's RandomZoomOut). Resized as PIL's BILINEAR, which averages
    when it shrinks: the nearest pixel would lose strokes. (PIL rounds between the two axes: a
    level's difference.)
    """
    _, height, width, _ = images.shape
    rows = zoom_weights(factor, top, height, most)
    return to_levels(resample(images, rows, zoom_weights(factor, left, width, most)))


def zoom_weights(factor: Tensor, place: Tensor, size: int, most: int) -> Tensor:
    """(B, size, size): from an image's pixels to those of the canvas it is on, shrunk to `size`.

    A triangle as wide as two pixels of the result, cut at the canvas's edges: PIL's Resample.c.
    """
    canvas = (size * factor).floor()
    first = ((canvas - size) * place).long()
    pixel = count(size * most, factor.device) + 0.5
    step = (canvas / size)[:, None, None]
    centre = (count(size, factor.device) + 0.5)[:, None] * step
    weights = (1 - (pixel - centre).abs() / step).clamp(min=0) * (pixel < canvas[:, None, None])
    weights /= weights.sum(2, keepdim=True)
    image = first[:, None, None] + count(size, factor.device)
    return weights.gather(2, image.expand(-1, size, -1))
