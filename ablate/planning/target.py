"""A target: a fixed number against which the mean of each row is judged, `analysis.target`.

Used by `plan.py`, for every plan with a target. analysis/targets.py judges the means.
"""

from __future__ import annotations

import math

from ablate.planning.analysis_keys import Analysis
from ablate.shared import UserError

PLACE = "analysis.target"


def check_target(analysis: Analysis, has_looks: bool, has_changes: bool) -> None:
    """Raise UserError for a target that is no number, and for one of a plan that judges no means.
    `has_looks`: the design has `until`; `has_changes`: it judges changes and no rows."""
    if analysis.target is None:
        return
    if not math.isfinite(analysis.target):
        raise UserError(f"{PLACE}: expected a finite number such as 3.28, got {analysis.target:g}")
    if has_looks:
        raise UserError(
            f"{PLACE}: can't be combined with until, whose looks judge gains; give seeds instead"
        )
    if has_changes:
        raise UserError(f"{PLACE}: the table of a design judges changes and no rows; remove it")
