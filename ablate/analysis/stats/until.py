"""Seeds where they are needed: one look of a group-sequential comparison of a column's rows.

At a look every row that goes on has all seeds so far. It is told from the baseline, or stopped as
gaining less than the margin, or given the seeds of the next look. The *segments* are the blocks of
seeds that came between looks, each with the rows that trained it: spread is taken within a segment,
so that which rows went on changes no estimate of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, ndtr, stdtrit

from ablate.analysis.stats.boundaries import boundaries
from ablate.analysis.stats.estimate import Bools, Floats
from ablate.analysis.stats.pool import OUT, rounding, variance

# Levels of the F tests: wider than a table's, for looks repeat. docs/statistics.md has the errors.
OWN_AT_LOOK = 0.90
BASELINE_AT_LOOK = 0.90
FUTILE = 0.90  # of Student's t: how sure "less than the margin" is at one look


class Decision(IntEnum):
    """What was decided on a row; UNDECIDED: it goes on, or no look is left."""

    WORSE = -1
    UNDECIDED = 0
    BETTER = 1
    LESS = 2  # it gains, or loses, less than the margin
    UNSTABLE = 3  # it has a diverged or a collapsed run


@dataclass(frozen=True)
class Sequential:
    """How a column is judged look by look; fixed before results exist.

    `looks`: increasing numbers of seeds. `alpha` is the error of the family of `contrasts` over all
    looks; rows that stop don't lower their number. `margin`: of a gain that matters, in the units
    of the results; None: no row is stopped for gaining too little.
    """

    looks: tuple[int, ...]
    margin: float | None = None
    spread: Literal["pooled", "paired"] = "pooled"
    alpha: float = 0.05
    contrasts: int = 1

    def critical(self, look: int, df: Floats) -> Floats:
        """The half-width of the interval of look 0, 1, ..., in standard errors."""
        z = boundaries(self.looks, self.alpha / self.contrasts)[look]
        return _quantile(df, float(ndtr(z)))


class LookState(NamedTuple):
    """What earlier looks leave for the next, shape (..., R) or, of a column, (...).

    `active`: variants that go on, never the baseline. `segments`: of each look so far the rows
    whose new seeds are in the fit. `own`: rows judged by their own spread, `out`: those that left
    the pool, too; `tripped`: the baseline's spread is out of line. All three are kept for good.
    """

    active: Bools
    decided: NDArray[np.int_]
    own: Bools
    out: Bools
    tripped: Bools
    segments: tuple[Bools, ...] = ()


class LookFit(NamedTuple):
    """What a look judged its rows by, shape (..., R); NaN where a row was not judged.

    The standard error of a gain is sd / sqrt(n), with df degrees of freedom; `half` is the
    half-width of an interval that holds at all looks and for all contrasts at once. `ratio` (...):
    the baseline's own spread over the variants', where it tripped.
    """

    gain: Floats
    half: Floats
    sd: Floats
    df: Floats
    ratio: Floats


def before_looks(rows: int, baseline: int, tables: tuple[int, ...] = ()) -> LookState:
    """The state of a column of so many rows before its first look."""
    none = np.zeros((*tables, rows), dtype=bool)
    active = ~none
    active[..., baseline] = False
    return LookState(active, none.astype(int), none, none, np.zeros(tables, dtype=bool))


def take_look(
    y: Floats, baseline: int, state: LookState, method: Sequential, unstable: Bools | None = None
) -> tuple[LookFit, LookState]:
    """The next look at y (..., R, n), all seeds up to it; only rows that are active, and the
    baseline, need a number there.

    `unstable` (..., R): rows with a diverged or a collapsed run by now. Such a variant stops
    without a verdict and its new seeds leave the fit, while its earlier ones stay. An unstable
    baseline ends the column: nothing more is decided, what was told before stands.
    """
    look = len(state.segments)
    n = method.looks[look]
    assert y.shape[-1] == n
    shaky = np.zeros(state.active.shape, dtype=bool) if unstable is None else unstable
    decided = np.where(state.active & shaky, Decision.UNSTABLE, state.decided)
    active = state.active & ~shaky & ~shaky[..., [baseline]]
    ran = active.copy()
    ran[..., baseline] = active.any(-1)
    values = np.where(np.isnan(y), 0.0, y)
    smallest = rounding(values)
    differences = values - values[..., [baseline], :]
    gain = differences.mean(-1)
    sd = np.sqrt(variance(differences, smallest))
    df = np.full(gain.shape, n - 1.0)
    ratio = np.full(gain.shape[:-1], np.nan)
    now = state._replace(active=active, segments=(*state.segments, ran))
    if method.spread == "pooled" and y.shape[-2] > 2:
        segments = _segments(values, now.segments, method.looks)
        now = _screened(segments, baseline, now)
        shared, shared_df, ratio, now = _pool(segments, differences, baseline, now)
        pooled = ~now.own & (shared_df > 0)[..., None]
        shared = np.where(shared > smallest, shared, 0.0)
        sd = np.where(pooled, np.sqrt(shared)[..., None], sd)
        df = np.where(pooled, shared_df[..., None], df)
    error = sd / math.sqrt(n)
    half = method.critical(look, df) * error
    # Equal gains in all seeds have no spread: accuracies are counts, so that this is rounding.
    told = active & (np.abs(gain) > half) & (sd > 0)
    decided = np.where(told, np.where(gain > 0, Decision.BETTER, Decision.WORSE), decided)
    if method.margin is not None:
        less = np.abs(gain) + _quantile(df, FUTILE) * error < method.margin
        decided = np.where(active & ~told & less, Decision.LESS, decided)
    gain, half, sd, df = (np.where(active, part, np.nan) for part in (gain, half, sd, df))
    go_on = active & (decided == Decision.UNDECIDED)
    return LookFit(gain, half, sd, df, ratio), now._replace(active=go_on, decided=decided)


class _Segment(NamedTuple):
    """A block of `seeds` new seeds: the rows in its fit, and their results less each row's mean."""

    rows: Bools
    centred: Floats
    seeds: int


