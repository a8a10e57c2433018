"""One cell of a sweep as it would be trained, for `ablate config`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ablate.planning.cell import Cell, PlannedRun, spec_parents
from ablate.planning.data_section import NOT_SEEN
from ablate.planning.plan import Plan
from ablate.shared.errors import UserError, unknown
from ablate.shared.spec import datasets_of


def one_cell(plan: Plan, row: str | None, column: str | None) -> Cell:
    """The cell in this row and column; without, in that of the baseline and in the first that it
    has. Raises UserError where there is none."""
    aliases = {alias: each.label for each in plan.rows for alias in each.aliases}
    headings = {each.heading: each.label for each in plan.columns}
    label = plan.baseline if row is None else aliases.get(row, row)
    if label not in (rows := [each.label for each in plan.rows]):
        raise unknown("--row", label, rows)
    of_row = {cell.column: cell for cell in plan.cells if cell.row == label}
    if column is None:
        return next(iter(of_row.values()))
    if [*headings] == [""]:
        raise UserError(f"--column: {plan.name} has one column, without a name; leave it out")
    place = headings.get(column, column)
    if place not in (columns := [each.label for each in plan.columns]):
        raise unknown("--column", column, columns)
    if place not in of_row:
        raise unknown(f"--column: {label!r}", column, of_row, "has a cell in")
    return of_row[place]


def first_run(plan: Plan, cell: Cell) -> tuple[dict[str, Any], str | None, Iterator[str]]:
    """Of the first seed of a cell whose plan was just made: its whole plain tree; its id, None
    where it is not known yet; what `ablate config` says above it, a line each."""
    seed = plan.seeds[0]
    run = PlannedRun(cell.ids[seed], cell, seed)
    spec = run.spec()
    data = [data["name"] for tree in (spec, *spec_parents(spec)) for data in datasets_of(tree)]
    unseen = tuple(f"data={name} {NOT_SEEN}" for name in data)
    known = plan.tune is None and not any(note.startswith(unseen) for note in plan.notes)
    return spec, run.id if known else None, _said(plan, run, known)


def _said(plan: Plan, run: PlannedRun, known: bool) -> Iterator[str]:
    yield f"run {run.id}: {run.label}" if known else f"{run.label}, whose id is not known yet"
    if plan.tune is not None:
        keys = dict.fromkeys(key for stage in plan.tune.stages for key in stage.space)
        yield f"note: a search will choose {', '.join(keys)}"
    for note in plan.notes:
        yield f"note: {note}"
