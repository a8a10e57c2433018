"""How the contrasts of a column are judged: by the declaration and the looks before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ablate.analysis.captions import gain_alpha
from ablate.analysis.scores import sets_of
from ablate.planning.plan import Plan
from ablate.store.past_looks import PastLooks

if TYPE_CHECKING:  # numpy and scipy
    from ablate.analysis.stats import Method, Sequential


def method_of(plan: Plan, column: str, past: PastLooks | None = None) -> Method:
    """Return the method that judges a column. All planned contrasts count, whatever the results,
    and all variants that were read with them. `past`: the looks before; None counts none."""
    from ablate.analysis import stats

    analysis = plan.analysis
    contrasts = Counter(cell.column for cell in plan.cells if cell.row != plan.baseline)
    comparisons = max(1, contrasts[column])
    if past is not None:
        contrasts = Counter({at: max(n, past.contrasts(at)) for at, n in contrasts.items()})
    judged = plan.design.judges_other_sets  # those of `eval.also`
    sets = {at: len(sets_of(plan, at)) * judged for at in contrasts}
    whole = max(1, sum(n * (1 + sets[at]) for at, n in contrasts.items()))
    return stats.Method(
        spread=plan.spread,
        alpha=gain_alpha(analysis),
        contrasts=max(1, contrasts[column]) if analysis.family == "column" else whole,
        comparisons=comparisons,
        blocks=plan.design.blocks,
    )


def sequential_of(plan: Plan, column: str, past: PastLooks | None = None) -> Sequential:
    """Return the method of the looks at a column, of a sweep that has looks. Without images rows
    are judged in pairs: with one spread of all rows, two noisy ones of nine err .07 over looks."""
    from ablate.analysis import stats

    analysis = plan.analysis
    return stats.Sequential(
        looks=plan.design.at,
        margin=analysis.margin,
        spread="images" if plan.spread == "images" else "paired",
        alpha=analysis.alpha,
        contrasts=method_of(plan, column, past).contrasts,
    )


def judged_by(plan: Plan, method: Method, rows: int, lacking: str) -> str:
    """Say how a column of so many rows was judged: one variant by its paired t, and in another way
    where images are `lacking`."""
    if not plan.design.blocks:
        return "welch" if rows < 3 or method.spread == "paired" else "one way"
    if rows < 3:
        return "paired"
    if method.spread == "images" and not lacking:
        return "images"
    return "paired" if method.spread == "paired" else plan.design.without_images
