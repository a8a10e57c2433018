"""Unites two plans of the same sweep, as two stores drove it.

Used by `audit/merge.py` (`ablate merge`). A new field of `Plan` belongs in `_agreed_parts` if two
plans of one sweep must agree in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ablate.planning.cell import PlannedRun
from ablate.planning.declared import Declared
from ablate.planning.plan import Plan


def unite_plans(ours: Plan, theirs: Plan) -> Plan:
    """Return the plan of both.

    Where the two have the same cells, it has the seeds of both; else one of them must have all
    cells and seeds of the other. Where data lies is no difference.

    Trials are those that one of the two has asked so far: see `before_searches`. Raises ValueError,
    which names the parts that differ.
    """
    our_rows, our_columns = _order(ours)
    their_rows, their_columns = _order(theirs)
    our_parts = _agreed_parts(ours)
    their_parts = _agreed_parts(theirs)
    if our_columns == their_columns:
        our_parts["groups"], their_parts["groups"] = ours.groups, theirs.groups
    if ours.spread == theirs.spread:  # one may name the spread that `auto` of the other amounts to
        our_parts["analysis"]["spread"] = their_parts["analysis"]["spread"]
    differing_parts = [key for key in our_parts if our_parts[key] != their_parts[key]]
    if differing_parts:
        raise ValueError(", ".join(differing_parts))
    same_order = our_rows == their_rows and our_columns == their_columns
    if same_order and _has_cells(ours, theirs) and _has_cells(theirs, ours):
        return _without_a_run(_with_seeds(ours, theirs))
    for larger, part in ((ours, theirs), (theirs, ours)):
        if _has_cells(larger, part) and _has_seeds(larger, part):
            return _without_a_run(larger)
    removed, added = {*our_rows} - {*their_rows}, {*their_rows} - {*our_rows}
    signs = [f"-{label}" for label in sorted(removed)]
    signs += [f"+{label}" for label in sorted(added)]
    raise ValueError(f"rows: {', '.join(signs)}" if signs else "cells")


def _without_a_run(plan: Plan) -> Plan:
    """Return the plan without skips of runs whose ids it has.

    A bundle names skipped runs that it does not hold. Where the other plan has such a run, the
    ledger knows whether it is skipped.
    """
    labels = set()
    for cell in plan.cells:
        for seed, run in cell.ids.items():
            labels.add(PlannedRun(run, cell, seed).label)
    skipped = {label: progress for label, progress in plan.skipped.items() if label not in labels}
    return plan if skipped == plan.skipped else replace(plan, skipped=skipped)


def _agreed_parts(plan: Plan) -> dict[str, Any]:
    """Return the parts of a plan, besides cells and seeds, in which plans of one sweep must
    agree."""
    own_metrics = {}
    for name, declaration in plan.own.items():
        own_metrics[name] = dict(declaration)
        own_metrics[name].pop("folder", None)
    return {
        "title": plan.title,
        "baseline": plan.baseline,
        "analysis": asdict(plan.analysis),
        "paper": plan.paper,
        "tune": plan.tune and asdict(plan.tune),
        "own": own_metrics,
        "until": plan.design.of_look(),
        "smoke": plan.smoke,
    }


def _order(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the labels of the rows, and those of the columns, in the table's order."""
    return [row.label for row in plan.rows], [column.label for column in plan.columns]


def _has_cells(larger: Plan, part: Plan) -> bool:
    """Return whether `larger` trains all that `part` does, under the same labels."""
    larger_cells = _cells(larger)
    return all(larger_cells.get(place) == cell for place, cell in _cells(part).items())


def _has_seeds(larger: Plan, part: Plan) -> bool:
    """Return whether each cell of `larger` has all seeds that it has, or will have, in `part`."""
    if not {*larger.seeds} >= {*part.seeds}:
        return False
    planned_seeds = {(cell.row, cell.column): larger.planned(cell) for cell in larger.cells}
    for cell in part.cells:
        if not {*part.planned(cell)} <= {*planned_seeds[cell.row, cell.column]}:
            return False
    return True


def _cells(plan: Plan) -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """Return (row, column) -> the identity of what is trained, and the settings of the two."""
    row_settings = {row.label: row.settings for row in plan.rows}
    column_settings = {column.label: column.settings for column in plan.columns}
    cells = {}
    for cell in plan.cells:
        settings = row_settings[cell.row], column_settings[cell.column]
        cells[cell.row, cell.column] = (cell.spec.identity, *settings)
    return cells


def _with_seeds(ours: Plan, theirs: Plan) -> Plan:
    """Return `ours`, with the seeds of both plans."""
    if _has_seeds(ours, theirs):
        return ours
    if _has_seeds(theirs, ours):
        return theirs
    seeds = _united(ours.seeds, theirs.seeds)
    their_cells = {(cell.row, cell.column): cell for cell in theirs.cells}
    cells = []
    for cell in ours.cells:
        their_cell = their_cells[cell.row, cell.column]
        all_ids = {**cell.ids, **their_cell.ids}
        ids = {seed: all_ids[seed] for seed in seeds if seed in all_ids}
        cells.append(replace(cell, ids=ids, seeds=_united(cell.seeds, their_cell.seeds)))
    line = ours.declared
    if isinstance(line, Declared):
        line = ours.design.declare_seeds(line, seeds)
    return replace(ours, seeds=seeds, cells=tuple(cells), declared=line)


def _united(seeds: Sequence[int], other_seeds: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*seeds, *other_seeds}))
