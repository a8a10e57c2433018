"""Seeds where they are needed: one look of a group-sequential comparison of a column's rows.

At a look every row that goes on has all seeds so far. The row is distinguished from the baseline,
or stopped because a gain of the margin is unlikely, or given the seeds of the next look. A look
judges the rows that go on as a table would, by all of their seeds; nothing but the decisions is
kept from look to look.

Used by analysis/sequential.py (looks of `ablate sweep`, tables) and report/power.py
(`ablate plan`). A new rule also needs docs/statistics.md, whose figures on looks
benchmarks/errors.py simulates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from ablate.analysis.stats.estimate import Bools, Estimate, Floats
from ablate.analysis.stats.gains import CANT_TELL, Method, fit
from ablate.analysis.stats.spread import ImageFlips

FUTILITY = 0.90  # of Student's t: how unlikely a gain of the margin is when a row stops for it

# What images tell at a look: of these tables (T,), of these rows, the baseline first, by n seeds.
ImagesAt = Callable[[NDArray[np.int_], list[int], int], ImageFlips]


class Decision(IntEnum):
    """The decision of a look on a row; UNDECIDED: the row goes on or, at the last look, its verdict
    is "can't tell"."""

    WORSE = -1
    UNDECIDED = 0
    BETTER = 1
    FUTILE = 2  # a gain, or a loss, of the margin is unlikely: a stop, and no verdict
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
    spread: Literal["images", "one way", "paired"] = "one way"
    alpha: float = 0.05
    contrasts: int = 1

    def method_at(self, look: int) -> Method:
        """How rows are judged at look 0, 1, ...: the interval holds over all looks."""
        z = boundaries(self.looks, self.alpha / self.contrasts)[look]
        return Method(self.spread, alpha=2 * float(ndtr(-z)), repeated=True)


class LookState(NamedTuple):
    """The state between looks, shape (..., R): `active`, the rows that go on, never row 0, which is
    the baseline; `decided`, the decision on each row."""

    active: Bools
    decided: NDArray[np.int_]


class LookFit(NamedTuple):
    """The gains of a look and the spreads that judged them, shape (..., R); NaN where a row was not
    judged.

    The standard error of a gain is sd / sqrt(n), with df degrees of freedom; `half` is the
    half-width of an interval that holds at all looks and for all contrasts at once. `is_own`,
    `out`, `vague` and `ratios`: as of `Variances`. `ratio` (...): of the baseline's spread to the
    one that the rows lead us to expect, where it is beyond the screen's limit, else NaN.
    """

    gain: Floats
    half: Floats
    sd: Floats
    df: Floats
    ratios: Floats
    is_own: Bools
    out: Bools
    vague: Bools
    ratio: Floats


def before_looks(rows: int, tables: tuple[int, ...] = ()) -> LookState:
    """Return the state of a column of this many rows before its first look."""
    no_rows = np.zeros((*tables, rows), dtype=bool)
    active = ~no_rows
    active[..., 0] = False
    return LookState(active, no_rows.astype(int))


def take_look(
    y: Floats,
    look: int,
    state: LookState,
    method: Sequential,
    unstable: Bools | None = None,
    images: ImagesAt | None = None,
) -> tuple[LookFit, LookState]:
    """Take look 0, 1, ... at y (..., R, n), all seeds up to it, row 0 the baseline; only rows that
    are active, and the baseline, need a number there.

    `unstable` (..., R): rows with a diverged or a collapsed run by now. Such a variant stops
    without a verdict. An unstable baseline ends the column: nothing more is decided, earlier
    decisions remain.
    """
    n = method.looks[look]
    assert y.shape[-1] == n
    shaky = np.zeros(state.active.shape, dtype=bool) if unstable is None else unstable
    decided = np.where(state.active & shaky, Decision.UNSTABLE, state.decided)
    active = state.active & ~shaky & ~shaky[..., [0]]
    look_method = method.method_at(look)
    look_fit = _fit_tables(
        y.reshape(-1, *y.shape[-2:]), active.reshape(-1, y.shape[-2]), look_method, images
    )
    tables = y.shape[:-2]
    look_fit = LookFit._make(part.reshape((*tables, *part.shape[1:])) for part in look_fit)
    # Equal gains in all seeds have no spread: accuracies are counts, so that this is rounding.
    excludes_zero = active & (np.abs(look_fit.gain) > look_fit.half) & (look_fit.sd > 0)
    decided = np.where(
        excludes_zero, np.where(look_fit.gain > 0, Decision.BETTER, Decision.WORSE), decided
    )
    if method.margin is not None:
        error = look_fit.sd / math.sqrt(n)
        futile = np.abs(look_fit.gain) + stdtrit(look_fit.df, FUTILITY) * error < method.margin
        futile &= look_fit.sd > 0
        decided = np.where(active & ~excludes_zero & futile, Decision.FUTILE, decided)
    return look_fit, LookState(active & (decided == Decision.UNDECIDED), decided)


def _fit_tables(y: Floats, active: Bools, method: Method, images: ImagesAt | None) -> LookFit:
    """Fit tables y (T, R, n), those with the same active rows together."""
    tables, rows, n = y.shape
    gain, half, sd, df, ratios = np.full((5, tables, rows), np.nan)
    is_own, out, vague = np.zeros((3, tables, rows), dtype=bool)
    ratio = np.full(tables, np.nan)
    groups, group_of_table = np.unique(active, axis=0, return_inverse=True)
    for group, some in enumerate(groups):
        if not some.any():
            continue
        members = np.flatnonzero(group_of_table.ravel() == group)
        judged_rows = [0, *(int(row) for row in np.flatnonzero(some))]
        flips = images(members, judged_rows, n) if images is not None else None
        fitted = fit(y[members][:, judged_rows], method, flips)
        variances, variants = fitted.variances, np.ix_(members, np.array(judged_rows[1:]))
        gain[variants], half[variants] = fitted.gain[:, 1:], fitted.half[:, 1:]
        sd[variants], df[variants] = fitted.sd[:, 1:], variances.df[:, 1:]
        ratios[variants], is_own[variants] = variances.ratios[:, 1:], variances.is_own[:, 1:]
        out[variants], vague[variants] = variances.out[:, 1:], variances.vague[:, 1:]
        ratio[members] = np.where(variances.tripped, variances.ratio, np.nan)
    return LookFit(gain, half, sd, df, ratios, is_own, out, vague, ratio)


def is_futile(gain: Estimate, df: float, margin: float) -> bool:
    """Decide whether a row whose gain is not distinguished from 0 stops: a gain of the margin is
    unlikely, by a one-sided interval of this look alone. Where all of nine rows do gain the margin,
    some row stops so in half of all tables, so it is no verdict."""
    error = (gain.sd or 0.0) / math.sqrt(gain.n)
    return abs(gain.mean) + float(stdtrit(df, FUTILITY)) * error < margin


def stopped_word(gain: Estimate, margin: float) -> str:
    """Return the verdict of a row that stops for futility, by its simultaneous interval."""
    if gain.low is not None and gain.high is not None and -margin < gain.low <= gain.high < margin:
        return f"same within {margin:g}"
    return CANT_TELL


TABLES = 2_000  # simulated: the mean number of runs is known to 1 %


def runs_until(method: Sequential, variants: int, gain: float) -> float:
    """Simulate the mean number of runs of a column of this many variants, each of the same true
    `gain`, and their baseline, until every row has stopped. `gain` and the margin are in standard
    deviations of a seed, equal for all rows. Seeded: the same question has the same answer."""
    rows = variants + 1
    y = np.random.default_rng(20230206).standard_normal((TABLES, rows, method.looks[-1]))
    y[:, 1:] += gain
    state, runs, previous_n = before_looks(rows, (TABLES,)), 0.0, 0
    for look, n in enumerate(method.looks):
        trained = state.active.sum(-1) + state.active.any(-1)
        runs += float(trained.mean()) * (n - previous_n)
        previous_n = n
        _, state = take_look(y[..., :n], look, state, method)
    return runs


NODES = 200  # of Gauss-Legendre, over the region in which a comparison goes on
LARGEST = 12.0  # of |z|: beyond it lies less than any alpha
HALVINGS = 60  # of [0, LARGEST]: to the last bit


@functools.cache
def boundaries(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Compute the |z| beyond which a two-sided comparison is significant at each of `looks`,
    increasing n.

    Up to a look at n seeds it spends alpha n / n_max (Lan & DeMets 1983). The distribution of the
    sum of all seeds, given that no earlier look was significant, is carried from look to look by
    quadrature (Armitage, McPherson & Rowe 1969).
    """
    x, weights = np.polynomial.legendre.leggauss(NODES)
    sums, chances = np.zeros(1), np.ones(1)  # before the first look: no seeds, their sum is 0
    limits, start = [], 0.0
    for time, previous in zip(looks, (0, *looks), strict=False):
        end = time / looks[-1]
        step, new = math.sqrt(end - start), alpha * (time - previous) / looks[-1]
        low, high = 0.0, LARGEST
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            edge = middle * math.sqrt(end)
            beyond = ndtr((sums - edge) / step) + ndtr((-edge - sums) / step)
            low, high = (middle, high) if (chances * beyond).sum() > new else (low, middle)
        limits.append(high)
        later = high * math.sqrt(end) * x
        steps = (later[:, None] - sums) / step
        moved = (np.exp(-np.square(steps) / 2) * chances).sum(1)
        chances = high * math.sqrt(end) * weights * moved / (step * math.sqrt(2 * math.pi))
        sums, start = later, end
    return tuple(limits)
