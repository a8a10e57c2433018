"""As many seeds as a half-width takes: Stein's two stages (Stein 1945)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ablate.analysis.stats.estimate import Floats
from ablate.analysis.stats.pool import pooled

if TYPE_CHECKING:
    from ablate.analysis.stats.gains import Fit, Method


class FirstStage(NamedTuple):
    """What the first seeds of a column tell of it, each (...): the variance of a gain of one seed
    and its degrees of freedom."""

    variance: Floats
    df: Floats

    def seeds(self, method: Method, precision: float, first: int, most: int) -> Floats:
        """How many seeds in all give half-widths of at most `precision`, whole numbers (...)."""
        needed = method.critical(self.df) ** 2 * self.variance / precision**2
        return np.clip(np.ceil(needed), first, most)

    def half(self, method: Method, n: int) -> Floats:
        """The half-width (...) that n seeds in all give."""
        return np.asarray(method.critical(self.df) * np.sqrt(self.variance / n))


def first_stage(y: Floats, baseline: int) -> FirstStage:
    """Of the first seeds, y (..., R, n), n >= 2, none missing: the spread of a gain that rows
    share, by both screens; where no variant is left to share one, the largest of a row's own."""
    pool = pooled(y, baseline, screen=True)
    own = (y - y[..., [baseline], :]).var(-1, ddof=1).max(-1)
    alone = np.isnan(pool.gain[..., 0])
    return FirstStage(
        np.where(alone, own, pool.gain[..., 0]), np.where(alone, y.shape[-1] - 1.0, pool.df[..., 0])
    )


def second_stage(found: Fit, first: FirstStage, method: Method, n: int) -> Fit:
    """The fit of all n seeds, its shared spread that of the first stage alone.

    The seeds were counted by that spread, so the spread of all seeds would be too small, by
    selection; of the first stage's, the gain is independent: coverage is exact where spreads are
    equal. A row, or the rows of a baseline, that the screens find out of line in all n seeds is
    judged by its own spread over these, as in any table.
    """
    if found.pool is None:
        return found
    alone = found.own | found.pool.tripped[..., None]
    sd = np.where(alone, found.sd, np.sqrt(first.variance)[..., None])
    df = np.where(alone, found.df, first.df[..., None])
    return found._replace(sd=sd, df=df, half=method.critical(df) * sd / math.sqrt(n))


TABLES = 2_000  # simulated: the mean number of runs is known to 1 %


def runs_of_stages(method: Method, precision: float, first: int, most: int) -> float:
    """The mean number of runs of a column and its baseline, all of one spread, which `precision` is
    in standard deviations of. Seeded: the same question, the same answer."""
    rows = method.comparisons + 1
    y = np.random.default_rng(20230207).standard_normal((TABLES, rows, first))
    return rows * float(first_stage(y, 0).seeds(method, precision, first, most).mean())
