"""Error rates of a method on runs as they are: in tables without any gain, where each gain whose
interval excludes zero is an error.

Of one row's runs: disjoint sets of its seeds play the baseline and K variants, of n seeds each. All
are of one population, so all rows of such a table are alike. Of the runs of all rows: each row has
its own results less its mean, and is the baseline in its turn.

Used by audit/doctor/null_tables.py (`ablate doctor --statistics`). A new number also needs its line
in docs/json.keys, then `python tests/json_page.py`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablate.analysis.stats.estimate import Bools, Floats
from ablate.analysis.stats.gains import FEWEST_SEEDS, Method, fit
from ablate.analysis.stats.spread import ImageFlips

FEWEST_VARIANTS = 2  # with one, every method is the paired t
FEWEST_RUNS = (FEWEST_VARIANTS + 1) * FEWEST_SEEDS  # of a row
TABLES = 2000
LEFT_OUT = 2  # one table in so many is judged again without each seed
AT_ONCE = 4_000_000  # bits of images that are judged at once
NORMAL = 1.959964  # a quantile, of a 95 % interval
Places = NDArray[np.int_]  # tables of seeds, or of their places


class NullError(NamedTuple):
    """The share of tables in which the interval of some gain excludes zero, and its 95 % interval
    over the choice of seeds; None where all tables are judged alike, whatever the seed."""

    share: float
    low: float | None
    high: float | None


def null_shape(seeds: int, variants: int) -> tuple[int, int]:
    """Return (K, n) of the tables that a row of this many seeds makes, FEWEST_RUNS or more: as many
    variants as fit with three seeds each; where all of a sweep's `variants` fit, as many seeds as
    do."""
    k = min(variants, seeds // FEWEST_SEEDS - 1)
    return k, seeds // (k + 1)


def null_error(
    y: Floats, right: Bools | None, method: Method, n: int, k: int, tables: int = TABLES
) -> NullError:
    """Judge tables of the rows of y (R, S), NaN where a result is missing; each row has (k + 1) n
    results or more, and as many tables as the others. `right` (R, S, N): which images runs get
    right, where y is of such. The draw is seeded: the same runs give the same share.

    The interval is the jackknife's (Efron & Stein 1981): each of the S seeds is left out of all
    rows. In its tables another seed of the row takes its place, so that k and n stay as they are;
    what the draw of tables adds to the differences is taken off.
    """
    rng = np.random.default_rng(0)
    used, per_row = (k + 1) * n, -(-tables // len(y))
    family = dataclasses.replace(method, contrasts=k, variants=k)
    wrong: list[Bools] = []
    wrong_without: list[list[Bools]] = []
    for r, values in enumerate(y):
        seeds = np.flatnonzero(~np.isnan(values))
        row = _Row(values, *_flipping(right, r, seeds, method), (k + 1, n), family)
        draws = rng.permuted(np.tile(seeds, (per_row, 1)), axis=1)
        wrong.append(row.wrong(draws[:, :used]))
        some = draws[::LEFT_OUT]
        all_seeds = range(y.shape[1])
        wrong_without.append([row.wrong(_left_out(seed, some, used, n)) for seed in all_seeds])
    return _jackknifed(np.concatenate(wrong), np.concatenate(wrong_without, axis=1))


def mixed_error(
    y: Floats, right: Bools | None, method: Method, n: int, tables: int = TABLES
) -> NullError:
    """Judge tables of all rows of y (R, S), none missing, R >= 2, S > n: the same n seeds, drawn
    without replacement, of every row, each row less its mean over all S seeds. Each row is the
    baseline of as many tables. `right` (R, S, N): as in `null_error`, and so are the draw and the
    interval.

    The mean of n of S results varies less about that of all than about the truth: by the factor
    sqrt(1 - n / S), which is taken out.
    """
    rng = np.random.default_rng(0)
    rows, size = y.shape
    per_row = -(-tables // rows)
    family = dataclasses.replace(method, contrasts=rows - 1, variants=rows - 1)
    part = 1.0
    if method.spread != "images":
        right = None
    if right is not None:
        flip: Bools = np.asarray((right.any(1) & ~right.all(1)).any(0))
        flip[:1] = True  # one at least
        right, part = right[:, :, flip], float(flip.mean())
    centred = y - y.mean(1, keepdims=True)
    wrong: list[Bools] = []
    wrong_without: list[list[Bools]] = []
    for base in range(rows):
        order = [base, *(row for row in range(rows) if row != base)]
        ordered_right = None if right is None else right[order]
        mixed = _MixedRows(centred[order], ordered_right, part, n, family)
        draws = rng.permuted(np.tile(np.arange(size), (per_row, 1)), axis=1)
        wrong.append(mixed.wrong(draws[:, :n]))
        wrong_without.append(mixed.wrong_without_each(draws[::LEFT_OUT], wrong[-1][::LEFT_OUT]))
    return _jackknifed(np.concatenate(wrong), np.concatenate(wrong_without, axis=1))


def _jackknifed(errs: Bools, errs_without: Bools) -> NullError:
    """Return the share of tables (T,) that err, and its interval by the tables (S, tables) that err
    without each seed."""
    share = float(errs.mean())
    deviations = errs_without.astype(float)
    deviations -= deviations.mean(0)
    of_draw = deviations.var(1, ddof=1) / deviations.shape[1]
    over_seeds = (1 - 1 / len(deviations)) * float((deviations.mean(1) ** 2 - of_draw).sum())
    half = NORMAL * math.sqrt(max(over_seeds, 0.0) + float(errs.var()) / len(errs))
    if not half:
        return NullError(share, None, None)
    return NullError(share, max(share - half, 0.0), min(share + half, 1.0))


class _MixedRows(NamedTuple):
    """The results of all rows, from which tables are drawn. `values` (R, S): each row's results
    less their mean, the baseline first; `right` (R, S, N): which images runs get right, only the
    images that flip, which are `part` of the test set; `n`: seeds of a table."""

    values: Floats
    right: Bools | None
    part: float
    n: int
    method: Method

    def wrong(self, tables: Places) -> Bools:
        """Return which of the tables (T,) err: have a gain whose interval excludes zero. `tables`
        (T, n): the seeds of each."""
        rows = len(self.values)
        size = rows * self.n * (1 if self.right is None else self.right.shape[2])
        parts = np.array_split(tables, 1 + len(tables) * size // AT_ONCE)
        return np.concatenate([self._wrong(part) for part in parts if len(part)])

    def wrong_without_each(self, draws: Places, errs: Bools) -> list[Bools]:
        """Return, for each of the S seeds, which of the tables (T,) err without it. A table has the
        first n of its seeds `draws` (T, S); the next one replaces the seed that is left out. `errs`
        (T,): the tables that err with all seeds."""
        error_masks = []
        for seed in range(self.values.shape[1]):
            some = np.flatnonzero((draws[:, : self.n] == seed).any(1))
            wrong = errs.copy()
            if len(some):
                wrong[some] = self.wrong(_left_out(seed, draws[some], self.n, self.n))
            error_masks.append(wrong)
        return error_masks

    def _wrong(self, tables: Places) -> Bools:
        y = np.moveaxis(self.values[:, tables], 0, 1)  # (T, R, n)
        means = y.mean(-1, keepdims=True)
        y = y - means + means / math.sqrt(1 - self.n / self.values.shape[1])
        images = None
        if self.right is not None:
            right = np.moveaxis(self.right[:, tables], 0, 1)
            images = ImageFlips.combined([ImageFlips.from_right(right)], [self.part])
        table_fit = fit(y, self.method, images)
        excludes_zero = (abs(table_fit.gain) > table_fit.half) & (table_fit.variances.v > 0)
        return np.asarray(excludes_zero[:, 1:].any(-1))


class _Row(NamedTuple):
    """The results of one row, from which tables are drawn. `values` (S,); `right` (S, N): which
    images its runs get right, only the images in which runs differ, which are `part` of the test
    set; `shape`: rows and seeds of a table."""

    values: Floats
    right: Bools | None
    part: float
    shape: tuple[int, int]
    method: Method

    def wrong(self, tables: Places) -> Bools:
        """Return which of the tables (T,) err: have a gain whose interval excludes zero. `tables`
        (T, used): the seeds of each, for all of its rows in turn."""
        size = self.shape[0] * self.shape[1] * (1 if self.right is None else self.right.shape[1])
        parts = np.array_split(tables, 1 + len(tables) * size // AT_ONCE)
        return np.concatenate([self._wrong(part) for part in parts if len(part)])

    def _wrong(self, tables: Places) -> Bools:
        places = tables.reshape(-1, *self.shape)
        images = None
        if self.right is not None:
            images = ImageFlips.combined([ImageFlips.from_right(self.right[places])], [self.part])
        table_fit = fit(self.values[places], self.method, images)
        excludes_zero = (abs(table_fit.gain) > table_fit.half) & (table_fit.variances.v > 0)
        return np.asarray(excludes_zero[:, 1:].any(-1))


def _flipping(
    right: Bools | None, row: int, seeds: Places, method: Method
) -> tuple[Bools | None, float]:
    """Return the images that some runs of a row get right and others wrong, and their share of all
    images. The other images carry no information, and are most."""
    if right is None or method.spread != "images":
        return None, 1.0
    of_row = right[row]
    marks = of_row[seeds]
    flip = marks.any(0) & ~marks.all(0)
    flip[:1] = True  # one at least
    return of_row[:, flip], float(flip.mean())


def _left_out(seed: int, tables: Places, used: int, n: int) -> Places:
    """Return the first `used` seeds of the tables, with another seed in the place of this one: a
    seed that the table doesn't have, else one of another set, which has another place there."""
    draws = tables[:, :used].copy()
    table, place = np.nonzero(draws == seed)
    spare = tables.shape[1] > used
    replacement = np.full_like(place, used) if spare else (place + n + 1) % used
    draws[table, place] = tables[table, replacement]
    return draws
