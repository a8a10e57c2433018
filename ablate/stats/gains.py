"""Gains of the rows of a column over a baseline, with simultaneous intervals."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import fdtri, stdtr, stdtrit

from ablate.stats.dunnett import dunnett, dunnett_p
from ablate.stats.estimate import TOLD_APART, Bools, Estimate, Floats, seed_correlation
from ablate.stats.exact import Exact, holm, sign_flip
from ablate.stats.verdict import seeds_needed

SCREEN = 0.05  # level of the F test by which a row leaves the pool


@dataclass(frozen=True)
class Method:
    """How the gains of a column are judged; fixed before results exist.

    `alpha` is the error of the whole family of `contrasts`; `comparisons` of them are in this
    column. They differ where the family is a table of several columns.
    """

    spread: Literal["pooled", "paired", "welch"] = "pooled"
    screen: bool = True
    alpha: float = 0.05
    contrasts: int = 1
    comparisons: int = 1

    @property
    def screened(self) -> bool:
        return self.spread == "pooled" and self.screen

    @property
    def dunnetts(self) -> bool:
        """Without the screen all comparisons of a column share one spread."""
        return self.spread == "pooled" and not self.screen

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

    The standard error of a gain is sd / sqrt(n), with df degrees of freedom. `left` are the rows
    outside the pool; `own` is a row's residual variance; `variance` (...) is the pool's.
    """

    gain: Floats
    half: Floats
    sd: Floats
    df: Floats
    left: Bools
    own: Floats
    variance: Floats


class Pool(NamedTuple):
    """The residual variance that rows share, (...) with its df, and each row's `own`, (..., R).

    `left` (..., R) are the rows outside.
    """

    variance: Floats
    df: Floats
    own: Floats
    left: Bools


def fit(y: Floats, baseline: int, method: Method) -> Fit:
    """Gains of every row of y (..., R, n), n >= 2, over the row `baseline`, none missing.

    `pooled`: y = row + seed + residual with one variance, from the two-way fit; `paired`: each
    row's own paired t; `welch`: rows independent, each with its own variance (Welch 1947), which
    is conservative where seeds correlate: its 95 % intervals then cover 98 to 99 %.
    """
    rows, n = y.shape[-2:]
    differences = y - y[..., [baseline], :]
    gain = differences.mean(-1)
    smallest = rounding(y)
    sd = np.sqrt(variance(differences, smallest))
    df = np.full(gain.shape, n - 1.0)
    left = np.zeros(gain.shape, dtype=bool)
    shared = np.full(gain.shape[:-1], np.nan)
    if method.spread == "pooled" and rows > 1:
        pool = pooled(y, baseline, method.screen)
        own, left, shared = pool.own, pool.left, pool.variance
        sd = np.where(left, sd, np.sqrt(2 * shared)[..., None])
        df = np.where(left, df, pool.df[..., None])
    else:
        own = variance(y, smallest)
        if method.spread == "welch":
            both = own + own[..., [baseline]]
            squares = own**2 + own[..., [baseline]] ** 2
            sd = np.sqrt(both)
            df = np.divide((n - 1) * both**2, squares, out=df, where=squares > 0)
    half = method.critical(df) * sd / math.sqrt(n)
    return Fit(gain, half, sd, df, left, own, shared)


def pooled(y: Floats, baseline: int, screen: bool) -> Pool:
    """The two-way fit of y (..., R, n), R, n >= 2, none missing.

    A row leaves if its variance over the mean of the others' exceeds F(0.95; n-1, (R-1)(n-1)),
    the baseline never; the pool is the mean variance of the rest, from the fit of all rows.
    """
    rows, n = y.shape[-2:]
    # The row means of these residuals are 0, so their variance over seeds is SS_r / (n - 1).
    own = variance(y - y.mean(-2, keepdims=True), rounding(y)) * (rows / (rows - 1))
    left = np.zeros(own.shape, dtype=bool)
    if screen:
        others = (own.sum(-1, keepdims=True) - own) / (rows - 1)
        left = own > fdtri(n - 1, (rows - 1) * (n - 1), 1 - SCREEN) * others
        left[..., baseline] = False
    kept = rows - left.sum(-1)
    shared = np.where(left, 0.0, own).sum(-1) / kept
    left |= (kept < 2)[..., None]  # a baseline alone is no pool
    return Pool(shared, (kept - 1.0) * (n - 1), own, left)


def rounding(y: Floats) -> float:
    """The variance below which values as large as y differ by rounding alone."""
    return float(TOLD_APART * np.abs(y).max(initial=0.0)) ** 2


def variance(values: Floats, smallest: float) -> Floats:
    """Over the last axis; 0 where it is rounding."""
    found: Floats = values.var(-1, ddof=1)
    return np.where(found > smallest, found, 0.0)


def raw_p(found: Fit, n: int) -> Floats:
    """Two-sided p (..., R) of each gain by itself; NaN where there is no spread to judge by."""
    t = np.divide(
        found.gain * math.sqrt(n),
        found.sd,
        out=np.full_like(found.gain, np.nan),
        where=found.sd > 0,
    )
    return np.asarray(2 * stdtr(found.df, -np.abs(t)))


