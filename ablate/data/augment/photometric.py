"""Photometric distortion, as mmsegmentation has it: each image by numbers of its own.

mmseg/datasets/pipelines/transforms.py PhotoMetricDistortion, which swaps no channels. What takes
part there by chance takes part here with a factor of 1 or a shift of 0 otherwise, so that a GPU
need not be asked how many do. Hues and saturations are those of OpenCV on 8 bits: degrees / 2, and
levels of 255.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.data.augment.layout import pixels, planes

PHOTOMETRIC = 9  # uniforms that an image takes
BRIGHTNESS, FACTORS, HUE = 32.0, (0.5, 1.5), 18  # levels; of contrast and saturation; half degrees
TURN = 180  # half degrees


def photometric(images: Tensor, uniform: Tensor) -> Tensor:
    """uint8 (B, H, W, 3) to the same by `uniform` (PHOTOMETRIC, B): brightness, contrast,
    saturation and hue, each half of the time; contrast before the last two or after them. Each
    leaves whole levels, the fractions cut off."""
    is_on, amount = uniform[1::2] < 0.5, uniform[2::2]  # (4, B) each
    shift = BRIGHTNESS * (2 * amount[0] - 1)
    low, high = FACTORS
    contrast, saturation = (
        torch.where(is_on[n], low + amount[n] * (high - low), 1.0) for n in (1, 2)
    )
    turn = torch.where(is_on[3], (amount[3] * 2 * HUE).floor() - HUE, 0.0)
    first = uniform[0] < 0.5
    one = torch.ones_like(contrast)

    levels = planes(images).float()
    levels = whole(levels + _each(torch.where(is_on[0], shift, 0.0)))
    levels = whole(levels * _each(torch.where(first, contrast, one)))
    levels = _where(is_on[2], saturated(levels, saturation), levels)
    levels = _where(is_on[3], turned(levels, turn), levels)
    levels = whole(levels * _each(torch.where(first, one, contrast)))
    return pixels(levels.to(torch.uint8))


def whole(levels: Tensor) -> Tensor:
    """0 to 255, fractions cut off."""
    return levels.clamp(0, 255).floor()


def saturated(levels: Tensor, factor: Tensor) -> Tensor:
    """float32 (B, 3, H, W), whole levels, with saturations times `factor` (B,)."""
    hue, saturation, value = to_hsv(levels)
    return from_hsv(hue, whole(saturation * _each(factor)[:, 0]), value)


def turned(levels: Tensor, by: Tensor) -> Tensor:
    """float32 (B, 3, H, W), whole levels, with hues moved `by` (B,) half degrees."""
    hue, saturation, value = to_hsv(levels)
    return from_hsv((hue + _each(by)[:, 0]) % TURN, saturation, value)


def to_hsv(levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in half degrees, saturation and value in levels, each float32 (B, H, W) and whole, of
    red, green and blue (B, 3, H, W)."""
    red, green, blue = levels.unbind(1)
    value, least = levels.amax(1), levels.amin(1)
    chroma = value - least
    saturation = (255 * chroma / value.clamp(min=1)).round()
    some = chroma.clamp(min=1)
    sixth = torch.where(
        value == red,
        (green - blue) / some,
        torch.where(value == green, 2 + (blue - red) / some, 4 + (red - green) / some),
    )
    return (sixth * (TURN / 6)).round() % TURN, saturation, value


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """What `to_hsv` takes apart, in whole levels, rounded."""
    sixth = hue / (TURN / 6)
    share = saturation / 255
    parts = []
    for first in (5, 3, 1):  # how many sixths before a turn's end red begins to fall, and so on
        place = (first + sixth) % 6
        falls = torch.minimum(place, 4 - place).clamp(0, 1)
        parts.append((value * (1 - share * falls)).round())
    return torch.stack(parts, 1)


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _where(is_on: Tensor, changed: Tensor, levels: Tensor) -> Tensor:
    return torch.where(_each(is_on), changed, levels)
