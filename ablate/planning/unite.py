"""Unites two plans of the same sweep, as two stores drove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ablate.planning.cell import Cell, PlannedRun
from ablate.planning.declared import Declared
from ablate.planning.plan import Plan


def unite_plans(ours: Plan, theirs: Plan) -> Plan:
    """Return the plan of both.

    Where the two have the same cells, it has the seeds of both; else one of them must have all
    cells and seeds of the other. Where data lies is no difference.

    Trials are those that one of the two has asked so far: see `before_searches`. Raises ValueError,
    which names the parts that differ.
    """
    same_columns = [c.label for c in ours.columns] == [c.label for c in theirs.columns]
    was, is_ = _agreed_parts(ours, same_columns), _agreed_parts(theirs, same_columns)
    if ours.spread == theirs.spread:  # one may name the spread that `auto` of the other amounts to
        was["analysis"]["spread"] = is_["analysis"]["spread"]
    differ = [key for key in was if was[key] != is_[key]]
    if differ:
        raise ValueError(", ".join(differ))
    if _has_cells(ours, theirs) and _has_cells(theirs, ours) and _order(ours) == _order(theirs):
        return _without_a_run(_with_seeds(ours, theirs))
    for larger, part in ((ours, theirs), (theirs, ours)):
        if _has_cells(larger, part) and _has_seeds(larger, part):
            return _without_a_run(larger)
    rows = [{row.label for row in plan.rows} for plan in (ours, theirs)]
    signs = [f"-{label}" for label in sorted(rows[0] - rows[1])]
    signs += [f"+{label}" for label in sorted(rows[1] - rows[0])]
    raise ValueError(f"rows: {', '.join(signs)}" if signs else "cells")


def _without_a_run(plan: Plan) -> Plan:
    """Return the plan without skips of runs whose ids it has.

    A bundle names skipped runs that it does not hold. Where the other plan has such a run, the
    ledger knows whether it is skipped.
    """
    runs = {PlannedRun(run, cell, s).label for cell in plan.cells for s, run in cell.ids.items()}
    skipped = {label: progress for label, progress in plan.skipped.items() if label not in runs}
    return plan if skipped == plan.skipped else replace(plan, skipped=skipped)


def _agreed_parts(plan: Plan, groups: bool) -> dict[str, Any]:
    """Return the parts of a plan, besides cells and seeds, in which plans of one sweep must agree.

    `groups`: are its groups of columns among them?
    """
    own_metrics = {
        name: {k: v for k, v in declaration.items() if k != "folder"}
        for name, declaration in plan.own.items()
    }
    return {
        "title": plan.title,
        "baseline": plan.baseline,
        "analysis": asdict(plan.analysis),
        "paper": plan.paper,
        "tune": plan.tune and asdict(plan.tune),
        "own": own_metrics,
        "until": plan.design.of_look(),
        "groups": plan.groups if groups else (),
    }


def _order(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the labels of the rows, and those of the columns, in the table's order."""
    return [row.label for row in plan.rows], [column.label for column in plan.columns]


def _has_cells(larger: Plan, part: Plan) -> bool:
    """Return whether `larger` trains all that `part` does, under the same labels."""
    return all(_cells(larger).get(place) == identity for place, identity in _cells(part).items())


def _has_seeds(larger: Plan, part: Plan) -> bool:
    """Return whether each cell of `larger` has all seeds that it has, or will have, in `part`."""
    planned_seeds = {(cell.row, cell.column): {*larger.planned(cell)} for cell in larger.cells}
    return {*larger.seeds} >= {*part.seeds} and all(
        {*part.planned(cell)} <= planned_seeds[cell.row, cell.column] for cell in part.cells
    )


def _cells(plan: Plan) -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """Return (row, column) -> the identity of what is trained, and the settings of the two."""
    rows = {row.label: row.settings for row in plan.rows}
    columns = {column.label: column.settings for column in plan.columns}
    return {
        (c.row, c.column): (c.spec.identity, rows[c.row], columns[c.column]) for c in plan.cells
    }


def _with_seeds(ours: Plan, theirs: Plan) -> Plan:
    """Return `ours`, with the seeds of both plans."""
    if _has_seeds(ours, theirs):
        return ours
    if _has_seeds(theirs, ours):
        return theirs
    seeds = tuple(sorted({*ours.seeds, *theirs.seeds}))
    other_cells = {(cell.row, cell.column): cell for cell in theirs.cells}

    def joined(cell: Cell) -> Cell:
        their = other_cells[cell.row, cell.column]
        both = {**cell.ids, **their.ids}
        cell_seeds = tuple(sorted({*cell.seeds, *their.seeds}))
        return replace(cell, ids={s: both[s] for s in seeds if s in both}, seeds=cell_seeds)

    line = ours.declared
    if isinstance(line, Declared):
        line = ours.design.declare_seeds(line, seeds)
    return replace(ours, seeds=seeds, cells=tuple(map(joined, ours.cells)), declared=line)
