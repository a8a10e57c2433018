"""How far a sweep is: one answer, whether its driver counts or somebody looks from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.planning.plan import Plan, PlannedRun
from ablate.store.events import RunState
from ablate.store.ledger import FINAL, Ledger, Store

GIVEN_UP = ("failed", "oom", "hung")  # not started again unless asked to


@dataclass(frozen=True)
class Worker:
    """A run that is trained now. `notes`: its worker's own (see liveness)."""

    run: PlannedRun
    slot: str
    notes: Mapping[str, Any]


@dataclass(frozen=True)
class Driver:
    """A process that drives a store; None: what it has not noted yet."""

    pid: int | None
    sweep: str | None


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    sweep: str
    total: int  # runs, with those that a search will still ask for
    counts: Mapping[str, int]  # of runs, by status
    workers: Sequence[Worker]
    waiting: str | None = None  # why nothing is started
    states: Mapping[str, RunState] = field(default_factory=dict)  # of every planned run
    driver: Driver | None = None  # who drives its store

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in FINAL)

    @property
    def driven(self) -> bool:
        return self.driver is not None and self.driver.sweep in (None, self.sweep)

    @property
    def over(self) -> bool:
        """Nobody drives it, and nothing is left that a driver would start by itself."""
        left = self.counts.keys() - {*FINAL, *GIVEN_UP}
        to_come = self.total > len(self.states)
        asks = to_come and not self.counts.keys() & {*GIVEN_UP}  # else its search waits
        return not (left or asks or self.driven or self.workers)


def observe(plan: Plan, runs: Sequence[PlannedRun], store: Store, ledger: Ledger) -> SweepProgress:
    """A look from outside. `runs` is list(plan.runs()).

    Asks only for workers of runs that have a folder and no recorded result.
    """
    known = ledger.states({run.id for run in runs})
    # A driver writes its plan first: for a moment, or after its death, the ledger lacks new runs.
    states = {run.id: known.get(run.id, RunState()) for run in runs}
    begun = store.folders()
    workers = []
    for run in runs:
        if states[run.id].status not in FINAL and run.id in begun:
            notes = worker_notes(store, run.id)
            if notes is not None:
                workers.append(Worker(run, str(notes.get("slot", "?")), notes))
    return SweepProgress(
        sweep=plan.name,
        total=len(states) + plan.to_come,
        counts=Counter(str(state.status) for state in states.values()),
        workers=workers,
        states=states,
        driver=driver_of(store),
    )


def worker_notes(store: Store, run: str) -> dict[str, Any] | None:
    """What the run's worker notes of itself; None where none is alive."""
    folder = store.rundir(run)
    return store.liveness.notes(folder) if store.liveness.alive(folder) else None


def working(store: Store, states: Mapping[str, RunState]) -> list[dict[str, Any]]:
    """The notes of the workers that are alive, of these runs."""
    begun = (run for run, state in states.items() if state.status == "started")
    return [notes for run in begun if (notes := worker_notes(store, run)) is not None]


def driver_of(store: Store) -> Driver | None:
    """Who drives the store now; None: nobody."""
    if not store.driver.is_held():
        return None
    notes = store.driver.notes()
    return Driver(notes.get("pid"), notes.get("sweep"))
