"""Rectangles taken out of images: Cutout, and random erasing. Images and their targets mixed with
their neighbours': mixup, and cutmix.

One share a step for the whole global batch; the partner of image b is image b - 1 (`roll(+1)`,
big_vision/utils.py). What is kept of each pixel is a map (H, W): mixup's is constant, cutmix's 0
or 1, and its mean is what is kept of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, floor, pi, sqrt
from typing import NamedTuple

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


STICKS = 16
BETA = 2 * STICKS  # uniforms that a draw of Beta takes
MIXTURE = 2 * BETA + 3  # uniforms that a step takes


class Mixture(NamedTuple):
    """What a step keeps of an image: `share` of each pixel, but nothing within the box."""

    share: float
    top: float
    left: float
    bottom: float
    right: float


def beta(p: float, uniforms: Sequence[float]) -> float:
    """A draw of Beta(p, p) from `BETA` uniforms in [0, 1), the same whatever the device.

    p > 1/2: 1/2 + 1/2 sqrt(1 - U^(1 / (p - 1/2))) cos(2 pi V) (Ulrich 1984; Devroye, Non-Uniform
    Random Variate Generation, IX.4.2). Else a stick is broken (Sethuraman 1994): each part of it is
    Beta(1, 2 p) of what is left, and counts or not with equal chances. What `STICKS` parts leave
    over is halved: at p = 1/2, the most, e^-16 of a stick.
    """
    if p > 0.5:
        u, v = uniforms[:2]
        return 0.5 + 0.5 * sqrt(1 - u ** (1 / (p - 0.5))) * cos(2 * pi * v)
    total, left = 0.0, 1.0
    for u, v in zip(uniforms[:BETA:2], uniforms[1:BETA:2], strict=True):
        rest = left * u ** (0.5 / p)
        total += (left - rest) * (v < 0.5)
        left = rest
    return total + left / 2


def mixture(
    height: int,
    width: int,
    uniforms: Sequence[float],
    mixup: float = 0.0,
    cutmix: float = 0.0,
    switch: float = 0.5,
) -> Mixture:
    """What one step keeps, from `MIXTURE` uniforms, float64 in [0, 1).

    mixup: max(l, 1 - l), l ~ Beta(mixup, mixup) (big_vision/utils.py). cutmix: all but a box of
    1 - l of the image, l ~ Beta(cutmix, cutmix), its sides even, cut where it reaches beyond the
    image (rand_bbox of timm/data/mixup.py as DeiT had it; timm 1.0.31 has odd sides, too). With
    both, cutmix with probability `switch`; 0 is never.
    """
    choice, down, across, *rest = uniforms
    if cutmix and (not mixup or choice < switch):
        side = sqrt(1 - beta(cutmix, rest[BETA:]))
        tall, wide = floor(height * side) // 2, floor(width * side) // 2  # half of it
        down, across = floor(down * height), floor(across * width)
        return Mixture(1.0, down - tall, across - wide, down + tall, across + wide)
    share = beta(mixup, rest) if mixup else 1.0
    return Mixture(max(share, 1 - share), 0.0, 0.0, 0.0, 0.0)


def kept(height: int, width: int, mixture: Tensor) -> Tensor:
    """float (H, W), on its device: each pixel's share of the image itself, by a `Mixture` (5,)."""
    rows, columns = within(mixture[None, 1:], height, width)
    return mixture[0] * (1 - (rows[0, :, None] & columns[0]).to(mixture.dtype))


def mix(images: Tensor, targets: Tensor, own: Tensor, whole: bool = True) -> tuple[Tensor, Tensor]:
    """float (B, H, W, C) and targets (B, classes), each with its partner's, `own` (H, W) kept. Of a
    part of a batch (not `whole`) the first is a partner alone."""
    share = own.mean().to(targets.dtype)
    own = own.to(images.dtype).repeat_interleave(images.shape[3], 1)
    if whole:
        partners, others = images.roll(1, 0), targets.roll(1, 0)
    else:
        (partners, images), (others, targets) = ((x[:-1], x[1:]) for x in (images, targets))
    mixed = torch.lerp(lines(partners), lines(images), own).view(images.shape)
    return mixed, torch.lerp(others, targets, share)
