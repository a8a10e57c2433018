"""Image-text training as the control half knows it: its metrics, computed from `predictions.npy`.

As in `classify`, a metric is a count, or a sum that is rounded once.

Used by run/metrics/__init__.py (`TASKS`), so by tables and `ablate verify`, and by the worker
(training/task/contrastive.py), which writes the predictions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ablate.run.metrics.metric import Metric, TaskChoice, share

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np


def contrastive_scores(table: np.ndarray, classes: int) -> dict[str, float]:
    """Return n, zeroshot and twins (fractions), and loss: the mean above its floor.

    table (N,): fields `label`, `class` (the predicted one), `loss`, `floor`, the least loss that
    the captions of its batch allow, and `twin`, whether an earlier class has the same name.
    """
    number = len(table)
    above = (table["loss"] - table["floor"]).tolist()
    hits = int((table["class"] == table["label"]).sum())
    return {
        "n": number,
        "zeroshot": hits / number,
        "loss": math.fsum(above) / number,
        "twins": int(table["twin"].sum()) / number,
    }


CONTRASTIVE = TaskChoice(
    line="match the images of a batch with their captions: an image tower and a text tower, "
    "measured zero-shot by the names of classes",
    path="ablate.training.task.contrastive:Contrastive",
    source="Zhai et al. 2022 (LiT, arXiv 2111.07991)",
    metrics=(
        share("zeroshot", "zero-shot top-1 accuracy", "zero-shot", is_share=True),
        # Embeddings that are all alike have ln B of B captions, the floor has ln(B / C) of these.
        Metric(
            *("loss", "test loss above its floor", "loss", "", "nats", 1.0, 4), math.log, sign=-1
        ),
        share(
            *("twins", "images of classes whose name is another's", "twins", lambda classes: 0.0),
            sign=-1,
            neutral=True,
        ),
    ),
    score=contrastive_scores,
    outputs=lambda classes: 0,
    prior="embeddings that are all alike",
    keeps="label, predicted class, loss, floor of the loss, is its class's name another's",
    how="Zero-shot: an image counts as the class whose name, embedded as a text, is nearest; of "
    "classes with equal names only the first can be right.",
    unlike_timm="text tower",
    reads_text=True,
)
