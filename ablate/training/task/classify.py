"""Classification: what is minimised, and what is measured.

Shapes: B examples, C classes. Losses are in nats.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from ablate.data.batches import Batches
from ablate.data.splits import AnySplit
from ablate.shared.metrics.classify import score
from ablate.shared.spec import Run
from ablate.training.ranks import ALONE, Ranks
from ablate.training.task import Predictor, Task
from ablate.training.task.own_loss import ROWS, alike, least_constant, own_loss

# What predictions.npy holds for each test example, in the test set's order. The loss is in full:
# the metrics are those of the file, to the last bit.
PREDICTION = np.dtype(
    [("class", "<i4"), ("rank", "<i4"), ("loss", "<f8"), ("label", "<i4"), ("confidence", "<f8")]
)
Loss = Literal["softmax", "sigmoid"]


class Classify(Task):
    """Images (B, H, W, C) and their labels; the model gives logits (B, C)."""

    def __init__(self, run: Run) -> None:
        self._classes = run.data.classes
        self._smoothing = run.train.label_smoothing
        own = own_loss(run.train)
        self._kind: Loss = "sigmoid" if run.train.loss == "sigmoid" else "softmax"
        self._minimised = own or self._cross_entropy
        self._mixes = bool(run.augment.mixup or run.augment.cutmix)
        self._soft = self._mixes or (own is not None and self._smoothing > 0)
        self._own = own

    def inputs(
        self, batches: Batches, step: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, and labels int64 (B,) or, where images are mixed, soft ones (B, C); a loss by
        import path has soft ones where they are smoothed, too."""
        images, labels = batches.at(step)
        images = images.to(dtype)
        if not self._soft:
            return images, labels
        soft = targets(labels, self._classes, self._smoothing, dtype)
        return batches.mixed(images, soft, step) if self._mixes else (images, soft)

    def loss(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Mean over the rows given, a scalar."""
        return self._minimised(outputs, target)

    def _cross_entropy(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(outputs, target, self._smoothing, self._kind)

    def prior_loss(self, train: AnySplit) -> float | None:
        """That of guessing by the classes' frequencies. With a loss by import path, of the best
        guess that is found; None where images are mixed, as it needn't be linear in the target, and
        for more than ROWS classes."""
        if self._own is None:
            return prior_loss(train.labels, self._classes, self._smoothing, self._kind)
        if self._mixes or self._classes > ROWS:
            return None
        rows = alike(train.labels, self._classes)
        rows = targets(rows, self._classes, self._smoothing) if self._soft else rows
        return least_constant(self._own, rows, self._classes)

    def evaluate(
        self,
        predict: Predictor,
        batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[dict[str, float], np.ndarray]:
        """Metrics and predictions of a whole split: see `evaluate`. With a loss by import path the
        measured loss is the cross-entropy."""
        outputs = ((predict(images), labels) for images, labels in batches)
        return evaluate(outputs, self._kind, predict.ranks)


def targets(
    labels: torch.Tensor, classes: int, smoothing: float, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """(B, C): 1 - smoothing on the label's class, and smoothing / C on every class.

    What mixup and cutmix mix: labels are smoothed first (timm.data.mixup.mixup_target).
    """
    rest = smoothing / classes
    soft = torch.full((len(labels), classes), rest, dtype=dtype, device=labels.device)
    return soft.scatter_(1, labels[:, None], 1 - smoothing + rest)


def loss(
    logits: torch.Tensor,
    target: torch.Tensor,
    smoothing: float,
    kind: Loss = "softmax",
    reduction: Literal["mean", "none"] = "mean",
) -> torch.Tensor:
    """Mean loss over the rows given, a scalar; with `none` that of each row, (B,).

    softmax: cross-entropy. sigmoid: a binary cross-entropy for each class, summed over the classes
    (big_vision/utils.py sigmoid_xent).
    logits (B, C); target: labels int64 (B,), smoothed here, or what became of `targets` (B, C), as
    it is. Computed in float32 at least. The loss of a global batch is the sum over its
    micro-batches of (rows / global rows) times this.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if target.is_floating_point():
        target, smoothing = target.to(logits.dtype), 0.0
    if kind == "softmax":
        return F.cross_entropy(logits, target, label_smoothing=smoothing, reduction=reduction)
    if not target.is_floating_point():
        target = targets(target, logits.shape[1], smoothing, logits.dtype)
    # torch's own loses 1e-4 over 1000 small targets in float32: (1 - t) z and -z cancel there.
    rows = -(target * F.logsigmoid(logits) + (1 - target) * F.logsigmoid(-logits)).sum(1)
    return rows if reduction == "none" else rows.mean()


def prior_loss(
    labels: torch.Tensor, classes: int, smoothing: float = 0.0, kind: Loss = "softmax"
) -> float:
    """The training loss of the best prediction that looks at no image: the class frequencies.

    That is the entropy of the (smoothed) label distribution; for sigmoid the sum over the classes
    of the entropy of "this one or not". A run whose final training loss is not below it has
    collapsed. Mixing changes nothing: both losses are linear in the target, and mixup and cutmix,
    one share and one permutation a batch, keep its mean. (What they raise is the least loss that
    looking at images could reach.)
    """
    share = torch.bincount(labels, minlength=classes).double() / len(labels)
    share = (1 - smoothing) * share + smoothing / classes
    entropy = torch.special.entr(share)
    if kind == "sigmoid":
        entropy = entropy + torch.special.entr(1 - share)
    return float(entropy.sum())


def evaluate(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    kind: Loss = "softmax",
    ranks: Ranks = ALONE,
) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and per-example predictions from batches of (logits (B, C), labels int64 (B,)), each
    rank's of its own.

    Metrics: n, loss (of `kind`, mean, unsmoothed, in float64), top1 and, from 10 classes, top5 as
    fractions. Predictions: an array of PREDICTION: the class with the largest logit, the rank of
    the true class, the loss, the true class, and as the confidence the probability of the predicted
    class (softmax or sigmoid, as the loss; in float64). The rank counts the other classes whose
    logit is not less than the true one's: 0 is best, and ties count against, so that a model that
    says nothing (all logits equal, or NaN) is right never, not always. top-k is rank < k.
    """
    parts, classes = [], 0
    for logits, labels in batches:
        classes = logits.shape[1]
        wide = logits.double()
        true = wide.gather(1, labels[:, None])
        rank = (~(wide < true)).sum(1) - 1  # itself is not less than itself, nor is NaN
        each = loss(wide, labels, 0.0, kind, reduction="none")
        rows = np.empty(len(labels), PREDICTION)
        rows["class"] = wide.argmax(1).cpu().numpy()
        rows["rank"] = rank.cpu().numpy()
        rows["loss"] = each.cpu().numpy()
        rows["label"] = labels.cpu().numpy()
        said = wide.softmax(1) if kind == "softmax" else wide.sigmoid()
        rows["confidence"] = said.amax(1).cpu().numpy()
        parts.append(rows)
    table = np.concatenate(ranks.gathered(parts))
    return score(table, max(ranks.gathered([classes]))), table
