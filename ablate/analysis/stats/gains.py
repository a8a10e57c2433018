"""Gains of the rows of a column over a baseline, with simultaneous intervals."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from ablate.analysis.stats.dunnett import dunnett, dunnett_p
from ablate.analysis.stats.estimate import Bools, Estimate, Floats, seed_correlation
from ablate.analysis.stats.exact import Exact, holm, sign_flip
from ablate.analysis.stats.pool import Pool, pooled, rounding, variance
from ablate.analysis.stats.predictions import Noise, noise, predicted
from ablate.analysis.stats.two_stages import FirstStage, second_stage
from ablate.analysis.stats.unblocked import unblocked
from ablate.analysis.stats.verdict import MOST_SEEDS


@dataclass(frozen=True)
class Method:
    """How the gains of a column are judged; fixed before results exist.

    `alpha` is the error of the whole family of `contrasts`; `comparisons` of them are in this
    column. They differ where the family is a table of several columns. `baseline_seeds`: of the
    baseline, where it has more than the rows; there are no seed blocks then.
    """

    spread: Literal["pooled", "predictions", "paired", "welch"] = "pooled"
    screen: bool = True
    alpha: float = 0.05
    contrasts: int = 1
    comparisons: int = 1
    baseline_seeds: int = 0

    @property
    def pools(self) -> bool:
        """Do the rows share a spread, as far as they are alike?"""
        return self.spread in ("pooled", "predictions")

    @property
    def screened(self) -> bool:
        return self.pools and self.screen

    @property
    def dunnetts(self) -> bool:
        """Without the screen all comparisons of a column share one spread."""
        return self.spread == "pooled" and not self.screen and not self.baseline_seeds

    def critical(self, df: Floats) -> Floats:
        """The half-width of a simultaneous interval, in standard errors.

        Dunnett's constant, the columns of a family splitting alpha by Bonferroni; or t at alpha /
        contrasts.
        """
        if self.dunnetts:
            share = self.alpha * self.comparisons / self.contrasts
            return np.full(np.shape(df), dunnett(self.comparisons, round(float(np.min(df))), share))
        few, where = np.unique(df, return_inverse=True)  # a quantile is slow, and they repeat
        quantiles = stdtrit(few, 1 - self.alpha / (2 * self.contrasts))
        return np.asarray(quantiles[where].reshape(np.shape(df)))

    def p(self, t: float, df: float) -> float:
        """The p-value of that interval: at most alpha where it excludes 0."""
        if self.dunnetts:
            p = dunnett_p(t, self.comparisons, round(df)) * self.contrasts / self.comparisons
        else:
            p = 2 * float(stdtr(df, -abs(t))) * self.contrasts
        return min(p, 1.0)


class Fit(NamedTuple):
    """Gains over a baseline, shape (..., R), and what they are judged by.

    The standard error of a gain is sd / sqrt(n), with df degrees of freedom. `own` are the rows
    judged by their own spread where others share one; `pool` is that, if anything is pooled.
    `fixed`: the part of a gain's variance that is not its row's, where rows are no blocks.
    """

    gain: Floats
    half: Floats
    sd: Floats
    df: Floats
    own: Bools
    pool: Pool | None
    fixed: Floats | float = 0.0


def fit(y: Floats, baseline: int, method: Method, images: Noise | None = None) -> Fit:
    """Gains of every row of y (..., R, n), n >= 2, over the row `baseline`, none missing.

    `pooled`: y = row + seed + residual with one variance, as far as `pooled` finds that rows are
    alike; `predictions`: with the variances that `images` tell, or as `pooled` without; `paired`:
    each row's own paired t; `welch`: rows independent, each with its own variance (Welch 1947),
    which is conservative where seeds correlate: its 95 % intervals then cover 98 to 99 %.

    With `baseline_seeds` the other rows of y have NaN where they lack a seed of the baseline; a
    single one is judged by the seeds that both have.
    """
    if method.baseline_seeds:
        if y.shape[-2] > 2:
            return _fit_unblocked(y, baseline, method)
        y = y[..., ~np.isnan(y).reshape(-1, y.shape[-1]).any(0)]
    rows, n = y.shape[-2:]
    differences = y - y[..., [baseline], :]
    gain = differences.mean(-1)
    smallest = rounding(y)
    sd = np.sqrt(variance(differences, smallest))
    df = np.full(gain.shape, n - 1.0)
    own = np.zeros(gain.shape, dtype=bool)
    pool = None
    if method.pools and rows > 1:
        pool = pooled(y, baseline, method.screen)
        if method.spread == "predictions" and images is not None and rows > 2:  # of 2: a paired t
            pool = predicted(y, baseline, images, pool)
        own = pool.own | np.isnan(pool.gain)
        sd = np.where(own, sd, np.sqrt(pool.gain))
        df = np.where(own, df, pool.df)
    elif method.spread == "welch":
        each = variance(y, smallest)
        both = each + each[..., [baseline]]
        squares = each**2 + each[..., [baseline]] ** 2
        sd = np.sqrt(both)
        df = np.divide((n - 1) * both**2, squares, out=df, where=squares > 0)
    half = method.critical(df) * sd / math.sqrt(n)
    return Fit(gain, half, sd, df, own, pool)


def _fit_unblocked(y: Floats, baseline: int, method: Method, left: Bools | None = None) -> Fit:
    found = unblocked(y, baseline, method.pools, left)
    n = np.maximum((~np.isnan(y)).sum(-1), 1)
    half = method.critical(found.df) * found.sd / np.sqrt(n)
    pool = found.pool if method.pools else None
    return Fit(found.gain, half, found.sd, found.df, found.own, pool, found.fixed)


def raw_p(found: Fit, n: int | NDArray[np.int_]) -> Floats:
    """Two-sided p (..., R) of each gain by itself; NaN where there is no spread to judge by."""
    t = np.divide(
        found.gain * np.sqrt(n),
        found.sd,
        out=np.full_like(found.gain, np.nan),
        where=found.sd > 0,
    )
    return np.asarray(2 * stdtr(found.df, -np.abs(t)))


Reason = Literal["", "spread", "outlier", "instability"]


@dataclass(frozen=True)
class RowGain:
    """The gain of one row; `own` says why it is judged by its own spread, if it is.

    `spread`: its spread is out of line, but it stays in the pool; `outlier`: it left the pool;
    `instability`: it has a diverged or a collapsed run, and left the fit as well. `ratio` is its
    residual standard deviation over that of all other rows. `stands_out`: by the pool's spread its
    gain would be told from 0; `decides`: seeds at which its own spread would tell a gain as large,
    None beyond 100.

    p-values decide nothing. `raw_p` is this test's alone. `p` is adjusted for the family: in the
    pool it is that of the interval; by `paired`, by `welch` and where a row is judged by its own
    spread Holm's, which may fall below alpha where the interval holds 0. `sign_flip` asks for no
    normality, adjusts nothing. None where there is no spread. `few`: predictions don't tell its
    spread, so it is that of all rows.
    """

    gain: Estimate
    own: Reason = ""
    ratio: float | None = None
    stands_out: bool = False
    decides: int | None = None
    raw_p: float | None = None
    p: float | None = None
    sign_flip: Exact | None = None
    few: bool = False


@dataclass(frozen=True)
class ColumnGains:
    """The gains of a column, in the rows' order; None for the baseline and where there is none.

    `void`: the baseline has a diverged or a collapsed run, so gains have no intervals. The others
    are of the rows that have every seed of the baseline: `spread`, the residual standard deviation
    that the pool's rows share, with `df`, and how many are `kept`; `ratio`, the baseline's own
    spread over it where gains are pooled, else None; the seed correlation. Where predictions tell
    the rows' spreads apart, `spread` is their root mean square, `spreads` are least and greatest.
    """

    rows: tuple[RowGain | None, ...]
    spread: float | None = None
    df: int | None = None
    kept: int = 0
    ratio: float | None = None
    correlation: Estimate | None = None
    void: bool = False
    spreads: tuple[float, float] | None = None


def column_gains(
    y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
    right: Bools | None = None,
    first: FirstStage | None = None,
) -> ColumnGains:
    """Gains of the rows of y (R, S), NaN where a result is missing, over the row `baseline`.
    `right` (R, S, N): where y is the percentage of N images that a run gets right, which. `first`:
    the first of two stages, which counted the seeds.

    A row with missing seeds is fitted on the seeds that it shares with the baseline, together
    with the rows that have all of those. Rows of `unstable` (R,), with a diverged or a collapsed
    run, leave a screened pool and its fit: one such run is so far out that, left in the fit, 1/R
    of it would be noise in every other row's residuals. An unstable baseline voids the column: one
    collapsed run of three would make most rows seem to help.
    """
    shaky = np.zeros(len(y), dtype=bool) if unstable is None else unstable
    if method.baseline_seeds and len(y) > 2:
        return _unblocked_gains(y, baseline, method, shaky)
    present = ~np.isnan(y)
    void = bool(shaky[baseline])
    out = shaky & method.screened
    out[baseline] = False
    shared = present & present[baseline]

    @functools.cache  # most rows have the same seeds: one fit serves them all
    def together(seeds: tuple[int, ...]) -> tuple[int, ...]:
        whole = present[:, list(seeds)].all(axis=1) & ~out
        return tuple(int(row) for row in np.flatnonzero(whole))

    @functools.cache
    def fitted(rows: tuple[int, ...], seeds: tuple[int, ...], spread: str) -> tuple[Fit, Floats]:
        how = Method("paired", True, method.alpha, method.contrasts) if spread else method
        images = noise(right[np.ix_(rows, seeds)]) if right is not None else None
        found = fit(y[np.ix_(rows, seeds)], rows.index(baseline), how, images)
        if first is not None and not spread:
            found = second_stage(found, first, method, len(seeds))
        return found, raw_p(found, len(seeds))

    def gain_of(row: int) -> RowGain | None:
        seeds = tuple(int(s) for s in np.flatnonzero(shared[row]))
        if row == baseline or not seeds:
            return None
        differences = (y[row] - y[baseline])[list(seeds)]
        if void or len(seeds) < 2:
            mean = Estimate(float(differences.mean()), None, None, len(seeds))
            return RowGain(mean, "instability" if out[row] else "")
        others, _ = fitted(together(seeds), seeds, "")
        rows = (baseline, row) if out[row] else together(seeds)
        found, raw = fitted(rows, seeds, "paired" if out[row] else "")
        found = found._replace(pool=others.pool)
        own: Reason = "instability" if out[row] else ""
        return row_gain(found, raw, rows.index(row), differences, own, method)

    gains = adjusted([gain_of(row) for row in range(len(y))], method)
    seeds = tuple(int(s) for s in np.flatnonzero(present[baseline]))
    rows = together(seeds)
    if void or len(rows) < 2 or len(seeds) < 2:
        return ColumnGains(gains, kept=len(rows), void=void)
    return _of_column(gains, y[:, list(seeds)], rows, baseline, fitted(rows, seeds, "")[0].pool)


def _of_column(
    gains: tuple[RowGain | None, ...],
    y: Floats,
    rows: tuple[int, ...],
    baseline: int,
    pool: Pool | None,
) -> ColumnGains:
    """With what these rows, which have all seeds of the baseline, share."""
    if pool is None:
        return ColumnGains(gains, kept=len(rows), correlation=seed_correlation(y[list(rows)]))
    kept = [row for row, left in zip(rows, pool.out, strict=True) if not left]
    correlation = seed_correlation(y[kept])
    if len(kept) < 2:
        return ColumnGains(gains, kept=len(kept), correlation=correlation)
    alike = [
        i for i, row in enumerate(rows) if row in kept and (row != baseline or not pool.tripped)
    ]
    variances = pool.run[alike]
    told = bool(variances.min() < variances.max())  # by predictions
    return ColumnGains(
        gains,
        spread=math.sqrt(variances.mean() if told else variances[0]),
        df=(len(alike) - 1) * (y.shape[1] - 1),
        kept=len(kept),
        ratio=float(pool.ratio) if pool.tripped else None,
        correlation=correlation,
        spreads=(math.sqrt(variances.min()), math.sqrt(variances.max())) if told else None,
    )


def _unblocked_gains(y: Floats, baseline: int, method: Method, shaky: Bools) -> ColumnGains:
    """`column_gains` over a baseline of more seeds than the rows: each row has its own, all of
    them in one fit."""
    present = ~np.isnan(y)
    counts = present.sum(-1)
    void = bool(shaky[baseline])
    left = shaky & method.screened
    left[baseline] = False
    judged = not void and counts[baseline] > 1
    found = _fit_unblocked(y, baseline, method, left)
    raw = raw_p(found, np.maximum(counts, 1))

    def gain_of(row: int) -> RowGain | None:
        if row == baseline or not counts[row] or not counts[baseline]:
            return None
        own: Reason = "instability" if left[row] else ""
        n = int(counts[row])
        if not judged or n < 2:
            return RowGain(Estimate(float(found.gain[row]), None, None, n), own)
        pairs = (y[row] - y[baseline])[present[row] & present[baseline]]
        return row_gain(found, raw, row, pairs, own, method, n)

    gains = adjusted([gain_of(row) for row in range(len(y))], method)
    pool, several = found.pool, (counts > 1) & ~left
    several[baseline] = False
    if not judged or not several.any():
        return ColumnGains(gains, kept=int(several.sum()) + 1, void=void)
    fitted = several.copy()
    fitted[baseline] = True
    correlation = seed_correlation(y[np.ix_(fitted, present[fitted].all(0))])
    if pool is None:
        return ColumnGains(gains, kept=int(fitted.sum()), correlation=correlation)
    kept = several & ~pool.out
    column = ColumnGains(gains, kept=int(kept.sum()) + 1, correlation=correlation)
    df, spread = int((counts - 1)[kept].sum()), math.sqrt(pool.run[0])
    return dataclasses.replace(column, spread=spread, df=df) if df else column


def row_gain(
    found: Fit,
    raw: Floats,
    row: int,
    differences: Floats,
    own: Reason,
    method: Method,
    seeds: int | None = None,
) -> RowGain:
    """One row of a fit, as plain numbers; `differences` (n,) are those of its seeds from the
    baseline's, `raw` the fit's p-values, `own` why it has none of the pool. `seeds`: n, where it is
    not theirs. `p` is the interval's, until `adjusted`.
    """
    n, pool = seeds or len(differences), found.pool
    mean, half, sd, df = (float(x[row]) for x in (found.gain, found.half, found.sd, found.df))
    ratio, stands_out, decides = None, False, None
    if pool is not None and not own and found.own[row]:
        own = "outlier" if pool.out[row] else "spread"
        ratio = math.sqrt(pool.ratios[row])
    if own and pool is not None:
        alike = row if own != "instability" else int(np.nan_to_num(pool.gain).argmax())
        shared = float(pool.gain[alike])
    if own and pool is not None and shared > 0:
        ratio = ratio or sd / math.sqrt(shared)
        stands_out = abs(mean) > float(method.critical(pool.df[alike]) * math.sqrt(shared / n))
        decides = _deciding(mean, sd, n, float(np.max(found.fixed)), method)
    return RowGain(
        gain=Estimate(mean, mean - half, mean + half, n, sd),
        own=own,
        ratio=ratio,
        stands_out=stands_out,
        decides=decides,
        raw_p=float(raw[row]) if sd > 0 else None,
        p=method.p(mean / sd * math.sqrt(n), df) if sd > 0 else None,
        sign_flip=sign_flip(differences) if sd > 0 else None,
        few=bool(pool is not None and not own and pool.few[row]),
    )


def _deciding(mean: float, sd: float, seeds: int, fixed: float, method: Method) -> int | None:
    """The fewest seeds at which the interval of a paired t with this mean and sd, which is that at
    `seeds` of them, excludes 0; `fixed`: of the variance of the gain what seeds don't lessen."""
    n = np.arange(2, MOST_SEEDS + 1)
    quantile = stdtrit(n - 1, 1 - method.alpha / (2 * method.contrasts))
    told = quantile * np.sqrt((sd**2 - seeds * fixed) / n + fixed) < abs(mean)
    return int(n[told.argmax()]) if told.any() else None


def adjusted(gains: Sequence[RowGain | None], method: Method) -> tuple[RowGain | None, ...]:
    """`gains` with Holm's p where each is judged by its own spread, among all of this column.

    Where the family is a table, the other columns' are taken as smaller: no less than Holm's.
    """
    raw = [gain.raw_p if gain and gain.raw_p is not None else math.nan for gain in gains]
    stepped = holm(np.array(raw), method.contrasts)
    return tuple(
        dataclasses.replace(gain, p=float(p))
        if gain and gain.p is not None and (gain.own or not method.pools)
        else gain
        for gain, p in zip(gains, stepped, strict=True)
    )
