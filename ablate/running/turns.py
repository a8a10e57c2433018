"""One driver a store: whose turn it is, and stopping a sweep."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from ablate.running.driver import View
from ablate.running.room import ROOM_AGAIN, SPARE_BYTES, full, has_room
from ablate.shared.errors import UserError
from ablate.shared.rundir import make_folder
from ablate.store.ledger import Ledger, Store
from ablate.store.progress import driver_of, observe

Watching = Callable[[], AbstractContextManager[View]]


@contextlib.contextmanager
def driving(store: Store, sweep: str, view: Watching) -> Iterator[Ledger]:
    """The driver's lock and the open ledger. While another process drives the store, says so and
    shows how far that one is; then it is this one's turn."""
    make_folder(store.root)
    if not store.driver.acquire(wait_s=0.5):
        with view() as watching:
            _await_turn(store, watching)
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep=sweep)
        with Ledger.driving(store) as ledger:
            yield ledger
    finally:
        store.driver.release()


def await_room(store: Store, view: Watching) -> None:
    """Return when a driver's first words (its notes, the ledger, the plan) fit on the disk."""
    above = store.root.absolute().parents
    place = next(folder for folder in (store.root, *above) if folder.is_dir())
    if not has_room(place, SPARE_BYTES):
        with view() as watching:
            watching.say(full(store))
            while not has_room(place, SPARE_BYTES):
                time.sleep(1)
            watching.say(ROOM_AGAIN)


def _await_turn(store: Store, view: View) -> None:
    who = None
    while not store.driver.acquire(wait_s=1.0):
        notes = store.driver.notes()
        if (notes.get("pid"), notes.get("sweep")) != who:
            who = notes.get("pid"), notes.get("sweep")
            view.say(
                f"process {who[0]} drives {store.root} already: {who[1]}. Watching it; then it is "
                f"this sweep's turn (Ctrl-C leaves that one alone)"
            )
        plan = store.read_plan(str(notes.get("sweep")))  # each time: a search makes it grow
        if plan is not None:
            with Ledger.reading(store) as ledger:
                view.show(observe(plan, list(plan.runs()), store, ledger))
    view.say("that process has ended")


def stop(store: Store, sweep: str | None, say: Callable[[str], None]) -> str | None:
    """Stop the sweep that is driven, or whose workers a dead driver left; returns its name.

    A process that is frozen hears nothing: that is said, and it is waited for.

    Returns when its driver and workers are gone, each with a checkpoint; None where nothing runs.
    Raises UserError where another sweep than `sweep` is driven.
    """
    if (driver := driver_of(store)) is not None:
        driven = str(driver.sweep)
        if sweep not in (None, driven):
            raise UserError(f"{store.root}: {driven!r} is driven now, not {sweep!r}")
        frozen = _Frozen(say)
        heard = False  # a second signal would kill its workers
        while (now := driver_of(store)) is not None and now.pid == driver.pid:  # or it is another
            heard = heard or store.driver.signal(signal.SIGTERM)
            frozen.look(now.pid)
            time.sleep(0.1)
        return driven
    with Ledger.reading(store) as ledger:
        states, names = ledger.states(), ledger.sweeps()
        started = [run for run, state in states.items() if state.status == "started"]
    plan = store.read_plan(sweep or names[0]) if names else None
    mine = {run.id for run in plan.runs()} if plan else set()
    folders = [store.rundir(run) for run in started if run in mine]
    left = [folder for folder in folders if store.liveness.alive(folder)]
    for folder in left:
        store.liveness.stop(folder)
    frozen = _Frozen(say)
    while alive := [folder for folder in left if store.liveness.alive(folder)]:
        for folder in alive:
            frozen.look(store.liveness.notes(folder).get("pid"))
        time.sleep(0.1)
    return plan.name if plan and left else None


class _Frozen:
    """Says of every process that was stopped (SIGSTOP, Ctrl-Z) how it goes on, once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.said: set[int] = set()

    def look(self, pid: object) -> None:
        if not isinstance(pid, int) or pid in self.said:
            return
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                self.said.add(pid)
                self.say(
                    f"process {pid} is frozen: `kill -CONT {pid}` lets it go on, and stop; Ctrl-C "
                    f"ends the waiting"
                )
