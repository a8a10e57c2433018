"""One driver a store: whose turn it is, looking at another's sweep, and stopping it."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from ablate.planning.plan import Plan
from ablate.running.driver import ROOM_AGAIN, SPARE_BYTES, full, has_room
from ablate.running.progress import Progress, View, Working
from ablate.shared.errors import UserError
from ablate.shared.files import make_folder
from ablate.shared.lock import Lock
from ablate.store.ledger import Ledger, Store

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
            view.show(observe(store, plan))
    view.say("that process has ended")


def observe(store: Store, plan: Plan) -> Progress:
    """How far a sweep is, seen from outside."""
    runs = {run.id: run for run in plan.runs()}
    with Ledger.reading(store) as ledger:
        states = ledger.states(runs)
    working = [
        Working(runs[run], folder, None, child=False, notes=folder.lock.notes())
        for run, state in states.items()
        if state.status == "started" and (folder := store.rundir(run)).lock.is_held()
    ]
    counts = Counter(str(state.status) for state in states.values())
    return Progress(len(runs) + plan.to_come, counts, working)


def stop(store: Store, sweep: str | None, say: Callable[[str], None]) -> str | None:
    """Stop the sweep that is driven, or whose workers a dead driver left; returns its name.

    A process that is frozen hears nothing: that is said, and it is waited for.

    Returns when its driver and workers are gone, each with a checkpoint; None where nothing runs.
    Raises UserError where another sweep than `sweep` is driven.
    """
    if store.driver.is_held():
        driven = str(store.driver.notes().get("sweep"))
        if sweep not in (None, driven):
            raise UserError(f"{store.root}: {driven!r} is driven now, not {sweep!r}")
        pid = store.driver.notes().get("pid")
        frozen = _Frozen(say)
        heard = False  # a second signal would kill its workers
        while store.driver.is_held() and store.driver.notes().get("pid") == pid:  # or it is another
            heard = heard or store.driver.signal(signal.SIGTERM)
            frozen.look(store.driver)
            time.sleep(0.1)
        return driven
    with Ledger.reading(store) as ledger:
        states, names = ledger.states(), ledger.sweeps()
        started = [run for run, state in states.items() if state.status == "started"]
    plan = store.read_plan(sweep or names[0]) if names else None
    mine = {run.id for run in plan.runs()} if plan else set()
    left = [lock for run in started if run in mine and (lock := store.rundir(run).lock).is_held()]
    for lock in left:
        lock.signal(signal.SIGTERM)
    frozen = _Frozen(say)
    while held := [lock for lock in left if lock.is_held()]:
        for lock in held:
            frozen.look(lock)
        time.sleep(0.1)
    return plan.name if plan and left else None


class _Frozen:
    """Says of every process that was stopped (SIGSTOP, Ctrl-Z) how it goes on, once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.said: set[int] = set()

    def look(self, lock: Lock) -> None:
        pid = lock.notes().get("pid")
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
