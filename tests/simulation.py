"""Simulated results, for the tests of the statistics."""

import math

from ablate.analysis import stats

DRAWS = 20_000


def simulate(rng, rows, n, correlation=0.0, draws=DRAWS):
    """Results (draws, rows, n) without any gain: unit variance, seed blocks correlated so."""
    own = rng.standard_normal((draws, rows, n))
    seeds = rng.standard_normal((draws, 1, n))
    return math.sqrt(1 - correlation) * own + math.sqrt(correlation) * seeds


def family(rows, **settings):
    """The method of a column of so many rows, the baseline included."""
    return stats.Method(contrasts=rows - 1, comparisons=rows - 1, **settings)


def family_wise_error(y, method):
    found = stats.fit(y, 0, method)
    return (abs(found.gain) > found.half)[:, 1:].any(-1).mean()
