"""Effects of the factors of a design: contrasts with weights over its cells, seeds as blocks.

A design is levels (R, F): of each of R cells the level of each of F factors, 0 being the factor's
reference. Every level of a factor, and every pair of levels of two, has equally many cells, as in a
product of factors and in a fraction of resolution IV.

Over columns and between columns: the machinery of `gains`, seeds as blocks.

Seeds that two columns share are the same seeds, so whatever is taken over columns is taken within
a seed first; the interval is then over seeds.

Used by analysis/effects.py and change_gains.py (effects of changes), analysis/across.py (averages
and contrasts of columns) and report/designs.py. Other numbers also need docs/statistics.md, and
`python tests/study_page.py --reprint` (the bundles in docs/studies).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc, stdtrit

from ablate.analysis.stats.estimate import (
    Bools,
    Estimate,
    Floats,
    mean,
    mean_interval,
    rounding,
    sign_flip,
    total,
    variance,
)
from ablate.analysis.stats.gains import (
    POWER,
    ColumnGains,
    Method,
    Reason,
    RowGain,
    adjusted,
    column_gains,
    raw_p,
)
from ablate.analysis.stats.spread import Flips, of_contrasts

Levels = NDArray[np.int_]


def level_effect(levels: Levels, factor: int, level: int = 1) -> Floats:
    """Weights (R,) of a main effect: the mean over the cells at this level of a factor, minus that
    at its reference."""
    return _mean(levels[:, factor] == level) - _mean(levels[:, factor] == 0)


def pair_effect(levels: Levels, factor: int, other_factor: int, i: int = 1, j: int = 1) -> Floats:
    """Return the weights (R,) of an interaction: the gain of level i of one factor at level j of
    the other, minus its gain at the other's reference."""
    a, b = levels[:, factor], levels[:, other_factor]
    both, alone = _mean((a == i) & (b == j)), _mean((a == i) & (b == 0))
    return both - alone - _mean((a == 0) & (b == j)) + _mean((a == 0) & (b == 0))


def _mean(cells: Bools) -> Floats:
    return np.asarray(cells / cells.sum())


def shapley(levels: Levels, factor: int) -> Floats:
    """Weights (R,) of a factor's Shapley value: its gain over the cells without it, averaged over
    the orders in which all factors may be added (Shapley 1953, A value for n-person games). Of the
    product of K factors of two levels; the values sum to the last cell's gain over the first.
    """
    count = levels.shape[1]
    size = levels.sum(1)
    has_factor = levels[:, factor] == 1
    predecessors = size - has_factor  # factors that came before this one
    share = [
        math.factorial(k) * math.factorial(count - k - 1) / math.factorial(count)
        for k in range(count)
    ]
    return np.asarray(np.where(has_factor, 1.0, -1.0) * np.asarray(share)[predecessors])


def smallest_gain(error: float, df: float, alpha: float, contrasts: int) -> float:
    """Return the gain that one of this many simultaneous contrasts distinguishes from 0 with
    `POWER`, if its standard error is `error` with `df` degrees of freedom (noncentral t)."""
    critical = stdtrit(df, 1 - alpha / (2 * contrasts))
    return float(nctdtrinc(df, 1 - POWER, critical) * error)


@dataclass(frozen=True)
class DesignEffects:
    """The effects, in the order of their weights. `seeds`: those that all cells have; `by_images`:
    whether effects are judged by which images flip; `noisy`: the cells whose own spread is in the
    effects then."""

    gains: tuple[RowGain, ...]
    seeds: tuple[int, ...]
    by_images: bool
    noisy: tuple[int, ...] = ()


def design_effects(
    y: Floats,
    weights: Floats,
    method: Method,
    unstable: Bools | None = None,
    right: NDArray[np.bool_] | None = None,
) -> DesignEffects | None:
    """Estimate the contrasts (K, R) of the cells of y (R, S), R >= 3, NaN where missing, on the
    seeds that every cell has; None below two. `right` (R, S, N): which images runs get right.
    `method`'s contrasts are the family.

    Where a cell is `unstable` (R,), and without images, each effect is judged by its own spread
    over seeds (Cochran & Cox 1957, ch. 4-5): cells may be near copies, and one spread of all cells
    errs up to .24 then.
    """
    seeds = tuple(int(s) for s in np.flatnonzero(~np.isnan(y).any(0)))
    if (n := len(seeds)) < 2:
        return None
    cells = y[:, list(seeds)]
    values = total(weights[:, :, None] * cells, 1)  # (K, n)
    shaky = unstable is not None and bool(unstable.any())
    variances = None
    if right is not None and method.spread == "images" and not shaky:
        variances = of_contrasts(cells, weights, right[:, list(seeds)])
    if variances is None:
        reason: Reason = "instability" if shaky else ""
        v, df = variance(values, rounding(cells)), np.full(len(values), n - 1.0)
        reasons = [_Own(reason)] * len(values)
        return DesignEffects(_gains(values, v, df, reasons, method), seeds, by_images=False)
    reasons = [
        _Own("vague" if vague else "spread", None if vague else math.sqrt(ratio))
        if is_own
        else _Own()
        for is_own, vague, ratio in zip(
            variances.is_own, variances.vague, variances.ratios, strict=True
        )
    ]
    gains = _gains(values, variances.v, variances.df, reasons, method)
    noisy = tuple(int(cell) for cell in np.flatnonzero(variances.noisy))
    return DesignEffects(gains, seeds, by_images=True, noisy=noisy)


