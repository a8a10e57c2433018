"""The test metrics, from what `predictions.npy` holds of each test example, and nothing else.

Both halves import this file: the training half to write the metrics, the control half to check them
from the file years later, perhaps on another machine. So they are counts, and a sum that is rounded
once: numpy and torch add in an order of their own, which changes with their version and the CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy, which `ablate --help` does without
    import numpy as np

TOP5_FROM = 10  # classes; with fewer, top-5 says little


def metrics(table: np.ndarray, classes: int) -> dict[str, float]:
    """n, loss (the mean) and, as fractions, top1 and, from 10 classes, top5.

    table (N,): fields `rank` of the true class, 0 being best, and `loss`.
    """
    number = len(table)
    found = {"n": number, "loss": math.fsum(table["loss"].tolist()) / number}
    for name, rank in (("top1", 1), ("top5", 5))[: 2 if classes >= TOP5_FROM else 1]:
        found[name] = int((table["rank"] < rank).sum()) / number
    return found
