"""A mean with its interval, and the share of the seeds in the spread.

Tests whose p-values are counted, and Holm's adjustment. Words are never drawn from them.

Used by all files of this folder, by analysis/tabulate.py and analysis/scores.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, stdtrit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TOLD_APART = 1e-12  # relative: a spread below this is rounding


def total(values: Floats, axis: int = -1) -> Floats:
    """Sum over an axis: the same bits for any order of the values and on any processor.

    The values are sorted, then added in numpy's fixed order. A product of matrices is no sum of
    this kind: each BLAS kernel adds in an order of its own.
    """
    contiguous = np.ascontiguousarray(np.moveaxis(np.asarray(values, dtype=float), axis, -1))
    return np.asarray(np.sort(contiguous, axis=-1).sum(-1))


def mean(values: Floats, axis: int = -1) -> Floats:
    """Average over an axis, but for NaN, as `total` sums; NaN where there are no values."""
    present = ~np.isnan(values)
    count = present.sum(axis)
    summed = total(np.where(present, values, 0.0), axis)
    return np.where(count > 0, summed / np.maximum(count, 1), np.nan)


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. n: independent trainings behind it; below 2 there is no interval.

    `sd` is the standard deviation of one seed's contribution; of the mean it is sd / sqrt(n). `df`:
    its degrees of freedom, those of the interval.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None = None
    df: float | None = None

    @property
    def half(self) -> float | None:
        """The half-width of the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """True if there is an interval, of values with a spread, and 0 lies outside it."""
        if self.low is None or self.high is None or not self.sd:
            return False
        return self.low > 0 or self.high < 0


def mean_interval(x: Sequence[float] | Floats, alpha: float = 0.05) -> Estimate:
    """Mean of x, shape (n,), with Student's t interval: independent, normal values.
    None where they are all equal."""
    values = np.asarray(x, dtype=float)
    n, middle = len(values), float(mean(values))
    if n < 2:
        return Estimate(middle, None, None, n)
    sd = math.sqrt(float(variance(values, rounding(values))))
    if not sd:  # equal results have no spread: accuracies are counts, so that this is rounding
        return Estimate(middle, None, None, n, 0.0)
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * sd / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half, n, sd, n - 1.0)


def seed_correlation(y: Floats, alpha: float = 0.05) -> Estimate | None:
    """Estimate the share of the seed blocks in the variance of y (R, n), none missing; R, n >= 2.

    The consistency ICC(C,1) of the two-way analysis of variance and its F-based interval (McGraw &
    Wong 1996, Table 7), rows being judges. It can be negative: an estimate of a share near 0.
    """
    rows, n = y.shape
    if rows < 2 or n < 2:
        return None
    seeds = mean(y, 0) - mean(y.ravel())
    residuals = y - mean(y)[:, None] - seeds
    df = (rows - 1) * (n - 1)
    between = rows * float(total(np.square(seeds))) / (n - 1)
    within_variance = float(total(np.square(residuals).ravel())) / df
    if within_variance <= (TOLD_APART * float(np.abs(y).max())) ** 2:
        return None

    def share(ratio: float) -> float:
        return float((ratio - 1) / (ratio + rows - 1))

    ratio = between / within_variance
    low = share(ratio / fdtri(n - 1, df, 1 - alpha / 2))
    high = share(ratio * fdtri(df, n - 1, 1 - alpha / 2))
    return Estimate(share(ratio), low, high, n)


def rounding(y: Floats) -> float:
    """Return the variance below which values as large as y differ by rounding alone."""
    smallest = float(TOLD_APART * np.abs(y).max(initial=0.0))
    return smallest * smallest


def variance(values: Floats, smallest: float) -> Floats:
    """Compute it over the last axis, but for NaN; 0 where it is rounding."""
    present = ~np.isnan(values)
    away = np.where(present, values - mean(values)[..., None], 0.0)
    variances = total(np.square(away)) / (present.sum(-1) - 1)
    return np.where(variances > smallest, variances, 0.0)


