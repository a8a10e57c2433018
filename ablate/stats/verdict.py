"""What a table says of an interval, and what looking again does to it."""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import stdtrit

POWER = 0.8  # of the seeds that it would take to tell
MOST_SEEDS = 100  # "more than" beyond
FEWEST_SEEDS = 3  # with two, a baseline of three times the spread errs in 12 % of tables
CANT_TELL = "can't tell"
UNSTABLE = "unstable"  # told from 0 by the other rows' spread, but not by its own
DID_NOTHING = "did nothing"  # the baseline's predictions in every seed


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


def agreement(low: float, high: float, published: float) -> str:
    """Does our interval of a gain agree with a published gain's sign?

    `agrees`, `opposes`; `can't tell` where ours includes 0, or where theirs was printed as 0.
    """
    if low <= 0 <= high or published == 0:
        return CANT_TELL
    return "agrees" if (low > 0) == (published > 0) else "opposes"


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
