"""k-NN accuracy of a run's features (DINO, arXiv 2104.14294).

Used by `probe=[knn]`, through run/choices.py `PROBES`. The arrays are read in run/metrics/probed.py
(`_knn`); the numbers of neighbours are those of run/metrics/knn.py.
"""

from __future__ import annotations

import numpy as np

from ablate.run import KNN_NEIGHBOURS, Run
from ablate.training.model import Host
from ablate.training.probes.probe import Evaluate, Probe
from ablate.training.task.knn import KNN


class KNNProbe(Probe):
    """Accuracy on the run's own test set, by the neighbours in its own training set: what a run of
    `task=knn` on this data reports when it starts from this run.

    Arrays: accuracy float64 (neighbours,); neighbours; images int64 ().
    """

    def __init__(self, run: Run, model: Host, total: int) -> None:
        self._task = KNN(run)
        self._arrays: dict[str, np.ndarray] = {}

    def end(self, evaluate: Evaluate) -> None:
        _, table = evaluate(self._task)
        self._arrays = {
            "accuracy": (table["class"] == table["label"][:, None]).mean(0),
            "neighbours": np.array(KNN_NEIGHBOURS),
            "images": np.array(len(table)),
        }

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        return self._arrays
