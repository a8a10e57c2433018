"""The lock of a store's driver: waiting for it, holding it, and stopping the process that holds
it."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ablate.planning import Plan
from ablate.running.view import View
from ablate.shared import Failure, RunDir, UserError, make_folder, short_error, unknown_value
from ablate.store import HostLock, Ledger, Store, driver_of, observe_progress

DIED = "died without a word: it was killed, or its host went down"


ALONE = ("doctor --repair", "gc", "import", "merge", "run")  # what takes the driver's place


@contextlib.contextmanager
def hold_driver_lock(store: Store, command: str) -> Iterator[None]:
    """Take the driver's turn, for a command. Raises Failure if another process has it."""
    if not store.take_turn(1.0):
        notes = store.driver.notes()
        pid, sweep = notes.pid or "?", notes.sweep
        activity = "drives this store; `ablate stop` stops it"
        if sweep in ALONE:
            activity = f"does `ablate {sweep}` in this store; wait for its end"
        raise Failure(f"{store.root}: process {pid} {activity}")
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep=command)
        yield
    finally:
        store.driver.release()


@contextlib.contextmanager
def driver_session(
    store: Store, sweep: str, view: Callable[[], AbstractContextManager[View]]
) -> Iterator[Ledger]:
    """Take the driver's lock and open the ledger. While another process drives the store, show its
    progress and wait. The end of the drive is noted, for `status`."""
    make_folder(store.root)
    if not store.take_turn(0.5):
        with view() as watching:
            _await_turn(store, watching)
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep=sweep, ended=DIED)
        with Ledger.driving(store) as ledger:
            yield ledger
    except KeyboardInterrupt:
        store.driver.note(ended="was stopped by Ctrl-C")
        raise
    except Exception as error:
        no = getattr(error, "exit_code", None) == 0  # somebody did not want the sweep
        store.driver.note(ended="" if no else short_error(f"ended: {error}"))
        raise
    finally:
        store.driver.release()


def _await_turn(store: Store, view: View) -> None:
    announced = None
    while not store.take_turn(1.0):
        notes = store.driver.notes()
        if (notes.pid, notes.sweep) != announced:
            announced = notes.pid, notes.sweep
            view.say(
                f"process {announced[0]} drives {store.root} already ({announced[1]}); showing "
                f"its progress until it ends, then this sweep begins (Ctrl-C does not stop "
                f"that process)"
            )
        plan = store.read_plan(str(notes.sweep))  # each time: a search makes it grow
        if plan is not None:
            with Ledger.reading(store) as ledger:
                view.show(observe_progress(plan, list(plan.runs()), store, ledger))
    view.say("the other process has ended")


def stop_driver(
    store: Store, sweep: str | None, say: Callable[[str], None], timeout_s: float = math.inf
) -> str | None:
    """Stop the driven sweep, or the workers that a dead driver left. Returns the name of the sweep;
    None where nothing runs.

    Returns when driver and workers are gone, each with a checkpoint. A frozen process gets no
    signal: `say` gets a line, and the wait goes on. Raises UserError if another sweep than `sweep`
    is driven or no sweep has the name, and Failure after `timeout_s`; the processes then stop
    later.
    """
    driven_sweep = None
    if (driver := driver_of(store)) is not None:
        driven_sweep = str(driver.sweep)
        if sweep not in (None, driven_sweep):
            raise UserError(f"{store.root}: {driven_sweep!r} is driven now, not {sweep!r}")
        workers = _workers(store, store.read_plan(driven_sweep))
        waiting = Waiting(say, timeout_s)
        heard = False  # a second signal would kill its workers
        # until there is none, or another
        while (current := driver_of(store)) is not None and current.pid == driver.pid:
            heard = heard or store.ask_to_stop()
            waiting.on({"": current.pid if store.driven_here() else None} | _alive(store, workers))
        if current is not None and not heard:  # the notes were those of a driver that is dead
            return stop_driver(store, sweep, say, timeout_s)
        if current is not None or not _alive(store, workers):
            return driven_sweep
        sweep = driven_sweep  # it may have died, and left workers behind
    with Ledger.reading(store) as ledger:
        names = ledger.sweeps()
        if sweep is not None and sweep not in names:
            raise unknown_value("sweep", sweep, names, f"one driven in {store.root}:")
        plan = ledger.sealed_plan(store, sweep or names[0]) if names else None
    workers = _workers(store, plan)
    for label, folder in workers.items():
        store.liveness.stop(folder)
        if folder.attempt is None and not _is_here(folder):
            say(f"{label} trains on {folder.lock.notes().host}: `ablate stop` stops it there")
    waiting = Waiting(say, timeout_s)
    while alive := _alive(store, workers):
        waiting.on(alive)
    if (began := driver_of(store)) is not None and sweep in (None, began.sweep):  # meanwhile
        return stop_driver(store, sweep, say, timeout_s)
    return driven_sweep or (plan.name if plan and workers else None)


def _workers(store: Store, plan: Plan | None) -> dict[str, RunDir]:
    """Return the folders of the runs with a living worker, by label."""
    if plan is None or not store.ledger.exists():
        return {}
    runs = {run.id: run.label for run in plan.runs()}
    with Ledger.reading(store) as ledger:
        states = ledger.states(runs)
    started = {runs[run]: store.rundir(run) for run, s in states.items() if s.status == "started"}
    return {label: run for label, run in started.items() if store.liveness.alive(run)}


def _alive(store: Store, folders: Mapping[str, RunDir]) -> dict[str, Any]:
    """Return the living workers by label, with their process ids if they are of this host."""
    liveness = store.liveness
    return {
        label: liveness.notes(run).pid if run.attempt is None and _is_here(run) else None
        for label, run in folders.items()
        if liveness.alive(run)
    }


def _is_here(run: RunDir) -> bool:
    """Return whether the worker, which writes into the run's own folder, is a process of this
    host."""
    return HostLock().host(run) is None


class Waiting:
    """Waits for processes to end. For each frozen process (SIGSTOP, Ctrl-Z) it reports once how to
    resume it."""

    def __init__(self, say: Callable[[str], None], timeout_s: float = math.inf) -> None:
        self._say = say
        self._timeout_s = timeout_s
        self._since = time.monotonic()
        self._frozen: dict[int, str] = {}

    def on(self, pids: Mapping[str, Any]) -> None:
        """Wait a moment for processes. `pids`: the living processes by the label of the run, "" for
        the driver. Raises Failure when the time is over."""
        frozen = {pid: text for label, pid in pids.items() if (text := _frozen(label, pid))}
        for pid in frozen.keys() - self._frozen.keys():
            self._say(f"{frozen[pid]}; Ctrl-C ends the waiting")
        self._frozen |= frozen
        if time.monotonic() - self._since >= self._timeout_s:
            survivors = ", ".join(label or "the driver" for label in pids)
            reason = "; ".join(frozen.values()) or f"asked to stop, but still alive: {survivors}"
            raise Failure(f"stop: gave up after {self._timeout_s:g} s: {reason}")
        time.sleep(0.1)


def _frozen(label: str, pid: object) -> str:
    """Return how to resume a process that is frozen, in words; "" for others."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            owner = f" ({label})" if label else ""
            resumes = f"`kill -CONT {pid}` resumes it, and then it stops"
            return f"process {pid}{owner} is frozen; {resumes}"
    return ""
