"""One plan of two of the same sweep, as two stores drove it: for more seeds, or for fewer rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ablate.planning.cell import Cell, PlannedRun
from ablate.planning.plan import Plan
from ablate.shared.spec import tree_identity


def unite(one: Plan, other: Plan) -> Plan:
    """The plan of both. Of two with the same cells it has the seeds of both; else one of them must
    have all cells and seeds of the other. Where data lies is no difference.

    What a search has asked so far is that of one of them: see `unasked`. Raises ValueError, which
    names the parts that differ.
    """
    same_columns = [c.label for c in one.columns] == [c.label for c in other.columns]
    was, is_ = _declared(one, same_columns), _declared(other, same_columns)
    if one.spread == other.spread:  # one may say it, and `auto` of the other come to it
        was["analysis"]["spread"] = is_["analysis"]["spread"]
    differ = [key for key in was if was[key] != is_[key]]
    if differ:
        raise ValueError(", ".join(differ))
    if _has_cells(one, other) and _has_cells(other, one) and _order(one) == _order(other):
        return _without_a_run(_with_seeds(one, other))
    for whole, part in ((one, other), (other, one)):
        if _has_cells(whole, part) and _has_seeds(whole, part):
            return _without_a_run(whole)
    rows = [{row.label for row in plan.rows} for plan in (one, other)]
    signs = [f"-{label}" for label in sorted(rows[0] - rows[1])]
    signs += [f"+{label}" for label in sorted(rows[1] - rows[0])]
    raise ValueError(f"rows: {', '.join(signs)}" if signs else "cells")


def unasked(plan: Plan) -> Plan:
    """The plan of a tuned sweep before its searches asked for a trial."""
    cells = (
        replace(cell, ids={}, chosen=(), specs=()) if plan.is_tuned(cell) else cell
        for cell in plan.cells
    )
    return replace(plan, trials=(), cells=tuple(cells))


def _without_a_run(plan: Plan) -> Plan:
    """A bundle names skipped runs that it has not; of a run that the other plan has the ledger
    knows whether it is skipped."""
    runs = {PlannedRun(run, cell, s).label for cell in plan.cells for s, run in cell.ids.items()}
    skipped = {label: how for label, how in plan.skipped.items() if label not in runs}
    return plan if skipped == plan.skipped else replace(plan, skipped=skipped)


def _declared(plan: Plan, groups: bool) -> dict[str, Any]:
    """What makes other plans of the same cells and seeds. `groups`: its groups of columns, too."""
    own = {
        name: {k: v for k, v in said.items() if k != "folder"} for name, said in plan.own.items()
    }
    return {
        "title": plan.title,
        "baseline": plan.baseline,
        "analysis": asdict(plan.analysis),
        "paper": plan.paper,
        "tune": plan.tune and asdict(plan.tune),
        "own": own,
        "until": plan.design.of_look(),
        "groups": plan.groups if groups else (),
    }


def _order(plan: Plan) -> tuple[list[str], list[str]]:
    """Of rows and columns in the table."""
    return [row.label for row in plan.rows], [column.label for column in plan.columns]


def _has_cells(whole: Plan, part: Plan) -> bool:
    """Does it train all that the other does, under the same labels?"""
    return all(_cells(whole).get(place) == found for place, found in _cells(part).items())


def _has_seeds(whole: Plan, part: Plan) -> bool:
    """Has each of its cells all seeds that it has, or will have, in the other?"""
    has = {(cell.row, cell.column): {*whole.planned(cell)} for cell in whole.cells}
    return {*whole.seeds} >= {*part.seeds} and all(
        {*part.planned(cell)} <= has[cell.row, cell.column] for cell in part.cells
    )


def _cells(plan: Plan) -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """By row and column: what is trained, and what the two declare."""
    rows = {row.label: row.settings for row in plan.rows}
    columns = {column.label: column.settings for column in plan.columns}
    return {
        (c.row, c.column): (tree_identity(c.spec), rows[c.row], columns[c.column])
        for c in plan.cells
    }


def _with_seeds(one: Plan, other: Plan) -> Plan:
    """The first, with the seeds of both."""
    if _has_seeds(one, other):
        return one
    if _has_seeds(other, one):
        return other
    seeds = tuple(sorted({*one.seeds, *other.seeds}))
    others = {(cell.row, cell.column): cell for cell in other.cells}

    def joined(cell: Cell) -> Cell:
        their = others[cell.row, cell.column]
        both = {**cell.ids, **their.ids}
        given = tuple(sorted({*cell.seeds, *their.seeds}))
        return replace(cell, ids={s: both[s] for s in seeds if s in both}, seeds=given)

    words = one.design.words(one.words, seeds)
    return replace(one, seeds=seeds, cells=tuple(map(joined, one.cells)), words=words)
