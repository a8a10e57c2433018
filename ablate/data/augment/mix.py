"""Rectangles taken out of images (Cutout, random erasing), and images and targets mixed with those
of their neighbours (mixup, cutmix).

A step draws one share for the whole global batch; the partner of image b is image b - 1
(`roll(+1)`, big_vision/utils.py). The share of each pixel that is kept is a map (H, W): constant
for mixup, 0 or 1 for cutmix. Its mean is the share of the target that is kept.

Used by `data/batches.py` (mixup, cutmix), `data/image_changes.py` (random erasing) and
`data/augment/randaugment.py` (Cutout).
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


def box_masks(edges: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the rows, bool (B, H), and the columns, bool (B, W), within `edges` (B, 4): top, left,
    bottom, right, the last two being the first beyond."""
    top, left_edge, bottom, right_edge = edges[:, :, None].unbind(1)
    row, column = count(height, edges.device), count(width, edges.device)
    return (row >= top) & (row < bottom), (column >= left_edge) & (column < right_edge)


def cutout(images: Tensor, row: Tensor, column: Tensor, half: Tensor, fill: int) -> Tensor:
    """Set the 2 half x 2 half pixels about (row, column) to `fill`: uint8 (B, H, W, C) to the same.

    row, column and half are int (B,). The centre lies within the image, the rest need not: TF's
    autoaugment.py.
    """
    edges = torch.stack([row - half, column - half, row + half, column + half], 1)
    rows, columns = box_masks(edges, *images.shape[1:3])
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
    """Draw the edges of the box to erase in each image, int (B, 4), by `uniform` (ERASING, B):
    timm/data/random_erasing.py. Images that are spared get an empty box.

    The area is uniform, height / width log-uniform. Of `ATTEMPTS` boxes the first that is smaller
    than the image is taken, if any.
    """
    chance, down, across = uniform[:3]
    share = (area[0] + uniform[3 : 3 + ATTEMPTS] * (area[1] - area[0])) * height * width
    shape = layout.quantiles_at(
        layout.log_uniform(*aspect, uniform.device), uniform[3 + ATTEMPTS :]
    )
    tall, wide = (share * shape).sqrt().round(), (share / shape).sqrt().round()
    fits = (tall < height) & (wide < width)
    attempt = fits.byte().argmax(0, keepdim=True)
    erased = fits.any(0) & (chance < probability)
    tall, wide = tall.gather(0, attempt)[0] * erased, wide.gather(0, attempt)[0] * erased
    top = (down * (height - tall + 1)).floor()
    left_edge = (across * (width - wide + 1)).floor()
    return torch.stack([top, left_edge, top + tall, left_edge + wide], 1).long()


def erase(images: Tensor, edges: Tensor, noise: Noise) -> Tensor:
    """Replace each value within `edges` (B, 4) by a draw of N(0, 1), in place: float (B, H, W, C),
    normalised."""
    batch, height, width, channels = images.shape
    rows, columns = box_masks(edges, height, width)
    if layout.by_groups(images):  # whole images' noise for a share of them, one at a time
        for b in (edges[:, 2] > edges[:, 0]).nonzero()[:, 0].tolist():
            top, left_edge, bottom, right_edge = edges[b].tolist()
            normals = noise(range(b, b + 1), height * width * channels).view(images.shape[1:])
            images[b, top:bottom, left_edge:right_edge] = normals[top:bottom, left_edge:right_edge]
        return images
    inside = (rows[:, :, None] & columns[:, None])[..., None]
    normals = noise(range(batch), height * width * channels).view(images.shape)
    return images.copy_(normals.where(inside, images))


def random_erasing(
    images: Tensor, uniform: Tensor, noise: Noise, probability: float = 0.25
) -> Tensor:
    """Erase random boxes, as mode "pixel" of timm does, in place: float (B, H, W, C), normalised.
    `uniform` (ERASING, B) draws the boxes."""
    height, width = images.shape[1:3]
    return erase(images, erase_boxes(height, width, uniform, probability), noise)


STICKS = 16
BETA = 2 * STICKS  # uniforms that a draw of Beta takes
MIXTURE = 2 * BETA + 3  # uniforms that a step takes