@dataclass(frozen=True)
class RowGain:
    """The gain of one row; `left` says why it is judged by its own spread, if it is.

    `seeds_needed`: the n at which this gain, if it is the true one, would be told with 80 %
    power; None beyond 100. `spread` is the row's residual standard deviation.

    p-values decide nothing. `raw_p` is this test's alone. `p` is adjusted for the family: in the
    pool it is that of the interval; by `paired`, by `welch` and outside the pool Holm's, which may
    fall below alpha where the interval holds 0. `sign_flip` asks for no normality, adjusts nothing.
    None where there is no spread.
    """

    gain: Estimate
    left: Literal["", "spread", "instability"] = ""
    seeds_needed: int | None = None
    spread: float | None = None
    raw_p: float | None = None
    p: float | None = None
    sign_flip: Exact | None = None


@dataclass(frozen=True)
class ColumnGains:
    """The gains of a column, in the rows' order; None for the baseline and where there is none.

    `spread` (pooled residual standard deviation), `df` and `kept` rows are those of the rows that
    have every seed of the baseline; so is the seed correlation.
    """

    rows: tuple[RowGain | None, ...]
    spread: float | None
    df: int | None
    kept: int
    correlation: Estimate | None


def column_gains(
    y: Floats,
    baseline: int,
    method: Method,
    unstable: Bools | None = None,
    margin: float | None = None,
) -> ColumnGains:
    """Gains of the rows of y (R, S), NaN where a result is missing, over the row `baseline`.

    A row with missing seeds is fitted on the seeds that it shares with the baseline, together
    with the rows that have all of those. Rows of `unstable` (R,), those with a diverged or a
    collapsed run, leave a screened pool and its fit: one such run is so far out that, left in the
    fit, 1/R of it would be noise in every other row's residuals.
    """
    present = ~np.isnan(y)
    out = np.zeros(len(y), dtype=bool)
    if unstable is not None and method.screened:
        out |= unstable
        out[baseline] = False
    shared = present & present[baseline]

    @functools.cache  # most rows have the same seeds: one fit serves them all
    def together(seeds: tuple[int, ...]) -> tuple[int, ...]:
        whole = present[:, list(seeds)].all(axis=1) & ~out
        return tuple(int(row) for row in np.flatnonzero(whole))

    @functools.cache
    def fitted(rows: tuple[int, ...], seeds: tuple[int, ...], spread: str) -> tuple[Fit, Floats]:
        how = Method("paired", True, method.alpha, method.contrasts) if spread else method
        found = fit(y[np.ix_(rows, seeds)], rows.index(baseline), how)
        return found, raw_p(found, len(seeds))

    def gain_of(row: int) -> RowGain | None:
        seeds = tuple(int(s) for s in np.flatnonzero(shared[row]))
        if row == baseline or not seeds:
            return None
        differences = (y[row] - y[baseline])[list(seeds)]
        if len(seeds) < 2:
            left: Literal["", "instability"] = "instability" if out[row] else ""
            return RowGain(Estimate(float(differences[0]), None, None, 1), left)
        rows = (baseline, row) if out[row] else together(seeds)
        found, raw = fitted(rows, seeds, "paired" if out[row] else "")
        place = rows.index(row)
        return row_gain(found, raw, place, differences, bool(out[row]), method, margin)

    gains = adjusted([gain_of(row) for row in range(len(y))], method)
    seeds = tuple(int(s) for s in np.flatnonzero(present[baseline]))
    rows = together(seeds)
    if len(rows) < 2 or len(seeds) < 2:
        return ColumnGains(gains, None, None, len(rows), None)
    whole, _ = fitted(rows, seeds, "")
    kept = [row for row, left in zip(rows, whole.left, strict=True) if not left]
    correlation = seed_correlation(y[np.ix_(kept, seeds)])
    if method.spread != "pooled" or len(kept) < 2:
        return ColumnGains(gains, None, None, len(kept), correlation)
    df = (len(kept) - 1) * (len(seeds) - 1)
    return ColumnGains(gains, math.sqrt(whole.variance), df, len(kept), correlation)


def row_gain(
    found: Fit,
    raw: Floats,
    row: int,
    differences: Floats,
    unstable: bool,
    method: Method,
    margin: float | None = None,
) -> RowGain:
    """One row of a fit, as plain numbers; `differences` (n,) are its seeds', `raw` the fit's
    p-values. `p` is the interval's, until `adjusted`.
    """
    n = len(differences)
    mean, half, sd, df = (float(x[row]) for x in (found.gain, found.half, found.sd, found.df))
    left = bool(found.left[row])
    effect = abs(mean) if margin is None else max(abs(mean), mean + margin)
    return RowGain(
        gain=Estimate(mean, mean - half, mean + half, n, sd),
        left="instability" if unstable else "spread" if left else "",
        seeds_needed=seeds_needed(effect, sd, df / (n - 1), method.critical),
        spread=math.sqrt(found.own[row]),
        raw_p=float(raw[row]) if sd > 0 else None,
        p=method.p(mean / sd * math.sqrt(n), df) if sd > 0 else None,
        sign_flip=sign_flip(differences) if sd > 0 else None,
    )


def adjusted(gains: Sequence[RowGain | None], method: Method) -> tuple[RowGain | None, ...]:
    """`gains` with Holm's p where each is judged by its own spread, among all of this column.

    Where the family is a table, the other columns' are taken as smaller: no less than Holm's.
    """
    raw = [gain.raw_p if gain and gain.raw_p is not None else math.nan for gain in gains]
    stepped = holm(np.array(raw), method.contrasts)
    return tuple(
        dataclasses.replace(gain, p=float(p))
        if gain and gain.p is not None and (gain.left or method.spread != "pooled")
        else gain
        for gain, p in zip(gains, stepped, strict=True)
    )
