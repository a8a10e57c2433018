"""Over columns, between columns, and the placement grid: the machinery of `gains`, seeds as blocks.

Seeds that two columns share are the same seeds, so whatever is taken over columns is taken within
a seed first; the interval is then over seeds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablate.analysis.stats.estimate import (
    Bools,
    Estimate,
    Floats,
    mean_interval,
    rounding,
    variance,
)
from ablate.analysis.stats.exact import sign_flip
from ablate.analysis.stats.gains import (
    ColumnGains,
    Method,
    Reason,
    RowGain,
    adjusted,
    column_gains,
    raw_p,
)
from ablate.analysis.stats.spread import Flips, of_contrasts

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
    """The average gain of every row of y (C, R, S), columns x rows x seeds, NaN where missing.

    A row's average is over the columns where it and a stable baseline have all S seeds; None where
    there is no such column, and for the baseline. The columns' mean is a column of its own, so
    `method`, whose contrasts are those of this average, and `unstable` (C, R) are as in
    `column_gains`. A row with fewer columns is fitted beside the rows that have all of those.
    """
    complete: Bools = np.asarray(~np.isnan(y).any(-1))
    shaky: Bools = np.zeros(y.shape[:2], dtype=bool) if unstable is None else unstable
    usable = complete & complete[:, [baseline]] & ~shaky[:, [baseline]]

    @functools.cache
    def fitted(columns: tuple[int, ...]) -> ColumnGains:
        some = list(columns)
        mean = np.asarray(y[some].mean(0))
        mean[~complete[some].all(axis=0)] = np.nan
        flips = None
        if right is not None:
            flips = Flips(tuple(right[c] for c in some), (1 / len(some),) * len(some))
        return column_gains(mean, baseline, method, np.asarray(shaky[some].any(axis=0)), flips)

    def average(row: int) -> AverageGain | None:
        some = [int(c) for c in np.flatnonzero(usable[:, row])]
        if row == baseline or not some:
            return None
        found = fitted(tuple(some))
        if (gain := found.rows[row]) is None:
            return None
        gains = (y[some, row] - y[some, baseline]).mean(-1)
        sampled = mean_interval(gains, method.alpha / method.contrasts)
        return AverageGain(gain, sampled, tuple(some), found.tripped, found.ratio)

    return tuple(average(row) for row in range(y.shape[1]))


def changes(
    before: Floats,
    after: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
    right: Rights | None = None,
) -> ColumnGains:
    """By how much each row's gain over `baseline` grows between two columns, each (R, S), NaN
    where missing: the gain in the differences of a row's seed s between the columns.

    `method`'s contrasts are those of this comparison; `unstable` (R,): in either column; `right`:
    of both.
    """
    flips = Flips(tuple(right), (-1.0, 1.0)) if right is not None else None
    return column_gains(after - before, baseline, method, unstable, flips)


@dataclass(frozen=True)
class FactorialEffects:
    """Effects in a grid of two factors against their first levels, (0, 0) being the baseline.

    `first[i - 1]`: level i of the first factor, averaged over the second's levels; `second` alike.
    `interaction[i - 1][j - 1]`: what level i gains at level j of the second beyond what it gains
    at level 0. `seeds` are those that all cells have.
    """

    first: tuple[RowGain, ...]
    second: tuple[RowGain, ...]
    interaction: tuple[tuple[RowGain, ...], ...]
    seeds: tuple[int, ...]
    own: bool  # each effect is judged by its own spread: a cell is out of line


def grid_effects(
    y: Floats,
    method: Method,
    unstable: Bools | None = None,
    right: NDArray[np.bool_] | None = None,
) -> FactorialEffects | None:
    """Main effects and interaction in y (A, B, S), A x B cells x seeds; A, B >= 2. `right`
    (A, B, S, N): which images runs get right.

    Seeds are blocks (Cochran & Cox 1957, ch. 4-5), on the seeds that every cell has; NaN where
    missing, None below two, and where the baseline's cell (0, 0) is `unstable` (A, B). All A B - 1
    effects are one family at `method.alpha`, whatever contrasts `method` has. Where one cell is
    unstable, or a screen trips on one, the baseline's included, and without images, each effect is
    judged as by `paired`: by its own spread over seeds. (Cells of a level may be near copies: one
    spread of all cells errs up to .12 then.)
    """
    a, b = y.shape[:2]
    cells = y.reshape(a * b, -1)
    seeds = tuple(int(s) for s in np.flatnonzero(~np.isnan(cells).any(0)))
    n, size = len(seeds), a * b - 1
    shaky = np.zeros(a * b, dtype=bool) if unstable is None else unstable.ravel()
    if n < 2 or shaky[0]:
        return None
    cells = cells[:, list(seeds)]
    weights = _weights(a, b)
    family = Method(method.spread, method.alpha, contrasts=size, comparisons=size)
    images = None
    if right is not None and method.spread == "images":
        images = right.reshape(a * b, -1, right.shape[-1])[:, list(seeds)]
    judged = None
    if images is not None and not shaky.any():
        judged = of_contrasts(cells, weights, images)
    values = weights @ cells
    v, df = variance(values, rounding(cells)), np.full(size, n - 1.0)
    own: Reason = ""
    if judged is not None:
        v, df = judged
    elif images is not None or shaky.any():
        own = "instability" if shaky.any() else "spread"
    effects = _effects(values, v, df, own, family)
    crossed = effects[a + b - 2 :]
    return FactorialEffects(
        first=effects[: a - 1],
        second=effects[a - 1 : a + b - 2],
        interaction=tuple(crossed[i : i + b - 1] for i in range(0, len(crossed), b - 1)),
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


def _effects(
    values: Floats, v: Floats, df: Floats, own: Reason, method: Method
) -> tuple[RowGain, ...]:
    """Contrasts by seed (K, n), whose variances (K,) have these degrees of freedom."""
    n = values.shape[1]
    half = method.critical(df) * np.sqrt(v / n)
    means, raw = values.mean(1), raw_p(values.mean(1), v, df, n)

    def effect(k: int) -> RowGain:
        mean, sd = float(means[k]), math.sqrt(float(v[k]))
        known = sd > 0
        return RowGain(
            gain=Estimate(mean, mean - float(half[k]), mean + float(half[k]), n, sd),
            own=own,
            raw_p=float(raw[k]) if known else None,
            p=method.p(mean / sd * math.sqrt(n), float(df[k])) if known else None,
            sign_flip=sign_flip(values[k]) if known else None,
            df=float(df[k]),
        )

    gains = adjusted([effect(k) for k in range(len(values))], method)
    return tuple(gain for gain in gains if gain is not None)
