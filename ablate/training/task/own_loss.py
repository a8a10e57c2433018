"""A loss by import path, `train.loss=module:name`.

Called with logits (B, C), in float32 at least, and the target: labels int64 (B,), or soft labels
(B, C) where they are smoothed or images are mixed. It gives the mean over the rows given, a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn

from ablate.shared.errors import UserError
from ablate.shared.parts import LOSS
from ablate.shared.recipe import Train
from ablate.shared.spec import Run
from ablate.training.plugin import blame, make_part

OwnLoss = Callable[[Tensor, Tensor], Tensor]
ROWS = 4096  # at most, that stand for the training labels


def own_loss(train: Train) -> OwnLoss | None:
    """The loss that is minimised; None: it is one of ours. Raises UserError where it can't be made,
    or would have to be trained itself."""
    if (used := LOSS.one(train)) is None:
        return None
    given = make_part(used)
    if isinstance(given, nn.Module) and [*given.parameters()]:
        raise UserError(f"{used.key}: {used.name}: has parameters, which nothing would train")
    module = given if isinstance(given, nn.Module) and [*given.buffers()] else None

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if module is not None:
            module.to(logits.device)
        kind = logits.dtype if target.is_floating_point() else target.dtype
        value: Tensor = given(logits, target.to(kind))
        return value

    return loss


def alike(labels: Tensor, classes: int) -> Tensor:
    """Labels, int64 on the CPU and about ROWS at most, in which the classes have the shares that
    they have in `labels`; each at least once if it is there at all."""
    counts = torch.bincount(labels, minlength=classes).cpu()
    if len(labels) > ROWS:
        counts = (counts * ROWS / len(labels)).round().clamp(min=1).long() * (counts > 0)
    return torch.arange(classes).repeat_interleave(counts)


def least_constant(loss: OwnLoss, target: Tensor, classes: int) -> float | None:
    """The least loss of one guess for all rows of the target that is found, from the classes'
    shares on: that of a model that looks at no image, where the loss is convex in the logits. None
    where it isn't finite."""
    from scipy import optimize  # torch.optim's would load torch.compile

    soft = target if target.is_floating_point() else nn.functional.one_hot(target, classes)
    shares = soft.double().mean(0).clamp(min=1e-12)

    def of(guess: np.ndarray) -> tuple[float, np.ndarray]:
        logits = torch.from_numpy(guess).requires_grad_()
        value = loss(logits.expand(len(target), -1), target)
        (gradient,) = torch.autograd.grad(value, logits)
        return float(value.detach()), gradient.numpy()

    least = float(optimize.minimize(of, shares.log().numpy(), jac=True, method="L-BFGS-B").fun)
    return least if isfinite(least) else None


def check_loss(run: Run) -> None:
    """Call a loss by import path with what the recipe makes. Raises UserError where that fails, or
    gives no finite scalar with a gradient; where batches are split, no mean over the rows."""
    if (used := LOSS.one(run.train)) is None:
        return
    loss = own_loss(run.train)
    assert loss is not None
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
        value = loss(logits, target)
        if not (isinstance(value, Tensor) and value.shape == () and value.requires_grad):
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{place}: expected the mean over the rows, one number, got {got}")
        (gradient,) = torch.autograd.grad(value, logits)
        value = value.detach()
        if not bool(value.isfinite() and gradient.isfinite().all()):
            raise UserError(f"{place}: gives {float(value):g} or a gradient that isn't finite")
        with torch.no_grad():
            halves = (loss(logits[:4], target[:4]) + loss(logits[4:], target[4:])) / 2
    split = run.train.micro_batch not in (None, run.train.batch)
    if split and not torch.allclose(value, halves, rtol=1e-3):
        raise UserError(
            f"{place}: gives {float(value):.4g} for 8 rows and {float(halves):.4g} as the mean of "
            f"their halves: train.micro_batch needs a mean over the rows; set it to null"
        )