def epochs_to(epochs: Floats, values: Floats, threshold: float) -> Floats:
    """Return the first of `epochs` (T,), increasing, at which values (..., T) are at least
    `threshold`.

    Shape (...); NaN where a run never gets there. Not interpolated: it is an epoch that was
    measured. NaN values are epochs that were not.
    """
    is_reached = values >= threshold
    epoch: Floats = np.where(
        is_reached.any(-1), np.asarray(epochs, float)[is_reached.argmax(-1)], np.nan
    )
    return epoch


def auc(epochs: Floats, values: Floats) -> Floats:
    """Compute the area under the curve values (..., T) over `epochs` (T,), T >= 2, increasing, by
    the trapezoidal rule and divided by its length: the mean value over the training, shape
    (...)."""
    steps = np.diff(np.asarray(epochs, float))
    area: Floats = ((values[..., 1:] + values[..., :-1]) / 2 * steps).sum(-1) / steps.sum()
    return area


def expected_best(scores: Floats, share: float = 0.8) -> tuple[Floats, Floats, Floats]:
    """Return (mean, low, high), each (n,), of the best of k = 1..n draws from `scores` (n,).
    `share` of all draws lie from low to high.

    With replacement: P(best <= v_i) = (i / n)^k for sorted v (Dodge, Gururangan, Card, Schwartz,
    Smith 2019, "Show Your Work", eq. 8). Trials of a sampler that learns are not independent draws:
    for those it is a summary.
    """
    value = np.sort(scores)
    n = len(value)
    share_below = np.repeat(np.arange(n + 1)[:, None] / n, n, axis=1)
    below = np.multiply.accumulate(share_below, axis=1)  # (n + 1, k): its powers
    middle = total(value[:, None] * np.diff(below, axis=0), 0)
    low, high = (
        value[(below[1:] < tail - 1e-12).sum(axis=0)] for tail in ((1 - share) / 2, (1 + share) / 2)
    )
    return middle, low, high


MOST_FLIPPED = 20  # seeds: 2^19 sums
FISHER_TESTED = 4  # trainings a row
FEWEST_RANKED = 5  # rows
MOST_ORDERED = 8  # rows whose every order is counted
ORDERS = 100_000  # drawn where they are more


class Exact(NamedTuple):
    """A p-value, and the smallest that so few trainings can give. Not `tested`: for the record."""

    p: float
    floor: float
    tested: bool = True


def sign_flip(differences: Sequence[float] | Floats) -> Exact | None:
    """Compute the two-sided p of a mean gain from the differences (n,) of its seeds: the share of
    the 2^n assignments of signs whose mean is at least as far from 0 (Fisher 1935, par. 21).

    Assumes differences symmetric about 0 under no gain, no normality. Floor 2 / 2^n; None without
    seeds, and beyond 20 seeds, where it says nothing new.
    """
    values = np.asarray(differences, dtype=float)
    n = len(values)
    if not 1 <= n <= MOST_FLIPPED:
        return None
    sums = values[:1]  # the other half of the signs mirrors these
    for value in values[1:]:
        sums = np.concatenate([sums + value, sums - value])
    rounding = TOLD_APART * float(total(np.abs(values)))
    as_far = np.abs(sums) >= abs(float(total(values))) - rounding
    return Exact(float(as_far.mean()), 2 / 2**n)


def fisher(diverged: int, n: int, other_diverged: int, m: int) -> Exact:
    """Fisher's exact test of `diverged` of n trainings against `other_diverged` of m, two-sided:
    the probability of all tables with these margins that are no likelier. n, m >= 1, independent
    trainings. `tested` from 4 a row: 3/3 against 0/3 is .10.
    """
    floor = min(_fisher_p(n, n, 0, m), _fisher_p(0, n, m, m))
    return Exact(_fisher_p(diverged, n, other_diverged, m), floor, min(n, m) >= FISHER_TESTED)


