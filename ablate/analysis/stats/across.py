"""Over columns and between columns: the machinery of `gains`, seeds as blocks.

Seeds that two columns share are the same seeds, so whatever is taken over columns is taken within
a seed first; the interval is then over seeds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablate.analysis.stats.estimate import Bools, Estimate, Floats, mean_interval
from ablate.analysis.stats.gains import ColumnGains, Method, RowGain, column_gains
from ablate.analysis.stats.spread import Flips

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
