"""Classification: the loss that training minimises, and the metrics.

Shapes: B examples, C classes. Losses are in nats.

Used by `task=classify`, the default, through its path in run/metrics/classify.py; `check_loss` by
training/answers.py, before `ablate sweep` starts. A new metric or field of the predictions also
needs a change of `CLASSIFY` and `classification_scores` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.data import AnySplit, Batches
from ablate.run import (
    Run,
    Train,
    classification_scores,
    own_part,
)
from ablate.shared import UserError
from ablate.training.plugin import blame, make_part
from ablate.training.ranks import ALONE, Ranks
from ablate.training.task import Predictor, Task

# What predictions.npy holds for each test example, in the test set's order. The loss is kept in
# float64, so that metrics computed from the file equal those reported, to the last bit.
PREDICTION = np.dtype(
    [("class", "<i4"), ("rank", "<i4"), ("loss", "<f8"), ("label", "<i4"), ("confidence", "<f8")]
)
Loss = Literal["softmax", "sigmoid"]


class Classify(Task):
    """Images (B, H, W, C) and their labels; the model gives logits (B, C)."""

    def __init__(self, run: Run) -> None:
        self._classes = run.data.classes
        self._smoothing = run.train.label_smoothing
        user_loss = own_loss(run.train)
        self._kind: Loss = "sigmoid" if run.train.loss == "sigmoid" else "softmax"
        self._minimised = user_loss or self._cross_entropy
        self._mixes = bool(run.augment.mixup or run.augment.cutmix)
        self._soft = self._mixes or (user_loss is not None and self._smoothing > 0)
        self._user_loss = user_loss

    def inputs(self, batches: Batches, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return images, and labels: int64 (B,), or soft (B, C) where images are mixed or where a
        loss by import path has smoothed labels."""
        images, labels = batches.at(step)
        images = images.to(dtype)
        if not self._soft:
            return images, labels
        soft = targets(labels, self._classes, self._smoothing, dtype)
        return batches.mixed(images, soft, step) if self._mixes else (images, soft)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss over the rows given, a scalar."""
        return self._minimised(outputs, target)

    def _cross_entropy(self, outputs: Tensor, target: Tensor) -> Tensor:
        return loss(outputs, target, self._smoothing, self._kind)

    def prior_loss(self, train: AnySplit) -> float | None:
        """Return the loss of guessing by the classes' frequencies; with a loss by import path, the
        loss of the best constant guess that is found. None with such a loss where images are mixed,
        since it needn't be linear in the target, and for more than MOST_ROWS classes."""
        if self._user_loss is None:
            return prior_loss(train.labels, self._classes, self._smoothing, self._kind)
        if self._mixes or self._classes > MOST_ROWS:
            return None
        rows = sample_with_shares(train.labels, self._classes)
        if self._soft:
            rows = targets(rows, self._classes, self._smoothing)
        return least_constant(self._user_loss, rows, self._classes)

    def evaluate(
        self,
        predict: Predictor,
        batches: Iterable[tuple[Tensor, Tensor]],
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return metrics and predictions of a whole split: see `evaluate`. With a loss by import
        path the measured loss is the cross-entropy."""
        outputs = ((predict(images), labels) for images, labels in batches)
        among = predict.split.labels.unique() if predict.data.among == "own" else None
        return evaluate(outputs, self._kind, predict.ranks, among)


def targets(
    labels: Tensor, classes: int, smoothing: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return soft labels (B, C): 1 - smoothing on the label's class, and smoothing / C on every
    class.

    Mixup and cutmix mix these: labels are smoothed first (timm.data.mixup.mixup_target).
    """
    rest = smoothing / classes
    soft = torch.full((len(labels), classes), rest, dtype=dtype, device=labels.device)
    return soft.scatter_(1, labels[:, None], 1 - smoothing + rest)


def loss(
    logits: Tensor,
    target: Tensor,
    smoothing: float,
    kind: Loss = "softmax",
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Return the mean loss over the rows given, a scalar; with reduction `none` that of each row,
    (B,).

    softmax: cross-entropy. sigmoid: a binary cross-entropy for each class, summed over the classes
    (big_vision/utils.py sigmoid_xent).

    logits (B, C); target: labels int64 (B,), which are smoothed here, or soft labels (B, C) made
    from `targets`, used as they are. Computed in float32 at least. The loss of a global batch is
    the sum over its micro-batches of (rows / global rows) times this.
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
    labels: Tensor, classes: int, smoothing: float = 0.0, kind: Loss = "softmax"
) -> float:
    """Return the training loss of the best prediction that looks at no image: the class
    frequencies.

    That is the entropy of the (smoothed) label distribution; for sigmoid the sum over the classes
    of the entropy of "this one or not". A run whose final training loss is not below it has
    collapsed. Mixing changes nothing: both losses are linear in the target, and mixup and cutmix,
    with one share and one permutation a batch, keep its mean. (They do raise the least
    loss that a model which looks at images could reach.)
    """
    # On the CPU: torch compiles entr for a GPU when it is first called there, so a machine whose
    # NVRTC doesn't work would lose a run that has only this left to do.
    share = torch.bincount(labels, minlength=classes).cpu().double() / len(labels)
    share = (1 - smoothing) * share + smoothing / classes
    entropy = torch.special.entr(share)
    if kind == "sigmoid":
        entropy = entropy + torch.special.entr(1 - share)
    return float(entropy.sum())


def evaluate(
    batches: Iterable[tuple[Tensor, Tensor]],
    kind: Loss = "softmax",
    ranks: Ranks = ALONE,
    among: Tensor | None = None,
) -> tuple[dict[str, float], np.ndarray]:
    """Return metrics and per-example predictions from batches of (logits (B, C), labels int64
    (B,)); each rank gives its own batches. Of several labels an image, (B, K), the one with the
    largest logit is taken for the true one: so an image is right where the prediction is among its
    labels (Beyer et al. 2020, arXiv 2006.07159). `among`: the classes among which predictions are,
    sorted int64, all labels among them; the logits of other classes are left out, as the authors of
    ImageNet-R do (Hendrycks et al. 2021, arXiv 2006.16241; hendrycks/imagenet-r, eval.py).

    Metrics: n, loss (of `kind`, mean, unsmoothed, in float64), top1 and, from 10 classes, top5 as
    fractions. Predictions: an array of PREDICTION: the class with the largest logit, the rank of
    the true class, the loss, the true class, and as the confidence the probability of the predicted
    class (softmax or sigmoid, as the loss; in float64). The rank counts the other classes whose
    logit is not less than the true one's: 0 is best, and ties count against, so that a model that
    says nothing (all logits equal, or NaN) is never right, instead of always. top-k is rank < k.
    """
    parts, classes = [], 0
    for logits, labels in batches:
        classes = logits.shape[1]
        wide = logits.double()
        numbers = torch.arange(classes) if among is None else among.cpu()
        if among is not None:
            wide = wide[:, among.to(wide.device)]
            labels = torch.searchsorted(among.to(labels.device), labels)
        if labels.ndim == 2:
            likeliest = wide.gather(1, labels).argmax(1, keepdim=True)
            labels = labels.gather(1, likeliest)[:, 0]
        true = wide.gather(1, labels[:, None])
        rank = (~(wide < true)).sum(1) - 1  # less the true class itself; NaN counts
        losses = loss(wide, labels, 0.0, kind, reduction="none")
        rows = np.empty(len(labels), PREDICTION)
        rows["class"] = numbers[wide.argmax(1).cpu()].numpy()
        rows["rank"] = rank.cpu().numpy()
        rows["loss"] = losses.cpu().numpy()
        rows["label"] = numbers[labels.cpu()].numpy()
        probabilities = wide.softmax(1) if kind == "softmax" else wide.sigmoid()
        rows["confidence"] = probabilities.amax(1).cpu().numpy()
        parts.append(rows)
    table = np.concatenate(ranks.gathered(parts))
    return classification_scores(table, max(ranks.gathered([classes]))), table


# --- A loss by import path, `train.loss=module:name` ----------------------------------------------

OwnLoss = Callable[[Tensor, Tensor], Tensor]
MOST_ROWS = 4096  # in the sample that stands for all training labels


def own_loss(train: Train) -> OwnLoss | None:
    """Return the loss by import path that is minimised; None where the loss is one of ours. It is
    called with logits (B, C), in float32 at least, and the target: labels int64 (B,), or soft
    labels (B, C) where they are smoothed or images are mixed. It returns the mean over the rows
    given, a scalar.

    Raises UserError where the loss can't be made, or has parameters, which nothing would train.
    """
    used = own_part("train.loss", train)
    if used is None:
        return None
    user_loss = make_part(used)
    module: nn.Module | None = None  # a loss with buffers, which must be where the logits are
    if isinstance(user_loss, nn.Module):
        if list(user_loss.parameters()):
            raise UserError(f"{used.key}: {used.name}: has parameters, which nothing would train")
        if list(user_loss.buffers()):
            module = user_loss

    def cast_and_call(logits: Tensor, target: Tensor) -> Tensor:
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if module is not None:
            module.to(logits.device)
        target_dtype = logits.dtype if target.is_floating_point() else target.dtype
        value: Tensor = user_loss(logits, target.to(target_dtype))
        return value

    return cast_and_call


def sample_with_shares(labels: Tensor, classes: int) -> Tensor:
    """Return labels, int64 on the CPU and about MOST_ROWS at most, in which the classes have the
    same shares as in `labels`; each class that occurs there occurs at least once."""
    counts = torch.bincount(labels, minlength=classes).cpu()
    if len(labels) > MOST_ROWS:
        counts = (counts * MOST_ROWS / len(labels)).round().clamp(min=1).long() * (counts > 0)
    return torch.arange(classes).repeat_interleave(counts)


def least_constant(user_loss: OwnLoss, target: Tensor, classes: int) -> float | None:
    """Return the least loss found of one guess for all rows of the target, searched from the
    classes' shares on; None where it isn't finite. For a loss that is convex in the logits this is
    the least loss of a model that looks at no image."""
    from scipy import optimize  # torch.optim's would load torch.compile

    soft = target if target.is_floating_point() else nn.functional.one_hot(target, classes)
    shares = soft.double().mean(0).clamp(min=1e-12)

    def loss_and_gradient(guess: np.ndarray) -> tuple[float, np.ndarray]:
        logits = torch.from_numpy(guess).requires_grad_()
        value = user_loss(logits.expand(len(target), -1), target)
        (gradient,) = torch.autograd.grad(value, logits)
        return float(value.detach()), gradient.numpy()

    start = shares.log().numpy()
    optimum = optimize.minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B")
    minimum = float(optimum.fun)
    if not isfinite(minimum):
        return None
    return minimum


def check_loss(run: Run) -> None:
    """Call a loss by import path with logits and a target such as the recipe makes. Raises
    UserError where the call fails or returns no finite scalar with a gradient, and, for a run that
    splits its batches, where it returns no mean over the rows."""
    used = own_part("train.loss", run.train)
    if used is None:
        return
    user_loss = own_loss(run.train)
    assert user_loss is not None
    classes = run.data.classes
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, classes, generator=generator, requires_grad=True)
    labels = torch.arange(8) % classes
    soft = run.train.label_smoothing or run.augment.mixup or run.augment.cutmix
    share = torch.full((8, classes), 0.1 / classes).scatter_(
        1, labels[:, None], 0.9 + 0.1 / classes
    )
    target, place = share if soft else labels, f"{used.key}: {used.name}"
    with blame(used):
        value = user_loss(logits, target)
        if not (isinstance(value, Tensor) and value.shape == () and value.requires_grad):
            output_shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"{place}: expected the mean over the rows, one number, got {output_shape}"
            )
        (gradient,) = torch.autograd.grad(value, logits)
        value = value.detach()
        if not bool(value.isfinite() and gradient.isfinite().all()):
            raise UserError(f"{place}: gives {float(value):g} or a gradient that isn't finite")
        with torch.no_grad():
            halves = (user_loss(logits[:4], target[:4]) + user_loss(logits[4:], target[4:])) / 2
    split = run.train.micro_batch not in (None, run.train.batch)
    if split and not torch.allclose(value, halves, rtol=1e-3):
        raise UserError(
            f"{place}: gives {float(value):.4g} for 8 rows and {float(halves):.4g} as the mean of "
            f"their halves: train.micro_batch needs a mean over the rows; set it to null"
        )
