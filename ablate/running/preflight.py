"""The checks before the first run: devices that compute nothing are not used, and runs with
damaged files are put aside, so that they are trained again."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from ablate.planning.cell import PlannedRun
from ablate.running.gpus import NoAnswer, busy
from ablate.running.launchers import Launcher, usable
from ablate.shared.errors import Failure
from ablate.shared.files import make_folder, sync_folder
from ablate.store.events import RunState
from ablate.store.ledger import Ledger
from ablate.store.progress import working
from ablate.store.store import REMEDY, Store


def preflight(launcher: Launcher, held: Collection[str], say: Callable[[str], None]) -> None:
    """Take away the slots whose devices can't run a small kernel, a line on each reason.

    `held`: names of slots on which workers of another driver train still: their devices work, and
    may have no room for more. Raises Failure where no slot is left. Slots on other hosts are tried
    there, as they come.
    """
    if launcher.remote:
        return
    slots = launcher.slots
    works = frozenset[str]().union(*(s.takes | {s.place} for s in slots if s.name in held))
    places = {s.place: s for s in slots if works.isdisjoint(s.takes | {s.place})}
    why = launcher.unfit(list(places.values()))
    unfit = {place: why[slot.name] for place, slot in places.items() if slot.name in why}
    lines = [
        f"{', '.join(place for place in unfit if unfit[place] == reason)}: {reason}"
        for reason in dict.fromkeys(unfit.values())
    ]
    left = usable(slots, unfit)
    if not left:
        raise Failure(f"no device can be used: {'; '.join(lines)}")
    for line in lines:
        say(f"not used: {line}")
    launcher.slots = left


def in_use(launcher: Launcher, store: Store, states: Mapping[str, RunState]) -> list[str]:
    """List a line on each GPU that others use."""
    ours = [note.get("pid") for note in working(store, states)]
    with contextlib.suppress(NoAnswer):  # which the launcher's remarks say
        return busy(launcher.devices.gpus, ours)
    return []


def check_parents(runs: Iterable[PlannedRun], store: Store) -> None:
    """Raise Failure where weights that a run will start from are not those that were trained."""
    left = [run for run in runs if not store.rundir(run.id).has_result()]
    parents = [parent for run in left if (parent := run.parent()) is not None]
    if why := [*store.results(parents, weights=True).withheld.values()]:
        raise Failure(f"other runs start from damaged ones: {'; '.join(why)}; {REMEDY}")


def put_aside(runs: Iterable[PlannedRun], store: Store, ledger: Ledger) -> Iterator[str]:
    """Move the folder of every run that has ended and of which a file is not what it left into
    `damaged/`; yields a line on each. In the driver's turn.

    One rename a run, then the event: after a crash between the two the run's folder is lost, and
    the next driver trains it again as such.
    """
    runs = list(runs)
    every = dict.fromkeys(("curves", "probes", "predictions", "weights"), True)
    for run, why in store.results(runs, **every).withheld.items():
        folder = store.rundir(run)
        if folder.path.is_symlink() or store.liveness.alive(folder):
            continue  # its driver judges an attempt that has not ended
        make_folder(store.damaged)
        places = (store.damaged / f"{run}-{n}" for n in itertools.count(1))
        place = next(place for place in places if not os.path.lexists(place))
        folder.path.rename(place)
        sync_folder(store.damaged)
        sync_folder(store.runs)
        if run in ledger.states([run]):
            ledger.record(run, "interrupted", reason=why)
        yield f"put aside: {why}; its folder is {place} now"