def _fisher_p(k: int, n: int, j: int, m: int) -> float:
    both = k + j
    ways = [
        math.comb(n, i) * math.comb(m, both - i) for i in range(max(0, both - m), min(n, both) + 1)
    ]
    observed_ways = math.comb(n, k) * math.comb(m, j)
    return sum(way for way in ways if way <= observed_ways) / math.comb(n + m, both)


def holm(p: Floats, contrasts: int) -> Floats:
    """Step-down adjustment of p (..., K) in a family of `contrasts` >= K tests (Holm 1979).

    NaN stays: a contrast without a result counts as never rejected. Strong control of the
    family's error, whatever the dependence. Where the family is larger than K, it is no less.
    """
    order = np.argsort(p, axis=-1)  # NaN last
    factor = contrasts - np.arange(p.shape[-1])
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factor, axis=-1)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), -1)
    return adjusted


@dataclass(frozen=True)
class RankAgreement:
    """Kendall's tau-b between two rankings of n rows, with its two-sided p."""

    tau: float
    p: float
    n: int


def kendall(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> RankAgreement | None:
    """Compute Kendall's rank correlation of x and y, shape (n,): whether they rank rows alike. None
    below 5 rows and where one ranks nothing.

    p is over the orders of one ranking, ties kept (Kendall 1970, ch. 4): exact where only one has
    ties (published values are rounded; ours are not) or n <= 8; else of 100,000 seeded orders.
    """
    n = len(x)
    above, right = np.triu_indices(n, 1)
    signs = [np.sign(values[above] - values[right]) for values in map(np.asarray, (x, y))]
    ranked_pairs = [int(np.abs(sign).sum()) for sign in signs]  # pairs that it ranks
    if n < FEWEST_RANKED or not all(ranked_pairs):
        return None
    score = int((signs[0] * signs[1]).sum())
    tau = score / math.sqrt(ranked_pairs[0] * ranked_pairs[1])
    if len(above) not in ranked_pairs:
        return RankAgreement(tau, _ordered_p(np.asarray(x), np.asarray(y), score), n)
    tied = x if ranked_pairs[0] < ranked_pairs[1] else y
    ways = _inversions(np.unique(np.asarray(tied), return_counts=True)[1].tolist())
    as_far = sum(way for i, way in enumerate(ways) if abs(len(ways) - 1 - 2 * i) >= abs(score))
    return RankAgreement(tau, as_far / sum(ways), n)


def _inversions(groups: Sequence[int]) -> list[int]:
    """How many orders of a ranking with ties have 0, 1, ... discordant pairs against an untied one.

    `groups`: the sizes of its ties. The Gaussian multinomial coefficient [n]! / prod [group]!,
    where [k]! = (1 - q)(1 - q^2)...(1 - q^k) (MacMahon 1915), multiplied and divided in place.
    """
    n = sum(groups)
    pairs = (n * (n - 1) - sum(k * (k - 1) for k in groups)) // 2
    ways = [1] + [0] * pairs
    for k in range(1, n + 1):
        for i in range(pairs, k - 1, -1):
            ways[i] -= ways[i - k]
    for k in itertools.chain.from_iterable(range(1, size + 1) for size in groups):
        for i in range(k, pairs + 1):
            ways[i] += ways[i - k]
    return ways


def _ordered_p(x: Floats, y: Floats, score: int) -> float:
    n = len(x)
    if n <= MOST_ORDERED:
        orders = y[np.array(list(itertools.permutations(range(n))))]
    else:  # what was seen is one of the draws, so that p is never 0
        rng = np.random.default_rng(20230203)
        orders = np.concatenate([y[None], rng.permuted(np.tile(y, (ORDERS - 1, 1)), axis=1)])
    scores = np.zeros(len(orders))
    for i, j in itertools.combinations(range(n), 2):
        if x[i] != x[j]:
            scores += np.sign(x[i] - x[j]) * np.sign(orders[:, i] - orders[:, j])
    return float((np.abs(scores) >= abs(score)).mean())
