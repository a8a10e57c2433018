"""How the contrasts of a column are judged: by the declaration of the sweep alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ablate.analysis.also import sets_of
from ablate.analysis.captions import gain_alpha
from ablate.planning.plan import Plan

if TYPE_CHECKING:  # numpy and scipy
    from ablate.analysis.stats import Method, Sequential


def method_of(plan: Plan, column: str) -> Method:
    """Return the method that judges a column. All planned contrasts count, whatever the results."""
    from ablate.analysis import stats

    analysis = plan.analysis
    contrasts = Counter(cell.column for cell in plan.cells if cell.row != plan.baseline)
    comparisons = max(1, contrasts[column])
    # Looks give no verdicts on the sets of `eval.also`.
    sets = {at: 0 if plan.until else len(sets_of(plan, at)) for at in contrasts}
    whole = max(1, sum(n * (1 + sets[at]) for at, n in contrasts.items()))
    return stats.Method(
        spread=plan.spread,
        screen=analysis.screen,
        alpha=gain_alpha(analysis),
        contrasts=comparisons if analysis.family == "column" else whole,
        comparisons=comparisons,
        baseline_seeds=plan.baseline_seeds,
    )


def sequential_of(plan: Plan, column: str) -> Sequential:
    """Return the method of the looks at a column, of a sweep that has looks."""
    from ablate.analysis import stats

    analysis = plan.analysis
    return stats.Sequential(
        looks=plan.until,
        margin=analysis.margin,
        spread="paired" if plan.spread == "paired" else "pooled",
        alpha=analysis.alpha,
        contrasts=method_of(plan, column).contrasts,
    )
