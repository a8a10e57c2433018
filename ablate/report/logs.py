"""Prints the log of a run: whole, as it grows, or its end.

What a worker prints stands in log.txt, the lines of all attempts one below the other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection
from typing import BinaryIO

from ablate.report.gate import begin
from ablate.shared.errors import Failure
from ablate.shared.rundir import RunDir
from ablate.store.events import RunState
from ablate.store.find import planned_as
from ablate.store.ledger import Ledger
from ablate.store.progress import driver_of, turn_of_child
from ablate.store.store import Store

LINES, BYTES = 40, 8_000  # of the end of a log
EVERY_S = 0.2


def print_log(store: Store, run: str, out: BinaryIO) -> None:
    """Copy log.txt to `out`. Raises Failure for a run without a log."""
    _copy(store.rundir(run), out, 0)
    _check(store.rundir(run))


def follow_log(store: Store, ledger: Ledger, run: str, out: BinaryIO) -> None:
    """Copy log.txt to `out` as it grows, over all attempts, until the run has ended: it has its
    result or was given up, or nobody trains it and nobody drives a sweep of it.

    Raises Failure for a run that has ended without a log.
    """
    folder, place = store.rundir(run), 0
    sweeps = {sweep for sweep, _ in planned_as(store, ledger, run)}
    goes_on = True
    while goes_on:
        goes_on = _goes_on(store, ledger, run, sweeps)  # its last words are read after it
        place = _copy(folder, out, place)
        if goes_on:
            time.sleep(EVERY_S)
    _check(folder)
    if not folder.has_result() and _may_start(ledger, run):
        begin("it has not ended, and nobody trains it now; the same `ablate sweep` goes on with it")


def tail(folder: RunDir) -> str:
    """The last lines of a run's log."""
    try:
        with open(folder.log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "no log"
    return "\n".join(text.splitlines()[-LINES:]) or "an empty log"


def _copy(folder: RunDir, out: BinaryIO, place: int) -> int:
    """Copy what lies behind `place`, and return the place behind it. An attempt on another host has
    a log of its own, which begins with a copy of the log before it."""
    with contextlib.suppress(FileNotFoundError), open(folder.log, "rb") as file:
        file.seek(min(place, os.fstat(file.fileno()).st_size))
        shutil.copyfileobj(file, out)
        out.flush()
        return file.tell()
    return place


def _goes_on(store: Store, ledger: Ledger, run: str, sweeps: Collection[str]) -> bool:
    """Is the run trained, or will the driver of one of its sweeps start it?"""
    folder = store.rundir(run)
    if store.liveness.alive(folder):
        return True
    driver = driver_of(store)
    if driver is None or driver.sweep not in (None, *sweeps) or folder.has_result():
        return False
    return _may_start(ledger, run)


def _may_start(ledger: Ledger, run: str) -> bool:
    return turn_of_child(ledger.states([run]).get(run, RunState())) == "later"


def _check(folder: RunDir) -> None:
    if not folder.log.exists():
        raise Failure(f"{folder.log}: no log; the run has not begun")
