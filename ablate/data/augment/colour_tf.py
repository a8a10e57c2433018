"""Operators on levels as TensorFlow executes big_vision's: uint8 (B, H, W, C) to the same.

big_vision/pp/autoaugment.py, later pp/archive (where its newest version mends Contrast). Integers
meet uint8, so that they wrap, and what is blended is cut off where PIL rounds. Operators that are
not here are PIL's to the bit. Parameters are (B,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.data.augment import colour
from ablate.data.augment.colour import blend, extremes, smooth
from ablate.data.augment.layout import along_lines, lines


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """The highest `bits` int (B,) of each level, from 1 to 8. Shifts are uint8 and stop at 7: the
    highest bit alone is left for 0 bits and for more than 8, too."""
    return colour.posterize(images, 8 - ((8 - bits) & 255).clamp(max=7))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Levels from `threshold` int (B,) modulo 256 on inverted: all of them for 0, 256 and 512."""
    return colour.solarize(images, threshold & 255)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """0 is a grey that only the size of the image decides, 1 the image: what is taken for the mean
    is the histogram's own sum over 256, the pixels. 196 for 224 x 224, 4 for 32 x 32."""
    return blend(sum_of(images), images, factor)


def sum_of(images: Tensor) -> float:
    """What is taken for the mean."""
    height, width = images.shape[1:3]
    return float(min(height * width // 256, 255))


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """0 is grey, 1 the image; with one channel nothing changes. The grey is a share of 255.5 cut
    off (tf.image.rgb_to_grayscale), to 2e-5 of a level."""
    return colour.saturation(images, factor, grey)


def grey(planes: Tensor) -> Tensor:
    """(B, 1, H, W) of float32 (B, C, H, W)."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = planes.split(1, 1)
    total = (red * 2989).add_(green, alpha=5870).add_(blue, alpha=1140)  # whole numbers: exact
    return total.mul_(511 / 5_100_000).floor_()


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """0 is blurred by PIL's SMOOTH, fractions cut off (not the border), 1 the image. (Where 13
    divides the sum, TensorFlow's float convolution may fall a level short.)"""
    return blend(smooth(images, 0), images, factor)


def autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched to 0..255 in float32, x scale - low scale, fractions cut off: now and
    then a level short, at the top, too."""
    width = images.shape[2]
    scale, offset = (along_lines(found, width) for found in line(*extremes(images)))
    return stretched(lines(images), scale, offset).view(images.shape)


def contrasted(counts: colour.Counts) -> Tensor:
    """uint8 (B C, 256): `autocontrast` as a table."""
    return stretched(counts.levels, *line(*counts.ends))


def line(low: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, offset)."""
    scale = 255 / span
    return scale, -low.float() * scale


def stretched(levels: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """x scale + offset of uint8 levels, cut to 0..255, fractions cut off."""
    return levels.float().mul_(scale).add_(offset).clamp_(0, 255).to(torch.uint8)
