"""Make looks as the ledger keeps them, and count those that bear upon a table."""

from __future__ import annotations

import functools

import tiny

from ablate.planning.cell import Cell, Column, Row
from ablate.planning.plan import Plan
from ablate.run.spec import RunSpec
from ablate.store.looks import InterimLook, PastLooks, ReadColumn, ReadRow

ANALYSIS = {"alpha": 0.05, "spread": "one way", "family": "column", "looks": [], "margin": None}


def column(rows: str, seeds: range | tuple[int, ...], planned: int = 0) -> ReadColumn:
    """Make the column of a look: `rows` are letters ("bxy"), the first the baseline.

    Where `planned` is given, it is a peek: so many seeds of each row have finished."""
    counted = range(planned) if planned else seeds
    found = {row: ReadRow(f"spec {row}", {s: f"{row}#{s}" for s in counted}) for row in rows}
    return ReadColumn(len(seeds), 0 if planned else len(rows) - 1, {}, found)


def reading(
    rows: str, seeds: int | tuple[int, ...], sweep: str = "g", planned: int = 0, **more
) -> InterimLook:
    """Make a look of the sweep `sweep` with one column (see `column`)."""
    counted = range(seeds) if isinstance(seeds, int) else seeds
    analysis = ANALYSIS | more.pop("analysis", {})
    return InterimLook(
        sweep,
        more.pop("metric", "top1"),
        (planned,) * bool(planned),
        {"": column(rows, counted, planned)},
        analysis,
    )


def contrasts(now: InterimLook, *before: InterimLook) -> int:
    """Count the contrasts of all looks that bear upon `now`, its own among them."""
    return PastLooks(before, now).contrasts("")


@functools.cache
def tree() -> dict:
    """Return the tree of a tiny run, without its seed."""
    return {key: value for key, value in tiny.run().spec.tree.items() if key != "seed"}


def spec(row: str, at: str) -> RunSpec:
    """Return the spec of a tiny run whose data differs by row and column."""
    return RunSpec.of(tree() | {"data": tree()["data"] | {"fingerprint": f"{row} {at}"}})


def planned(
    rows: tuple[str, ...] = ("b", "x", "y"), columns: tuple[str, ...] = ("",), seeds: int = 3
) -> Plan:
    """Make a plan of runs that name their row, column and seed."""
    cells = tuple(
        Cell(row, at, spec(row, at), {s: f"{row}{at}{s}" for s in range(seeds)})
        for row in rows
        for at in columns
    )
    made = (tuple(Row(row, {}) for row in rows), tuple(Column(at, {}) for at in columns))
    return Plan("p", "p", *made, cells, rows[0], tuple(range(seeds)))
