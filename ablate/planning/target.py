"""A target: a fixed number against which the mean of each row is judged, `analysis.target`.

Used by `expand.py`, cli/selection.py and api/nouns.py, wherever an analysis is set.
analysis/targets.py judges the means.
"""

from __future__ import annotations

import math

from ablate.planning.plan import Plan
from ablate.shared import UserError

PLACE = "analysis.target"


def check_target(plan: Plan) -> None:
    """Raise UserError for a target that is no number, for one of a plan whose design judges no
    means (`until`, or changes), and for none where columns lack the baseline, which a sheet that
    was imported with a target may have."""
    target = plan.analysis.target
    if target is None:
        _check_baseline(plan)
        return
    if not math.isfinite(target):
        raise UserError(f"{PLACE}: expected a finite number such as 3.28, got {target:g}")
    if plan.design.seed_counts:
        raise UserError(
            f"{PLACE}: can't be combined with until, whose looks judge gains; give seeds instead"
        )
    if plan.changes is not None:
        raise UserError(f"{PLACE}: the table of a design judges changes and no rows; remove it")


def _check_baseline(plan: Plan) -> None:
    for column in plan.columns:
        if plan.cell(plan.baseline, column.label) is None:
            raise UserError(
                f"{PLACE}: {plan.name} has no gains without a target: {column.label!r} has no run "
                f"of its first row, {plan.baseline!r}; give a number, or import its sheet as "
                f"another sweep with --baseline"
            )