def _segments(y: Floats, rows: tuple[Bools, ...], looks: tuple[int, ...]) -> list[_Segment]:
    found, begin = [], 0
    for some, end in zip(rows, looks, strict=False):
        block = y[..., begin:end]
        centred = (block - block.mean(-1, keepdims=True)) * some[..., None]
        found.append(_Segment(some, centred, end - begin))
        begin = end
    return found


def _screened(segments: list[_Segment], baseline: int, state: LookState) -> LookState:
    """With the rows whose residual variance, over that of all others, is out of line."""
    squares, df = np.zeros((2, *state.own.shape))
    for rows, centred, seeds in segments:
        count = rows.sum(-1)[..., None]
        mean = centred.sum(-2, keepdims=True) / np.maximum(count, 1)[..., None]
        residual = ((centred - mean) ** 2).sum(-1) * count / np.maximum(count - 1, 1)
        squares += np.where(rows & (count > 1), residual, 0.0)
        df += np.where(rows & (count > 1), seeds - 1.0, 0.0)
    others = squares.sum(-1, keepdims=True) - squares
    others_df = np.maximum(df.sum(-1, keepdims=True) - df, 1)
    df = np.maximum(df, 1)
    ratio, alike = squares / df, others / others_df
    own = state.own | (ratio > _f_limit(df, others_df, OWN_AT_LOOK) * alike)
    out = state.out | (ratio > _f_limit(df, others_df, OUT) * alike)
    own[..., baseline] = out[..., baseline] = False
    return state._replace(own=own, out=out)


class _Squares(NamedTuple):
    """Sums over the segments, each (...), of the pool's k variants and of the baseline about the
    mean of these: `within`, the variants' squares; `between`, the baseline's where k > 1, which
    have the variance of one result where spreads are equal; `both` is the whole pool's. `apart`:
    the baseline's squares as they are, and `noise`, what one variance of a result adds to them."""

    within: Floats
    within_df: Floats
    between: Floats
    between_df: Floats
    both: Floats
    both_df: Floats
    apart: Floats
    noise: Floats


