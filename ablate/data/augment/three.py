"""3-Augment: each image is made grey, solarized or blurred. Touvron et al. 2022 (DeiT III, arXiv
2204.07118), deit/augment.py.

The arithmetic is PIL's; its blur is that of Gwosdek et al. 2011, three box filters with a fraction
of a pixel at either end. All is in whole numbers, so the bits are the same on every device.

Used by `data/image_changes.py` for `augment.three`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ablate.data.augment import colour, layout

THREE = 2  # uniforms that an image takes
THRESHOLD = 128  # the level from which on solarizing inverts
RADII = (0.1, 2.0)  # of the blur, in pixels
PASSES = 3  # box filters along each axis
ONE = 1 << 24  # the sum of the weights of a box filter
REACH = 2  # pixels to either side that a box filter sees, for any of `RADII`


def three_augment(images: Tensor, uniform: Tensor) -> Tensor:
    """Make each image grey, solarize it or blur it, each with probability 1/3: uint8 (B, H, W, C)
    to the same, by `uniform` (THREE, B)."""
    low, high = RADII
    choice, radius = (uniform[0] * 3).int(), low + uniform[1] * (high - low)
    operators = (grey, solarize, gaussian_blur)
    if not layout.by_groups(images):
        results = [operator(images, radius) for operator in operators]
        is_grey, is_solarized = (colour.per_image(choice == number) for number in (0, 1))
        return torch.where(is_grey, results[0], torch.where(is_solarized, results[1], results[2]))
    changed = torch.empty_like(images)
    for number, operator in enumerate(operators):
        rows = (choice == number).nonzero()[:, 0]
        changed[rows] = operator(images[rows], radius[rows])
    return changed


def grey(images: Tensor, radius: Tensor) -> Tensor:
    """Show the luma in every channel. `radius` has no effect here."""
    luma = colour.grey(layout.planes(images).float()).to(torch.uint8)
    return luma.permute(0, 2, 3, 1).expand_as(images)


def solarize(images: Tensor, radius: Tensor) -> Tensor:
    """Invert the levels from 128 on. `radius` has no effect here."""
    return colour.solarize(images, torch.full_like(radius, THRESHOLD))


def gaussian_blur(images: Tensor, radius: Tensor) -> Tensor:
    """Blur each image by its radius (B,), a standard deviation within `RADII`: PIL's
    ImageFilter.GaussianBlur."""
    weights, levels = box_weights(radius), images.int()
    for axis in (2, 1):
        for _ in range(PASSES):
            levels = box_filter(levels, weights, axis)
    return levels.to(torch.uint8)


class BoxWeights(NamedTuple):
    """The weights of a box filter, int32 (B, 1, 1, 1) each: of the pixel itself, and of those one
    and two pixels away, to either side."""

    centre: Tensor
    near: Tensor
    far: Tensor


def box_weights(radius: Tensor) -> BoxWeights:
    """Return the weights of the box filter whose `PASSES` passes have the deviation `radius`
    (B,)."""
    variance = radius.double().square() / PASSES
    whole = (((12 * variance + 1).sqrt() - 1) / 2).floor()  # pixels that have their full weight
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    part = part / (6 * (variance - (whole + 1).square()))
    full = (ONE / (2 * (whole + part).float() + 1)).int()
    rest = (ONE - (2 * whole.int() + 1) * full) // 2
    is_wide = whole > 0
    near, far = torch.where(is_wide, full, rest), torch.where(is_wide, rest, 0)
    return BoxWeights(*(colour.per_image(weight) for weight in (full, near, far)))


def box_filter(levels: Tensor, weights: BoxWeights, axis: int) -> Tensor:
    """Filter int32 levels (B, H, W, C) along an axis; beyond an edge its last pixel repeats."""
    number = levels.shape[axis]
    places = torch.arange(-REACH, number + REACH, device=levels.device).clamp(0, number - 1)
    wide = levels.index_select(axis, places)
    shifted = [wide.narrow(axis, start, number) for start in range(2 * REACH + 1)]
    near, far = shifted[1] + shifted[3], shifted[0] + shifted[4]
    total = shifted[2] * weights.centre + near * weights.near + far * weights.far
    # The sum fits into 32 bits without a sign: its highest 8 are the level, the half rounds it.
    return (total.add_(ONE // 2) >> 24).bitwise_and_(255)
