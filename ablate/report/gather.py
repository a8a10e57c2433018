"""A sweep with all that is known of its runs, out of a store or a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.planning.plan import Plan, PlannedRun
from ablate.report.show import History, Seen, facts
from ablate.store.ledger import Ledger, RunState, Sound, Store, fold


@dataclass(frozen=True)
class Known:
    """A planned run, and what became of it."""

    run: PlannedRun
    seen: Seen

    @property
    def result(self) -> Mapping[str, Any]:
        """{} while there is none."""
        return self.seen.result or {}

    @property
    def status(self) -> str:
        """The result's, as tables have it; without one the ledger's, or that it is withheld."""
        if self.seen.withheld:
            return "withheld"
        state = self.seen.state or RunState()
        return str(self.result.get("status", state.status))

    @property
    def error(self) -> str | None:
        """Why the last attempt left, if by itself."""
        last = self.seen.attempts[-1] if self.seen.attempts else {}
        return str(last["error"]) if "error" in last else None


def histories(plan: Plan, ledger: Ledger) -> dict[str, History]:
    """The ledger's events of every run of the plan."""
    with ledger.still():
        return {run.id: ledger.events(run.id) for run in plan.runs()}


def gather(
    plan: Plan, store: Store, histories: Mapping[str, History], probes: bool = False
) -> list[Known]:
    """Every run of the plan, in its order. `probes`: what they measured is read, too."""
    sound = store.results(plan.runs(), curves=True, probes=probes)
    return [_known(plan, run, store, histories.get(run.id, ()), sound) for run in plan.runs()]


def _known(plan: Plan, run: PlannedRun, store: Store, history: History, sound: Sound) -> Known:
    folder = store.rundir(run.id)
    state = RunState()
    for _, kind, detail in history:
        state = fold(state, kind, detail)
    result = sound.results[run.id]
    attempts, unsealed = folder.sealed_attempts(result)
    return Known(
        run,
        Seen(
            folder=folder,
            planned=[(plan.name, run)],
            state=state,
            events=history,
            spec=None,  # as planned: a run's id is a hash of it
            attempts=attempts,
            result=result,
            withheld=sound.withheld.get(run.id, ""),
            unsealed=unsealed,
        ),
    )


def provenance(runs: Sequence[Known]) -> dict[str, dict[str, int]]:
    """Where code, machine and command came from: each fact's texts, and how many runs say so."""
    found: dict[str, dict[str, int]] = {}
    for known in runs:
        for key, text in facts(known.seen).items():
            counts = found.setdefault(key, {})
            counts[text] = counts.get(text, 0) + 1
    return found


def setting(spec: Mapping[str, Any], key: str) -> Any:
    """What a key of a sweep file is in a spec's tree: a group's by its name; None for none."""
    value: Any = spec
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value.get("name") if isinstance(value, Mapping) else value