def _squares(segments: list[_Segment], baseline: int, state: LookState) -> _Squares:
    sums = np.zeros((8, *state.tripped.shape))
    for rows, centred, seeds in segments:
        variants = rows & ~state.out
        variants[..., baseline] = False
        k = variants.sum(-1)
        mean = (centred * variants[..., None]).sum(-2) / np.maximum(k, 1)[..., None]
        within = ((centred - mean[..., None, :]) ** 2 * variants[..., None]).sum((-1, -2))
        apart = ((centred[..., baseline, :] - mean) ** 2).sum(-1)
        between, several, df = apart * k / (k + 1), k > 1, seeds - 1
        sums += (
            within,
            np.maximum(k - 1, 0) * df,
            np.where(several, between, 0.0),
            several * df,
            np.where(k > 0, within + between, 0.0),
            k * df,
            np.where(several, apart, 0.0),
            several * df / np.maximum(k, 1),
        )
    return _Squares(*sums)


def _pool(
    segments: list[_Segment], differences: Floats, baseline: int, state: LookState
) -> tuple[Floats, Floats, Floats, LookState]:
    """The variance of a gain of one seed that rows share, its df (0: there is none), and the ratio
    of the baseline's spread to the variants', NaN where it has not tripped; and the state with the
    baselines that trip.

    Once it has tripped gains are pooled instead of results: those of the rows that are active and
    not judged by their own spread, over all seeds.
    """
    sums = _squares(segments, baseline, state)
    within_df, between_df = (np.maximum(df, 1) for df in (sums.within_df, sums.between_df))
    within, between = sums.within / within_df, sums.between / between_df
    limit = _f_limit(between_df, within_df, BASELINE_AT_LOOK)
    tripped = state.tripped | ((sums.within_df > 0) & (between > limit * within))
    own = np.maximum(sums.apart - sums.noise * within, 0) / between_df
    ratio = np.sqrt(np.divide(own, within, out=np.full(own.shape, np.inf), where=within > 0))
    alike = 2 * sums.both / np.maximum(sums.both_df, 1)

    some = state.active & ~state.own
    k, n = some.sum(-1), differences.shape[-1]
    count = np.maximum(k, 1)
    centred = (differences - differences.mean(-1, keepdims=True)) * some[..., None]
    mean = centred.sum(-2) / count[..., None]
    shared = k * mean.var(-1, ddof=1)
    rest = ((centred - mean[..., None, :]) ** 2 * some[..., None]).sum((-1, -2))
    rest /= np.maximum((k - 1) * (n - 1), 1)
    variance = (shared + (k - 1) * rest) / count
    noise = (shared**2 + (k - 1) * rest**2) / (n - 1)
    df = np.divide((count * variance) ** 2, noise, out=np.zeros(k.shape), where=noise > 0)
    found = np.where(tripped, variance, alike)
    found_df = np.where(tripped, np.where(k > 1, df, 0.0), sums.both_df)
    return found, found_df, np.where(tripped, ratio, np.nan), state._replace(tripped=tripped)


def _f_limit(df: Floats, other_df: Floats, level: float) -> Floats:
    """Quantiles of F. They are slow, and pairs of df repeat."""
    some, where = np.unique(df + 1j * other_df, return_inverse=True)
    return np.asarray(fdtri(some.real, some.imag, level)[where].reshape(df.shape))


def _quantile(df: Floats, level: float) -> Floats:
    """Of Student's t."""
    some, where = np.unique(df, return_inverse=True)
    return np.asarray(stdtrit(some, level)[where].reshape(df.shape))


TABLES = 2_000  # simulated: the mean number of runs is known to 1 %


def runs_until(method: Sequential, variants: int, gain: float) -> float:
    """The mean number of runs of a column of so many variants, each of the same true `gain`, and
    their baseline, until every row has stopped. `gain` and the margin are in standard deviations
    of a seed, equal for all rows. Seeded: the same question, the same answer.
    """
    rows = variants + 1
    y = np.random.default_rng(20230206).standard_normal((TABLES, rows, method.looks[-1]))
    y[:, 1:] += gain
    state, runs, before = before_looks(rows, 0, (TABLES,)), 0.0, 0
    for n in method.looks:
        trained = state.active.sum(-1) + state.active.any(-1)
        runs += float(trained.mean()) * (n - before)
        before = n
        _, state = take_look(y[..., :n], 0, state, method)
    return runs
