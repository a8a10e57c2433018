"""Semantic segmentation as the control half knows it: its metrics, computed from `predictions.npy`.
Pixels are counted, and the counts divided once.

Used by run/metrics/__init__.py (`TASKS`), so by tables and `ablate verify`, and by the worker
(training/task/segment.py), which writes the predictions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ablate.run.metrics.metric import TaskChoice, share
from ablate.run.metrics.probed import PROBE_METRICS

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np


def segmentation_scores(table: np.ndarray, classes: int) -> dict[str, float]:
    """Return n, the number of pictures, and miou and pixels as fractions.

    table (N,): fields `label`, `said` and `same`, each (classes,): the pixels of a picture by class
    in its mask, in the prediction, and in both alike. Pixels of no class are not counted. A class's
    IoU is computed from the pixels of all pictures together; the mean leaves out classes that are
    neither there nor predicted (mmseg/core/evaluation/metrics.py).
    """
    label, predicted, intersection = (
        table[name].sum(0, dtype="int64") for name in ("label", "said", "same")
    )
    unions = (label + predicted - intersection).tolist()
    shares = [
        overlap / union
        for overlap, union in zip(intersection.tolist(), unions, strict=True)
        if union
    ]
    return {
        "n": len(table),
        "miou": math.fsum(shares) / len(shares),
        "pixels": int(intersection.sum()) / int(label.sum()),
    }


def guessed(classes: int) -> float:
    """Return the IoU of each of `classes` equally frequent classes, guessed at random for each
    pixel."""
    return 1 / (2 * classes - 1)


SEGMENT = TaskChoice(
    line="which class each pixel is of, by a linear decoder of the patches' tokens",
    path="ablate.training.task.segment:Segment",
    source="Strudel et al. 2021 (Segmenter, arXiv 2105.05633)",
    metrics=(
        share("miou", "mean IoU", "mIoU", guessed),
        share("pixels", "pixel accuracy", "pixel acc."),
    ),
    score=segmentation_scores,
    prior="the classes' shares of the pixels",
    keeps="pixels by class: of the mask, predicted, both alike",
    how="Mean IoU: of each class, summed over the pixels of all pictures at their original size; "
    "pixels of no class are left out.",
    probed={name: PROBE_METRICS[name] for name in ("gradnorm", "scales")},
    labels="masks",
    host="ablate.training.model.vit:Segmenter",
    unlike_timm="decoder of tokens",
    says=("dropout", "drop_path", "input"),
    views=2,
)
