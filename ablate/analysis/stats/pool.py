"""What the rows of a column share: one residual spread, and the two screens that look after it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import fdtri

from ablate.analysis.stats.estimate import TOLD_APART, Bools, Floats

# Levels of the F tests that look after the pool; docs/statistics.md has what they cost and save.
OWN = 0.95  # beyond it a row is judged by its own spread
OUT = 0.999  # beyond it a row leaves the pool, too
FEW_SEEDS = 5  # below it the baseline's test is the stricter one: it sees little
BASELINE = {True: 0.90, False: 0.95}  # by whether seeds are few


class Pool(NamedTuple):
    """What the rows of a column share, shape (...) or a row's, (..., R).

    `ratios`: a row's residual variance in the two-way fit of all rows over that of all others.
    `own`: rows judged by their own spread; `out`: those that left the pool, too. Where `tripped`,
    the baseline is out of line with the pool's variants; `ratio` is its own standard deviation over
    theirs. `run`: the variance of a row's result of one seed, as the pool has it; where tripped,
    by the variants. `gain` and `df`: the variance of a row's gain of one seed, and its degrees of
    freedom; NaN where the pool has no variant. `few`: rows that only their own spread or that of
    all can judge, since hardly any image of theirs tells of it (`predictions.predicted`).
    """

    ratios: Floats
    own: Bools
    out: Bools
    tripped: Bools
    ratio: Floats
    run: Floats
    gain: Floats
    df: Floats
    few: Bools


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
    others = (residual.sum(-1, keepdims=True) - residual) / (rows - 1)
    own, out = np.zeros((2, *residual.shape), dtype=bool)
    if screen:
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
    within = quotient(squares, df_within, smallest)
    apart = ((centred[..., baseline, :] - shared) ** 2).sum(-1) / (n - 1)
    apart = np.where(apart > smallest, apart, 0.0)
    squares_0 = k / (k + 1) * apart * (n - 1)
    tripped = np.zeros(k.shape, dtype=bool)
    if screen:
        tripped = (k > 1) & (squares_0 / (n - 1) > baseline_limit(n, df_within) * within)
    gain = 2 * quotient(squares + squares_0, k * (n - 1.0), smallest)
    df_gain = np.maximum(k, 1) * (n - 1.0)
    between = k * apart  # of pooled gains: k var_s(m_s - c_0s)
    parts = (between + (k - 1) * within) / np.maximum(k, 1)
    noise = between**2 / (n - 1) + np.maximum(k - 1, 0) * within**2 / (n - 1)
    satterthwaite = np.divide(
        (between + (k - 1) * within) ** 2, noise, out=np.ones(k.shape), where=noise > 0
    )
    baselines = np.maximum(apart - within / np.maximum(k, 1), 0.0)
    gain = np.where(k < 1, np.nan, np.where(tripped, parts, gain))
    df_gain = np.where(tripped, satterthwaite, df_gain)
    run = np.where(tripped, within, gain / 2)
    return Pool(
        ratios=over(residual, others),
        own=own,
        out=out,
        tripped=tripped,
        ratio=np.sqrt(over(baselines, within)),
        run=np.broadcast_to(run[..., None], own.shape),
        gain=np.broadcast_to(gain[..., None], own.shape),
        df=np.broadcast_to(df_gain[..., None], own.shape),
        few=np.zeros_like(own),
    )


def baseline_limit(n: int, df: Floats) -> Floats:
    """Beyond it is the baseline out of line with variants of these residual df (...): of F."""
    some, where = np.unique(np.maximum(df, 1), return_inverse=True)  # slow, and they repeat
    return np.asarray(fdtri(n - 1, some, BASELINE[n < FEW_SEEDS])[where].reshape(np.shape(df)))


def over(variance: Floats, others: Floats) -> Floats:
    """A ratio; infinite where the others have no spread."""
    ratio = np.full(np.shape(others), np.inf)
    return np.asarray(np.divide(variance, others, out=ratio, where=others > 0))


def quotient(squares: Floats, df: Floats, smallest: float | Floats) -> Floats:
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
