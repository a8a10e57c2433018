"""Which weights two rows of a sweep over whole models begin with in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.planning.plan import Plan
from ablate.shared.spec import whole_of

Described = Mapping[tuple[str, str], Mapping[str, Any]]


def paired(plan: Plan, described: Described) -> list[str]:
    """A line for every row that is a whole model, or is compared with one: how many of its initial
    weights are the baseline's, by name and by value. [] where all rows are the shipped model, whose
    shared weights are the same by their names alone."""
    found = {}
    for cell in plan.cells:
        key = plan.baseline, cell.column
        if cell.row == plan.baseline or key not in described:
            continue
        base = next(c.spec for c in plan.cells if (c.row, c.column) == key)
        own, theirs = (described[k].get("initial") for k in ((cell.row, cell.column), key))
        if not (whole_of(cell.spec) or whole_of(base)) or own is None or theirs is None:
            continue
        same = sum(
            size for name, (digest, size) in own.items() if theirs.get(name, [0])[0] == digest
        )
        every = sum(size for _, size in own.values())
        found[cell.row] = (
            f"{cell.row}: {same:,} of {every:,} weights begin as the baseline's of the same name; "
            f"batches and augmentation are the same in all rows"
        )
    return list(found.values())
