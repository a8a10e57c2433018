"""Images seen through an affine map, each through its own; and mirrored images.

A matrix (B, 2, 3) maps an output pixel (column, row, 1) to the place (column, row) in the image
that it shows; pixel centres lie at whole numbers, as in TF's ImageProjectiveTransform. PIL counts
from the corner of the first pixel, half a pixel to its upper left.

`shake` is the article's augmentation of MNIST (BatchNorm_in_Transformers_CV, REFERENCE.md D.4).

Used by `data/image_changes.py` and `data/augment/randaugment.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data.augment import layout
from ablate.data.augment.crop import resample, to_levels
from ablate.data.augment.layout import constants_on, count, pixels, planes

CORNER = -0.5  # the image's upper left corner, PIL's origin, in pixels from the first centre


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Return the matrices (B, 2, 3) that rotate counterclockwise about the image's centre: PIL's
    Image.rotate."""
    cosine, sine = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    column, row = (width - 1) / 2, (height - 1) / 2
    across = [cosine, -sine, column - cosine * column + sine * row]
    down = [sine, cosine, row - sine * column - cosine * row]
    return torch.stack(across + down, 1).view(-1, 2, 3)


def shear_x(factor: Tensor, origin: float = 0.0) -> Tensor:
    """Return the matrices (B, 2, 3) that move line y by factor * (y - origin). TF's origin is 0,
    PIL's is CORNER."""
    unit, zero = torch.ones_like(factor), torch.zeros_like(factor)
    return torch.stack([unit, factor, -factor * origin, zero, unit, zero], 1).view(-1, 2, 3)


def shear_y(factor: Tensor, origin: float = 0.0) -> Tensor:
    """Return the matrices (B, 2, 3) that move column x by factor * (x - origin)."""
    return shear_x(factor, origin).flip(1, 2).roll(-1, 2)


def translation(right: Tensor, down: Tensor) -> Tensor:
    """Return the matrices (B, 2, 3) that move the image left by `right` pixels and up by `down`:
    PIL's and TF's sign."""
    unit, zero = torch.ones_like(right), torch.zeros_like(right)
    return torch.stack([unit, zero, right, zero, unit, down], 1).view(-1, 2, 3)


