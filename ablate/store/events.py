"""The ledger's events: their content, their seals, and the state of a run that they yield.

Used by `store/ledger.py` and `store/queries.py`; `RunState` also by `running/`, `report/` and
`audit/`. A new field of `RunState` also needs its column in both (`_SCHEMA`, INSERT and SELECT), a
new `Status` its case in `running/next_step.py` and, if it gives a run up, `GIVEN_UP` in
`store/progress.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ablate.run import FINAL_STATUSES, RunDir
from ablate.shared import is_number, sha256_of
from ablate.store.looks import LOOK, is_look

Status = Literal[
    "planned",
    "started",
    "interrupted",
    "finished",
    "diverged",
    "pruned",
    "failed",
    "oom",
    "hung",
    "skipped",  # by the user: not started until that is undone
]
History = Sequence[tuple[float, str, dict[str, Any]]]  # of a run: time, kind, detail; oldest first
Look = dict[str, Any]  # what `store.looks` says of a reading
PLANNING_EVENTS, PLAN = (
    "planning",
    "plan",
)  # a plan is about to be written, it is: see `Ledger.plan`
FORGOTTEN = "forgotten"  # of a sweep: `gc NAME`
PLAN_OF = "plan of "  # and the name of the sweep stand where others have their run
# Of the event of a result that `merge` took from a bundle, without weights: the sha256 of its
# `thinned.json`, or true where its files are whole.
FROM_BUNDLE = "bundled"
Event = tuple[float, str, str, str]  # at, run, kind, detail as JSON
Row = tuple[int, float, str, str, str, str]  # its number, the event, its seal


@dataclass(frozen=True)
class RunState:
    """The state of a run, folded from its events."""

    status: Status = "planned"
    attempts: int = 0  # deaths without a newer checkpoint
    oom: int = 0
    hung: int = 0
    step: int = 0  # newest checkpoint when the last worker started or died


def fold(state: RunState, kind: str, detail: dict[str, Any]) -> RunState:
    """Return the state of a run after one more event. Raises ValueError for an unknown `kind`."""
    change = dataclasses.replace
    match kind:
        case "planned":
            return state
        case "collected":  # its folder was removed: as if it had never run
            return RunState()
        case "started":
            return change(state, status="started", step=detail["step"])
        case "died":
            worse = detail["step"] <= state.step  # no newer checkpoint: it may never get on
            return change(state, attempts=state.attempts + worse, step=detail["step"])
        case "oom":
            return change(state, status="oom", oom=state.oom + 1)
        case "hung":
            return change(state, status="hung", hung=state.hung + 1)
        case "retried":
            return RunState(status="interrupted", step=state.step)
        case "interrupted" | "finished" | "diverged" | "pruned" | "failed" | "skipped":
            return change(state, status=kind)
    raise ValueError(f"unknown event {kind!r}")


def sealed_events(
    previous_seal: str, events: Iterable[Event]
) -> Iterator[tuple[float, str, str, str, str]]:
    """Yield each event followed by its seal: a hash of the event and of the seal before it.

    `previous_seal`: the seal of the event before the first, "" where there is none.
    """
    for event in events:
        previous_seal = hashlib.sha256(json.dumps([previous_seal, *event]).encode()).hexdigest()[
            :32
        ]
        yield (*event, previous_seal)


def holds(previous_seal: str, event: Event, seal: str) -> bool:
    """Return whether `seal` is the seal of this event, written after the event whose seal is
    `previous_seal`."""
    try:
        return next(sealed_events(previous_seal, [event]))[-1] == seal
    except TypeError:  # bytes, of no text that is written here
        return False


def is_id(run: object) -> bool:
    """Return whether `run` could be the name of a run's folder: ASCII letters and digits only."""
    return isinstance(run, str) and run.isalnum() and run.isascii()


def plan_detail(text: str) -> dict[str, Any] | None:
    """Return the detail of an event about a plan, or None for a text that no ledger writes.

    `sha256`: the hash of the plan's file. `with`: its seeds, in words. `left`: the runs of the
    previous plan that this one lacks. `replaces`: whether the plan gives up all runs of earlier
    plans.
    """
    with contextlib.suppress(ValueError, RecursionError):
        detail: dict[str, Any] = json.loads(text)
        match detail:
            case {"sha256": str(), "with": str(), **rest}:
                dropped_runs = rest.get("left", [])
                if isinstance(dropped_runs, list) and all(map(is_id, dropped_runs)):
                    return detail
    return None


def result_detail(folder: RunDir, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the detail that the event of a result keeps.

    `result_sha256`, the hash of the result's file, shows later whether the file was changed.
    `ranks` is left out for a run with one rank, and `share`, the part of its device that its slot
    had, for one that had all of it. FROM_BUNDLE is there for a folder that a merge has left which
    was killed, or whose record was lost with the ledger.
    """
    detail = {"seconds": result.get("seconds")}
    if result.get("ranks", 1) > 1:
        detail["ranks"] = result["ranks"]
    if result.get("share", 1.0) < 1:
        detail["share"] = result["share"]
    if (mark := folder.bundle_mark()) is not None:
        detail[FROM_BUNDLE] = mark
    detail |= {"device": result.get("device"), "result_sha256": sha256_of(folder.result)}
    return detail


def damaged(fault: object) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"damaged: {fault}")


def state_of(status: Any, *counts: int) -> RunState:
    if status not in get_args(Status):
        raise damaged(f"no run is {status!r:.20}")
    return RunState(status, *counts)


def event_detail(kind: str, text: str) -> dict[str, Any]:
    """Parse an event's detail, checked so that `fold` can read it.

    Raises DatabaseError for a text that no event of this kind has.
    """
    try:
        tree = json.loads(text)
        if kind == LOOK:
            is_valid = is_look(tree)
        elif kind in (PLANNING_EVENTS, PLAN, FORGOTTEN):
            is_valid = plan_detail(text) is not None
        else:
            fold(RunState(), kind, tree)
            is_valid = is_number(tree.get("step", 0))
            is_valid = is_valid and (
                kind not in FINAL_STATUSES or isinstance(tree["result_sha256"], str)
            )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"no event is {kind!r:.20}: {text!r:.60}") from error
    if not is_valid:
        raise damaged(f"no event is {kind!r:.20}: {text!r:.60}")
    result: dict[str, Any] = tree
    return result
