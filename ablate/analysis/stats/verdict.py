"""What a table says of an interval."""

from __future__ import annotations

POWER = 0.8  # of the seeds that it would take to tell
MOST_SEEDS = 100  # "more than" beyond
FEWEST_SEEDS = 3  # with two, a baseline of three times the spread errs in 12 % of tables
CANT_TELL = "can't tell"
UNSTABLE = "unstable"  # told from 0 by the other rows' spread, but not by its own
DID_NOTHING = "did nothing"  # the baseline's predictions in every seed

# Words for an interval above 0 and below: of a gain, of a difference that has no better direction.
BETTER = ("helps", "hurts")
NEUTRAL = ("higher", "lower")


def verdict(
    low: float, high: float, margin: float | None = None, words: tuple[str, str] = BETTER
) -> str:
    """The word for a simultaneous interval of a gain; the strongest that holds.

    `words`, such as `helps` and `hurts`: it excludes 0. With a margin m, `same within m`: it lies
    in (-m, m); of a gain `no worse than m`: above -m (non-inferiority). Else `can't tell`.
    """
    if low > 0:
        return words[0]
    if high < 0:
        return words[1]
    if margin is not None and low > -margin:
        if high < margin:
            return f"same within {margin:g}"
        if words == BETTER:
            return f"no worse than {margin:g}"
    return CANT_TELL


def agreement(low: float, high: float, published: float) -> str:
    """Is our gain in the direction of a published one?

    `same direction`, `opposite direction`; `can't tell` where our interval includes 0, or where
    theirs was printed as 0.
    """
    if low <= 0 <= high or published == 0:
        return CANT_TELL
    return "same direction" if (low > 0) == (published > 0) else "opposite direction"
