"""What tables say of runs that were trained elsewhere. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.planning.design import Imported
from ablate.planning.plan import Plan
from ablate.shared.own import is_imported

ELSEWHERE = "trained elsewhere, not verified"
# By how a column is judged, where runs of rows share nothing.
METHODS = {
    "one way": "one spread of all rows, whose runs share no seeds",
    "welch": "Welch's t, for runs share no seeds",
}
SHOWN = 4  # cells that a line names


def trained(specs: Iterable[Mapping[str, Any]]) -> str:
    """ "Trained elsewhere, not verified" of runs of these trees; "" of others."""
    return f"{ELSEWHERE[0].upper()}{ELSEWHERE[1:]}" if any(map(is_imported, specs)) else ""


def notes(plan: Plan) -> Iterator[str]:
    """State what the numbers are of, and what the sheet hides."""
    design = plan.design
    if not isinstance(design, Imported):
        return
    files = ", ".join(
        f"{Path(one.file).name} ({one.lines} line{'s'[: one.lines > 1]}, sha256 {one.sha256[:12]})"
        for one in design.sources
    )
    yield f"The numbers are those of {files}; nobody here knows how the runs were trained."
    if not design.blocks:
        yield (
            "The sheet has no seeds, so runs of two rows are never compared in pairs; gains are of "
            "means, and n is that of the row or baseline with fewer runs."
        )
        if len(plan.columns) > 1:
            yield "Columns are not averaged, for their runs share no seeds."
    yield from (f"In the sheet {line}." for one in design.sources for line in one.hides)
    yield from _uneven(plan, design)


def mixture(plans: Sequence[Plan]) -> str:
    """ "the runs of paper2 were trained elsewhere, those of mine here" of plans of both kinds; ""
    of others."""
    names = {
        trains: ", ".join(plan.name for plan in plans if plan.design.trains is trains)
        for trains in (False, True)
    }
    if not all(names.values()):
        return ""
    return f"the runs of {names[False]} were {ELSEWHERE}, those of {names[True]} trained here"


def _uneven(plan: Plan, design: Imported) -> Iterator[str]:
    """State which cells lack seeds that others of their column have, and which have one run."""
    lacking, alone = [], []
    for column in plan.columns:
        cells = [cell for cell in plan.cells if cell.column == column.label]
        seeds = sorted({seed for cell in cells for seed in cell.ids})
        for cell in cells:
            where = f"{cell.row}@{cell.column}" if cell.column else cell.row
            if gone := [seed for seed in seeds if seed not in cell.ids]:
                lacking.append(f"{where} {'seed' if len(gone) == 1 else 'seeds'} {_list(gone)}")
            if len(cell.ids) == 1:
                alone.append(where)
    if lacking and design.blocks:
        yield (
            f"The sheet lacks {_list(lacking, '; ')}: a gain is over the seeds that row and "
            f"baseline share."
        )
    if alone:
        yield f"One run alone, so no verdict: {_list(alone)}."
    if len(plan.rows) * len(plan.columns) > len(plan.cells):
        empty = [
            f"{row.label}@{column.label}"
            for row in plan.rows
            for column in plan.columns
            if plan.cell(row.label, column.label) is None
        ]
        yield f"The sheet has no run of {_list(empty)}."


def _list(parts: Sequence[object], between: str = ", ") -> str:
    more = f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return between.join(map(str, parts[:SHOWN])) + more
