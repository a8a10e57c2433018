"""Batches of images and their masks, and whole ones to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ablate.data import augment as changes
from ablate.data.batches import Batches, ImageView, normalise
from ablate.data.cached import AnySplit, EncodedSplit, MaskedSplit
from ablate.data.draws import Draws
from ablate.data.masked_crop import MaskedCuts
from ablate.data.picture_crop import Cut, pixels


class MaskedBatches(Batches):
    """The global batches of a training on masks: see `masked_crop` for what is cut."""

    def _cuts(self, split: EncodedSplit) -> Callable[[Tensor, int], Cut]:
        return MaskedCuts(self._view.size, self._augment, Draws(self._draws.seed))

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """images float32 (B, size, size, C) as `view` says, 0 where they are padded, and masks
        int64 (B, size, size), of step 0, 1..."""
        rows = self._get(step)
        images = rows.images
        if self._augment.photometric:
            uniform = self._draws.uniform("photometric", step, changes.PHOTOMETRIC, len(images))
            images = changes.photometric(images, uniform)
        values = normalise(images, self._view.input)
        return values.mul_(_within(rows.aspects, images.shape[1])[..., None]), rows.labels.long()


def _within(extents: Tensor, size: int) -> Tensor:
    """bool (B, size, size): the first rows and columns, as many as `extents` (B, 2) says."""
    tall, wide = (changes.count(size, extents.device) < extents[:, side, None] for side in (0, 1))
    return tall[:, :, None] & wide[:, None, :]


def whole_images(
    split: AnySplit, view: ImageView, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every image once, in stored order, as large as it is: float32 (1, H, W, C) as `view` says,
    and its mask, uint8 (1, H, W), on the device. One is in memory at a time."""
    for row in range(len(split)):
        if isinstance(split, MaskedSplit):
            image, mask = pixels(split.picture(row)), torch.from_numpy(split.mask(row))
        else:  # random images, to tell what one takes
            assert not isinstance(split, EncodedSplit)
            image, mask = split.images[row], split.labels[row]
        yield normalise(image[None].to(device), view.input), mask[None].to(device)
