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

from ablate.analysis.stats.dunnett import dunnett, dunnett_p
from ablate.analysis.stats.estimate import TOLD_APART, Bools, Estimate, Floats, seed_correlation
from ablate.analysis.stats.exact import Exact, holm, sign_flip
from ablate.analysis.stats.verdict import MOST_SEEDS

# Levels of the F tests that look after the pool; docs/statistics.md has what they cost and save.
OWN = 0.95  # beyond it a row is judged by its own spread
OUT = 0.999  # beyond it a row leaves the pool, too
FEW_SEEDS = 5  # below it the baseline's test is the stricter one: it sees little
BASELINE = {True: 0.90, False: 0.95}  # by whether seeds are few


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


class Pool(NamedTuple):
    """What the rows of a column share, shape (...) or a row's, (..., R).

    `residual`: a row's variance in the two-way fit of all rows. `own`: rows judged by their own
    spread; `out`: those that left the pool, too. `within`: the residual variance of the pool's
    variants among themselves. Where `tripped`, the baseline is out of line with these; `ratio` is
    its own standard deviation over theirs. `gain` and `df`: the variance of a gain of one seed,
    and its degrees of freedom; NaN where the pool has no variant.
    """

    residual: Floats
    own: Bools
    out: Bools
    within: Floats
    tripped: Bools
    ratio: Floats
    gain: Floats
    df: Floats


class Fit(NamedTuple):
    """Gains over a baseline, shape (..., R), and what they are judged by.

    The standard error of a gain is sd / sqrt(n), with df degrees of freedom. `own` are the rows
    judged by their own spread where others share one; `pool` is that, if anything is pooled.
    """

    gain: Floats
    half: Floats
    sd: Floats
    df: Floats
    own: Bools
    pool: Pool | None


def fit(y: Floats, baseline: int, method: Method) -> Fit:
    """Gains of every row of y (..., R, n), n >= 2, over the row `baseline`, none missing.

    `pooled`: y = row + seed + residual with one variance, as far as `pooled` finds that rows are
    alike; `paired`: each row's own paired t; `welch`: rows independent, each with its own variance
    (Welch 1947), which is conservative where seeds correlate: its 95 % intervals then cover 98 to
    99 %.
    """
    rows, n = y.shape[-2:]
    differences = y - y[..., [baseline], :]
    gain = differences.mean(-1)
    smallest = rounding(y)
    sd = np.sqrt(variance(differences, smallest))
    df = np.full(gain.shape, n - 1.0)
    own = np.zeros(gain.shape, dtype=bool)
    pool = None
    if method.spread == "pooled" and rows > 1:
        pool = pooled(y, baseline, method.screen)
        own = pool.own | np.isnan(pool.gain)[..., None]
        sd = np.where(own, sd, np.sqrt(pool.gain)[..., None])
        df = np.where(own, df, pool.df[..., None])
    elif method.spread == "welch":
        each = variance(y, smallest)
        both = each + each[..., [baseline]]
        squares = each**2 + each[..., [baseline]] ** 2
        sd = np.sqrt(both)
        df = np.divide((n - 1) * both**2, squares, out=df, where=squares > 0)
    half = method.critical(df) * sd / math.sqrt(n)
    return Fit(gain, half, sd, df, own, pool)


