"""Few-shot classification as the control half knows it: its metrics, computed from
`predictions.npy`, and how many images a run of it is shown.

Used by run/metrics/__init__.py (`TASKS`), so by tables and `ablate verify`, and by the workers of
the task and the probe (training/task/fewshot.py, training/probes/fewshot.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.run.metrics.frozen import FEWSHOT_SEEDS, FEWSHOT_SHOTS
from ablate.run.metrics.metric import Metric, TaskChoice, share

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np


def fewshot_scores(table: np.ndarray, classes: int) -> dict[str, float]:
    """Return n and, for each number of shots, the accuracy as a fraction: its mean over the draws.

    table (N,): fields `label`, and `class` (shots, draws), the predicted classes.
    """
    hits = (table["class"] == table["label"][:, None, None]).sum((0, 2)).tolist()
    number = len(table)
    scores = {
        _key(k): hit / (number * len(FEWSHOT_SEEDS))
        for k, hit in zip(FEWSHOT_SHOTS, hits, strict=True)
    }
    return {"n": number, **scores}


def _key(shots: int) -> str:
    return f"fewshot{shots}"


def _metric(shots: int) -> Metric:
    """Make the metric of a number of shots. It is no share of images that are right or wrong, but a
    mean over draws, so its error is not binomial."""
    return share(_key(shots), f"{shots}-shot accuracy", f"{shots}-shot")


def images_shown(examples: Mapping[str, int], classes: int) -> int:
    """Return the most images that a run is shown: validation, test, and the draws for each of the
    two."""
    draws = min(examples["train"], max(FEWSHOT_SHOTS) * len(FEWSHOT_SEEDS) * classes)
    return examples["validation"] + examples["test"] + 2 * draws


FEWSHOT = TaskChoice(
    line="which class an image shows, by a linear classifier of a few images of each class; no "
    "weight is trained",
    path="ablate.training.task.fewshot:FewShot",
    source="Dual PatchNorm (arXiv 2302.01327), Table 1; big_vision evaluators/fewshot_lsr.py",
    # The papers' tables are of 25 shots, which also vary the least from draw to draw.
    metrics=tuple(map(_metric, reversed(FEWSHOT_SHOTS))),
    score=fewshot_scores,
    prior="the class prior",
    keeps="label, class (predicted, by shots and draw)",
    how=f"Few-shot: ridge regression on frozen features of k training images a class; a run's "
    f"accuracy is its mean over {len(FEWSHOT_SEEDS)} draws of these images.",
    shown=images_shown,
)