def places(matrix: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the column and the row that each output pixel shows, float (B, H, W) each."""
    columns = count(width, matrix.device, matrix.dtype)
    rows = count(height, matrix.device, matrix.dtype)[:, None]
    a, b, c, d, e, f = matrix.view(-1, 6, 1, 1).unbind(1)
    return (a * columns + c) + b * rows, (d * columns + f) + e * rows


def warp(images: Tensor, matrix: Tensor, fill: float | Tensor) -> Tensor:
    """Show the nearest pixel, and `fill` (a level or (C,)) outside: (B, H, W, C) to the same.

    This is one gather of pixels from images with a border of `fill`, in which all places outside
    end: an index_select of C bytes at a time is the fastest way on a CPU, torch.where is 5 times
    slower.
    """
    batch, height, width, channels = images.shape
    framed = images.new_empty((batch, height + 2, width + 2, channels))
    framed[:] = fill
    framed[:, 1:-1, 1:-1] = images
    x, y = places(matrix, height, width)
    # 1 for the border and 1/2 for rounding; after the clamp all is positive, so int() is floor()
    x = x.add_(1.5).clamp_(0, width + 1).int()
    y = y.add_(1.5).clamp_(0, height + 1).int()
    first_line = torch.arange(batch, device=images.device, dtype=torch.int32) * (height + 2)
    pixel = y.add_(first_line[:, None, None]).mul_(width + 2).add_(x)
    return framed.view(-1, channels).index_select(0, pixel.view(-1)).view(images.shape)


def warp_bilinear(images: Tensor, matrix: Tensor, fill: float | Tensor) -> Tensor:
    """Interpolate between the four nearest pixels, rounded, with `fill` (a level or (C,)) outside:
    uint8 to uint8.

    It follows PIL's BILINEAR transform, in which a place is outside if it is outside every pixel's
    square, and the image's edge goes on for half a pixel; but PIL cuts fractions off where this
    rounds.
    """
    _, height, width, _ = images.shape
    # grid_sample's places: from -1 to 1 between the image's edges
    down, across, device = height / 2, width / 2, matrix.device
    half = constants_on((across, down), device, matrix.dtype).view(2, 1)
    centre = (0, 0, across + CORNER, 0, 0, down + CORNER)
    middle = constants_on(centre, device, matrix.dtype).view(2, 3)
    x, y = places((matrix - middle) / half, height, width)
    inside = (torch.maximum(x.abs(), y.abs()) < 1).float()[:, None]
    grid = torch.stack([x, y], 3)
    interpolated = F.grid_sample(
        planes(images).float(), grid, padding_mode="border", align_corners=False
    )
    if not isinstance(fill, Tensor):
        fill = constants_on((fill,), images.device)
    level = fill.view(-1, 1, 1).to(torch.float32)
    interpolated = interpolated.sub_(level).mul_(inside).add_(level + 0.5)
    return pixels(interpolated.to(torch.uint8))


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror image b left to right where mask[b]: (B, H, W, C) of any type to the same."""
    if not layout.by_groups(images):
        return images.flip(2).where(mask[:, None, None, None], images)
    flipped = images.clone()
    for b in mask.nonzero()[:, 0].tolist():  # photographs at once don't fit a cache: 3 times slower
        flipped[b] = images[b].flip(1)
    return flipped


def flip_and_crop(images: Tensor, flip: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """Mirror image b where flip[b], pad it with zeros by `pad`, and crop it at (top[b], left[b]).

    uint8 (B, H, W, C) to the same; flip bool (B,), top and left int64 (B,) in 0..2 pad. This is one
    gather of image rows: padded images, and behind them their mirror images, are seen as a matrix
    whose row r is the W*C bytes from pixel r on (its rows overlap), and index_select, which copies
    such a row at once, takes H rows for each image. Indexing windows and torch.where go byte by
    byte: 5 times slower on a CPU.
    """
    batch, height, width, channels = images.shape
    tall, wide = height + 2 * pad, width + 2 * pad
    padded = images.new_zeros((2, batch, tall, wide, channels))
    inner = padded[:, :, pad : pad + height, pad : pad + width]
    inner[0] = images
    inner[1] = images.flip(2)
    pixels = 2 * batch * tall * wide
    windows = padded.as_strided((pixels - width + 1, width * channels), (channels, 1))
    image = count(batch, images.device) + batch * flip
    line = (image * tall + top)[:, None] + count(height, images.device)
    first_pixel = line * wide + left[:, None]
    return windows.index_select(0, first_pixel.view(-1)).view(images.shape)


SHAKE = 7  # uniforms that an image takes


def shake(
    images: Tensor,
    uniform: Tensor,
    degrees: float = 20.0,
    shift: float = 0.2,
    probability: float = 0.2,
    factor: tuple[float, float] = (2.0, 3.0),
) -> Tensor:
    """Rotate and translate images, and sometimes zoom out, by `uniform` (SHAKE, B), on black: uint8
    (B, H, W, C) to the same.

    mlflow_modules/train_augs_simple.py: RandomRotation(20), RandomAffine(0, translate=(.2, .2)),
    RandomZoomOut(0, (2, 3), p=.2), Resize(28), all on PIL images. The first two take the nearest
    pixel, one after the other (what the rotation turns out of the image is lost); the translation
    is by whole pixels. `zoom_out` does the last two.
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
    larger, left_edge, top = torch.stack([larger, uniform[5], uniform[6]]).index_select(1, rows)
    zoomed = zoom_out(moved.index_select(0, rows), larger, left_edge, top, math.ceil(factor[1]))
    return moved.index_copy(0, rows, zoomed)


def zoom_out(
    images: Tensor, factor: Tensor, left: Tensor, top: Tensor, max_factor: int = 3
) -> Tensor:
    """Put images on a black canvas `factor` (B,) times as large, and resize it back: uint8 (B, H,
    W, C) to the same.

    factor: from 1, which changes nothing, to `max_factor`; left, top (B,): the place on the canvas,
    as shares of the free room (torchvision's RandomZoomOut). It is resized as by PIL's BILINEAR,
    which averages when it shrinks: the nearest pixel would lose strokes. (PIL rounds between the
    two axes: a level's difference.)
    """
    _, height, width, _ = images.shape
    rows = zoom_weights(factor, top, height, max_factor)
    return to_levels(resample(images, rows, zoom_weights(factor, left, width, max_factor)))


def zoom_weights(factor: Tensor, place: Tensor, size: int, max_factor: int) -> Tensor:
    """Return the weights (B, size, size) that map an image's pixels to those of its canvas, shrunk
    to `size`.

    Each is a triangle as wide as two pixels of the result, cut at the canvas's edges: PIL's
    Resample.c.
    """
    canvas = (size * factor).floor()
    offset = ((canvas - size) * place).long()
    pixel = count(size * max_factor, factor.device) + 0.5
    step = (canvas / size)[:, None, None]
    centre = (count(size, factor.device) + 0.5)[:, None] * step
    weights = (1 - (pixel - centre).abs() / step).clamp(min=0) * (pixel < canvas[:, None, None])
    weights /= weights.sum(2, keepdim=True)
    image = offset[:, None, None] + count(size, factor.device)
    return weights.gather(2, image.expand(-1, size, -1))
