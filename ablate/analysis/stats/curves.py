"""Numbers of a learning curve that can stand in a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ablate.analysis.stats.estimate import Estimate, Floats, mean_interval


def epochs_to(epochs: Floats, values: Floats, threshold: float) -> Floats:
    """The first of `epochs` (T,), increasing, at which values (..., T) are at least `threshold`.

    Shape (...); NaN where a run never gets there. Not interpolated: it is an epoch that was
    measured. NaN values are epochs that were not.
    """
    there = values >= threshold
    first: Floats = np.where(there.any(-1), np.asarray(epochs, float)[there.argmax(-1)], np.nan)
    return first


class Reached(NamedTuple):
    """The mean of the runs that reached a threshold, and how many of all never did."""

    epochs: Estimate | None
    never: int


def reached(epochs: Floats, alpha: float = 0.05) -> Reached:
    """`epochs` (n,) of the runs of a cell, as `epochs_to` gives them: who never got there is
    counted, not averaged, so the mean is that of the runs that did.
    """
    there = epochs[~np.isnan(epochs)]
    mean = mean_interval(there, alpha) if len(there) else None
    return Reached(mean, len(epochs) - len(there))


def auc(epochs: Floats, values: Floats) -> Floats:
    """The area under the curve values (..., T) over `epochs` (T,), T >= 2, increasing, by the
    trapezoidal rule and divided by its length: the mean value over the training, shape (...).
    """
    steps = np.diff(np.asarray(epochs, float))
    area: Floats = ((values[..., 1:] + values[..., :-1]) / 2 * steps).sum(-1) / steps.sum()
    return area


def expected_best(scores: Floats, share: float = 0.8) -> tuple[Floats, Floats, Floats]:
    """(mean, low, high), each (n,), of the best of k = 1..n draws from `scores` (n,).

    `share` of all draws lie from low to high. With replacement: P(best <= v_i) = (i / n)^k for
    sorted v (Dodge, Gururangan, Card, Schwartz, Smith 2019, "Show Your Work", eq. 8). Trials of a
    sampler that learns are not independent draws: for those it is a summary.
    """
    value = np.sort(scores)
    n = len(value)
    below = (np.arange(n + 1) / n)[:, None] ** np.arange(1, n + 1)  # (n + 1, k)
    mean = value @ np.diff(below, axis=0)
    low, high = (
        value[(below[1:] < tail - 1e-12).sum(axis=0)] for tail in ((1 - share) / 2, (1 + share) / 2)
    )
    return mean, low, high
