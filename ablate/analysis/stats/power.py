"""Forecasts of the gains that a sweep can detect, before it is run: Monte Carlo of the function
that makes the table.

Used by report/power.py and report/designs.py (`ablate plan`), and by analysis/tabulate.py (what
more seeds would resolve). benchmarks/designs.py checks the forecasts of designs against
simulations.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import chdtri, fdtri

from ablate.analysis.stats.effects import smallest_gain
from ablate.analysis.stats.estimate import Floats, rounding
from ablate.analysis.stats.gains import FEWEST_SEEDS, MOST_SEEDS, POWER, Method, fit

SPREAD_LEVEL = 0.8  # of the interval of a measured spread
BARELY_KNOWN = 8  # residual degrees of freedom: below, the spread is
CONTRASTS = 40_000  # simulated, in 1,000 to 10,000 tables
AT_ONCE = 100_000  # results: what a cache holds
START = 8  # seeds

T = TypeVar("T")


class OverSpread(NamedTuple, Generic[T]):
    """A forecast at the low end, the estimate and the high end of the spread's 80 % interval."""

    low: T
    expected: T
    high: T


@dataclass(frozen=True)
class Spread:
    """The residual standard deviation of a column, in points. `df` is None where it is assumed."""

    sd: float
    df: float | None = None

    @property
    def barely_known(self) -> bool:
        return self.df is not None and self.df < BARELY_KNOWN

    @property
    def interval(self) -> OverSpread[float]:
        """80 %, by chi-square: normal residuals. An assumed spread is a point."""
        if self.df is None:
            return OverSpread(self.sd, self.sd, self.sd)
        tails = np.array([(1 - SPREAD_LEVEL) / 2, (1 + SPREAD_LEVEL) / 2])
        low, high = self.sd * np.sqrt(self.df / chdtri(self.df, tails))
        return OverSpread(float(low), self.sd, float(high))


def residual_spread(y: Floats, blocks: bool = True) -> Spread | None:
    """Estimate the spread of every finished run of a column: y (R, S), NaN where a result is
    missing.

    Least squares of y = row + seed + residual, any cells missing (Searle 1987, ch. 4), without
    `blocks` of y = row + residual; no row is screened out. None without residual degrees of
    freedom, or where residuals are rounding.
    """
    y = y[~np.isnan(y).all(1)]
    present = (~np.isnan(y)).astype(float)
    if not y.size:
        return None
    runs = present.sum(1)[:, None]

    def centred(values: Floats) -> Floats:
        """Less the mean of its row; 0 where missing."""
        values = np.where(present > 0, values, 0.0)
        deviations: Floats = present * (values - values.sum(1, keepdims=True) / runs)
        return deviations

    # What is left of the normal equations once the rows are eliminated: one a seed.
    centred_y = centred(y)
    normal = np.diag(present.sum(0)) - present.T @ (present / runs)
    seeds, _, rank, _ = np.linalg.lstsq(normal, centred_y.sum(0), rcond=1e-9)
    if not blocks:
        seeds, rank = np.zeros_like(seeds), 0
    residuals = centred_y - centred(np.broadcast_to(seeds, y.shape))
    df = int(present.sum()) - len(y) - int(rank)
    if df < 1 or (mean_square := float((residuals**2).sum()) / df) <= rounding(y[present > 0]):
        return None
    return Spread(math.sqrt(mean_square), df)


def resolution(
    spread: Spread, n: int, target_n: int, method: Method, fixed: float = 0.0
) -> OverSpread[float]:
    """Forecast the half-width of the interval of a gain at `target_n` > `n` seeds.

    `spread`: the one that rows share at n seeds, with its df; rows judged by their own spread are
    in it (without them it would be too small, by selection). `fixed`: the part of 1 / df that more
    seeds don't lessen, which the number of images sets. The variance at `target_n` seeds is that of
    the n seen and of new ones, whose ratio to it is F: 80 % of half-widths lie from low to high,
    where spreads are as alike as the method assumes.
    """
    df = spread.df
    assert df is not None
    later = 1 / (fixed + max(1 / df - fixed, 0.0) * (n - 1) / (target_n - 1))
    half = float(method.critical(np.array(later)) * spread.sd * math.sqrt(2 / target_n))
    if later <= df:
        return OverSpread(half, half, half)
    df_share = df / later
    tails = np.array([(1 - SPREAD_LEVEL) / 2, (1 + SPREAD_LEVEL) / 2])
    low, high = half * np.sqrt(df_share + (1 - df_share) * fdtri(later - df, df, tails))
    return OverSpread(float(low), half, float(high))


@dataclass(frozen=True)
class Forecast:
    """The power of n seeds, over the 80 % interval of the spread.

    `power`: to find the gain with n seeds; `smallest`: the gain that n seeds find with 80 % power;
    `seeds`: the number that finds the gain with 80 % power, None beyond 100.
    """

    power: OverSpread[float]
    smallest: OverSpread[float]
    seeds: OverSpread[int | None]


