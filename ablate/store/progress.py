"""The progress of a sweep, the same for its driver and for an observer from outside.

Used by `running/driver.py` (`ablate sweep`), `report/status.py` (`ablate status`) and
`report/watch/answers.py` (`ablate watch`). A new state in `GIVEN_UP` also needs `RETRIED` in
`api/training.py`, and the states in `report/live.py` and `audit/doctor/stored.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ablate.planning import Plan, PlannedRun, Standing
from ablate.run import FINAL_STATUSES, RunDir
from ablate.shared import Notes
from ablate.store.events import RunState
from ablate.store.folder import SubmittedDriver
from ablate.store.ledger import Ledger
from ablate.store.pilots import beats_elsewhere
from ablate.store.store import Store

GIVEN_UP = ("failed", "oom", "hung")  # not started again unless asked to
BLOCKED = "blocked"  # what it starts from has ended without weights


Turn = Literal["now", "later", "never"]


@dataclass(frozen=True)
class Worker:
    """A run that is being trained, in its folder. `notes`: its worker's notes about itself
    (`Liveness`)."""

    run: PlannedRun
    slot: str
    notes: Notes
    folder: RunDir


@dataclass(frozen=True)
class Driver:
    """A process that drives a store. A field is None while the process has not noted it."""

    pid: int | None
    sweep: str | None


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep: its runs by status, its workers, its driver."""

    sweep: str
    total: int  # runs, with those that a search will still ask for
    counts: Mapping[str, int]  # of runs, by status
    workers: Sequence[Worker]
    waiting: str | None = None  # why nothing is started
    states: Mapping[str, RunState] = field(default_factory=dict)  # of every planned run
    blocked: Mapping[str, str] = field(default_factory=dict)  # run -> the one that blocks it
    driver: Driver | None = None  # who drives its store
    submitted: SubmittedDriver | None = None  # the job that is to drive the sweep
    ended: str = ""  # how its last driver did, where that is worth a line
    standing: Standing = field(default_factory=dict)  # of rows that looks give seeds to
    left_s: float | None = None  # seconds until the last run ends; None where nobody estimates it

    def status(self, run: str) -> str:
        """Return the run's status in the ledger, or BLOCKED."""
        return BLOCKED if run in self.blocked else str(self.states[run].status)

    @property
    def ended_count(self) -> int:
        return sum(self.counts.get(status, 0) for status in FINAL_STATUSES)

    @property
    def is_driven(self) -> bool:
        return self.driver is not None and self.driver.sweep in (None, self.sweep)

    @property
    def is_over(self) -> bool:
        """True if nobody drives the sweep and a driver would start nothing more by itself."""
        open_statuses = self.counts.keys() - {*FINAL_STATUSES, *GIVEN_UP, "skipped", BLOCKED}
        to_come = self.total > len(self.states)
        asks = to_come and not self.counts.keys() & {*GIVEN_UP, "skipped"}  # else its search waits
        return not (open_statuses or asks or self.is_driven or self.workers)


def observe_progress(
    plan: Plan, runs: Sequence[PlannedRun], store: Store, ledger: Ledger
) -> SweepProgress:
    """Observe the progress of a sweep from outside. `runs` is list(plan.runs()).

    Only runs that have a folder and no recorded result are checked for a living worker.
    """
    ledger_states = ledger.states({run.id for run in runs})
    # A driver writes its plan first: for a moment, or after its death, the ledger lacks new runs.
    states = {run.id: ledger_states.get(run.id, RunState()) for run in runs}
    folders = store.folders()
    workers = []
    for run in runs:
        if states[run.id].status not in FINAL_STATUSES and run.id in folders:
            notes = worker_notes(store, run.id)
            if notes is not None:
                workers.append(Worker(run, notes.slot or "?", notes, store.rundir(run.id)))
    stuck = blocked_runs(states, run_parents(runs))
    return SweepProgress(
        sweep=plan.name,
        total=len(states) + plan.to_come,
        counts=count_blocked(
            Counter(str(state.status) for state in states.values()), stuck, states
        ),
        workers=workers,
        states=states,
        blocked=stuck,
        driver=(driver := driver_of(store)),
        submitted=_submitted(store, plan.name) if driver is None else None,
        ended="" if driver is not None else _ended(store, plan.name),
    )


def _submitted(store: Store, sweep: str) -> SubmittedDriver | None:
    submitted = store.submitted_driver()
    return submitted if submitted is not None and submitted.sweep == sweep else None


def _ended(store: Store, sweep: str) -> str:
    """Return a line on how the last driver ended, "" if it didn't note that or drove another
    sweep."""
    notes = store.driver.notes()
    if notes.sweep != sweep or not notes.ended:
        return ""
    return f"its driver, process {notes.pid}, {notes.ended}"


def run_parents(runs: Iterable[PlannedRun]) -> dict[str, str]:
    """Map each run that starts from another run to that run."""
    return {run.id: parent.id for run in runs if (parent := run.parent()) is not None}


def turn_of_child(parent: RunState) -> Turn:
    """Return when a run that starts from `parent` may start: "now", "later" or "never".

    "never" holds while the parent has ended without weights, until the parent is retried.
    """
    match parent.status:
        case "finished":
            return "now"
        case "diverged" | "pruned" | "failed" | "skipped":
            return "never"
        case "oom" if parent.oom > 1:
            return "never"
        case "hung" if parent.hung > 1:
            return "never"
    return "later"


def blocked_runs(states: Mapping[str, RunState], parents: Mapping[str, str]) -> dict[str, str]:
    """Map each run that can't start to the ancestor that ended without weights.

    `parents`: run -> parent, every parent before its children.
    """
    ancestors: dict[str, str] = {}
    for run, parent in parents.items():  # parents stand before their children
        if states[run].status in {*FINAL_STATUSES, *GIVEN_UP, "skipped"}:
            continue
        if parent in ancestors:
            ancestors[run] = ancestors[parent]
        elif turn_of_child(states[parent]) == "never":
            ancestors[run] = parent
    return ancestors


def count_blocked(
    counts: Mapping[str, int], stuck: Iterable[str], states: Mapping[str, RunState]
) -> dict[str, int]:
    """Return the counts by status, with blocked runs counted as BLOCKED instead. Zeros are left
    out."""
    lost = Counter(str(states[run].status) for run in stuck)
    totals = Counter(counts)
    totals.subtract(lost)
    return {status: n for status, n in (totals | {BLOCKED: lost.total()}).items() if n > 0}


def worker_notes(store: Store, run: str) -> Notes | None:
    """Return the notes of the run's worker about itself; None where no worker is alive."""
    folder = store.rundir(run)
    return store.liveness.notes(folder) if store.liveness.alive(folder) else None


def living_notes(store: Store, states: Mapping[str, RunState]) -> list[Notes]:
    """Return the notes of the living workers of these runs."""
    started_runs = (run for run, state in states.items() if state.status == "started")
    return [notes for run in started_runs if (notes := worker_notes(store, run)) is not None]


def driver_of(store: Store) -> Driver | None:
    """Return the process that drives the store now, on this host or another; None if nobody
    does."""
    notes = store.driver.notes()
    if not store.driver.is_held() and not beats_elsewhere(store.root):
        return None
    return Driver(notes.pid, notes.sweep)
