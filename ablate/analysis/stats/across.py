"""Over columns, between columns, and the placement grid: the machinery of `gains`, seeds as blocks.

Seeds that two columns share are the same seeds, so whatever is taken over columns is taken within
a seed first; the interval is then over seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc

from ablate.analysis.stats.estimate import Bools, Estimate, Floats, mean_interval
from ablate.analysis.stats.gains import (
    ColumnGains,
    Fit,
    Method,
    Reason,
    RowGain,
    adjusted,
    column_gains,
    raw_p,
    row_gain,
)
from ablate.analysis.stats.pool import Pool, pooled, rounding, variance


@dataclass(frozen=True)
class AverageGain:
    """The mean gain of a row over `columns` (their indices), and its intervals.

    `gain`: these architectures, seeds random. `sampled`: if architectures were a sample of those
    to come, its n being columns (one column: no interval). `ratio`: see `ColumnGains`.
    """

    gain: RowGain
    sampled: Estimate
    columns: tuple[int, ...]
    ratio: float | None  # as of ColumnGains


def average_gains(
    y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
) -> tuple[AverageGain | None, ...]:
    """The average gain of every row of y (C, R, S), columns x rows x seeds, NaN where missing.

    A row's average is over the columns where it and a stable baseline have all S seeds; None where
    there is no such column, and for the baseline. The columns' mean is a column of its own, so
    `method`, whose contrasts are those of this average, and `unstable` (C, R) are as in
    `column_gains`. A row with fewer columns is fitted beside the rows that have all of those.
    """
    over = _over(y, baseline, method, unstable, lambda some: y[some].mean(0), fewest=1)

    def average(row: int, found: Combined) -> AverageGain:
        some = list(found.columns)
        gains = (y[some, row] - y[some, baseline]).mean(-1)
        sampled = mean_interval(gains, method.alpha / method.contrasts)
        return AverageGain(found.gain, sampled, found.columns, found.ratio)

    return tuple(found and average(row, found) for row, found in enumerate(over))


class Combined(NamedTuple):
    """The gain of a row in a combination of `columns` (indices); `ratio`: as of ColumnGains."""

    gain: RowGain
    columns: tuple[int, ...]
    ratio: float | None


def trends(
    y: Floats,
    x: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
) -> tuple[Combined | None, ...]:
    """By how much the gain of every row of y (C, R, S) grows with the columns' number x (C,): the
    slope of the least-squares line, a linear contrast of the columns (Cochran & Cox 1957, ch. 3).

    The slope is taken within a row's seed first; the slopes' column is judged as that of the means
    in `average_gains`, over the same columns. A line needs three: None where a row has fewer.
    """

    def slope(some: list[int]) -> Floats:
        away = x[some] - x[some].mean()
        weights = away / (away**2).sum()
        return np.asarray((weights[:, None, None] * y[some]).sum(0))

    return _over(y, baseline, method, unstable, slope, fewest=3)


def _over(
    y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None,
    combine: Callable[[list[int]], Floats],
    fewest: int,
) -> tuple[Combined | None, ...]:
    """The gain of every row of y (C, R, S) in what `combine` makes of columns: an (R, S) of their
    indices. A row has the columns where it and a stable baseline have all seeds; None below
    `fewest`, and for the baseline."""
    complete: Bools = np.asarray(~np.isnan(y).any(-1))
    shaky: Bools = np.zeros(y.shape[:2], dtype=bool) if unstable is None else unstable
    usable = complete & complete[:, [baseline]] & ~shaky[:, [baseline]]

    @functools.cache
    def fitted(columns: tuple[int, ...]) -> ColumnGains:
        some = list(columns)
        made = combine(some)
        made[~complete[some].all(axis=0)] = np.nan
        return column_gains(made, baseline, method, np.asarray(shaky[some].any(axis=0)))

    def combined(row: int) -> Combined | None:
        columns = tuple(int(c) for c in np.flatnonzero(usable[:, row]))
        if row == baseline or len(columns) < fewest:
            return None
        gain = fitted(columns).rows[row]
        return None if gain is None else Combined(gain, columns, fitted(columns).ratio)

    return tuple(combined(row) for row in range(y.shape[1]))


def changes(
    before: Floats,
    after: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
) -> ColumnGains:
    """By how much each row's gain over `baseline` grows between two columns, each (R, S), NaN
    where missing: the gain in the differences of a row's seed s between the columns.

    `method`'s contrasts are those of this comparison; `unstable` (R,): in either column.
    """
    return column_gains(after - before, baseline, method, unstable)


class AnovaLine(NamedTuple):
    """A line of an analysis of variance: F over (df, residual_df) and its p."""

    df: int
    residual_df: int
    f: float
    p: float


@dataclass(frozen=True)
class FactorialEffects:
    """Effects in a grid of two factors against their first levels, (0, 0) being the baseline.

    `first[i - 1]`: level i of the first factor, averaged over the second's levels; `second` alike.
    `interaction[i - 1][j - 1]`: what level i gains at level j of the second beyond what it gains
    at level 0. `sources` tests each of the three as a whole; empty where cells don't share a
    spread. `seeds` are those that all cells have.
    """

    first: tuple[RowGain, ...]
    second: tuple[RowGain, ...]
    interaction: tuple[tuple[RowGain, ...], ...]
    sources: Mapping[str, AnovaLine]
    seeds: tuple[int, ...]
    own: bool  # each effect is judged by its own spread: a cell is out of line


def grid_effects(
    y: Floats, method: Method, unstable: Bools | None = None
) -> FactorialEffects | None:
    """Main effects and interaction in y (A, B, S), A x B cells x seeds; A, B >= 2.

    y = first + second + interaction + seed + residual: a randomised complete block design (Cochran
    & Cox 1957, ch. 4-5) on the seeds that every cell has; NaN where missing, None below two, and
    where the baseline's cell (0, 0) is `unstable` (A, B). All A B - 1 effects are one family at
    `method.alpha`: t at alpha / (A B - 1), whatever contrasts `method` has. Effects share the
    spread that cells pool; where one cell is unstable, or a screen trips on one, the baseline's
    included, each effect is judged as by `paired`: by its own spread over seeds. By `welch` each
    cell has its own (Satterthwaite 1946).
    """
    a, b = y.shape[:2]
    cells = y.reshape(a * b, -1)
    seeds = tuple(int(s) for s in np.flatnonzero(~np.isnan(cells).any(0)))
    n, size = len(seeds), a * b - 1
    shaky = np.zeros(a * b, dtype=bool) if unstable is None else unstable.ravel()
    if n < 2 or shaky[0]:
        return None
    cells = cells[:, list(seeds)]
    pool: Pool | None = None
    own: Reason = ""
    if method.pools:
        pool = pooled(cells, 0, method.screen)
        own = "instability" if method.screen and shaky.any() else ""
        own = own or ("spread" if pool.tripped or pool.own.any() else "")
    # These contrasts don't share one control: no Dunnett. The rest of `screen` is in the pool.
    family = dataclasses.replace(method, screen=True, contrasts=size, comparisons=size)
    weights = _weights(a, b)
    found = _fit(cells, weights, None if own else pool, family)
    raw, each = raw_p(found, n), weights @ cells
    gains = adjusted([row_gain(found, raw, k, each[k], own, family) for k in range(size)], family)
    effects = [gain for gain in gains if gain is not None]
    crossed = effects[a + b - 2 :]
    return FactorialEffects(
        first=tuple(effects[: a - 1]),
        second=tuple(effects[a - 1 : a + b - 2]),
        interaction=tuple(tuple(crossed[i : i + b - 1]) for i in range(0, len(crossed), b - 1)),
        sources=_sources(cells.mean(1).reshape(a, b), n, pool) if pool and not own else {},
        seeds=seeds,
        own=bool(own),
    )


def _weights(a: int, b: int) -> Floats:
    """The effects as contrasts of cells (A B - 1, A B): first, second, interaction."""

    def against(levels: int) -> Floats:
        return np.asarray(np.eye(levels)[1:] - np.eye(levels)[0])

    mean_a, mean_b = np.full((1, a), 1 / a), np.full((1, b), 1 / b)
    effects = (against(a), mean_b), (mean_a, against(b)), (against(a), against(b))
    return np.concatenate([np.asarray(np.kron(*factors)) for factors in effects])


def _fit(cells: Floats, weights: Floats, pool: Pool | None, method: Method) -> Fit:
    """Contrasts, weights (K, R), of the means of cells (R, n): `fit`, of which a gain is one."""
    n = cells.shape[1]
    values = weights @ cells
    sd = np.sqrt(variance(values, rounding(cells)))
    df = np.full(len(weights), n - 1.0)
    if pool:  # half the variance of a gain is a cell's
        sd = np.sqrt((weights**2).sum(1) * pool.gain[0] / 2)
        df = np.full(len(weights), float(pool.df[0]))
    elif method.spread == "welch":
        parts = weights**2 * variance(cells, rounding(cells))
        sd = np.sqrt(parts.sum(1))
        df = np.divide((n - 1) * sd**4, (parts**2).sum(1), out=df, where=sd > 0)
    half = method.critical(df) * sd / math.sqrt(n)
    return Fit(values.mean(1), half, sd, df, np.zeros(len(weights), dtype=bool), None)


def _sources(means: Floats, n: int, pool: Pool) -> dict[str, AnovaLine]:
    """F tests of the effects in cell means (A, B), of n seeds, where all cells share a spread."""
    if pool.gain[0] == 0:
        return {}
    first = means.mean(1, keepdims=True) - means.mean()
    second = means.mean(0, keepdims=True) - means.mean()
    crossed = means - means.mean() - first - second
    a, b = means.shape
    found = {}
    for name, effect, df in (
        ("first", first, a - 1),
        ("second", second, b - 1),
        ("interaction", crossed, (a - 1) * (b - 1)),
    ):
        squares = n * float((np.broadcast_to(effect, means.shape) ** 2).sum())
        f = squares / df / float(pool.gain[0] / 2)
        found[name] = AnovaLine(df, int(pool.df[0]), f, float(fdtrc(df, pool.df[0], f)))
    return found