def detect(
    gain: float, n: int, spread: Spread, method: Method, correlation: float = 0.0
) -> Forecast:
    """Forecast for a true `gain` > 0 of one contrast while the others are null, n >= 3 seeds.

    Assumes normal residuals of one spread, in points, in all rows of the column. `correlation` is
    the share of the seed blocks in the variance, which `one way` pays for. There are no images
    before results: where they will judge, rows of one spread are judged as `one way` does, whose
    power is the same.
    Seeded: the same question, the same answer; standard error of a power below 0.5 %.
    """

    blocks = max(0.0, correlation) if method.spread == "one way" else 0.0

    def threshold_gains(seeds: int) -> Floats:
        return _threshold_gains(seeds, method, blocks)

    def smallest(seeds: int) -> float:
        return float(np.quantile(threshold_gains(seeds), POWER))

    def fewest(effect: float) -> int | None:
        seeds = START
        for _ in range(2):  # `smallest` falls nearly as 1 / sqrt(n), but for the fewest seeds
            near = math.ceil(seeds * (smallest(seeds) / effect) ** 2)
            seeds = min(max(START, near), MOST_SEEDS + 1)
        while seeds > FEWEST_SEEDS and smallest(seeds - 1) <= effect:
            seeds -= 1
        while seeds <= MOST_SEEDS and smallest(seeds) > effect:
            seeds += 1
        return seeds if seeds <= MOST_SEEDS else None

    effects = [gain / sd for sd in spread.interval]
    return Forecast(
        power=OverSpread(*(float(np.mean(threshold_gains(n) < effect)) for effect in effects)),
        smallest=OverSpread(*(sd * smallest(n) for sd in spread.interval)),
        seeds=OverSpread(*(fewest(effect) for effect in effects)),
    )


@functools.lru_cache(maxsize=32)
def _threshold_gains(n: int, method: Method, correlation: float) -> Floats:
    """Return the gains, in spreads, that would just be distinguished from 0: one for each simulated
    table and contrast.

    A true gain of a row moves its estimate and nothing else that `fit` gives, so a table without
    gains shows how every gain would have been judged, in each of its contrasts.
    """
    rows = method.variants + 1
    rng = np.random.default_rng(20230204)
    blocks = math.sqrt(correlation / (1 - correlation))
    tables = min(max(1_000, CONTRASTS // method.variants), 10_000)
    thresholds = []
    while tables:
        chunk = min(tables, max(1, AT_ONCE // (rows * n)))
        y = rng.standard_normal((chunk, rows, n))
        y += blocks * rng.standard_normal((chunk, 1, n))
        table = fit(y, method)
        for gain in (table.gain, -table.gain):  # of -y: as likely, and it halves the error
            thresholds.append((table.half - gain)[:, 1:].ravel())
        tables -= chunk
    return np.concatenate(thresholds)


# Of crossed designs, from two real ones of 8 and 16 cells (docs/statistics.md, "Forecasts of
# designs").
EFFECT_SPREAD = 1.3  # times the residual spread: what a seed does to a change is shared by cells
EFFECT_DF = 5  # for each seed but the first, by images
SHARED_PART = 0.3  # of what a seed does to a cell, shared by all cells with a change: the upper end


def detected_effect(
    sd: float, cells: int, n: int, method: Method, common_part: float = 0.0
) -> float | None:
    """Forecast the main effect that a crossed design of this many cells and n seeds distinguishes
    from 0 with `POWER`; None with too few seeds for verdicts.

    `sd`: of a cell's residuals between seeds, in points. `common_part`: the part of their variance
    that all cells with a change have in common, which more cells do not lessen. Without images each
    effect is judged by its own n - 1 degrees of freedom.
    """
    if n < FEWEST_SEEDS:
        return None
    variance = (EFFECT_SPREAD * sd) ** 2 * 4 / (cells * n) * (1 + common_part * (cells / 2 - 1))
    df = (n - 1) * (EFFECT_DF if method.spread == "images" else 1)
    return smallest_gain(math.sqrt(variance), df, method.alpha, method.contrasts)


def detected_again(sd: float, df: float, n: int, target_n: int, method: Method) -> float | None:
    """Forecast the effect that `target_n` seeds distinguish from 0 with `POWER`; None with too few
    seeds. `sd`, `df`: by which n seeds judge it, sd being that of one seed's effect."""
    if target_n < FEWEST_SEEDS:
        return None
    df = df * (target_n - 1) / (n - 1)
    return smallest_gain(sd / math.sqrt(target_n), df, method.alpha, method.contrasts)


TABLES = 20_000  # simulated: a standard error of 0.002
RESULTS = 10_000_000  # at most, in wide tables; the error of 5,000 is still one of 0.004
LOOKED_AT_ONCE = 200_000  # results: what a cache holds


@functools.cache
def look_error(looks: tuple[int, ...], method: Method) -> float:
    """Simulate the chance that some variant of a column is wrongly judged better or worse, if the
    column is read at each of these n >= 2 seeds.

    `fit` itself reads tables of `method.variants` variants and a baseline without any gain, all
    spreads equal, seeded, judged without images; one wrong reading at any n counts.
    """
    counts = sorted(set(looks))
    shape = (method.variants + 1, counts[-1])
    results = shape[0] * shape[1]
    tables = max(2_000, min(TABLES, RESULTS // results))
    rng = np.random.default_rng(20230202)
    wrong = table_count = 0
    while table_count < tables:
        some = min(tables - table_count, max(1, LOOKED_AT_ONCE // results))
        y = rng.standard_normal((some, *shape))
        is_wrong = np.zeros(some, dtype=bool)
        for n in counts:
            table_fit = fit(y[..., :n], method)
            is_wrong |= (np.abs(table_fit.gain) > table_fit.half)[:, 1:].any(-1)
        wrong += int(is_wrong.sum())
        table_count += some
    return wrong / tables
