"""Features of images as the model's head reads them, for tasks that train nothing.

Used by task/fewshot.py and task/knn.py. D features.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ablate.training.task import Predictor

AT_ONCE = 500  # rows that are read at once: a training set need not fit into memory


def features_and_labels(
    predict: Predictor, batches: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the features (N, D) of the images of `batches`, on the training's device, and their
    labels (N,), on the CPU; each rank passes its own batches and gets those of all."""
    parts = []
    for images, labels in batches:
        parts.append((predict.features(images).to(dtype).cpu(), labels.cpu()))
    parts = predict.ranks.gathered(parts)
    features = torch.cat([part for part, _ in parts]).to(predict.training.device)
    return features, torch.cat([labels for _, labels in parts])


def train_features(predict: Predictor, rows: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Return the features (rows, D) of these rows of the training split."""
    features, parts = [], torch.from_numpy(rows).split(AT_ONCE)
    for part in parts[predict.ranks.share(len(parts))]:
        split = predict.train.take(part.to(predict.train.device))
        for images, _ in predict.split_batches(split):
            features.append(predict.features(images).to(dtype).cpu())
    return torch.cat(predict.ranks.gathered(features)).to(predict.training.device)
