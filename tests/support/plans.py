"""Make plans of sweeps, and record them."""

from __future__ import annotations

from pathlib import Path

from ablate.planning import expand
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.declared import Declared
from ablate.planning.plan import Plan
from ablate.store.ledger import Ledger
from ablate.store.store import Store


def small_plan(name="p", seeds=(0, 1)) -> Plan:
    """Make a plan of two rows, `a` and `b`, whose runs are named a0, a1, b0, b1."""
    cells = tuple(
        Cell(row, "", {"data": {"classes": 10}}, {seed: f"{row}{seed}" for seed in seeds})
        for row in ("a", "b")
    )
    rows = (Row("a", {}), Row("b", {"stem": "dpn"}))
    columns = (Column("", {}),)
    return Plan(name, "title", rows, columns, cells, "a", seeds, Declared(name), Analysis())


def record_plan(store: Store, ledger: Ledger, plan: Plan) -> None:
    """Record a plan as a driver does, in three steps: a crash may come between any two."""
    ledger.announce(plan)
    store.write_plan(plan)
    ledger.plan(plan)


def plan(*words: str, **options: object) -> Plan:
    """Plan the sweep of these words, in ./store."""
    return expand.plan_from_words(words, store=Path("store"), **options)[0]
