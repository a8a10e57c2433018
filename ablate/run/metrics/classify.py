"""Classification as the control half knows it: its metrics, computed from `predictions.npy`.

The training half writes the metrics with this file; the control half checks them with it from the
predictions years later, perhaps on another machine. So each metric is a count, or a sum that is
rounded once: numpy and torch add in an order of their own, which changes with their version and the
CPU.

Used by run/metrics/__init__.py (`TASKS`), so by tables and `ablate verify`, and by the worker
(training/task/classify.py). A new metric needs its `Metric` and its number in the scores; a new
column of the predictions also needs that worker.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ablate.run.metrics.metric import Excerpt, Metric, TaskChoice, share
from ablate.run.metrics.probed import PROBE_METRICS

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np

TOP5_FROM = 10  # classes; with fewer, top-5 says little


def classification_scores(table: np.ndarray, classes: int) -> dict[str, float]:
    """Return n, loss (the mean) and, as fractions, top1 and, from 10 classes on, top5.

    table (N,): fields `rank` of the true class, 0 being best, and `loss`.
    """
    number = len(table)
    scores = {"n": number, "loss": math.fsum(table["loss"].tolist()) / number}
    for name, rank in (("top1", 1), ("top5", 5))[: 2 if classes >= TOP5_FROM else 1]:
        scores[name] = int((table["rank"] < rank).sum()) / number
    return scores


def _excerpt(table: np.ndarray) -> np.ndarray:
    """Keep `class` and `label`, in as few bytes as they need. The class is -1 where it equals the
    true one but the rank counts it as wrong, since another class is as likely."""
    import numpy as np

    kind = np.min_scalar_type(-1 - max(table["class"].max(), table["label"].max()))
    excerpt = table[["class", "label"]].astype([("class", kind), ("label", kind)])
    excerpt["class"][(table["class"] == table["label"]) & (table["rank"] > 0)] = -1
    return excerpt


def _recount(table: np.ndarray) -> dict[str, float]:
    return {"n": len(table), "top1": int((table["class"] == table["label"]).sum()) / len(table)}


CLASSIFY = TaskChoice(
    line="which of the classes an image shows",
    path="ablate.training.task.classify:Classify",
    source="Dosovitskiy et al. 2021 (arXiv 2010.11929)",
    metrics=(
        share("top1", "top-1 accuracy", "top-1", is_share=True, right_within=1),
        share(
            *("top5", "top-5 accuracy", "top-5", lambda classes: min(5, classes) / classes),
            is_share=True,
            right_within=5,
            needs=f"at least {TOP5_FROM} classes",
        ),
        Metric(*("loss", "test loss", "loss", "", "nats", 1.0, 4), math.log, sign=-1),
    ),
    score=classification_scores,
    prior="the class prior",
    keeps="class (predicted), rank (of the true class), loss, label (the true class), confidence "
    "(the probability of the predicted class)",
    probed=PROBE_METRICS,
    label_sets=True,
    excerpt=Excerpt(_excerpt, _recount, ("top1",), "class (-1: a tie, so wrong) and label"),
)
