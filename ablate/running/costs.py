"""What a plan costs, and how little is known of it before a trainer of the user's own has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.running.sharing import Worlds
from ablate.shared.files import is_number
from ablate.shared.result import FINAL
from ablate.shared.spec import whole_of
from ablate.store.events import HELD, RunState

SMALLEST_GROUP = 8  # a norm over fewer values says little but its sign
UNKNOWN = "unknown until a run of it has finished: its trainer alone knows what it does"


@dataclass(frozen=True)
class Costs:
    """By (row, column), also of parents (`Plan.parents`): the worker's description and seconds a
    run; `how`: their source."""

    described: Mapping[tuple[str, str], Mapping[str, Any]]
    seconds: Mapping[tuple[str, str], float | None]  # None: no data yet, or nothing was timed
    how: str
    left_s: float  # device-seconds of all runs that are not done; inf: beyond a month, not timed
    where: str = ""  # "2 slots", "8 x h100": what runs them
    wall_s: float = 0.0  # of all that is left, there
    searches: Sequence[float] = ()  # multiply-adds of every cell's, nothing pruned
    # By column, of one seed of every row: its run, its search, and the parents of both.
    seed_s: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()  # of `shared_weights`
    worlds: Worlds = field(default_factory=dict)  # devices of a run, where `auto` decides

    def warnings(self) -> list[str]:
        """List the worker's warnings, and norms over so few values that only signs are left."""
        lines = {text: text for a in self.described.values() for text in a.get("warnings", ())}
        for (row, _), answer in self.described.items():
            for site, group in answer["groups"].items():
                if group < SMALLEST_GROUP:
                    lines.setdefault(row, f"{row}: {site} normalises over {group} values only")
        return list(lines.values())


def mean_seconds(cell: Cell, finished: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Average the device-seconds of the finished runs of a cell; None without one."""
    noted = (finished.get(run, {}) for run in cell.ids.values())
    done = [n["seconds"] * (n.get("ranks") or 1) for n in noted if is_number(n.get("seconds"))]
    return sum(done) / len(done) if done else None


def own_costs(
    plan: Plan,
    states: Mapping[str, RunState],
    finished: Mapping[str, Mapping[str, Any]],
    places: int,
    where: str,
    ranks: int = 1,
) -> Costs:
    """Estimate runs of a trainer of the user's own: a cell without a finished run takes what the
    others took, trials as long as runs. Before any has finished nothing is known (`how` says so).
    `where`: the slots, or the devices that would train, of which nothing is known but runs here;
    `ranks`: devices of each run."""
    seconds = {
        (cell.row, cell.column): None
        if (alone := mean_seconds(cell, finished)) is None
        else alone / ranks
        for cell in plan.cells
    }
    known = [each for each in seconds.values() if each is not None]
    typical = sum(known) / len(known) if known else 0.0
    left = plan.to_come * typical
    for run in plan.runs():
        if states.get(run.id, RunState()).status not in (*FINAL, *HELD):
            a_run = seconds[run.cell.row, run.cell.column]
            left += typical if a_run is None else a_run
    seeds: dict[str, float | None] = {}
    for column in plan.columns:
        cells = [cell for cell in plan.cells if cell.column == column.label]
        each = [
            a_run * (1 + plan.trials_of(cell) / len(cell.seeds or plan.seeds))
            for cell in cells
            if (a_run := seconds[cell.row, cell.column]) is not None
        ]
        seeds[column.label] = ranks * sum(each) if len(each) == len(cells) else None
    nothing: dict[str, Any] = {
        "parameters": None,
        "multiply_adds": None,
        "groups": {},
        "warnings": [],
    }
    return Costs(
        described=dict.fromkeys(seconds, nothing),
        seconds=seconds,
        how="from finished runs" if known else UNKNOWN,
        left_s=ranks * left,
        where=where,
        wall_s=left / places,
        seed_s=seeds,
    )


def shared_weights(plan: Plan, described: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    """List a line for every row that is a whole model, or is compared with one: how many of its
    initial weights are the baseline's, by name and by value. [] where all rows are the shipped
    model, whose shared weights are the same by their names alone."""
    cells = {(cell.row, cell.column): cell for cell in plan.cells}
    lines = {}
    for (row, column), cell in cells.items():
        base = cells.get((plan.baseline, column))
        if base is None or base is cell or (plan.baseline, column) not in described:
            continue
        own = described[row, column].get("initial")
        theirs = described[plan.baseline, column].get("initial")
        if not (whole_of(cell.spec) or whole_of(base.spec)) or own is None or theirs is None:
            continue
        weights = own.items()
        same = sum(size for name, (hashed, size) in weights if theirs.get(name, [0])[0] == hashed)
        lines[row] = (
            f"{row}: {same:,} of {sum(size for _, size in own.values()):,} weights begin as the "
            f"baseline's of the same name; batches and augmentation are the same in all rows"
        )
    return list(lines.values())
