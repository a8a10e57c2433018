"""Few-shot accuracy of a run's features (Dual PatchNorm, arXiv 2302.01327, Tables 1 and 2).

Used by `probe=[fewshot]`, through run/choices.py `PROBES`. The arrays are read in
run/metrics/probed.py (`_fewshot`); shots and seeds are those of run/metrics/fewshot.py.
"""

from __future__ import annotations

import numpy as np

from ablate.run import FEWSHOT_SEEDS, FEWSHOT_SHOTS, Run
from ablate.training.model import Host
from ablate.training.probes.probe import Evaluate, Probe
from ablate.training.task.fewshot import FewShot


class FewShotProbe(Probe):
    """Accuracy on the run's own test set, with shots from its own training set: what a run of
    `task=fewshot` on this data reports when it starts from this run.

    Arrays: accuracy float64 (shots, draws); shots, seeds of the draws; images int64 ().
    """

    def __init__(self, run: Run, model: Host, total: int) -> None:
        self._task = FewShot(run)
        self._arrays: dict[str, np.ndarray] = {}

    def end(self, evaluate: Evaluate) -> None:
        _, table = evaluate(self._task)
        self._arrays = {
            "accuracy": (table["class"] == table["label"][:, None, None]).mean(0),
            "shots": np.array(FEWSHOT_SHOTS),
            "seeds": np.array(FEWSHOT_SEEDS),
            "images": np.array(len(table)),
        }

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        return self._arrays
