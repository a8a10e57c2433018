"""What a table says of an interval, and how many seeds would tell."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

import numpy as np
from scipy.special import nctdtr

from ablate.stats.estimate import Floats

POWER = 0.8  # of the seeds that it would take to tell
MOST_SEEDS = 100  # "more than" beyond
CANT_TELL = "can't tell"


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