class _Own(NamedTuple):
    """The reason why a contrast is judged by its own spread, "" if it isn't. `ratio`: of its own
    standard deviation over seeds to the one by images, None where these are not compared."""

    reason: Reason = ""
    ratio: float | None = None


def _gains(
    values: Floats, v: Floats, df: Floats, reasons: Sequence[_Own], method: Method
) -> tuple[RowGain, ...]:
    """Judge contrasts by seed (K, n), whose variances (K,) have these degrees of freedom."""
    n = values.shape[1]
    half = method.critical(df) * np.sqrt(v / n)
    means, raw = mean(values), raw_p(mean(values), v, df, n)

    def effect(k: int) -> RowGain:
        middle, sd = float(means[k]), math.sqrt(float(v[k]))
        has_spread = sd > 0
        return RowGain(
            gain=Estimate(middle, middle - float(half[k]), middle + float(half[k]), n, sd),
            own_reason=reasons[k].reason,
            ratio=reasons[k].ratio,
            raw_p=float(raw[k]) if has_spread else None,
            p=method.p(middle / sd * math.sqrt(n), float(df[k])) if has_spread else None,
            sign_flip=sign_flip(values[k]) if has_spread else None,
            df=float(df[k]),
        )

    gains = adjusted([effect(k) for k in range(len(values))], method)
    return tuple(gain for gain in gains if gain is not None)


Rights = Sequence[NDArray[np.bool_]]  # of each column (R, S, N): which images runs get right


@dataclass(frozen=True)
class AverageGain:
    """The mean gain of a row over `columns` (their indices), and its intervals.

    `gain`: these architectures, seeds random. `sampled`: if architectures were a sample of those
    to come, its n being columns (one column: no interval).
    """

    gain: RowGain
    sampled: Estimate
    columns: tuple[int, ...]
    tripped: bool  # as of ColumnGains
    ratio: float | None


def average_gains(
    y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
    right: Rights | None = None,
) -> tuple[AverageGain | None, ...]:
    """Compute the average gain of every row of y (C, R, S), columns x rows x seeds, NaN where
    missing.

    A row's average is over the columns where it and a stable baseline have all S seeds; None where
    there is no such column, and for the baseline. The columns' mean is a column of its own, so
    `method`, whose contrasts are those of this average, and `unstable` (C, R) are as in
    `column_gains`. A row with fewer columns is fitted together with the rows that have all of
    these.
    """
    complete: Bools = np.asarray(~np.isnan(y).any(-1))
    shaky: Bools = np.zeros(y.shape[:2], dtype=bool) if unstable is None else unstable
    usable = complete & complete[:, [baseline]] & ~shaky[:, [baseline]]

    @functools.cache
    def fitted(columns: tuple[int, ...]) -> ColumnGains:
        some = list(columns)
        means = mean(y[some], 0)
        means[~complete[some].all(axis=0)] = np.nan
        flips = None
        if right is not None:
            flips = Flips(tuple(right[c] for c in some), (1 / len(some),) * len(some))
        return column_gains(means, baseline, method, np.asarray(shaky[some].any(axis=0)), flips)

    def average(row: int) -> AverageGain | None:
        some = [int(c) for c in np.flatnonzero(usable[:, row])]
        if row == baseline or not some:
            return None
        joint_gains = fitted(tuple(some))
        if (gain := joint_gains.rows[row]) is None:
            return None
        gains = mean(y[some, row] - y[some, baseline])
        sampled = mean_interval(gains, method.alpha / method.contrasts)
        return AverageGain(gain, sampled, tuple(some), joint_gains.tripped, joint_gains.ratio)

    return tuple(average(row) for row in range(y.shape[1]))


def changes(
    first_y: Floats,
    second_y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
    right: Rights | None = None,
) -> ColumnGains:
    """Return by how much each row's gain over `baseline` grows from one column to another: the gain
    in the differences, seed by seed, of the row's results between the columns. `first_y` and
    `second_y` are (R, S), NaN where missing.

    `method`'s contrasts are those of this comparison; `unstable` (R,): rows that are unstable in
    either column; `right`: which images the runs of both columns get right.
    """
    flips = Flips(tuple(right), (-1.0, 1.0)) if right is not None else None
    return column_gains(second_y - first_y, baseline, method, unstable, flips)
