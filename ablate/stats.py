"""The statistics of a gain table: pure functions of arrays. What is computed and why: the README.

A *seed* is one independent training of everything that differs between the rows, and seeds are
blocks: all rows of a seed share batches, masks and shared initial weights. Arrays of results are
y[..., R, n], rows x seeds, one column of a table; leading axes are simulations.

Student's t, F and normal quantiles come from `scipy.special`: `scipy.stats`, the same code behind
a slower import, is the oracle in the tests.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, fdtri, gammaln, nctdtr, ndtr, stdtrit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCREEN = 0.05  # level of the F test by which a row leaves the pool
POWER = 0.8  # of the seeds that it would take to tell
MOST_SEEDS = 100  # "more than" beyond
CANT_TELL = "can't tell"
TOLD_APART = 1e-12  # relative: a spread below this is rounding


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. n: independent trainings behind it; below 2 there is no interval.

    `sd` is the standard deviation of one seed's contribution, so that `se` is that of the mean.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None = None

    @property
    def se(self) -> float | None:
        return None if self.sd is None else self.sd / math.sqrt(self.n)


def mean_interval(x: Sequence[float] | Floats, alpha: float = 0.05) -> Estimate:
    """Mean of x, shape (n,), with Student's t interval: independent, normal values."""
    values = np.asarray(x, dtype=float)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Estimate(mean, None, None, n)
    sd = float(values.std(ddof=1))
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * sd / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, sd)


# --- Gains over a baseline ----------------------------------------------------------------------


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

    def critical(self, df: Floats) -> Floats:
        """The half-width of a simultaneous interval, in standard errors.

        Without the screen all comparisons of a column share one spread: Dunnett's constant, the
        columns of a family splitting alpha by Bonferroni. Otherwise t at alpha / contrasts.
        """
        if self.spread == "pooled" and not self.screen:
            share = self.alpha * self.comparisons / self.contrasts
            return np.full(np.shape(df), dunnett(self.comparisons, round(float(np.min(df))), share))
        return np.asarray(stdtrit(df, 1 - self.alpha / (2 * self.contrasts)))


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


def fit(y: Floats, baseline: int, method: Method) -> Fit:
    """Gains of every row of y (..., R, n), n >= 2, over the row `baseline`, none missing.

    `pooled`: y = row + seed + residual with one variance, from the two-way fit; `paired`: each
    row's own paired t; `welch`: rows independent, each with its own variance (Welch 1947), which
    is conservative where seeds correlate.
    """
    rows, n = y.shape[-2:]
    differences = y - y[..., [baseline], :]
    gain = differences.mean(-1)
    smallest = (TOLD_APART * np.abs(y).max(initial=0.0)) ** 2

    def variance(values: Floats) -> Floats:
        found: Floats = values.var(-1, ddof=1)
        return np.where(found > smallest, found, 0.0)

    sd = np.sqrt(variance(differences))
    df = np.full(gain.shape, n - 1.0)
    left = np.zeros(gain.shape, dtype=bool)
    own = variance(y)
    pool = np.full(gain.shape[:-1], np.nan)
    if method.spread == "welch":
        both = own + own[..., [baseline]]
        squares = own**2 + own[..., [baseline]] ** 2
        sd = np.sqrt(both)
        df = np.divide((n - 1) * both**2, squares, out=df, where=squares > 0)
    elif method.spread == "pooled" and rows > 1:
        # The row means of these residuals are 0, so their variance over seeds is SS_r / (n - 1).
        own = variance(y - y.mean(-2, keepdims=True)) * (rows / (rows - 1))
        if method.screen:
            left = out_of_line(own, baseline, n)
        kept = rows - left.sum(-1)
        pool = np.where(left, 0.0, own).sum(-1) / kept
        left |= (kept < 2)[..., None]  # a baseline alone is no pool
        sd = np.where(left, sd, np.sqrt(2 * pool)[..., None])
        df = np.where(left, df, ((kept - 1.0) * (n - 1))[..., None])
    half = method.critical(df) * sd / math.sqrt(n)
    return Fit(gain, half, sd, df, left, own, pool)


