"""Gives an order of `ablate run` to whoever drives the store, or carries it out."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping

from ablate.running.orders import carry_out, decide
from ablate.running.turns import Waiting
from ablate.shared.errors import UserError
from ablate.store.find import plans
from ablate.store.ledger import Ledger
from ablate.store.progress import driver_of
from ablate.store.store import Store

PATIENCE_S = 2.0  # for a driver at work; one that decodes data answers later


def check(store: Store, ledger: Ledger, order: str, runs: Mapping[str, str]) -> None:
    """Raises UserError where one of the runs can't be ordered so. `runs`: id -> as the user has it.

    A search needs all of its trials, a look all runs of its column: none of these is skipped.
    """
    states = ledger.states(runs)
    for run, label in runs.items():
        if run not in states:
            raise UserError(f"{label}: no sweep has planned this run")
        found = decide(store, ledger, order, run, states[run])
        if found.refused:
            raise UserError(f"{label}: {found.refused}")
    for plan in plans(store, ledger, runs.keys()) if order == "skip" else ():
        needed = plan.design.needed(plan)
        for run in runs.keys() & needed.keys():
            raise UserError(
                f"{runs[run]}: {needed[run]} of {plan.name} needs this run; --cancel stops it for "
                f"now"
            )


def ask(store: Store, order: str, runs: list[str], say: Callable[[str], None]) -> None:
    """Have it done: by the driver, else here in its turn. Returns once the events are recorded, and
    workers that shall stop have stopped."""
    file, since = store.order(order, runs), time.monotonic()
    while file.exists():
        if store.take_turn():
            _obey_here(store)
        elif time.monotonic() - since > PATIENCE_S and (driver := driver_of(store)) is not None:
            since = math.inf
            say(
                f"waiting for process {driver.pid}, which drives {store.root}; after Ctrl-C the "
                f"order stays with it"
            )
        time.sleep(0.05)
    if order == "cancel":
        _await_end(store, runs, say)


def _obey_here(store: Store) -> None:
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep="run")
        with Ledger.driving(store) as ledger:
            for order, runs, file in store.orders():
                for run in runs:
                    carry_out(store, ledger, order, run)
                file.unlink(missing_ok=True)
    finally:
        store.driver.release()


def _await_end(store: Store, runs: list[str], say: Callable[[str], None]) -> None:
    waiting = Waiting(say)
    while alive := [folder for folder in map(store.rundir, runs) if store.liveness.alive(folder)]:
        waiting.on({folder.id: store.liveness.notes(folder).get("pid") for folder in alive})
