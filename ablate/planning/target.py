"""A target: a fixed number against which the mean of each row is judged, `analysis.target`.

Used by `expand.py`, cli/selection.py and api/nouns.py, which check a plan, and by
analysis/targets.py, which asks how its columns are ordered.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ablate.planning.cell import Column
from ablate.shared import UserError

if TYPE_CHECKING:
    from ablate.planning.plan import Plan

PLACE = "analysis.target"


def check_target(plan: Plan) -> None:
    """Raise UserError for a target that this plan can't have: what it declares in addition is of
    gains, or its table judges changes and no rows."""
    analysis = plan.analysis
    if analysis.target is None:
        return
    if not math.isfinite(analysis.target):
        raise UserError(f"{PLACE}: expected a finite number such as 3.28, got {analysis.target:g}")
    if plan.design.seed_counts:
        raise UserError(
            f"{PLACE}: can't be combined with until, whose looks judge gains; give seeds instead"
        )
    if plan.changes is not None:
        raise UserError(f"{PLACE}: the table of a design judges changes and no rows; remove it")
    for key, empty in (("contrasts", "{}"), ("margin", "null")):
        if getattr(analysis, key):
            raise UserError(
                f"{PLACE}: can't be combined with analysis.{key}, which is of gains; give "
                f"analysis.{key}={empty}"
            )


def ordered_columns(plan: Plan) -> list[Column]:
    """Return the columns of a plan in the order of their numbers, such as steps; [] unless there
    are two or more, each with one setting, whose value is a number of its own."""
    numbers = {column.label: _number(column) for column in plan.columns}
    finite = {number for number in numbers.values() if math.isfinite(number)}
    if len(plan.columns) < 2 or len(finite) < len(plan.columns):
        return []
    return sorted(plan.columns, key=lambda column: numbers[column.label])


def _number(column: Column) -> float:
    """Return the number that a column stands for, NaN where it is none."""
    if len(column.settings) != 1:
        return math.nan
    value: Any = next(iter(column.settings.values()))
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
