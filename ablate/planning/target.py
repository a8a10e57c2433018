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
    """Raise UserError for a target that is no number, and for one of a plan whose design judges no
    means: `until`, or changes."""
    target = plan.analysis.target
    if target is None:
        return
    if not math.isfinite(target):
        raise UserError(f"{PLACE}: expected a finite number such as 3.28, got {target:g}")
    if plan.design.seed_counts:
        raise UserError(
            f"{PLACE}: can't be combined with until, whose looks judge gains; give seeds instead"
        )
    if plan.changes is not None:
        raise UserError(f"{PLACE}: the table of a design judges changes and no rows; remove it")
