"""The next step of a run, and the next run with its slot, decided by pure functions.

Used by `ablate sweep` (running/driver.py), and by forecasts of what it still trains
(running/estimate.py, running/time_left.py). A new `Action` is also carried out there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ablate.run import (
    DISK_FULL,
    EXIT_AWAY,
    FAILED,
    FINAL_STATUSES,
    NO_DEVICE,
    OOM,
    STOPPED,
    WORLD_SIZES,
    WRONG_UNIT,
)
from ablate.running.board import PlaceRecord
from ablate.running.launchers import Slot, usable
from ablate.store import RunState, turn_of_child

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
    exit_reason: str | None = None,
    max_attempts: int,
) -> NextStep:
    """Decide the next step of a run. It handles every state, and nothing else decides.

    `state`: the ledger's; `result`: its folder has a whole result; `refused`: the file in the
    result's place is no result; `alive`: its lock is held; `exit_reason`: the reason that its last
    worker gave for leaving (None: it died, or there was none); `max_attempts`: the limit on deaths
    without progress. The first rule that fits holds; docs/resume-and-store.md describes them for
    users.
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
        case "started" if exit_reason in (FAILED, WRONG_UNIT):
            return NextStep("failed", "leave")
        case "started" if exit_reason == OOM:
            return NextStep("oom", "again")
        case "started" if exit_reason in (STOPPED, DISK_FULL, NO_DEVICE):
            return NextStep("interrupted", "start")
        case "started" if state.attempts < max_attempts:
            return NextStep("interrupted", "start")
        case "started":
            return NextStep("failed", "leave")
        case "oom" if state.oom <= 1:
            return NextStep(None, "start")
        case "hung" if state.hung <= 1:
            return NextStep(None, "start")
    return NextStep(None, "leave")


def closed_runs(states: Mapping[str, RunState], blocked: Collection[str]) -> set[str]:
    """Return the runs without a worker that a driver leaves: those that have ended, were given up
    or skipped, and those of `blocked`, which start from one without weights."""
    closed = set(blocked)
    for run, state in states.items():
        if turn_of_child(state) != "later":  # else a child would wait for it
            closed.add(run)
    return closed


def is_death(
    exit_reason: str | None, exit_code: int | None, *, was_asked: bool, room: bool
) -> bool:
    """Return whether the end of a worker that left no result counts as an attempt.

    `exit_reason`: the reason that it gave. `exit_code`: its process's, None where nobody heard it.
    `was_asked`: it was asked to stop. `room`: a full disk can't be the reason.
    """
    if exit_reason is None:
        return exit_code not in (None, EXIT_AWAY) and not was_asked
    # `next_step`, and who gives up places, count these.
    if exit_reason in (FAILED, WRONG_UNIT, OOM, NO_DEVICE):
        return False
    if exit_reason == STOPPED:
        return not was_asked
    if exit_reason == DISK_FULL:
        return room
    return True


def assign(
    pending: Sequence[str],
    working: Mapping[str, Slot | None],
    slots: Sequence[Slot],
    states: Mapping[str, RunState],
    places: PlaceRecord,
    worlds: Mapping[str, int] = MappingProxyType({}),
) -> tuple[str, Slot] | None:
    """Return the first run that fits on a slot, and the slot; None if none fits now.

    `pending`: the runs in their order. But those on more devices come first, and those that were
    out of memory last, each alone on its place. `working`: the slot of every run that has a worker;
    None for a slot that is not in `slots`, which takes the room of one that is. A run that lost its
    device goes to another place, if there is one; on a retired place nothing starts, and on an
    undivided one nothing while a run is there.

    `worlds`: the number of devices of a run, where slots have several numbers. A run gets that
    number, or fewer where there is no such slot. While it waits for a group of devices, the free
    devices of that group wait with it.
    """
    held_slots = [slot for slot in working.values() if slot is not None]
    taken_devices: set[str] = set()
    for slot in held_slots:
        taken_devices |= slot.takes
    busy = {slot.place for slot in held_slots}
    alone = busy & places.undivided
    alone |= {slot.place for run, slot in working.items() if slot is not None and states[run].oom}
    usable_slots = usable(slots, places.retired)
    free = {
        slot.name: slot
        for slot in usable_slots
        if slot.takes.isdisjoint(taken_devices) and slot.place not in alone
    }
    if len(free) <= len(working) - len(held_slots):
        return None

    @functools.cache
    def alike_slots(most_ranks: int) -> tuple[list[Slot], bool]:
        """Return the slots of most ranks, this many at most, and whether they share one place."""
        ranks = max((slot.ranks for slot in usable_slots if slot.ranks <= most_ranks), default=0)
        alike = [slot for slot in usable_slots if slot.ranks == ranks]
        return alike, len({slot.place for slot in alike}) == 1

    def choose(run: str) -> Iterator[Slot]:
        """Yield the slots that the run may have at some time."""
        alike, has_one_place = alike_slots(worlds.get(run, max(WORLD_SIZES)))
        for slot in alike:
            if _was_out_of_memory(states[run]):
                if slot.place not in busy:
                    yield slot
            elif has_one_place or run not in places.lost.get(slot.place, ()):
                yield slot

    if worlds:  # else they are many, and as they should be
        pending = sorted(pending, key=lambda run: -worlds.get(run, 1))
    fresh_runs = (run for run in pending if not _was_out_of_memory(states[run]))
    oom_runs = (run for run in pending if _was_out_of_memory(states[run]))
    for run in itertools.chain(fresh_runs, oom_runs):
        candidates = []
        fit = None
        for slot in choose(run):
            if slot.name in free:
                fit = slot
                break
            candidates.append(slot)
        if fit is not None:
            if _was_out_of_memory(states[run]):
                fit = replace(fit, share=1.0)  # alone on its place, it has all of the memory
            return run, fit
        if candidates:
            group = min(candidates, key=lambda slot: len(slot.takes & taken_devices))
            free = {name: s for name, s in free.items() if s.takes.isdisjoint(group.takes)}
    return None


def _was_out_of_memory(state: RunState) -> bool:
    return state.status == "oom"
