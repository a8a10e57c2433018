"""The next step of a run, decided by one pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ablate.shared import DISK_FULL, EXIT_AWAY, FAILED, FINAL_STATUSES, NO_DEVICE, OOM, STOPPED
from ablate.store import RunState

Action = Literal["start", "adopt", "wait", "leave", "again"]


@dataclass(frozen=True)
class NextStep:
    """The next step of a run: record this event first, if any, then do `action`. `again`: decide
    once more after recording."""

    record: str | None
    action: Action


def next_step(
    state: RunState,
    *,
    result: bool,
    alive: bool,
    refused: bool = False,
    exit: str | None = None,
    attempts: int,
) -> NextStep:
    """Decide the next step of a run. It handles every state, and nothing else decides.

    `state`: the ledger's; `result`: its folder has a whole result; `refused`: the file in the
    result's place is no result; `alive`: its lock is held; `exit`: the reason that its last worker
    gave for leaving (None: it died, or there was none); `attempts`: the limit on deaths without
    progress. The first rule that fits holds; docs/resume-and-store.md describes them for users.
    """
    final = state.status in FINAL_STATUSES
    if result and alive:
        return NextStep(None, "wait")  # tearing down
    if result and not final:
        return NextStep("result", "leave")
    if alive:
        return NextStep(None, "adopt")
    if refused:  # it is removed by whoever records that
        return NextStep("interrupted" if final else "died", "again")
    if final and not result:
        return NextStep("interrupted", "start")  # its folder was lost
    match state.status:
        case "planned" | "interrupted":
            return NextStep(None, "start")
        case "started" if exit == FAILED:
            return NextStep("failed", "leave")
        case "started" if exit == OOM:
            return NextStep("oom", "again")
        case "started" if exit in (STOPPED, DISK_FULL, NO_DEVICE) or state.attempts < attempts:
            return NextStep("interrupted", "start")
        case "started":
            return NextStep("failed", "leave")
        case "oom" if state.oom <= 1:
            return NextStep(None, "start")
        case "hung" if state.hung <= 1:
            return NextStep(None, "start")
    return NextStep(None, "leave")


def is_death(exit: str | None, code: int | None, *, was_asked: bool, room: bool) -> bool:
    """Return whether the end of a worker that left no result counts as an attempt.

    `exit`: the reason that it gave. `code`: its process's exit code, None where nobody heard it.
    `was_asked`: it was asked to stop. `room`: a full disk can't be the reason.
    """
    if exit is None:
        return code not in (None, EXIT_AWAY) and not was_asked
    if exit in (FAILED, OOM, NO_DEVICE):  # `next_step`, and who gives up places, count these
        return False
    if exit == STOPPED:
        return not was_asked
    if exit == DISK_FULL:
        return room
    return True