class Mixture(NamedTuple):
    """The parts of an image that a step keeps when it mixes it with its partner.

    Outside the box each pixel keeps `share` of its own value; inside it keeps nothing. The edges of
    the box are in pixels; `bottom` and `right` are the first beyond it.
    """

    share: float
    top: float
    left: float
    bottom: float
    right: float


def beta(p: float, uniforms: Sequence[float]) -> float:
    """Draw from Beta(p, p) by `BETA` uniforms in [0, 1), the same on every device.

    p > 1/2: 1/2 + 1/2 sqrt(1 - U^(1 / (p - 1/2))) cos(2 pi V) (Ulrich 1984; Devroye, Non-Uniform
    Random Variate Generation, IX.4.2). Else a stick is broken (Sethuraman 1994): each part of it is
    Beta(1, 2 p) of the rest, and counts or not with equal chances. Half of the rest after `STICKS`
    parts counts; at p = 1/2, where it is largest, the rest is e^-16 of a stick.
    """
    if p > 0.5:
        u, v = uniforms[:2]
        return 0.5 + 0.5 * sqrt(1 - u ** (1 / (p - 0.5))) * cos(2 * pi * v)
    total, stick = 0.0, 1.0
    for u, v in zip(uniforms[:BETA:2], uniforms[1:BETA:2], strict=True):
        rest = stick * u ** (0.5 / p)
        total += (stick - rest) * (v < 0.5)
        stick = rest
    return total + stick / 2


def mixture(
    height: int,
    width: int,
    uniforms: Sequence[float],
    mixup: float = 0.0,
    cutmix: float = 0.0,
    switch: float = 0.5,
) -> Mixture:
    """Draw the mixture of one step from `MIXTURE` uniforms, float64 in [0, 1).

    mixup keeps max(l, 1 - l) of each pixel, l ~ Beta(mixup, mixup) (big_vision/utils.py). cutmix
    keeps all but a box of 1 - l of the image, l ~ Beta(cutmix, cutmix); its sides are even, and it
    is cut where it reaches beyond the image (rand_bbox of timm/data/mixup.py as DeiT had it; timm
    1.0.31 has odd sides, too). Where both are on, a step uses cutmix with probability `switch`. A
    strength of 0 turns one off.
    """
    choice, down, across, *rest = uniforms
    if cutmix and (not mixup or choice < switch):
        side = sqrt(1 - beta(cutmix, rest[BETA:]))
        tall, wide = floor(height * side) // 2, floor(width * side) // 2  # half of it
        down, across = floor(down * height), floor(across * width)
        return Mixture(1.0, down - tall, across - wide, down + tall, across + wide)
    share = beta(mixup, rest) if mixup else 1.0
    return Mixture(max(share, 1 - share), 0.0, 0.0, 0.0, 0.0)


def own_shares(height: int, width: int, mixture: Tensor) -> Tensor:
    """Return each pixel's share of the image itself, float (H, W), for `mixture` (5,), a `Mixture`
    as a tensor, on whose device the result is."""
    rows, columns = box_masks(mixture[None, 1:], height, width)
    return mixture[0] * (1 - (rows[0, :, None] & columns[0]).to(mixture.dtype))


def mix(
    images: Tensor, targets: Tensor, pixel_shares: Tensor, is_whole_batch: bool = True
) -> tuple[Tensor, Tensor]:
    """Mix images float (B, H, W, C) and targets (B, classes) with those of their partners.

    `pixel_shares` (H, W): the share of each pixel that an image keeps; a target keeps its mean.
    Without `is_whole_batch` the batch is a part of a global one: its first image is only a partner,
    and is not returned.
    """
    share = pixel_shares.mean().to(targets.dtype)
    pixel_shares = pixel_shares.to(images.dtype).repeat_interleave(images.shape[3], 1)
    if is_whole_batch:
        partners, partner_targets = images.roll(1, 0), targets.roll(1, 0)
    else:
        (partners, images), (partner_targets, targets) = (
            (x[:-1], x[1:]) for x in (images, targets)
        )
    mixed = torch.lerp(lines(partners), lines(images), pixel_shares).view(images.shape)
    return mixed, torch.lerp(partner_targets, targets, share)
