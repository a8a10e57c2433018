"""k-NN classification as the control half knows it: its metrics, computed from `predictions.npy`,
and how many images a run of it is shown.

Used by run/metrics/__init__.py (`TASKS`), so by tables and `ablate verify`, and by the workers of
the task and the probe (training/task/knn.py, training/probes/knn.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.run.metrics.frozen import KNN_NEIGHBOURS
from ablate.run.metrics.metric import Metric, TaskChoice, share

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np


def knn_scores(table: np.ndarray, classes: int) -> dict[str, float]:
    """Return n and, for each number of neighbours, the accuracy as a fraction.

    table (N,): fields `label`, and `class` (neighbours,), the predicted classes.
    """
    hits = (table["class"] == table["label"][:, None]).sum(0).tolist()
    number = len(table)
    scores = {_key(k): hit / number for k, hit in zip(KNN_NEIGHBOURS, hits, strict=True)}
    return {"n": number, **scores}


def _key(neighbours: int) -> str:
    return f"knn{neighbours}"


def _metric(neighbours: int) -> Metric:
    names = _key(neighbours), f"{neighbours}-NN accuracy", f"{neighbours}-NN"
    return share(*names, is_share=True)


def images_shown(examples: Mapping[str, int], classes: int) -> int:
    """Return how many images a run is shown: validation, test, and all of training for each of the
    two."""
    return examples["validation"] + examples["test"] + 2 * examples["train"]


KNN = TaskChoice(
    line="which class an image shows, by its nearest training images; no weight is trained",
    path="ablate.training.task.knn:KNN",
    source="DINO (arXiv 2104.14294); facebookresearch/dino eval_knn.py",
    metrics=tuple(map(_metric, reversed(KNN_NEIGHBOURS))),
    score=knn_scores,
    prior="the class prior",
    keeps="label, class (predicted, by number of neighbours)",
    how="k-NN: the k training images whose frozen features have the largest cosine s vote for "
    "their classes, each with the weight exp(s / 0.07).",
    shown=images_shown,
)
