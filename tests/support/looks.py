"""Make looks as the ledger keeps them, and count those that bear upon a table."""

from __future__ import annotations

import functools

import tiny

from ablate.shared.spec import to_tree
from ablate.store.looks import InterimLook, PastLooks, ReadColumn, ReadRow

ANALYSIS = {"alpha": 0.05, "spread": "one way", "family": "column", "looks": [], "margin": None}


def column(rows: str, seeds: range | tuple[int, ...], planned: int = 0) -> ReadColumn:
    """Rows by letter, the first the baseline: "bxy". Of a peek `planned` runs are there."""
    counted = range(planned) if planned else seeds
    found = {row: ReadRow(f"spec {row}", {s: f"{row}#{s}" for s in counted}) for row in rows}
    return ReadColumn(len(seeds), 0 if planned else len(rows) - 1, {}, found)


def reading(
    rows: str, seeds: int | tuple[int, ...], sweep: str = "g", planned: int = 0, **more
) -> InterimLook:
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
    return PastLooks(before, now).contrasts("")


@functools.cache
def tree() -> dict:
    return {key: value for key, value in to_tree(tiny.run()).items() if key != "seed"}


def spec(row: str, at: str) -> dict:
    return tree() | {"data": tree()["data"] | {"fingerprint": f"{row} {at}"}}
