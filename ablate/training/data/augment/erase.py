"""Rectangles taken out of images: Cutout, and random erasing."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from ablate.training.data.augment.layout import lines


def within(edges: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """bool (B, H) and (B, W): rows and columns in `edges` (B, 4): top, left, bottom, right (which
    are the first beyond)."""
    top, left, bottom, right = edges[:, :, None].unbind(1)
    row = torch.arange(height, device=edges.device)
    column = torch.arange(width, device=edges.device)
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
    batch: int,
    height: int,
    width: int,
    generator: Generator,
    probability: float = 0.25,
    area: tuple[float, float] = (0.02, 1 / 3),
    aspect: tuple[float, float] = (0.3, 1 / 0.3),
    attempts: int = 10,
) -> Tensor:
    """Edges int (B, 4) to erase, empty for images that are spared: timm/data/random_erasing.py.

    Area uniform, height / width log-uniform, the first of `attempts` that is smaller than the
    image, if any.
    """
    device = generator.device
    size = torch.rand((2, attempts, batch), generator=generator, device=device)
    uniform = torch.rand((3, batch), generator=generator, device=device)
    share = (area[0] + size[0] * (area[1] - area[0])) * height * width
    shape = (math.log(aspect[0]) + size[1] * math.log(aspect[1] / aspect[0])).exp()
    tall, wide = (share * shape).sqrt().round(), (share / shape).sqrt().round()
    fits = (tall < height) & (wide < width)
    first = fits.byte().argmax(0, keepdim=True)
    erased = fits.any(0) & (uniform[0] < probability)
    tall, wide = tall.gather(0, first)[0] * erased, wide.gather(0, first)[0] * erased
    top = (uniform[1] * (height - tall + 1)).floor()
    left = (uniform[2] * (width - wide + 1)).floor()
    return torch.stack([top, left, top + tall, left + wide], 1).long()


def erase(images: Tensor, edges: Tensor, generator: Generator) -> Tensor:
    """N(0, 1) for each value within `edges` (B, 4), in place: float (B, H, W, C), normalised.

    Drawn for erased pixels only: noise for all of them would take a CPU longer than all else here.
    """
    _, height, width, channels = images.shape
    rows, columns = within(edges, height, width)
    pixels = (rows[:, :, None] & columns[:, None]).view(-1).nonzero()[:, 0]
    noise = torch.randn(
        (len(pixels), channels), generator=generator, device=images.device, dtype=images.dtype
    )
    images.view(-1, channels).index_copy_(0, pixels, noise)
    return images


def random_erasing(images: Tensor, generator: Generator, probability: float = 0.25) -> Tensor:
    """Random erasing, mode "pixel" of timm, in place: float (B, H, W, C), normalised."""
    batch, height, width, _ = images.shape
    return erase(
        images, erase_boxes(batch, height, width, generator, probability=probability), generator
    )
