"""The base class of probes, which look at a training and change nothing of it.

Used by every probe in probes/ and by the user's own; probes/__init__.py calls its methods. A
changed argument also needs a change of run/parts.py `PROBE` and templates/probe.py.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ablate.run import Run, shipped
from ablate.training.model import Host
from ablate.training.task import Evaluation

Evaluate = Callable[[Evaluation], tuple[dict[str, float], np.ndarray]]  # of the test set


class Probe:
    """A measurement, built before the first step. The training calls these methods in this order; a
    probe overrides those that it needs."""

    def __init__(self, run: Run, model: Host, total: int) -> None:
        """`total`: steps of the run. Raises UserError where the model has nothing to look at."""

    def kept(self) -> dict[str, Tensor]:
        """Return the tensors of what is measured step by step: checkpoints save them, and a resumed
        run overwrites them."""
        return {}

    def gradients(self, step: int) -> None:
        """Look at the gradients of a step: all are computed, none is clipped yet."""

    def hooks(self) -> Iterable[RemovableHandle]:
        """Yield the handles of hooks, which stay on at the end while the model, as it is measured,
        is shown validation images."""
        return ()

    def end(self, evaluate: Evaluate) -> None:
        """Look at the finished model, as it is measured and saved, after the hooks have seen
        images."""

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        """Return the arrays that were measured in `steps` steps, by name; {} for none."""
        raise NotImplementedError


def grid_of(run: Run) -> tuple[int, int]:
    """Return how many patches stand in a column and in a row."""
    side = run.data.size // shipped(run).model.patch
    return side, side
