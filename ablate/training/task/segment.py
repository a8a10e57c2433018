"""Semantic segmentation: the loss over pixels, and a sliding window over whole images.

Shapes: B images of a batch, K classes, windows of size S x S; channels of images are last.

Used by `task=segment`, through its path in run/metrics/segment.py. A new metric or field of the
predictions also needs a change of `SEGMENT` and `segmentation_scores` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data import AnySplit, Batches
from ablate.run import NO_CLASS, Run, segmentation_scores
from ablate.training.task import Predictor, Task

ROWS = 64  # of an image, whose classes are found at once


@dataclass(frozen=True)
class Windows:
    """The layout of the windows that cover an evaluated image, and how many are computed at
    once."""

    size: int
    stride: int
    at_once: int

    @classmethod
    def for_run(cls, run: Run) -> Windows:
        size = run.data.size
        return cls(size, run.eval.stride or 2 * size // 3, run.eval.batch)

    def anchors(self, length: int) -> list[int]:
        """Return where the windows begin along a side of `length` pixels (at least `size`): every
        `stride` pixels, the last one at its end (Segmenter's segm/model/utils.py, mmseg's
        slide_inference)."""
        last_start = length - self.size
        return [*range(0, last_start, self.stride), last_start]

    def logits(self, predict: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
        """Return the logits of an image (1, H, W, C), float32 (K, H, W): for each pixel the mean
        over the windows that contain it.

        An image whose shorter side is smaller than a window is enlarged to fit, and its logits are
        resized back to (H, W), both bilinearly.
        """
        image_size = image.shape[1:3]
        short = min(image_size)
        if short < self.size:
            shape = []
            for length in image_size:
                enlarged = self.size if length == short else int(length * self.size / short)
                shape.append(enlarged)
            image = _resized(image.permute(0, 3, 1, 2), shape).permute(0, 2, 3, 1)
        tall, wide = image.shape[1:3]
        places = [(y, x) for y in self.anchors(tall) for x in self.anchors(wide)]
        total = torch.empty(0)
        window_counts = torch.zeros((tall, wide), device=image.device)
        for start in range(0, len(places), self.at_once):
            some = []
            for top, left in places[start : start + self.at_once]:
                some.append(self._window_slices(top, left))
            parts = predict(torch.cat([image[:, y, x] for y, x in some]))
            if not start:
                total = parts.new_zeros(parts.shape[1], tall, wide)
            for number, (y, x) in enumerate(some):
                total[:, y, x] += parts[number]
                window_counts[y, x] += 1
            del parts  # or it is in memory together with the next ones
        mean = total.div_(window_counts)
        if (tall, wide) == image_size:
            return mean
        return _resized(mean[None], image_size)[0]

    def _window_slices(self, y: int, x: int) -> tuple[slice, slice]:
        return slice(y, y + self.size), slice(x, x + self.size)


def _resized(planes: Tensor, shape: Iterable[int]) -> Tensor:
    return F.interpolate(planes, size=tuple(shape), mode="bilinear")


class Segment(Task):
    """Images (B, S, S, C) and their masks; the model gives logits (B, K, S, S)."""

    def __init__(self, run: Run) -> None:
        self._classes, self._batch = run.data.classes, run.train.batch
        self._smoothing = run.train.label_smoothing
        self._windows = Windows.for_run(run)

    def inputs(self, batches: Batches, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return images, and the target int64 (B, 1 + S S): the number of pixels of the global
        batch that have a class, then the class of each pixel. From the number a micro-batch knows
        its share of the mean."""
        images, masks = batches.at(step)
        pixels = batches.sum_over_rows((masks != NO_CLASS).sum()).expand(len(masks), 1)
        return images.to(dtype), torch.cat([pixels, masks.flatten(1)], 1)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy, scaled so that a global batch has the mean over its pixels with
        a class."""
        masks = target[:, 1:].view(len(target), *outputs.shape[2:])
        losses = F.cross_entropy(
            *(outputs, masks),
            ignore_index=NO_CLASS,
            reduction="none",
            label_smoothing=self._smoothing,
        )
        pixels = target[0, 0].clamp(min=1)
        return losses.sum() / pixels * (self._batch / len(target))

    def prior_loss(self, train: AnySplit) -> float:
        """Return the loss of guessing each pixel by the classes' shares in the whole images, which
        is their entropy. Crops have about the same shares."""
        pixels = train.labels.sum(0).cpu().double()  # there entr needs no compiler
        share = (1 - self._smoothing) * pixels / pixels.sum() + self._smoothing / self._classes
        return float(torch.special.entr(share).sum())

    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return metrics and predictions of a whole split: `label`, `said` and `same` of each
        image, int32 (K,), see `segmentation_scores`.

        `batches` yields (image (1, H, W, C), mask (1, H, W)), whatever H and W are.
        """
        parts = []
        for image, mask in batches:  # nothing of an image outlives its turn
            counts = self._counts(self._windows.logits(predict, image), mask[0])
            parts.append(counts.cpu().numpy())
        parts = predict.ranks.gathered(parts)
        kind = [(name, "<i4", (self._classes,)) for name in ("label", "said", "same")]
        table = np.empty(len(parts), kind)
        for place, name in enumerate(("label", "said", "same")):
            table[name] = np.stack([part[place] for part in parts])
        return segmentation_scores(table, self._classes), table

    def _counts(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Return the pixels of each class as the mask (H, W) has them, as the largest logit says,
        and where both agree, int64 (3, K), among the pixels with a class. Works on a few rows at a
        time."""
        pairs = torch.zeros(self._classes**2, dtype=torch.int64, device=logits.device)
        for rows, part in zip(mask.split(ROWS), logits.split(ROWS, 1), strict=True):
            has_class = rows != NO_CLASS
            pair = rows.long() * self._classes + part.argmax(0)
            pairs += torch.bincount(pair[has_class], minlength=len(pairs))
        confusion = pairs.view(self._classes, self._classes)
        return torch.stack([confusion.sum(1), confusion.sum(0), confusion.diagonal()])
