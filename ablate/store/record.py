"""One record of a run: what was planned, what the ledger tells of it, what its folder holds.

Any file of a run folder may be torn or missing: a record is what is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.planning import Plan, PlannedRun
from ablate.shared import FINAL_STATUSES, RunDir
from ablate.store.events import History, RunState, fold
from ablate.store.find import sweeps_of_run
from ablate.store.ledger import Ledger
from ablate.store.store import Store

RecordedResult = tuple[str, dict[str, Any]]  # the event of a result: kind, detail


@dataclass(frozen=True)
class RunRecord:
    """A run as the plans, the ledger and its folder tell of it."""

    folder: RunDir
    planned: Sequence[tuple[str, PlannedRun]] = ()  # (sweep, run), the last driven first
    events: History = ()
    state: RunState | None = None  # None: the ledger does not know it
    attempts: Sequence[Mapping[str, Any]] = ()  # what each worker noted of itself, oldest first
    result: Mapping[str, Any] = field(default_factory=dict)  # {} where there is none
    withheld: str = ""  # why there is no result, where a file is not the one that the run left
    unsealed: str = ""  # why there are no attempts, where env.json is not

    @property
    def run(self) -> PlannedRun:
        """As it is planned. IndexError where it is not."""
        return self.planned[0][1]

    @property
    def label(self) -> str:
        return self.run.label if self.planned else self.folder.id

    @property
    def status(self) -> str:
        """The result's, as tables have it; without one the ledger's, or that it is withheld."""
        if self.withheld:
            return "withheld"
        state = self.state or RunState()
        return str(self.result.get("status", state.status))

    @property
    def error(self) -> str | None:
        """Why the last attempt left, if by itself."""
        last = self.attempts[-1] if self.attempts else {}
        return str(last["error"]) if "error" in last else None


def load_record(store: Store, ledger: Ledger, run: str) -> RunRecord:
    """The record of a run, by its id, whichever sweeps planned it."""
    seal = ledger.seals([run]).get(run)
    result, why = store.rundir(run).sealed_result(seal, curves=True)
    return _load(store, run, sweeps_of_run(store, ledger, run), ledger.events(run), result, why)


def load_records(
    plan: Plan, store: Store, histories: Mapping[str, History], probes: bool = False
) -> list[RunRecord]:
    """Every run of the plan, in its order, out of a store or a bundle. `probes`: what they measured
    is read, too, so it must be what the run left."""
    sound = store.results(plan.runs(), curves=True, probes=probes)
    return [
        _load(
            store,
            run.id,
            [(plan.name, run)],
            histories.get(run.id, ()),
            sound.results[run.id],
            sound.withheld.get(run.id, ""),
        )
        for run in plan.runs()
    ]


def run_histories(plan: Plan, ledger: Ledger) -> dict[str, History]:
    """The ledger's events of every run of the plan."""
    with ledger.still():
        return {run.id: ledger.events(run.id) for run in plan.runs()}


def fold_history(history: History) -> tuple[RunState, RecordedResult | None]:
    """What its events make of a run, and the last of them that is a result."""
    state, last = RunState(), None
    for _, kind, detail in history:
        state = fold(state, kind, detail)
        if kind in FINAL_STATUSES:
            last = kind, detail
    return state, last


def _load(
    store: Store,
    run: str,
    planned: Sequence[tuple[str, PlannedRun]],
    events: History,
    result: Mapping[str, Any] | None,
    withheld: str,
) -> RunRecord:
    folder = store.rundir(run)
    state = fold_history(events)[0] if events else None
    attempts, unsealed = folder.sealed_attempts(result)
    return RunRecord(folder, planned, events, state, attempts, result or {}, withheld, unsealed)