def out_of_line(own: Floats, baseline: int, n: int) -> Bools:
    """The rows whose residual variance, `own` (..., R), is too large to share the others'."""
    rows = own.shape[-1]
    others = (own.sum(-1, keepdims=True) - own) / (rows - 1)
    left: Bools = own > fdtri(n - 1, (rows - 1) * (n - 1), 1 - SCREEN) * others
    left[..., baseline] = False
    return left


@dataclass(frozen=True)
class RowGain:
    """The gain of one row; `left` says why it is judged by its own spread, if it is.

    `seeds_needed`: the n at which this gain, if it is the true one, would be told with 80 %
    power; None beyond 100. `spread` is the row's residual standard deviation.
    """

    gain: Estimate
    left: Literal["", "spread", "instability"] = ""
    seeds_needed: int | None = None
    spread: float | None = None


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

    def together(seeds: Bools) -> list[int]:
        return [r for r in range(len(y)) if present[r][seeds].all() and not out[r]]

    @functools.cache
    def fitted(rows: tuple[int, ...], seeds: tuple[int, ...], spread: str) -> Fit:
        how = Method("paired", True, method.alpha, method.contrasts) if spread else method
        return fit(y[np.ix_(rows, seeds)], rows.index(baseline), how)

    def gain_of(row: int) -> RowGain | None:
        seeds = tuple(int(s) for s in np.flatnonzero(shared[row]))
        if row == baseline or not seeds:
            return None
        if len(seeds) < 2:
            gain = float((y[row] - y[baseline])[list(seeds)].mean())
            left: Literal["", "instability"] = "instability" if out[row] else ""
            return RowGain(Estimate(gain, None, None, len(seeds)), left)
        rows = (baseline, row) if out[row] else tuple(together(shared[row]))
        found = fitted(rows, seeds, "paired" if out[row] else "")
        return _row_gain(found, rows.index(row), len(seeds), bool(out[row]), method, margin)

    gains = tuple(gain_of(row) for row in range(len(y)))
    rows = tuple(together(present[baseline]))
    seeds = tuple(int(s) for s in np.flatnonzero(present[baseline]))
    if len(rows) < 2 or len(seeds) < 2:
        return ColumnGains(gains, None, None, len(rows), None)
    whole = fitted(rows, seeds, "")
    kept = [row for row, left in zip(rows, whole.left, strict=True) if not left]
    correlation = seed_correlation(y[np.ix_(kept, seeds)])
    if method.spread != "pooled" or len(kept) < 2:
        return ColumnGains(gains, None, None, len(kept), correlation)
    df = (len(kept) - 1) * (len(seeds) - 1)
    return ColumnGains(gains, math.sqrt(whole.variance), df, len(kept), correlation)


def _row_gain(
    found: Fit, row: int, n: int, unstable: bool, method: Method, margin: float | None
) -> RowGain:
    """One row of a fit, as plain numbers."""
    mean, half, sd, df = (float(x[row]) for x in (found.gain, found.half, found.sd, found.df))
    left = bool(found.left[row])
    effect = abs(mean) if margin is None else max(abs(mean), mean + margin)
    return RowGain(
        gain=Estimate(mean, mean - half, mean + half, n, sd),
        left="instability" if unstable else "spread" if left else "",
        seeds_needed=seeds_needed(effect, sd, df / (n - 1), method.critical),
        spread=math.sqrt(found.own[row]),
    )


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


# --- Dunnett's constant -------------------------------------------------------------------------


