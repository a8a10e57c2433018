"""Operators on levels as TensorFlow computes big_vision's: uint8 (B, H, W, C) to the same.

Their source is big_vision/pp/autoaugment.py, later pp/archive (whose newest version mends
Contrast). Integers are combined with uint8, so that they wrap, and blended levels are truncated
where PIL rounds them. Operators that are not here equal PIL's to the bit. Parameters are (B,).

Used by `data/augment/randaugment.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.data.augment import colour
from ablate.data.augment.colour import blend, extremes, smooth
from ablate.data.augment.layout import along_lines, lines


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` int (B,) of each level, from 1 to 8.

    Shifts are uint8 and stop at 7, so 0 bits, or more than 8, keep only the highest bit.
    """
    return colour.posterize(images, 8 - ((8 - bits) & 255).clamp(max=7))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels from `threshold` int (B,) modulo 256 on: all of them for 0, 256 and 512."""
    return colour.solarize(images, threshold & 255)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with a grey by `factor`: 0 is the grey, 1 the image.

    The grey depends on the size of the image alone. What big_vision takes for the mean is the sum
    of the histogram over 256, so the number of pixels over 256: 196 for 224 x 224, 4 for 32 x 32.
    """
    return blend(contrast_grey(images), images, factor)


def contrast_grey(images: Tensor) -> float:
    """Return the level that TensorFlow's Contrast takes for the mean grey: the number of an image's
    pixels over 256, rounded down, at most 255."""
    height, width = images.shape[1:3]
    return float(min(height * width // 256, 255))


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend grey (factor 0) with the image (factor 1); images of one channel stay as they are.

    The grey is that of tf.image.rgb_to_grayscale: (0.2989 R + 0.587 G + 0.114 B) 255.5 / 255,
    rounded down; before rounding it agrees to within 2e-5 of a level.
    """
    return colour.saturation(images, factor, grey)


def grey(planes: Tensor) -> Tensor:
    """Return the grey (B, 1, H, W) of float32 (B, C, H, W), as `saturation` describes it."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = planes.split(1, 1)
    total = (red * 2989).add_(green, alpha=5870).add_(blue, alpha=1140)  # whole numbers: exact
    return total.mul_(511 / 5_100_000).floor_()


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend a blurred image (factor 0) with the image (factor 1).

    It is blurred by PIL's SMOOTH, fractions cut off, except for the border. (Where 13 divides the
    sum, TensorFlow's float convolution may be a level too low.)
    """
    return blend(smooth(images, 0), images, factor)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255 in float32: x scale - low scale, fractions cut off.

    As in TensorFlow, a float error now and then makes the result a level too low, even at the top.
    """
    width = images.shape[2]
    scale, offset = (
        along_lines(coefficients, width) for coefficients in linear_map(*extremes(images))
    )
    return stretched(lines(images), scale, offset).view(images.shape)


def autocontrast_table(counts: colour.Counts) -> Tensor:
    """Return `autocontrast` as a table, uint8 (B C, 256)."""
    return stretched(counts.levels, *linear_map(*counts.ends))


def linear_map(low: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the offset of each channel, with which `autocontrast` maps its
    levels."""
    scale = 255 / span
    return scale, -low.float() * scale


def stretched(levels: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return x scale + offset of uint8 levels x, cut to 0..255, fractions cut off."""
    return levels.float().mul_(scale).add_(offset).clamp_(0, 255).to(torch.uint8)