def pooled(y: Floats, baseline: int, screen: bool) -> Pool:
    """What the rows of y (..., R, n), R, n >= 2, none missing, share: y = row + seed + residual.

    With `screen`, first every variant: its residual variance over the mean of all other rows' is F
    on (n - 1, (R - 1)(n - 1)) df where spreads are equal. Beyond 95 % it is judged by its own
    spread and stays in the pool; beyond 99.9 % it leaves. To drop all that are beyond 95 % would
    leave a pool that is too quiet for the noisy rows that remain.

    Then the baseline, which is in every gain: its squares about the mean of the pool's k variants,
    Q = k / (k + 1) sum_s (c_0s - m_s)^2, over their residual variance is F on (n - 1,
    (k - 1)(n - 1)) df. Where that is beyond its level, gains are pooled instead of results: what
    they share, the baseline's seeds, is told from what each has for itself, and the variance of a
    gain is the sum of both (Satterthwaite 1946 for its df).
    """
    rows, n = y.shape[-2:]
    smallest = rounding(y)
    # The row means of these residuals are 0, so their variance over seeds is SS_r / (n - 1).
    residual = variance(y - y.mean(-2, keepdims=True), smallest) * (rows / (rows - 1))
    own, out = np.zeros((2, *residual.shape), dtype=bool)
    if screen:
        others = (residual.sum(-1, keepdims=True) - residual) / (rows - 1)
        df = (n - 1, (rows - 1) * (n - 1))
        own = residual > fdtri(*df, OWN) * others
        out = residual > fdtri(*df, OUT) * others
        own[..., baseline] = out[..., baseline] = False
    variants = ~out
    variants[..., baseline] = False
    k = variants.sum(-1)
    centred = y - y.mean(-1, keepdims=True)
    share = variants / np.maximum(k, 1)[..., None]
    shared = (centred * share[..., None]).sum(-2)  # (..., n)
    squares = (((centred - shared[..., None, :]) ** 2).sum(-1) * variants).sum(-1)
    df_within = (k - 1.0) * (n - 1)
    within = _quotient(squares, df_within, smallest)
    apart = ((centred[..., baseline, :] - shared) ** 2).sum(-1) / (n - 1)
    apart = np.where(apart > smallest, apart, 0.0)
    squares_0 = k / (k + 1) * apart * (n - 1)
    tripped = np.zeros(k.shape, dtype=bool)
    if screen:
        some, where = np.unique(np.maximum(df_within, 1), return_inverse=True)
        limit = fdtri(n - 1, some, BASELINE[n < FEW_SEEDS])[where].reshape(k.shape)
        tripped = (k > 1) & (squares_0 / (n - 1) > limit * within)
    gain = 2 * _quotient(squares + squares_0, k * (n - 1.0), smallest)
    df_gain = np.maximum(k, 1) * (n - 1.0)
    between = k * apart  # of pooled gains: k var_s(m_s - c_0s)
    parts = (between + (k - 1) * within) / np.maximum(k, 1)
    noise = between**2 / (n - 1) + np.maximum(k - 1, 0) * within**2 / (n - 1)
    satterthwaite = np.divide(
        (between + (k - 1) * within) ** 2, noise, out=np.ones(k.shape), where=noise > 0
    )
    baselines = np.maximum(apart - within / np.maximum(k, 1), 0.0)
    ratio = np.divide(baselines, within, out=np.full(k.shape, np.inf), where=within > 0)
    return Pool(
        residual=residual,
        own=own,
        out=out,
        within=np.where(k > 1, within, np.nan),
        tripped=tripped,
        ratio=np.sqrt(ratio),
        gain=np.where(k < 1, np.nan, np.where(tripped, parts, gain)),
        df=np.where(tripped, satterthwaite, df_gain),
    )


