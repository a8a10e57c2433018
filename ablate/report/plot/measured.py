"""Reads the data of figures: the runs of a plan, and the measurements of their probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ablate.analysis.table import Table
from ablate.planning.cell import PlannedRun
from ablate.planning.plan import Plan
from ablate.planning.probing import again
from ablate.report.plot.form import Form
from ablate.shared.errors import UserError
from ablate.shared.rundir import RunDir

RunDirs = Callable[[str], RunDir]  # a run's id -> its folder
Arrays = Mapping[str, Any]
ByCell = dict[tuple[str, str], dict[int, Arrays]]  # (row, column) -> seed -> arrays


class Nothing(UserError):
    """There is no data to draw yet; the message has the command that makes it."""


def probed(plan: Plan, table: Table, rundir: RunDirs, form: Form, probe: str) -> ByCell:
    """Read the measurements of a probe, in the plan's order, without cells that have none.

    Raises Nothing where no run has any.
    """
    found: ByCell = {}
    for run in in_order(plan, table, form):
        arrays = rundir(run.id).read_probe(probe) if probe in run.cell.spec.get("probe", ()) else {}
        if arrays:
            found.setdefault((run.cell.row, run.cell.column), {})[run.seed] = arrays
    if found:
        return found
    if any(probe in cell.spec.get("probe", ()) for cell in plan.cells):
        raise Nothing(f"{plan.name}: no run has measured {probe} yet; run {again(plan)}")
    raise Nothing(f"{plan.name}: its runs did not measure {probe}; run {again(plan, probe)}")


def in_order(plan: Plan, table: Table, form: Form) -> Iterator[PlannedRun]:
    """Yield the runs of the rows shown by row, column and seed, without runs that the table
    withholds."""
    cells = {(cell.row, cell.column): cell for cell in plan.cells}
    for row in filter(lambda row: form.shows(row.label), plan.rows):
        for column in plan.columns:
            if cell := cells.get((row.label, column.label)):
                for seed, run in cell.ids.items():
                    if run not in table.withheld:
                        yield PlannedRun(run, cell.at(seed), seed)


def named(row: str, column: str) -> str:
    """Return the name of a cell."""
    return f"{row}, {column}" if column else row


def seeds(numbers: Any) -> str:
    """Name the seeds: "seeds 0, 1"."""
    numbers = sorted(numbers)
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
