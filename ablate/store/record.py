"""Records of runs: what was planned, what the ledger says, and what the run's folder contains.

Any file of a run folder may be torn or missing; a record has only what is whole.

Used by `ablate show` (`report/show.py`), `ablate export` (`audit/export.py`) and Python's
`Sweep.runs` (`api/nouns.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.planning import Plan, PlannedRun
from ablate.run import FINAL_STATUSES, RunDir
from ablate.store.events import History, RunState, fold
from ablate.store.find import sweeps_of_run
from ablate.store.ledger import Ledger
from ablate.store.store import Store

RecordedResult = tuple[str, dict[str, Any]]  # the event of a result: kind, detail


@dataclass(frozen=True)
class RunRecord:
    """A run as the plans, the ledger and its folder describe it."""

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
        """The planned run, from the sweep that was driven last. Raises IndexError where no sweep
        plans it."""
        return self.planned[0][1]

    @property
    def label(self) -> str:
        return self.run.label if self.planned else self.folder.id

    @property
    def status(self) -> str:
        """The status of the result, as tables show it; without a result the ledger's, or
        "withheld"."""
        if self.withheld:
            return "withheld"
        state = self.state or RunState()
        return str(self.result.get("status", state.status))

    @property
    def error(self) -> str | None:
        """The reason why the last attempt ended, if it ended by itself; else None."""
        last_attempt = self.attempts[-1] if self.attempts else {}
        return str(last_attempt["error"]) if "error" in last_attempt else None


def load_record(store: Store, ledger: Ledger, run: str) -> RunRecord:
    """Load the record of the run with this id, whichever sweeps planned it."""
    seal = ledger.seals([run]).get(run)
    result, fault = store.rundir(run).sealed_result(seal, curves=True)
    return _load(store, run, sweeps_of_run(store, ledger, run), ledger.events(run), result, fault)


def load_records(
    plan: Plan, store: Store, histories: Mapping[str, History], probes: bool = False
) -> list[RunRecord]:
    """Load the records of all runs of a plan, in its order, from a store or a bundle.

    `probes`: whether the caller reads the probes' files, too, so that these are also checked to be
    what the run left.
    """
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
    """Return the ledger's events of every run of the plan, by run, all as of one moment."""
    with ledger.snapshot():
        return {run.id: ledger.events(run.id) for run in plan.runs()}


def fold_history(history: History) -> tuple[RunState, RecordedResult | None]:
    """Return the state that a run's events amount to, and (kind, detail) of its last result, or
    None."""
    state, last_result = RunState(), None
    for _, kind, detail in history:
        state = fold(state, kind, detail)
        if kind in FINAL_STATUSES:
            last_result = kind, detail
    return state, last_result


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
