"""Says where pairs of runs would judge gains better than one spread of all rows.

Without images a column is judged by one spread of all rows, which ignores that runs of a seed are
alike. Where they are, intervals are too wide at any number of seeds, and a row's own pairs are more
precise once there are enough of them.

Used by `tabulate.py`, for a table's note on pairs, and by report/power.py (`ablate plan --detect`).
Its sentence is in english/across.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from ablate.analysis.evidence import ColumnEvidence, Evidence
from ablate.analysis.note import Sentence, sentence
from ablate.planning import Plan

PAIRED_FROM = 5  # seeds, where the baseline's runs vary as its rows' do
PAIRED_FROM_UNLIKE = 10  # seeds, where they vary more or less
CORRELATED = 0.5  # with less the pairs' few degrees of freedom cost more than they gain
PAIRING_REMEDY = (
    f"`analysis.spread=paired` judges each gain by its own pairs, which tells more from "
    f"{PAIRED_FROM} seeds on where the baseline varies as its rows do, and from "
    f"{PAIRED_FROM_UNLIKE} on elsewhere"
)


def advice(evidence: Evidence) -> Iterator[Sentence]:
    """Yield a sentence where seeds correlate in a column that one spread of all rows judges."""
    plan = evidence.plan
    if plan.spread != "one way" or not plan.design.blocks:
        return
    correlations = [correlation(column) for column in evidence.columns]
    values = [value for value in correlations if value is not None]
    if values and worth_pairing(plan, max(values)):
        yield sentence("pairs.correlate", correlation=max(values), remedy=PAIRING_REMEDY)


def worth_pairing(plan: Plan, correlation: float) -> bool:
    """Return whether pairs would be more precise than one spread of all rows."""
    return plan.spread == "one way" and plan.n >= PAIRED_FROM and correlation > CORRELATED


def correlation(column: ColumnEvidence) -> float | None:
    """Compute the mean correlation, over seeds, of the rows of a column that have all of them; None
    where fewer than three rows or seeds have."""
    import numpy as np

    from ablate.analysis import stats

    if not column.scores:
        return None
    y = column.plan.metric.sign * column.means(column.plan)
    complete_rows = y[~np.isnan(y).any(1)]
    if min(complete_rows.shape) < 3:
        return None
    estimate = stats.seed_correlation(complete_rows)
    return estimate.mean if estimate else None