def _quotient(squares: Floats, df: Floats, smallest: float) -> Floats:
    """A variance; 0 where it is rounding, or where there are no degrees of freedom."""
    found = np.divide(squares, df, out=np.zeros(np.shape(squares)), where=df > 0)
    return np.where(found > smallest, found, 0.0)


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
    normality, adjusts nothing. None where there is no spread.
    """

    gain: Estimate
    own: Reason = ""
    ratio: float | None = None
    stands_out: bool = False
    decides: int | None = None
    raw_p: float | None = None
    p: float | None = None
    sign_flip: Exact | None = None


@dataclass(frozen=True)
class ColumnGains:
    """The gains of a column, in the rows' order; None for the baseline and where there is none.

    `void`: the baseline has a diverged or a collapsed run, so gains have no intervals. The others
    are of the rows that have every seed of the baseline: `spread`, the residual standard deviation
    that the pool's rows share, with `df`, and how many are `kept`; `ratio`, the baseline's own
    spread over it where gains are pooled, else None; the seed correlation.
    """

    rows: tuple[RowGain | None, ...]
    spread: float | None = None
    df: int | None = None
    kept: int = 0
    ratio: float | None = None
    correlation: Estimate | None = None
    void: bool = False


def column_gains(
    y: Floats, baseline: int, method: Method, unstable: Bools | None = None
) -> ColumnGains:
    """Gains of the rows of y (R, S), NaN where a result is missing, over the row `baseline`.

    A row with missing seeds is fitted on the seeds that it shares with the baseline, together
    with the rows that have all of those. Rows of `unstable` (R,), with a diverged or a collapsed
    run, leave a screened pool and its fit: one such run is so far out that, left in the fit, 1/R
    of it would be noise in every other row's residuals. An unstable baseline voids the column: one
    collapsed run of three would make most rows seem to help.
    """
    present = ~np.isnan(y)
    shaky = np.zeros(len(y), dtype=bool) if unstable is None else unstable
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
        found = fit(y[np.ix_(rows, seeds)], rows.index(baseline), how)
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
    pool = fitted(rows, seeds, "")[0].pool
    if pool is None:
        correlation = seed_correlation(y[np.ix_(rows, seeds)])
        return ColumnGains(gains, kept=len(rows), correlation=correlation)
    kept = [row for row, left in zip(rows, pool.out, strict=True) if not left]
    correlation = seed_correlation(y[np.ix_(kept, seeds)])
    if len(kept) < 2:
        return ColumnGains(gains, kept=len(kept), correlation=correlation)
    if pool.tripped:
        spread, df, ratio = math.sqrt(pool.within), len(kept) - 2, float(pool.ratio)
    else:
        spread, df, ratio = math.sqrt(pool.gain / 2), len(kept) - 1, None
    df *= len(seeds) - 1
    return ColumnGains(gains, spread, df, len(kept), ratio, correlation)


def row_gain(
    found: Fit, raw: Floats, row: int, differences: Floats, own: Reason, method: Method
) -> RowGain:
    """One row of a fit, as plain numbers; `differences` (n,) are its seeds', `raw` the fit's
    p-values, `own` why it has none of the pool. `p` is the interval's, until `adjusted`.
    """
    n, pool = len(differences), found.pool
    mean, half, sd, df = (float(x[row]) for x in (found.gain, found.half, found.sd, found.df))
    ratio, stands_out, decides = None, False, None
    if pool is not None and not own and found.own[row]:
        own = "outlier" if pool.out[row] else "spread"
        others = float(pool.residual.sum() - pool.residual[row]) / (len(pool.residual) - 1)
        ratio = math.sqrt(pool.residual[row] / others) if others > 0 else math.inf
    if own and pool is not None and pool.gain > 0:
        alike = float(method.critical(pool.df) * np.sqrt(pool.gain / n))
        ratio = ratio or sd / math.sqrt(pool.gain)
        stands_out = abs(mean) > alike
        decides = _deciding(mean, sd, method)
    return RowGain(
        gain=Estimate(mean, mean - half, mean + half, n, sd),
        own=own,
        ratio=ratio,
        stands_out=stands_out,
        decides=decides,
        raw_p=float(raw[row]) if sd > 0 else None,
        p=method.p(mean / sd * math.sqrt(n), df) if sd > 0 else None,
        sign_flip=sign_flip(differences) if sd > 0 else None,
    )


def _deciding(mean: float, sd: float, method: Method) -> int | None:
    """The fewest seeds at which the interval of a paired t with this mean and sd excludes 0."""
    n = np.arange(2, MOST_SEEDS + 1)
    quantile = stdtrit(n - 1, 1 - method.alpha / (2 * method.contrasts))
    told = quantile * sd / np.sqrt(n) < abs(mean)
    return int(n[told.argmax()]) if told.any() else None


def adjusted(gains: Sequence[RowGain | None], method: Method) -> tuple[RowGain | None, ...]:
    """`gains` with Holm's p where each is judged by its own spread, among all of this column.

    Where the family is a table, the other columns' are taken as smaller: no less than Holm's.
    """
    raw = [gain.raw_p if gain and gain.raw_p is not None else math.nan for gain in gains]
    stepped = holm(np.array(raw), method.contrasts)
    return tuple(
        dataclasses.replace(gain, p=float(p))
        if gain and gain.p is not None and (gain.own or method.spread != "pooled")
        else gain
        for gain, p in zip(gains, stepped, strict=True)
    )
