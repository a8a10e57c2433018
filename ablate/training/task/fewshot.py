"""Few-shot classification: ridge regression on the features of a few images of each class.

big_vision/evaluators/fewshot_lsr.py, whose view of an image is eval.aspect=squeeze eval.crop=0.875.
Shapes: N images to predict, K shots in all, D features, C classes. All computation after the
features is in float64.

Used by `task=fewshot`, through its path in run/metrics/fewshot.py, and by probes/fewshot.py.
Numbers of shots and seeds of draws are there, too, and so is `fewshot_scores`, which reads the
predictions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data import draw_key
from ablate.run import (
    FEWSHOT_SEEDS,
    FEWSHOT_SHOTS,
    TASKS,
    Run,
)
from ablate.training.task import Predictor, Task
from ablate.training.task.frozen_features import features_and_labels, train_features

EPS = 1e-5  # added to a feature's deviation
BIAS = 100.0  # the constant feature: so large that its weight is hardly penalised
PENALTY = 1024.0
POOL, POOL_A_CLASS = 65_000, 65  # rows that shots are drawn from, at least, and for each class


class FewShot(Task):
    """Few-shot classification, which measures how well a model's features tell classes apart, given
    a few images of each."""

    def __init__(self, run: Run) -> None:
        self._classes = run.data.classes

    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return the metrics and predictions of every number of shots and every draw. Predictions:
        `label`, and `class` (shots, draws), in the smallest integer type that holds them."""
        labels = predict.train.labels.cpu().numpy()
        rows = pool(len(labels), self._classes)
        drawn_rows: dict[tuple[int, int], np.ndarray] = {}  # by place in the table
        for n, count in enumerate(FEWSHOT_SHOTS):
            for draw_number, seed in enumerate(FEWSHOT_SEEDS):
                drawn_rows[n, draw_number] = rows[draw(labels[rows], count, seed)]
        used = np.unique(np.concatenate(list(drawn_rows.values())))
        shot_pool = train_features(predict, used, torch.float64)
        features, test_labels = features_and_labels(predict, batches, torch.float64)

        kind = np.min_scalar_type(self._classes - 1)
        draws_shape = len(FEWSHOT_SHOTS), len(FEWSHOT_SEEDS)
        table = np.empty(len(features), [("label", kind), ("class", kind, draws_shape)])
        table["label"] = test_labels.numpy()
        device = shot_pool.device
        for (n, draw_number), draw_rows in drawn_rows.items():
            places = torch.from_numpy(np.searchsorted(used, draw_rows)).to(device)
            target = torch.from_numpy(labels[draw_rows]).to(device)
            classes = classify(shot_pool[places], target, features, self._classes)
            table["class"][:, n, draw_number] = classes.cpu().numpy()
        return TASKS["fewshot"].score(table, self._classes), table


def pool(rows: int, classes: int) -> np.ndarray:
    """Return the rows from which shots are drawn, int64: all `rows`, or the first of a permutation.

    The evaluator takes ImageNet's first 65,000, 65 a class, of a stored order that is mixed. Our
    stored order may go by class, in which case these would be 50 classes. So it is permuted first,
    the same in every run.
    """
    limit = max(POOL, POOL_A_CLASS * classes)
    if rows <= limit:
        return np.arange(rows)
    return np.random.default_rng(draw_key("fewshot", "pool")).permutation(rows)[:limit]


def draw(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Return the rows of `shots` examples of each class, int64, class by class; all rows of a class
    that has fewer.

    Each class has one permutation of its rows, whatever `shots`: a draw of fewer shots is part of a
    draw of more.
    """
    generator = np.random.default_rng(seed)
    by_class = np.argsort(labels, kind="stable")
    _, sizes = np.unique(labels, return_counts=True)
    parts = np.split(by_class, np.cumsum(sizes)[:-1])
    return np.concatenate([generator.permutation(part)[:shots] for part in parts])


def classify(shots: Tensor, labels: Tensor, features: Tensor, classes: int) -> Tensor:
    """Return the class of each row of `features` (N, D), int64 (N,), from those of the shots:
    `shots` (K, D) with `labels` (K,). Of equal scores the first class counts."""
    mean, deviation = shots.mean(0), shots.std(0, correction=0) + EPS
    x = F.pad((shots - mean) / deviation, (0, 1), value=BIAS)
    z = F.pad((features - mean) / deviation, (0, 1), value=BIAS)
    target = 2 * F.one_hot(labels, classes).to(x.dtype) - 1
    return (z @ ridge(x, target)).argmax(1)


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """Return the w (D, C) of least |xw - y|^2 + 1024 |w|^2, for x (K, D) and y (K, C).

    It is solved in the fewer unknowns: of D features, or of K rows.
    """
    rows, width = x.shape
    if rows >= width:
        return torch.linalg.solve(_penalised(x.T @ x), x.T @ y)
    return x.T @ torch.linalg.solve(_penalised(x @ x.T), y)


def _penalised(gram: Tensor) -> Tensor:
    return gram + PENALTY * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
