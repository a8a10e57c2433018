"""A target: a fixed number against which the mean of each row is judged, `analysis.target`.

Used by `plan.py`, for every plan. analysis/targets.py judges the means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablate.planning.analysis_keys import Analysis
from ablate.shared import UserError

PLACE = "analysis.target"


def check_target(
    analysis: Analysis, has_looks: bool, has_changes: bool, lacking: Sequence[str]
) -> None:
    """Raise UserError for a target that is no number, for one of a plan that judges no means, and
    for none where columns lack the baseline, as a sheet imported with a target may have them.
    `has_looks`: the design has `until`; `has_changes`: it judges changes and no rows; `lacking`:
    the labels of such columns."""
    target = analysis.target
    if target is None:
        if lacking:
            raise UserError(
                f"{PLACE}=null: column {lacking[0]!r} has no run of the baseline, so it has no "
                f"gains; give a number, or import the sheet as another sweep with --baseline"
            )
        return
    if not math.isfinite(target):
        raise UserError(f"{PLACE}: expected a finite number such as 3.28, got {target:g}")
    if has_looks:
        raise UserError(
            f"{PLACE}: can't be combined with until, whose looks judge gains; give seeds instead"
        )
    if has_changes:
        raise UserError(f"{PLACE}: the table of a design judges changes and no rows; remove it")
