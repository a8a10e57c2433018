"""Classification: what is minimised, and what is measured.

Shapes: B examples, C classes. Losses are in nats.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F

# What predictions.npy holds for each test example, in the test set's order.
PREDICTION = np.dtype([("class", "<i4"), ("rank", "<i4"), ("loss", "<f4")])
TOP5_FROM = 10  # classes; with fewer, top-5 says little


def loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Mean cross-entropy over the rows given, with label smoothing: a scalar.

    logits (B, C), labels int64 (B,); computed in float32 at least. The loss of a global batch is
    the sum over its micro-batches of (rows / global rows) times this.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def prior_loss(labels: torch.Tensor, classes: int, smoothing: float = 0.0) -> float:
    """The training loss of the best prediction that looks at no image: the class frequencies.

    That is the entropy of the (smoothed) label distribution. A run whose final training loss is
    not below it has collapsed.
    """
    share = torch.bincount(labels, minlength=classes).double() / len(labels)
    share = (1 - smoothing) * share + smoothing / classes
    return float(torch.special.entr(share).sum())


def evaluate(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and per-example predictions from batches of (logits (B, C), labels int64 (B,)).

    Metrics: n, loss (mean, unsmoothed, in float64), top1 and, from 10 classes, top5: fractions.
    Predictions: an array of PREDICTION: the class with the largest logit, the rank of the true
    class, its loss. The rank counts the other classes whose logit is not less than the true one's:
    0 is best, and ties count against, so that a model that says nothing (all logits equal, or NaN)
    is right never, not always. top-k is rank < k.
    """
    predictions, losses, classes = [], [], 0
    for logits, labels in batches:
        classes = logits.shape[1]
        wide = logits.double()
        true = wide.gather(1, labels[:, None])
        rank = (~(wide < true)).sum(1) - 1  # itself is not less than itself, nor is NaN
        each = F.cross_entropy(wide, labels, reduction="none")
        rows = np.empty(len(labels), PREDICTION)
        rows["class"] = wide.argmax(1).cpu().numpy()
        rows["rank"] = rank.cpu().numpy()
        rows["loss"] = each.cpu().numpy()
        predictions.append(rows)
        losses.append(each.cpu().numpy())
    table = np.concatenate(predictions)
    metrics = {
        "n": len(table),
        "loss": float(np.concatenate(losses).mean()),
        "top1": float((table["rank"] < 1).mean()),
    }
    if classes >= TOP5_FROM:
        metrics["top5"] = float((table["rank"] < 5).mean())
    return metrics, table
