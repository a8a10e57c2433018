"""`baseline_seeds` of a sweep file and of the command line: more seeds of the row that is in every
gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ablate.planning.cell import Cell
from ablate.planning.words import BASELINE_SEEDS as KEY
from ablate.shared.errors import UserError
from ablate.shared.spec import ids_of

if TYPE_CHECKING:
    from ablate.planning.declaration import Sweep

FEWEST = 3  # seeds of the rows: with fewer there are no verdicts
MOST_TIMES = 3  # for each seed of a row: with more, few noisy rows go unseen


def check_baseline_seeds(sweep: Sweep, rows: int) -> None:
    """Raises UserError for more seeds of the baseline that do nothing, or that no method is for."""
    more, n = sweep.baseline_seeds, len(sweep.seeds)
    if not more:
        return
    place = f"{sweep.place}: {KEY}" if sweep.place else KEY
    if sweep.until is not None:
        raise UserError(
            f"{place}: goes without until and seeds.precision, which give out all seeds; leave one "
            f"of them away ({KEY}=none)"
        )
    if sweep.tune is not None:
        raise UserError(
            f"{place}: goes without tune, whose searches are as many for every row; leave one of "
            f"them away"
        )
    if rows < 3:
        raise UserError(
            f"{place}: expected two rows or more beside the baseline, got {rows - 1}: a single one "
            f"is compared in pairs of seeds"
        )
    if len(more) <= n:
        raise UserError(
            f"{place}: expected more than the {n} seeds of the rows, got {len(more)}; give more, "
            f"or leave {KEY} away"
        )
    if lacking := [seed for seed in sweep.seeds if seed not in more]:
        raise UserError(
            f"{place}: expected all seeds of the rows among the baseline's, got {list(more)} "
            f"without {lacking[0]}"
        )
    if n < FEWEST:
        raise UserError(f"{place}: expected at least {FEWEST} seeds of the rows, got {n}")
    if len(more) > MOST_TIMES * n:
        raise UserError(
            f"{place}: expected at most {MOST_TIMES} seeds of the baseline for each of a row, "
            f"{MOST_TIMES * n} beside {n}, got {len(more)}: with more, noisy rows go unseen"
        )


def with_more(cells: Iterable[Cell], baseline: str, seeds: Sequence[int]) -> list[Cell]:
    """The cells, those of the baseline with these seeds."""
    return [
        replace(cell, ids=ids_of(cell.spec, seeds)) if cell.row == baseline else cell
        for cell in cells
    ]


def all_seeds(sweep: Sweep) -> tuple[int, ...]:
    """Those of the rows, then the others of the baseline."""
    return (*sweep.seeds, *(seed for seed in sweep.baseline_seeds if seed not in sweep.seeds))
