"""A mean with its interval, and the share of the seeds in the spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, stdtrit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TOLD_APART = 1e-12  # relative: a spread below this is rounding


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. n: independent trainings behind it; below 2 there is no interval.

    `sd` is the standard deviation of one seed's contribution; of the mean it is sd / sqrt(n).
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None = None


def mean_interval(x: Sequence[float] | Floats, alpha: float = 0.05) -> Estimate:
    """Mean of x, shape (n,), with Student's t interval: independent, normal values.
    None where they are all equal."""
    values = np.asarray(x, dtype=float)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Estimate(mean, None, None, n)
    sd = math.sqrt(float(variance(values, rounding(values))))
    if not sd:  # equal results have no spread: accuracies are counts, so that this is rounding
        return Estimate(mean, None, None, n, 0.0)
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * sd / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, sd)


def welch_of_means(
    mean: float, se: float, baseline: float, baseline_se: float, n: int, alpha: float = 0.05
) -> Estimate:
    """The gain of a published mean over another, each of n independent trainings (Welch 1947).

    `se` are standard errors, s / sqrt(n): what the +- of the Dual PatchNorm tables fit. Values
    rounded to 0.1 carry their rounding: se of 0 twice gives no interval.
    """
    gain, a, b = mean - baseline, se**2, baseline_se**2
    if n < 2 or a + b == 0:
        return Estimate(gain, None, None, n)
    df = (n - 1) * (a + b) ** 2 / (a**2 + b**2)
    half = float(stdtrit(df, 1 - alpha / 2)) * math.sqrt(a + b)
    return Estimate(gain, gain - half, gain + half, n, math.sqrt(n * (a + b)))


def seed_correlation(y: Floats, alpha: float = 0.05) -> Estimate | None:
    """The share of the seed blocks in the variance of y (R, n), none missing; R, n >= 2.

    The consistency ICC(C,1) of the two-way analysis of variance and its F-based interval (McGraw
    & Wong 1996, Table 7), rows being judges. It can be negative: an estimate of a share near 0.
    """
    rows, n = y.shape
    if rows < 2 or n < 2:
        return None
    seeds = y.mean(0) - y.mean()
    residuals = y - y.mean(1, keepdims=True) - seeds
    df = (rows - 1) * (n - 1)
    between = rows * float((seeds**2).sum()) / (n - 1)
    within = float((residuals**2).sum()) / df
    if within <= (TOLD_APART * float(np.abs(y).max())) ** 2:
        return None

    def share(ratio: float) -> float:
        return float((ratio - 1) / (ratio + rows - 1))

    ratio = between / within
    low = share(ratio / fdtri(n - 1, df, 1 - alpha / 2))
    high = share(ratio * fdtri(df, n - 1, 1 - alpha / 2))
    return Estimate(share(ratio), low, high, n)


def rounding(y: Floats) -> float:
    """The variance below which values as large as y differ by rounding alone."""
    return float(TOLD_APART * np.abs(y).max(initial=0.0)) ** 2


def variance(values: Floats, smallest: float) -> Floats:
    """Over the last axis, but for NaN; 0 where it is rounding."""
    found: Floats = (
        np.nanvar(values, -1, ddof=1) if np.isnan(values).any() else values.var(-1, ddof=1)
    )
    return np.where(found > smallest, found, 0.0)


def epochs_to(epochs: Floats, values: Floats, threshold: float) -> Floats:
    """The first of `epochs` (T,), increasing, at which values (..., T) are at least `threshold`.

    Shape (...); NaN where a run never gets there. Not interpolated: it is an epoch that was
    measured. NaN values are epochs that were not.
    """
    there = values >= threshold
    first: Floats = np.where(there.any(-1), np.asarray(epochs, float)[there.argmax(-1)], np.nan)
    return first


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
