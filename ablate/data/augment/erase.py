"""Rectangles taken out of images: Cutout, and random erasing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ablate.data.augment import layout
from ablate.data.augment.layout import count, lines

ATTEMPTS = 10
ERASING = 2 * ATTEMPTS + 3  # uniforms that an image takes
Noise = Callable[[range, int], Tensor]  # rows, values of each -> N(0, 1), float (rows, values)


def within(edges: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """bool (B, H) and (B, W): rows and columns in `edges` (B, 4): top, left, bottom, right (which
    are the first beyond)."""
    top, left, bottom, right = edges[:, :, None].unbind(1)
    row, column = count(height, edges.device), count(width, edges.device)
    return (row >= top) & (row < bottom), (column >= left) & (column < right)


def cutout(images: Tensor, row: Tensor, column: Tensor, half: Tensor, fill: int) -> Tensor:
    """`fill` in the 2 half x 2 half pixels about (row, column): uint8 (B, H, W, C) to the same.

    row, column and half int (B,). The middle is within the image, the rest needn't be: TF's
    autoaugment.py.
    """
    edges = torch.stack([row - half, column - half, row + half, column + half], 1)
    rows, columns = within(edges, *images.shape[1:3])
    across = columns.to(torch.uint8).neg_().repeat_interleave(images.shape[3], 1)  # 255 within
    levels, box = lines(images), rows.to(torch.uint8).neg_()[:, :, None] & across[:, None]
    return (levels ^ ((levels ^ fill) & box)).view(images.shape)


def erase_boxes(
    height: int,
    width: int,
    uniform: Tensor,
    probability: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    aspect: tuple[float, float] = (0.3, 1 / 0.3),
) -> Tensor:
    """Edges int (B, 4) to erase by `uniform` (ERASING, B), empty for images that are spared:
    timm/data/random_erasing.py.

    Area uniform, height / width log-uniform, the first of `ATTEMPTS` that is smaller than the
    image, if any.
    """
    chance, down, across = uniform[:3]
    share = (area[0] + uniform[3 : 3 + ATTEMPTS] * (area[1] - area[0])) * height * width
    shape = layout.chosen(layout.log_uniform(*aspect, uniform.device), uniform[3 + ATTEMPTS :])
    tall, wide = (share * shape).sqrt().round(), (share / shape).sqrt().round()
    fits = (tall < height) & (wide < width)
    first = fits.byte().argmax(0, keepdim=True)
    erased = fits.any(0) & (chance < probability)
    tall, wide = tall.gather(0, first)[0] * erased, wide.gather(0, first)[0] * erased
    top = (down * (height - tall + 1)).floor()
    left = (across * (width - wide + 1)).floor()
    return torch.stack([top, left, top + tall, left + wide], 1).long()


def erase(images: Tensor, edges: Tensor, noise: Noise) -> Tensor:
    """N(0, 1) for each value within `edges` (B, 4), in place: float (B, H, W, C), normalised."""
    batch, height, width, channels = images.shape
    rows, columns = within(edges, height, width)
    if layout.by_groups(images):  # whole images' noise for a share of them, one at a time
        for b in (edges[:, 2] > edges[:, 0]).nonzero()[:, 0].tolist():
            top, left, bottom, right = edges[b].tolist()
            drawn = noise(range(b, b + 1), height * width * channels).view(images.shape[1:])
            images[b, top:bottom, left:right] = drawn[top:bottom, left:right]
        return images
    inside = (rows[:, :, None] & columns[:, None])[..., None]
    drawn = noise(range(batch), height * width * channels).view(images.shape)
    return images.copy_(drawn.where(inside, images))


def random_erasing(
    images: Tensor, uniform: Tensor, noise: Noise, probability: float = 0.25
) -> Tensor:
    """Random erasing, mode "pixel" of timm, in place: float (B, H, W, C), normalised. Boxes are by
    `uniform` (ERASING, B)."""
    height, width = images.shape[1:3]
    return erase(images, erase_boxes(height, width, uniform, probability), noise)