@functools.cache
def dunnett(comparisons: int, df: int, alpha: float) -> float:
    """c with P(max |T_i| > c) = alpha over `comparisons` with one control, all n equal.

    T_i = (Z_i - Z_0) / (sqrt(2) S), Z standard normal, S^2 chi-squared / df: correlation 1/2
    (Dunnett 1955). Given Z_0 = z and S = s the T_i are independent, so that
    P(max |T_i| <= c) = E[(Phi(z + sqrt(2) c s) - Phi(z - sqrt(2) c s))^comparisons]: Gauss-Legendre
    in z (even, so z > 0), the trapezoidal rule in log s. Relative error below 2e-6.
    """
    low = float(stdtrit(df, 1 - alpha / 2))
    high = float(stdtrit(df, 1 - alpha / (2 * comparisons)))  # Bonferroni's
    if comparisons == 1:
        return low
    nodes, weights = np.polynomial.legendre.leggauss(24)
    z = 3.5 * (nodes + 1)  # to 7
    weight_z = weights * np.exp(-(z**2) / 2)
    ends = 0.5 * np.log(chdtri(df, np.array([1 - 1e-9, 1e-9])) / df)
    log_s = np.linspace(ends[0], ends[1], 32 + 200 // df)  # wide where df is small
    s = np.exp(log_s)
    log_density = df * log_s - df * s**2 / 2 - (gammaln(df / 2) - df / 2 * math.log(df / 2))
    weight_s = np.exp(log_density)
    weight = np.outer(weight_s, weight_z)
    weight /= weight.sum()

    def excess(c: float) -> float:
        reach = math.sqrt(2) * c * s[:, None]
        inside: Floats = (ndtr(z + reach) - ndtr(z - reach)) ** comparisons
        return 1 - float((weight * inside).sum()) - alpha

    return _root(excess, low, high)


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Where f, positive at `low` and not at `high`, is 0: false position (Illinois)."""
    f_low, f_high = f(low), f(high)
    side = 0
    while True:
        x = (low * f_high - high * f_low) / (f_high - f_low)
        value = f(x)
        if abs(value) < 1e-10 or high - low < 1e-10 * high:
            return x
        if value > 0:
            low, f_low = x, value
            f_high = f_high / 2 if side > 0 else f_high
            side = 1
        else:
            high, f_high = x, value
            f_low = f_low / 2 if side < 0 else f_low
            side = -1


# --- What a table says --------------------------------------------------------------------------


def verdict(low: float, high: float, margin: float | None = None) -> str:
    """The word for a simultaneous interval of a gain; the strongest that holds.

    `helps`, `hurts`: it excludes 0. With a margin m, `same within m`: it lies in (-m, m);
    `no worse than m`: above -m (non-inferiority). Else `can't tell`.
    """
    if low > 0:
        return "helps"
    if high < 0:
        return "hurts"
    if margin is not None and low > -margin:
        return f"same within {margin:g}" if high < margin else f"no worse than {margin:g}"
    return CANT_TELL


def seeds_needed(
    effect: float,
    sd: float,
    df_a_seed: float,
    critical: Callable[[Floats], Floats],
    power: float = POWER,
    most: int = MOST_SEEDS,
) -> int | None:
    """The smallest n that tells `effect` > 0 with this power; None beyond `most`.

    The gain over n seeds has standard error sd / sqrt(n) and df_a_seed (n - 1) degrees of freedom,
    and is told where it exceeds critical(df) of those: noncentral t, the right sign only.
    """
    if effect <= 0 or sd <= 0:  # nothing to tell, or no spread to plan by
        return None

    def enough(n: int) -> bool:
        df = np.asarray(df_a_seed * (n - 1))
        return float(nctdtr(df, effect * math.sqrt(n) / sd, critical(df))) <= 1 - power

    counts = range(2, most + 1)
    found = bisect.bisect_left(counts, True, key=enough)
    return counts[found] if found < len(counts) else None


@functools.cache
def look_error(looks: tuple[int, ...], alpha: float = 0.05) -> float:
    """False positives of a contrast read at each of these numbers of seeds, told if ever told.

    The t of the seeds' differences (paired, or one sample) at level `alpha` a look, under no gain;
    a million seeded draws (standard error 0.0004). 3-5: .086; 3-5-10: .120; each of 3 to 10: .167.
    """
    rng = np.random.default_rng(20230202)
    draws = 1_000_000
    mean, squares, told = np.zeros(draws), np.zeros(draws), np.zeros(draws, dtype=bool)
    n = 0
    for look in sorted({look for look in looks if look >= 2}):
        # The new seeds enter by their mean and sum of squares (Chan, Golub & LeVeque 1983).
        new = look - n
        step = rng.standard_normal(draws) / math.sqrt(new) - mean
        squares += step**2 * (n * new / look)
        if new > 1:
            squares += rng.chisquare(new - 1, draws)
        mean += step * (new / look)
        n = look
        t = mean * np.sqrt(n * (n - 1) / squares)
        told |= np.abs(t) > float(stdtrit(n - 1, 1 - alpha / 2))
    return float(told.mean())
