"""What a plan costs, and how little is known of it before a trainer of the user's own has run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.shared.files import is_number
from ablate.shared.result import FINAL
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
    notes: Sequence[str] = ()  # of `pairing`

    def warnings(self) -> list[str]:
        """List the worker's warnings, and norms over so few values that only signs are left."""
        found = {text: text for a in self.described.values() for text in a.get("warnings", ())}
        for (row, _), answer in self.described.items():
            for site, group in answer["groups"].items():
                if group < SMALLEST_GROUP:
                    found.setdefault(row, f"{row}: {site} normalises over {group} values only")
        return list(found.values())


def mean_seconds(cell: Cell, finished: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Of the finished runs of a cell; None without one."""
    told = (finished.get(run, {}).get("seconds") for run in cell.ids.values())
    done = [float(seconds or 0) for seconds in told if is_number(seconds)]
    return sum(done) / len(done) if done else None


def own_costs(
    plan: Plan,
    states: Mapping[str, RunState],
    finished: Mapping[str, Mapping[str, Any]],
    places: int,
    on: str,
) -> Costs:
    """Of runs of a trainer of the user's own: a cell without a finished run takes what the others
    took, trials as long as runs. Before any has finished nothing is known (`how` says so). `on`:
    "slot", or the device that would train, of which nothing is known but runs here."""
    told = {(cell.row, cell.column): mean_seconds(cell, finished) for cell in plan.cells}
    known = [seconds for seconds in told.values() if seconds is not None]
    typical = sum(known) / len(known) if known else 0.0
    left = float(plan.to_come)
    seconds_left = left * typical
    for run in plan.runs():
        if states.get(run.id, RunState()).status not in (*FINAL, *HELD):
            a_run = told[run.cell.row, run.cell.column]
            seconds_left += typical if a_run is None else a_run
    nothing: dict[str, Any] = {
        "parameters": None,
        "multiply_adds": None,
        "groups": {},
        "warnings": [],
    }
    return Costs(
        described=dict.fromkeys(told, nothing),
        seconds=told,
        how="from finished runs" if known else UNKNOWN,
        left_s=seconds_left,
        where=f"{places} slot{'s'[: places != 1]}" if on == "slot" else f"{places} x {on}",
        wall_s=seconds_left / places,
        seed_s=dict(_seeds(plan, told)),
    )


def _seeds(
    plan: Plan, told: Mapping[tuple[str, str], float | None]
) -> Iterator[tuple[str, float | None]]:
    """Yield `Costs.seed_s` of every column, trials as long as runs."""
    for column in plan.columns:
        each: list[float | None] = []
        for cell in (cell for cell in plan.cells if cell.column == column.label):
            seconds = told[cell.row, cell.column]
            trials = plan.trials_of(cell) / len(cell.seeds or plan.seeds)
            each.append(None if seconds is None else seconds * (1 + trials))
        known = [seconds for seconds in each if seconds is not None]
        yield column.label, sum(known) if len(known) == len(each) else None
