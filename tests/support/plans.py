"""Make plans of sweeps, and record them."""

from __future__ import annotations

from pathlib import Path

from ablate.planning import expand
from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.plan import Plan
from ablate.store.ledger import Ledger
from ablate.store.store import Store


def small_plan(name="p", seeds=(0, 1)) -> Plan:
    cells = tuple(
        Cell(row, "", {"data": {"classes": 10}}, {seed: f"{row}{seed}" for seed in seeds})
        for row in ("a", "b")
    )
    rows = (Row("a", {}), Row("b", {"stem": "dpn"}))
    return Plan(name, "title", (name,), rows, (Column("", {}),), cells, "a", seeds, Analysis())


def record_plan(store: Store, ledger: Ledger, plan: Plan) -> None:
    """As a driver plans: a crash comes between any two of the three steps, and a reader, too."""
    ledger.announce(plan)
    store.write_plan(plan)
    ledger.plan(plan)


def plan(*words: str, **options: object) -> Plan:
    return expand.plan(words, store=Path("store"), **options)[0]
