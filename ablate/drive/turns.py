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

from ablate.drive.progress import Progress, View, Working
from ablate.ledger import Ledger, Store
from ablate.plan import Plan
from ablate.spec import UserError

Watching = Callable[[], AbstractContextManager[View]]


@contextlib.contextmanager
def driving(store: Store, sweep: str, view: Watching) -> Iterator[Ledger]:
    """The driver's lock and the open ledger. While another process drives the store, says so and
    shows how far that one is; then it is this one's turn."""
    store.root.mkdir(parents=True, exist_ok=True)
    if not store.driver.acquire(wait_s=0.5):
        with view() as watching:
            _await_turn(store, watching)
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep=sweep)
        with Ledger.driving(store) as ledger:
            yield ledger
    finally:
        store.driver.release()


def _await_turn(store: Store, view: View) -> None:
    who, plan = None, None
    while not store.driver.acquire(wait_s=1.0):
        notes = store.driver.notes()
        if (notes.get("pid"), notes.get("sweep")) != who:
            who = notes.get("pid"), notes.get("sweep")
            plan = store.read_plan(str(who[1]))
            view.say(
                f"process {who[0]} drives {store.root} already: {who[1]}. Watching it; then it is "
                f"this sweep's turn (Ctrl-C leaves that one alone)"
            )
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
    return Progress(len(runs), counts, working)


def stop(store: Store, sweep: str | None) -> str | None:
    """Stop the sweep that is driven, or whose workers a dead driver left; returns its name.

    Returns when its driver and workers are gone, each with a checkpoint; None where nothing runs.
    Raises UserError where another sweep than `sweep` is driven.
    """
    if store.driver.is_held():
        driven = str(store.driver.notes().get("sweep"))
        if sweep not in (None, driven):
            raise UserError(f"{store.root}: {driven!r} is driven now, not {sweep!r}")
        pid = store.driver.notes().get("pid")
        heard = False  # a second signal would kill its workers
        while store.driver.is_held() and store.driver.notes().get("pid") == pid:  # or it is another
            heard = heard or store.driver.signal(signal.SIGTERM)
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
    while any(lock.is_held() for lock in left):
        time.sleep(0.1)
    return plan.name if plan and left else None
