"""From a step's number to its batch: which images, and how each is changed. Nothing is kept.

The data stays on the device as uint8. An epoch's order hangs on (seed, epoch), an image's flip and
crop on (seed, step, its place in the global batch): so a resumed run sees the batches that the
uninterrupted one saw, and so do all variants of a seed.

Shapes: B images of a global batch, H x W = size x size, C channels, always channels last.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ablate.data.cache import Split
from ablate.keyed import Draws
from ablate.spec import Augment, UserError


def order(draws: Draws, epoch: int, n: int) -> torch.Tensor:
    """int64 (n,): the permutation in which an epoch visits the examples."""
    return torch.randperm(n, generator=draws.at("order", epoch), device=draws.device)


def normalise(images: torch.Tensor) -> torch.Tensor:
    """float32 in [-1, 1] from uint8, same shape: x / 127.5 - 1."""
    return images.to(torch.float32).div_(127.5).sub_(1)  # in place: twice as fast on a CPU


class Batches:
    """The global batches of a training: `batches.at(step)`.

    An epoch has floor(n / batch) steps; what is left over waits for another epoch's order. `split`
    and `draws` are on the device that trains.
    """

    def __init__(self, split: Split, batch: int, augment: Augment, draws: Draws) -> None:
        if batch > len(split):
            raise UserError(
                f"train.batch: {batch} is more than the {len(split)} training images; "
                f"give at most {len(split)}"
            )
        self.steps_per_epoch = len(split) // batch
        self._split = split
        self._batch = batch
        self._augment = augment
        self._draws = draws
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """images float32 (B, H, W, C) in [-1, 1] and labels int64 (B,) of a step, from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = order(self._draws, epoch, len(self._split)), epoch
        rows = self._order[place * self._batch : (place + 1) * self._batch]
        images = self._split.images.index_select(0, rows)
        return (
            normalise(augment(images, self._augment, self._draws, step)),
            self._split.labels.index_select(0, rows),
        )


def augment(images: torch.Tensor, spec: Augment, draws: Draws, step: int) -> torch.Tensor:
    """Each image of the global batch flipped with probability 1/2, then zero-padded and cropped
    back at a random offset, as `spec` says: uint8 (B, H, W, C) to the same.

    All draws are made whatever `spec` asks for, so that turning the flip on moves no crop.
    """
    if not spec.flip and not spec.crop_pad:
        return images
    uniform = torch.rand((3, len(images)), generator=draws.at("augment", step), device=draws.device)
    flip = (uniform[0] < 0.5) & spec.flip
    # float32 U[0, 1) times k never rounds up to k: 1 - 2^-24 is as far as U goes.
    offset = (uniform[1:] * (2 * spec.crop_pad + 1)).long()
    return flip_and_crop(images, flip, offset[0], offset[1], spec.crop_pad)


def flip_and_crop(
    images: torch.Tensor, flip: torch.Tensor, top: torch.Tensor, left: torch.Tensor, pad: int
) -> torch.Tensor:
    """Image b, mirrored where flip[b], zero-padded by `pad`, cropped at (top[b], left[b]).

    uint8 (B, H, W, C) to the same; flip bool (B,), top and left int64 (B,) in 0..2 pad.
    One gather of image rows: padded images, and behind them their mirror images, are seen as a
    matrix whose row r is the W*C bytes from pixel r on (its rows overlap), and index_select, which
    copies such a row at once, takes H rows for each image. Indexing windows and torch.where go
    byte by byte: 5 times slower on a CPU.
    """
    batch, height, width, channels = images.shape
    tall, wide = height + 2 * pad, width + 2 * pad
    padded = images.new_zeros((2, batch, tall, wide, channels))
    inner = padded[:, :, pad : pad + height, pad : pad + width]
    inner[0] = images
    inner[1] = images.flip(2)
    pixels = 2 * batch * tall * wide
    windows = padded.as_strided((pixels - width + 1, width * channels), (channels, 1))
    image = torch.arange(batch, device=images.device) + batch * flip
    line = (image * tall + top)[:, None] + torch.arange(height, device=images.device)
    first = line * wide + left[:, None]
    return windows.index_select(0, first.view(-1)).view(images.shape)


def evaluation_batches(split: Split, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every example once, in stored order, unchanged: images float32 (<= size, H, W, C) in
    [-1, 1] and labels int64; the last batch may be smaller."""
    for start in range(0, len(split), size):
        rows = slice(start, start + size)
        yield normalise(split.images[rows]), split.labels[rows]
