"""What reading a table again, once seeds have come in, does to its error."""

from __future__ import annotations

import functools

import numpy as np

from ablate.analysis.stats.gains import Method, fit

TABLES = 20_000  # simulated: a standard error of 0.002
RESULTS = 10_000_000  # at most, in wide tables; the error of 5,000 is still one of 0.004
AT_ONCE = 200_000  # results: what a cache holds


@functools.cache
def look_error(looks: tuple[int, ...], method: Method) -> float:
    """The chance that some variant of a column is wrongly told, read at each of these n >= 2.

    `fit` itself reads tables of `method.comparisons` variants and a baseline without any gain, all
    spreads equal, seeded, judged without images; told if ever told.
    """
    counts = sorted(set(looks))
    shape = (method.comparisons + 1, counts[-1])
    results = shape[0] * shape[1]
    tables = max(2_000, min(TABLES, RESULTS // results))
    rng = np.random.default_rng(20230202)
    wrong = done = 0
    while done < tables:
        some = min(tables - done, max(1, AT_ONCE // results))
        y = rng.standard_normal((some, *shape))
        told = np.zeros(some, dtype=bool)
        for n in counts:
            found = fit(y[..., :n], method)
            told |= (np.abs(found.gain) > found.half)[:, 1:].any(-1)
        wrong += int(told.sum())
        done += some
    return wrong / tables
