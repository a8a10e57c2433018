"""The lock of a store's driver: waiting for it, holding it, and stopping the process that holds
it.

Used by `ablate sweep` (api/training.py), by `ablate stop` (cli/driving.py), and by commands that
change a store: gc, merge and run --delete (cli/selection.py), doctor --repair, import.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ablate.planning import Plan
from ablate.run import RunDir
from ablate.running.view import View
from ablate.shared import (
    ENDING_SIGNALS,
    Failure,
    TryAgain,
    UserError,
    make_folder,
    noted_signals,
    short_error,
    unknown_value,
)
from ablate.store import HostLock, Ledger, Store, driver_of, observe_progress

DIED = "died without a word: it was killed, or its host went down"


ALONE = ("doctor --repair", "gc", "import", "merge", "run")  # what takes the driver's place


@contextlib.contextmanager
def hold_driver_lock(store: Store, command: str) -> Iterator[None]:
    """Take the driver's turn, for a command. Raises UserError for a bundle, TryAgain if another
    process has the turn."""
    store.refuse_bundle()
    if not store.take_turn(1.0):
        notes = store.driver.notes()
        if notes.sweep in ALONE:
            raise _busy(store, notes.pid, notes.sweep)
        stop = store.command("stop")
        raise TryAgain(
            f"{store.root}: process {notes.pid or '?'} drives this store; `{stop}` stops it"
        )
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep=command)
        yield
    finally:
        store.driver.release()


def _busy(store: Store, pid: object, command: object) -> TryAgain:
    """Return the error for a store in which a command does what no signal may interrupt."""
    activity = f"does `ablate {command}` in this store; wait for its end"
    return TryAgain(f"{store.root}: process {pid or '?'} {activity}")


@contextlib.contextmanager
def driver_session(
    store: Store, sweep: str, view: Callable[[], AbstractContextManager[View]]
) -> Iterator[Ledger]:
    """Take the driver's lock and open the ledger. While another process drives the store, show its
    progress and wait. The end of the drive is noted, for `status`.

    Until the drive listens itself, and after it, SIGTERM and SIGHUP raise KeyboardInterrupt, as
    Ctrl-C does.
    """
    make_folder(store.root)
    with noted_signals(*ENDING_SIGNALS, interrupting=True) as signals:
        if not store.take_turn(0.5):
            with view() as watching:
                _await_turn(store, watching)
        try:
            store.driver.note(pid=os.getpid(), host=platform.node(), sweep=sweep, ended=DIED)
            store.forget_submitted(sweep)
            with Ledger.driving(store) as ledger:
                yield ledger
        except (KeyboardInterrupt, Exception) as error:
            store.driver.note(ended=_end_words(error, signals))
            raise
        finally:
            store.driver.release()


def _end_words(error: BaseException, signals: Sequence[int]) -> str:
    """Return the way in which an error ended a session, in words for `status`. `signals`: those
    that have come; a library that they interrupt may end with any error."""
    if signals or isinstance(error, KeyboardInterrupt):
        number = signal.Signals(next(iter(signals), signal.SIGINT))
        return f"was stopped by {'Ctrl-C' if number == signal.SIGINT else number.name}"
    if getattr(error, "exit_code", None) is not None:  # somebody did not want the sweep
        return ""
    return short_error(f"ended: {error}")


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
    """Stop the driven sweep, or the workers that a dead driver left, and where nobody drives also
    the drivers that are starting. Returns the name of the sweep; None where nothing runs.

    Returns when driver and workers are gone, each with a checkpoint. A frozen process gets no
    signal: `say` gets a line, and the wait goes on. Workers without a driver that were asked before
    are killed. Raises UserError if another sweep than `sweep` is driven or no sweep has the name,
    and Failure where another user's process can't be asked. Raises TryAgain after `timeout_s`; the
    processes then stop later. Raises it at once where `gc`, `merge` or another command of ALONE is
    at work.
    """
    driven_sweep = submitted_sweep = None
    driver = driver_of(store)
    if driver is None:
        submitted_sweep = _stop_starting(store, sweep, say)
        driver = driver_of(store)  # one that took the lock before may not have read that
    if driver is not None:
        driven_sweep = str(driver.sweep)
        if driven_sweep in ALONE and store.read_plan(driven_sweep) is None:  # no sweep of that name
            raise _busy(store, driver.pid, driven_sweep)
        if sweep not in (None, driven_sweep):
            raise UserError(f"{store.root}: {driven_sweep!r} is driven now, not {sweep!r}")
        try:  # a job of its own that still waits would go on with it
            store.stop_starting(driven_sweep)
        except OSError as error:  # of a full disk, or a colleague's file; the driver hears a signal
            say(f"{error.strerror}, so a driver of {driven_sweep} that still waits is not stopped")
        workers = _workers(store, store.read_plan(driven_sweep))
        waiting = Waiting(say, timeout_s)
        heard = False  # a second signal would kill its workers
        while True:
            current = driver_of(store)
            if current is None or current.pid != driver.pid:
                break
            driver_pid = current.pid if store.driven_here() else None
            try:
                heard = heard or store.ask_to_stop()
            except PermissionError:
                raise _foreign(store, "the driver", driver_pid) from None
            waiting.on({"": driver_pid} | _alive(store, workers))
        if current is not None and not heard:  # the notes were those of a driver that is dead
            return stop_driver(store, sweep, say, timeout_s)
        if current is not None or not _alive(store, workers):
            return driven_sweep
        sweep = driven_sweep  # it may have died, and left workers behind
    if submitted_sweep and not store.ledger.exists():
        return submitted_sweep
    with_workers = _sweeps_with_workers(store)
    with Ledger.reading(store) as ledger:
        names = ledger.sweeps()
        name = sweep or next(iter([*with_workers, *names]), "")
        plan = ledger.sealed_plan(store, name) if name in names else None
    workers = _workers(store, plan)
    for label, folder in workers.items():
        is_second = driven_sweep is None and folder.asked_to_stop()
        _stop_worker(store, label, folder, say, now=is_second)
    waiting = Waiting(say, timeout_s)
    while alive := _alive(store, workers):
        waiting.on(alive)
    new_driver = driver_of(store)  # it may have begun meanwhile
    if new_driver is not None and sweep in (None, new_driver.sweep):
        return stop_driver(store, sweep, say, timeout_s)
    if driven_sweep:
        return driven_sweep
    for other in _sweeps_with_workers(store) if sweep is None else ():
        command = store.command("stop", label=other)
        say(f"{other}: workers of a driver that died go on; `{command}` stops them")
    return plan.name if plan is not None and workers else submitted_sweep


def _stop_starting(store: Store, sweep: str | None, say: Callable[[str], None]) -> str | None:
    """Stop the drivers that have begun and do not drive yet. Returns the sweep of the job that was
    to drive one; None where there is none. Raises UserError for a sweep that the store does not
    know: one that is planned for the first time stops without a name."""
    submitted = store.submitted_driver()
    if store.ledger.exists() and sweep is not None:
        with Ledger.reading(store) as ledger:
            names = [*ledger.sweeps(), *([submitted.sweep] if submitted is not None else ())]
        if sweep not in names:
            raise unknown_value("sweep", sweep, names, f"one driven in {store.root}:")
    store.stop_starting(sweep)
    if submitted is None or sweep not in (None, submitted.sweep):
        return None
    say(
        f"job {submitted.job}, which is to drive {submitted.sweep}, will end before its first run; "
        f"`{submitted.cancel}` takes it out of the queue now"
    )
    store.forget_submitted(submitted.sweep)
    return submitted.sweep


def _stop_worker(
    store: Store, label: str, folder: RunDir, say: Callable[[str], None], now: bool
) -> None:
    """Ask a worker without a driver to stop; with `now`, kill it. Raises Failure for a worker of
    another user."""
    pid = store.liveness.notes(folder).pid
    if folder.attempt is None and not _is_here(folder):
        host, command = folder.lock.notes().host, store.command("stop")
        say(f"{label} trains on {host}: `{command}` stops it there")
    elif folder.attempt is None and pid is not None:
        try:  # before its folder says that it was asked, so that its result would not count
            os.kill(pid, 0)
        except PermissionError:
            raise _foreign(store, label, pid) from None
        except ProcessLookupError:
            pass
    store.liveness.stop(folder, now)


def _foreign(store: Store, label: str, pid: object) -> Failure:
    """Return the error for a process of this host that only its own user may ask to stop."""
    try:
        owner = Path(f"/proc/{pid}").owner()
    except (OSError, KeyError):
        owner = "another user"
    stop = store.command("stop")
    return Failure(f"{label}: process {pid} is {owner}'s; ask {owner} for `{stop}`")


def _sweeps_with_workers(store: Store) -> list[str]:
    """List the sweeps that have a run with a living worker, the last driven first."""
    with Ledger.reading(store) as ledger:
        states = ledger.states()
        started_runs = (run for run, state in states.items() if state.status == "started")
        return ledger.sweeps_of(
            run for run in started_runs if store.liveness.alive(store.rundir(run))
        )


def _workers(store: Store, plan: Plan | None) -> dict[str, RunDir]:
    """Return the folders of the runs with a living worker, by label."""
    if plan is None or not store.ledger.exists():
        return {}
    labels = {run.id: run.label for run in plan.runs()}
    with Ledger.reading(store) as ledger:
        states = ledger.states(labels)
    folders = {}
    for run, state in states.items():
        folder = store.rundir(run)
        if state.status == "started" and store.liveness.alive(folder):
            folders[labels[run]] = folder
    return folders


def _alive(store: Store, folders: Mapping[str, RunDir]) -> dict[str, Any]:
    """Return the living workers by label, with their process ids if they are of this host."""
    pids: dict[str, Any] = {}
    for label, folder in folders.items():
        if store.liveness.alive(folder):
            is_local = folder.attempt is None and _is_here(folder)
            pids[label] = store.liveness.notes(folder).pid if is_local else None
    return pids


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
        the driver. Raises TryAgain when the time is over."""
        frozen = {}
        for label, pid in pids.items():
            remedy = _frozen(label, pid)
            if remedy:
                frozen[pid] = remedy
        for pid in frozen.keys() - self._frozen.keys():
            self._say(f"{frozen[pid]}; Ctrl-C ends the waiting")
        self._frozen |= frozen
        if time.monotonic() - self._since >= self._timeout_s:
            survivors = ", ".join(label or "the driver" for label in pids)
            reason = f"asked to stop, but still alive: {survivors}"
            if frozen:
                reason = "; ".join(frozen.values())
            raise TryAgain(f"stop: gave up after {self._timeout_s:g} s: {reason}")
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
