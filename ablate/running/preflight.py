"""Before the first run: every device computes something, or is not used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

from ablate.running.gpus import NoAnswer, busy
from ablate.running.launchers import Launcher
from ablate.shared.errors import Failure
from ablate.store.events import RunState
from ablate.store.progress import working
from ablate.store.store import Store


def preflight(launcher: Launcher, held: Collection[str], say: Callable[[str], None]) -> None:
    """Take away the slots whose devices can't run a small kernel, a line on each reason.

    `held`: names of slots on which workers of another driver train still: their devices work, and
    may have no room for more. Raises Failure where no slot is left. Slots on other hosts are tried
    there, as they come.
    """
    if launcher.remote:
        return
    works = {slot.place for slot in launcher.slots if slot.name in held}
    places = {slot.place: slot for slot in launcher.slots if slot.place not in works}
    why = launcher.unfit(list(places.values()))
    lost: dict[str, list[str]] = {}  # by reason
    for place, slot in places.items():
        if slot.name in why:
            lost.setdefault(why[slot.name], []).append(place)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in lost.items()]
    unfit = {name for names in lost.values() for name in names}
    left = [slot for slot in launcher.slots if slot.place not in unfit]
    if not left:
        raise Failure(f"no device can be used: {'; '.join(lines)}")
    for line in lines:
        say(f"not used: {line}")
    launcher.slots = left


def in_use(launcher: Launcher, store: Store, states: Mapping[str, RunState]) -> list[str]:
    """Lines on GPUs that others use."""
    ours = [note.get("pid") for note in working(store, states)]
    with contextlib.suppress(NoAnswer):  # which the launcher's remarks say
        return busy(launcher.devices.gpus, ours)
    return []
