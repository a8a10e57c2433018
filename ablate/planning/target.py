"""A target: a fixed number against which the mean of each row is judged, `analysis.target`.

Used by `plan.py`, which checks a plan's, and by analysis/targets.py, which asks for the order of
columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Column
from ablate.shared import UserError

PLACE = "analysis.target"


def check_target(analysis: Analysis, has_looks: bool, has_changes: bool) -> None:
    """Raise UserError for a target that is no number, and for one along with what is of gains or of
    changes. `has_looks`: the design has `until`; `has_changes`: it judges changes and no rows."""
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
    for key, empty in (("contrasts", "{}"), ("margin", "null")):
        if getattr(analysis, key):
            raise UserError(
                f"{PLACE}: can't be combined with analysis.{key}, which is of gains; give "
                f"analysis.{key}={empty}"
            )


def ordered_columns(columns: Sequence[Column]) -> list[Column]:
    """Return columns in the order of their numbers, such as steps; [] unless there are two or more,
    each with one setting, whose value is a number of its own."""
    numbers = {column.label: _number(column) for column in columns}
    finite_numbers = {number for number in numbers.values() if math.isfinite(number)}
    if len(columns) < 2 or len(finite_numbers) < len(columns):
        return []
    return sorted(columns, key=lambda column: numbers[column.label])


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
