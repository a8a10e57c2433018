"""Chooses the next run and its slot: pure functions, beside `next_step`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from ablate.running.launchers import Slot
from ablate.running.places import Lost
from ablate.store.events import RunState


def assign(
    pending: Sequence[str],
    working: Mapping[str, Slot | None],
    slots: Sequence[Slot],
    states: Mapping[str, RunState],
    lost: Lost,
    retired: Collection[str],
    wanted: Sequence[str] = (),
) -> tuple[str, Slot] | None:
    """Return the first run that fits on a slot, and the slot; None if none fits now.

    `pending`: runs in their order, but those that were out of memory come last, each alone on its
    place. `working`: the slot of every run that has a worker; None: one that `slots` lack, which
    takes the room of one that they have. A run that lost its device goes elsewhere, if there is
    somewhere else; on a place in `retired` nothing starts. `wanted`: runs that come before others,
    in this order.
    """
    held = [slot for slot in working.values() if slot is not None]
    taken = {slot.name for slot in held}
    busy = {slot.place for slot in held}
    alone = {slot.place for run, slot in working.items() if slot is not None and states[run].oom}
    free = [s for s in slots if s.name not in taken and s.place not in {*alone, *retired}]
    if len(free) <= len(working) - len(held):
        return None
    left = {slot.place for slot in slots}.difference(retired)

    def fits(run: str, slot: Slot) -> bool:
        if _was_out_of_memory(states[run]):
            return slot.place not in busy
        return run not in lost.get(slot.place, ()) or left == {slot.place}

    if wanted:
        place = {run: number for number, run in enumerate(wanted)}
        pending = sorted(pending, key=lambda run: place.get(run, len(place)))
    first = (run for run in pending if not _was_out_of_memory(states[run]))
    last = (run for run in pending if _was_out_of_memory(states[run]))
    for run in itertools.chain(first, last):
        for slot in free:
            if fits(run, slot):
                return run, slot
    return None


def _was_out_of_memory(state: RunState) -> bool:
    return state.status == "oom"
