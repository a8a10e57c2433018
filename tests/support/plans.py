"""Make plans of sweeps, and record them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.planning import expand
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.declared import Declared
from ablate.planning.plan import Plan
from ablate.run.spec import RunSpec
from ablate.store.ledger import Ledger
from ablate.store.store import Store


def small_plan(name="p", seeds=(0, 1)) -> Plan:
    """Make a plan of two rows, `a` and `b`, whose runs are named a0, a1, b0, b1."""
    spec = RunSpec.of({"data": {"classes": 10}})
    cells = tuple(Cell(row, "", spec, {s: f"{row}{s}" for s in seeds}) for row in ("a", "b"))
    rows = (Row("a", {}), Row("b", {"stem": "dpn"}))
    columns = (Column("", {}),)
    return Plan(name, "title", rows, columns, cells, "a", seeds, Declared(name), Analysis())


def with_sections(cell: Cell, **sections: Any) -> Cell:
    """Return the cell with these sections in its spec. Its ids stay."""
    return replace(cell, spec=RunSpec.of({**cell.spec.tree, **sections}))


def record_plan(store: Store, ledger: Ledger, plan: Plan) -> None:
    """Record a plan as a driver does, in three steps: a crash may come between any two."""
    ledger.announce(plan)
    store.write_plan(plan)
    ledger.plan(plan)


def plan(*words: str, **options: object) -> Plan:
    """Plan the sweep of these words, in ./store."""
    return expand.plan_from_words(words, store=Path("store"), **options)[0]
