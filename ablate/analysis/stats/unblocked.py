"""Gains over a baseline that has more seeds than the rows: no seed blocks, for most of the
baseline's seeds have no other run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import fdtri

from ablate.analysis.stats.estimate import Bools, Floats
from ablate.analysis.stats.pool import OUT, Pool, over, quotient, rounding

MOST_TIMES = 3  # seeds of the baseline for each of a row: with more, few noisy rows go unseen
# Levels of the F tests beyond which a row is judged by its own spread; docs/statistics.md has what
# they cost and save. They are lower than those of a pool with blocks: there the noise of some rows
# is in the baseline's part of a gain, too, which here is small.
OWN = {True: 0.80, False: 0.90}  # by whether seeds are few
FEW_SEEDS = 4


class Unblocked(NamedTuple):
    """Gains (..., R), the standard deviation of one seed of a row's gain, so that its standard
    error is sd / sqrt(n), and its df. `fixed` (..., 1): the part of a gain's variance that more
    seeds of a row don't lessen."""

    gain: Floats
    sd: Floats
    df: Floats
    own: Bools
    fixed: Floats
    pool: Pool


def unblocked(y: Floats, baseline: int, alike: bool = True, left: Bools | None = None) -> Unblocked:
    """Gains of the rows of y (..., R, S), NaN where a row has no such seed, each of two or more.

    y = row + residual: the variance of a gain is that of the row's mean and of the baseline's, each
    known from its own runs (Satterthwaite 1946, Welch 1947 for its df). The baseline has seeds
    enough for a spread of its own, so that it needs no screen; variants share one. A variant whose
    variance is beyond the F tests against all other rows together, or against the baseline alone,
    is judged by its own and stays in the pool; beyond 99.9 % of all others it leaves. Rows of
    `left` (R,) are in no spread but their own; where rows are not `alike`, none shares one.
    """
    present = ~np.isnan(y)
    n = present.sum(-1)
    values = np.where(present, y, 0.0)
    smallest = rounding(values)
    mean = values.sum(-1) / np.maximum(n, 1)
    squares = (np.where(present, values - mean[..., None], 0.0) ** 2).sum(-1)
    df = np.maximum(n - 1.0, 0.0)
    each = quotient(squares, df, smallest)
    counted = np.maximum(df, 1)
    own = np.zeros(each.shape, dtype=bool)
    if left is not None:
        own |= left
    fitted = ~own & (df > 0)
    all_squares, all_df = (np.where(fitted, part, 0.0) for part in (squares, df))
    others_df = all_df.sum(-1, keepdims=True) - all_df
    others = quotient(all_squares.sum(-1, keepdims=True) - all_squares, others_df, smallest)
    base, base_df = each[..., [baseline]], counted[..., [baseline]]
    some_df = np.maximum(others_df, 1)
    own |= each > _limit(counted, some_df) * others
    own |= each > _limit(counted, base_df) * base
    out = each > _limit(counted, some_df, OUT) * others
    own |= not alike
    own[..., baseline] = out[..., baseline] = False
    pooled = fitted & ~out
    pooled[..., baseline] = False
    shared_df = np.where(pooled, df, 0.0).sum(-1)
    shared = quotient(np.where(pooled, squares, 0.0).sum(-1), shared_df, smallest)
    own |= (shared_df < 1)[..., None]
    own[..., baseline] = False
    fixed = base / np.maximum(n[..., [baseline]], 1)
    run, run_df = (np.broadcast_to(part[..., None], each.shape) for part in (shared, shared_df))
    in_pool = _gain(run, np.maximum(run_df, 1), n, fixed, base_df)
    alone = _gain(each, counted, n, fixed, base_df)
    pool = Pool(
        ratios=over(each, others),
        own=own,
        out=out,
        tripped=np.zeros(shared.shape, dtype=bool),
        ratio=np.sqrt(over(base[..., 0], shared)),
        run=run,
        gain=in_pool[0],
        df=in_pool[1],
        few=np.zeros_like(own),
    )
    sd, gain_df = (np.where(own, a, b) for a, b in zip(alone, in_pool, strict=True))
    return Unblocked(mean - mean[..., [baseline]], np.sqrt(sd), gain_df, own, fixed, pool)


def own_level(n: int) -> float:
    """Of the F tests of a row of n seeds."""
    return OWN[n < FEW_SEEDS]


def cut(y: Floats, n: int, baseline_seeds: int) -> Floats:
    """The first n seeds of y (..., R, S), the first row with `baseline_seeds`, if they are more."""
    if baseline_seeds <= n:
        return y[..., :n]
    y = y[..., :baseline_seeds].copy()
    y[..., 1:, n:] = np.nan
    return y


def _gain(run: Floats, df: Floats, n: Floats, fixed: Floats, base_df: Floats) -> tuple[Floats, ...]:
    """The variance of a gain of one seed, and its df."""
    part = run / np.maximum(n, 1)
    noise = part**2 / df + fixed**2 / base_df
    whole = part + fixed
    found = np.divide(whole**2, noise, out=np.ones(whole.shape), where=noise > 0)
    return whole * n, found


def _limit(df: Floats, other_df: Floats, level: float | None = None) -> Floats:
    """Quantiles of F, at `level` or that of OWN. They are slow, and pairs of df repeat."""
    some, where = np.unique(df + 1j * other_df, return_inverse=True)
    levels = np.where(some.real < FEW_SEEDS - 1, OWN[True], OWN[False]) if level is None else level
    return np.asarray(fdtri(some.real, some.imag, levels)[where].reshape(df.shape))
