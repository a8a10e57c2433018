"""Classification by the nearest training images, in the features of a model.

The weighted vote of DINO (Caron et al. 2021, arXiv 2104.14294; facebookresearch/dino eval_knn.py),
which is that of Wu et al. 2018 (arXiv 1805.01978). Shapes: M training images, N images to predict,
D features, C classes.

Used by `task=knn`, through its path in run/metrics/knn.py, and by probes/knn.py. The numbers of
neighbours are there, too, and so is `knn_scores`, which reads the predictions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.run import KNN_NEIGHBOURS, TASKS, Run
from ablate.training.task import Predictor, Task
from ablate.training.task.frozen_features import features_and_labels, train_features

TEMPERATURE = 0.07  # a neighbour of cosine s votes with exp(s / 0.07)
# Images that are compared at once: 0.3 GB of cosines.
BLOCK = 1 << 16  # of the training set
CHUNK = 512  # to predict


class KNN(Task):
    """Classification of each image by the labels of the training images nearest to it."""

    def __init__(self, run: Run) -> None:
        self._classes = run.data.classes

    def evaluate(
        self, predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], np.ndarray]:
        """Return the metrics and predictions of every number of neighbours. Predictions: `label`,
        and `class` (neighbours,), in the smallest integer type that holds them."""
        labels = predict.train.labels.cpu()
        references = train_features(predict, np.arange(len(labels)), torch.float32)
        features, test_labels = features_and_labels(predict, batches, torch.float32)
        kind = np.min_scalar_type(self._classes - 1)
        fields = [("label", kind), ("class", kind, (len(KNN_NEIGHBOURS),))]
        table = np.empty(len(features), fields)
        table["label"] = test_labels.numpy()
        labels = labels.to(references.device, torch.int64)
        table["class"] = classify(references, labels, features, self._classes).cpu().numpy()
        return TASKS["knn"].score(table, self._classes), table


def classify(references: Tensor, labels: Tensor, features: Tensor, classes: int) -> Tensor:
    """Return the class of each row of `features` (N, D) by the rows of `references` (M, D), with
    `labels` (M,), that are nearest to it: int64 (N, neighbours), a column for each of
    KNN_NEIGHBOURS. Of fewer rows all vote; of equal votes the first class counts."""
    references, features = (F.normalize(rows, dim=1) for rows in (references, features))
    predicted = []
    for chunk in features.split(CHUNK):
        cosines, rows = nearest(references, chunk.double(), max(KNN_NEIGHBOURS))
        weights = (cosines / TEMPERATURE).exp()
        votes = weights.new_zeros(len(chunk), classes)
        voters = rows.shape[1]
        numbers = [min(k, voters) for k in KNN_NEIGHBOURS]
        winners = {}
        # One neighbour after another: a row's votes are added in this order on every device.
        for number, place in enumerate(rows.T, 1):
            votes.scatter_add_(1, labels[place][:, None], weights[:, number - 1, None])
            if number in numbers:
                winners[number] = votes.argmax(1)
        predicted.append(torch.stack([winners[number] for number in numbers], 1))
    return torch.cat(predicted)


def nearest(references: Tensor, queries: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return (cosines, rows), both (N, number), of the rows of `references` (M, D) that are nearest
    to each of `queries` (N, D), the nearest first; fewer where M is less. All rows have length 1.
    """
    cosines = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first in range(0, len(references), BLOCK):
        block = references[first : first + BLOCK].to(queries.dtype)
        places = torch.arange(first, first + len(block), device=queries.device)
        rows = torch.cat([rows, places.expand(len(queries), -1)], 1)
        cosines = torch.cat([cosines, queries @ block.T], 1)
        cosines, best = cosines.topk(min(number, cosines.shape[1]))
        rows = rows.gather(1, best)
    return cosines, rows
