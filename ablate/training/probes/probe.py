"""What every probe is: it looks at a training and changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ablate.shared import Run, shipped
from ablate.training.model import Host
from ablate.training.task import Evaluation

Evaluate = Callable[[Evaluation], tuple[dict[str, float], np.ndarray]]  # of the test set


class Probe:
    """Built before the first step; a probe does what it needs of these, in this order."""

    def __init__(self, run: Run, model: Host, total: int) -> None:
        """`total`: steps of the run. Raises UserError where the model has nothing to look at."""

    def kept(self) -> dict[str, Tensor]:
        """What is measured step by step: in checkpoints, and written over by what they hold."""
        return {}

    def gradients(self, step: int) -> None:
        """Called in each step when all gradients are there, not yet clipped."""

    def hooks(self) -> Iterable[RemovableHandle]:
        """Put on at the end while the model, as it is measured, is shown validation images."""
        return ()

    def end(self, evaluate: Evaluate) -> None:
        """The model is as it is measured and saved; images have been shown."""

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        """What it has measured in that many steps; {} for nothing."""
        raise NotImplementedError


def grid_of(run: Run) -> tuple[int, int]:
    """Places of patches in a column and in a row."""
    side = run.data.size // shipped(run).model.patch
    return side, side
