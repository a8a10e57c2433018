"""The sets that runs are tested on beside their own (`eval.also`): the results as of one of them,
and the cells of its column."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablate.analysis.scores import Results
from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.shared.metrics import TASKS
from ablate.shared.spec import also_of, task_of


def sets_of(plan: Plan, column: str) -> list[str]:
    """The names of the sets that the table has columns of beside this one, the same for all of its
    rows; none of a metric of no test set."""
    if plan.metric not in plan.task.metrics and not plan.metric.own:
        return []
    cells = (cell for cell in plan.cells if cell.column == column)
    return [other["name"] for cell in itertools.islice(cells, 1) for other in also_of(cell.spec)]


def column_of(cell: Cell, name: str) -> str:
    """The label of the column that a set has: "S/16 on dark"."""
    return f"{cell.column} on {name}".strip()


def on_set(cell: Cell, name: str) -> Cell:
    """The cell of the same runs in the column of a set. Its data is that set, in the classes that
    are learnt; of a task that reads texts, in its own."""
    data = next(other for other in also_of(cell.spec) if other["name"] == name)
    texts = TASKS[task_of(cell.spec)].reads_text  # which ask for the classes of that set
    shown = data if texts else {**data, "classes": cell.spec["data"]["classes"]}
    return replace(cell, column=column_of(cell, name), spec={**cell.spec, "data": shown})


def results_on(results: Results, name: str) -> Results:
    """The results with what their runs have of a set where their own test set stands."""
    return {run: result and _on(result, name) for run, result in results.items()}


def _on(result: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """One that did not finish was tested on nothing."""
    if result["status"] != "finished":
        return result
    told = (result.get("also") or {}).get(name)
    return told and {**result, "left_out": {}, "overlap": {}, **told}
