"""The folder of a store: runs, plans, the ledger's file, looks, caches.

`Liveness` is the only access to workers: it says whether a run's worker is alive and what it notes
about itself, and it stops it. The answer comes from whoever can know it. For a worker on this host
that is the lock of the run's folder, which the kernel releases when the worker dies. For an attempt
on another host, which the `started` event and the link to its folder name, it is the pilot that
holds the attempt. A launcher answers for its own workers and `Store.liveness` for all others: a
driver asks it about workers that it adopts, and readers ask it about every worker.

Used by `store/store.py`, whose `Store` is a `StoreFolder`; `HostLock` also by `running/launchers/`
and `running/driver_lock.py`. Files of a new kind that may become useless also need `store/gc.py`,
which removes them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ablate.planning import Plan, sweep_file_name
from ablate.run import ATTEMPTS_FOLDER, RUNS_FOLDER, RunDir
from ablate.shared import (
    Failure,
    Lock,
    Notes,
    UserError,
    make_folder,
    read_file,
    read_hashed,
    read_json,
    to_json,
    write_whole,
)
from ablate.store.events import Look, is_id
from ablate.store.looks import is_look
from ablate.store.pilots import Pilots, beats_elsewhere, is_fresh

# What to do about a plan that can't be read, or was edited.
STOP_MARK = "ABLATE_STOP_MARK"  # see `StoreFolder.handed_on`
WRITES_AGAIN = "the same `ablate sweep` or import writes it again"


class Liveness(Protocol):
    """The interface to the workers of runs. `tests/launcher_contract.py` tests every launcher by
    it."""

    def alive(self, run: RunDir) -> bool:
        """Return whether the run has a living worker.

        On this host, True only while the worker lives, and False only once it is gone. On another
        host, also False once the worker was given up for dead: what it still writes is never read.
        """

    def notes(self, run: RunDir) -> Notes:
        """Return the notes of the run's worker about itself: pid, slot, phase, step, total.

        The notes of the last worker stay after its end and then also say how it ended (exit,
        error). The notes are empty if their file is not whole.
        """

    def stop(self, run: RunDir, now: bool = False) -> None:
        """Ask the run's worker, if one lives, to save a checkpoint and stop; with `now`, kill
        it."""


class HostLock:
    """The liveness of workers on this host: the kernel releases a run's lock when its worker dies.

    Where locks don't reach other hosts, a worker that noted another host is taken for dead once its
    notes are a minute old. Until then nobody else may write into its folder.
    """

    @functools.cached_property
    def _asked_pids(self) -> dict[str, int | None]:
        """Map of runs to the process that was asked to stop.

        Each process is asked only once: a second signal may reach another handler than the first.
        """
        return {}

    def alive(self, run: RunDir) -> bool:
        return run.lock.is_held() or self._noted_elsewhere(run)

    def notes(self, run: RunDir) -> Notes:
        return run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        if self.host(run) is None:  # the number of a process there is another one's here
            if now:
                run.lock.signal(signal.SIGKILL)
            elif (pid := run.lock.notes().pid) != self._asked_pids.get(
                run.id
            ) and run.lock.is_held():
                run.ask_to_stop()
                if run.lock.signal(signal.SIGTERM):
                    self._asked_pids[run.id] = pid

    def host(self, run: RunDir) -> str | None:
        """Return the host that the run's last worker noted; None if it is this host or was not
        noted."""
        host = run.lock.notes().host
        return None if host == platform.node() else host

    def _noted_elsewhere(self, run: RunDir) -> bool:
        if not is_fresh(run.lock.path) or self.host(run) is None:
            return False
        return run.lock.notes().exit is None and not run.has_result()


class WhoCanKnow:
    """The liveness of any run of a store, answered by `HostLock` or, for remote attempts, by
    `Pilots`."""

    def __init__(self, pilots: Path) -> None:
        self._host_lock, self._elsewhere = HostLock(), Pilots(pilots)

    def alive(self, run: RunDir) -> bool:
        return self._liveness_of(run).alive(run)

    def notes(self, run: RunDir) -> Notes:
        return self._liveness_of(run).notes(run)

    def stop(self, run: RunDir, now: bool = False) -> None:
        self._liveness_of(run).stop(run, now)

    def _liveness_of(self, run: RunDir) -> Liveness:
        return self._host_lock if run.attempt is None else self._elsewhere


@dataclass(frozen=True)
class SubmittedDriver:
    """A job that is to drive a sweep, and may still wait in its queue. `cancel`: the command that
    removes it from there."""

    sweep: str
    job: str
    cancel: str


class StoreFolder:
    """The paths of everything in a store. Only this class knows the names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / RUNS_FOLDER
        self.attempts = root / ATTEMPTS_FOLDER  # of attempts off the driver's host
        self.pilots = root / "pilots"  # what trains these attempts, and its orders
        self.ledger = root / "ledger.db"
        self.driver = Lock(root / "driver.lock")
        self._stop = root / "stop.json"  # asks the driver to
        self._stop_starting = root / "stop-starting.jsonl"  # asks drivers without the lock yet to
        self._submitted = root / "submitted.json"  # which job is to drive a sweep
        self._orders = root / "orders"  # of `ablate run`, until a driver has obeyed them
        # Of its runs' workers, whoever started them.
        self.liveness: Liveness = WhoCanKnow(self.pilots)
        self.looks = root / "looks.jsonl"
        self.cache = root / "cache"
        self.studies = root / "studies"  # searches, for optuna-dashboard
        self.trash = root / "trash"  # removed by one rename, then file by file
        self.damaged = root / "damaged"  # runs that `--retry damaged` put aside
        self.reruns = root / "reruns"  # runs trained a second time, to compare bits
        self.rerunning = Lock(root / "rerun.lock")  # held by whoever does so
        self.diffs = root / "diffs"  # what was not committed when a sweep was driven
        self.streams = root / "streams"  # of proposals, a file of sealed events each
        self.code = root / "code"  # copies of the code of streams, by content

    def command(self, command: str, *words: str, label: str = "") -> str:
        """Return the shell command `ablate COMMAND LABEL WORDS` for this store, with --store where
        it is needed. A `label` that begins with a dash comes last, behind --: it is no option."""
        options = [*words, *self.option]
        if label.startswith("-"):
            return shlex.join(["ablate", command, *options, "--", label])
        return shlex.join(["ablate", command, *([label] if label else []), *options])

    @property
    def repair_remedy(self) -> str:
        """The remedy for a ledger of which rows were changed or removed."""
        return f"`{self.command('doctor', '--repair')}` rebuilds the ledger"

    @staticmethod
    def default_root() -> Path:
        """Return the folder of the store where none is named: $ABLATE_STORE, or ./runs where that
        is not set or empty."""
        return Path(os.environ.get("ABLATE_STORE") or "runs")

    @property
    def option(self) -> tuple[str, ...]:
        """The words that name this store to a command: () where it needs none."""
        return () if self.root == self.default_root() else ("--store", str(self.root))

    @property
    def is_bundle(self) -> bool:
        """Return whether `ablate export` wrote the folder: see `ablate.audit.bundle`."""
        match read_json(self.root / "environment.json"):
            case {"bundle": int()}:
                return True
        return False

    def refuse_bundle(self) -> None:
        """Raise UserError for the folder of a bundle, whose files are those of its manifest."""
        if self.is_bundle:
            raise UserError(f"{self.root}: is a bundle, which nothing is added to; name a store")

    def rundir(self, run: str) -> RunDir:
        if not is_id(run):
            raise ValueError(f"not a run id: {run!r}")
        return RunDir(self.runs / run)

    def folders(self) -> set[str]:
        """Return the ids of all runs that have a folder, by listing one directory."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return {name for name in os.listdir(self.runs) if name.isalnum()}
        return set()

    def take_turn(self, wait_s: float = 0.0) -> bool:
        """Acquire the driver's lock; return whether this process may drive now.

        False if the lock is held, or if a driver on another host, which locks may not reach, still
        beats. `wait_s`: seconds to wait for either.
        """
        if not self.driver.acquire(wait_s):
            return False
        if not beats_elsewhere(self.root):
            return True
        self.driver.release()
        time.sleep(wait_s)
        return False

    def driven_here(self) -> bool:
        """Return whether the process that is noted as the driver runs on this host."""
        return self.driver.notes().host in (None, platform.node())

    def ask_to_stop(self) -> bool:
        """Ask the driver to stop: by a signal to a process of ours on this host, otherwise by a
        file that it reads while it trains.

        Returns False if the driver can't receive the signal yet. Raises PermissionError where the
        file can't be written either.
        """
        if self.driven_here():
            with contextlib.suppress(PermissionError):  # of another user's process
                return self.driver.signal(signal.SIGTERM)
        write_whole(self._stop, to_json(self.driver.notes().tree()))
        return True

    def asked_to_stop(self) -> bool:
        """Return whether another host or user has asked this driver to stop. Only the driver calls
        it.

        The file that asks is removed. It counts only if it names the notes of this driver.
        """
        request = self._stop.exists() and read_json(self._stop)
        if request:
            self._stop.unlink()
        return bool(request) and Notes.from_tree(request) == self.driver.notes()

    # Drivers that have begun and do not hold the lock yet get no signal: nobody knows them. A line
    # is left for them. A driver counts the bytes when it begins, and what follows them is for it:
    # no clock of any host decides.

    def stop_mark(self) -> int:
        """Return the size that the file of orders to drivers that are starting had when this
        command began: now, or what the command that started this one handed on."""
        return int(os.environ.pop(STOP_MARK, self._stop_size()))

    def handed_on(self, mark: int) -> dict[str, str]:
        """Return the variable that hands a `stop_mark` on to a driver in the background."""
        return {STOP_MARK: str(mark)}

    def _stop_size(self) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self._stop_starting.stat().st_size
        return 0

    def stop_starting(self, sweep: str | None) -> None:
        """Ask the drivers of a sweep, or all, that have begun and do not hold the lock yet to stop
        before their first run. Does nothing where nobody has driven a sweep or submitted one."""
        if self.ledger.exists() or self._submitted.exists():
            with open(self._stop_starting, "ab") as file:
                file.write(_stop_line(sweep))

    def start_was_stopped(self, mark: int, sweep: str) -> bool:
        """Return whether the driver of a sweep, which began when `stop_mark` was `mark`, was asked
        to stop since. Only the holder of the driver's lock calls it."""
        orders = read_file(self._stop_starting)[mark:] if self._stop_size() > mark else b""
        return any(line in orders for line in map(_stop_line, (None, sweep)))

    def note_submitted(self, sweep: str, job: str, cancel: str) -> None:
        """Note a job that is to drive a sweep, until it holds the driver's lock."""
        write_whole(self._submitted, to_json({"sweep": sweep, "job": job, "cancel": cancel}))

    def submitted_driver(self) -> SubmittedDriver | None:
        """Return the job that was submitted last and has not driven its sweep yet."""
        match read_json(self._submitted):
            case {"sweep": str(sweep), "job": str(job), "cancel": str(cancel)}:
                return SubmittedDriver(sweep, job, cancel)
        return None

    def forget_submitted(self, sweep: str) -> None:
        """Forget the job that is to drive a sweep: somebody drives it, or it was stopped."""
        submitted = self.submitted_driver()
        if submitted is not None and submitted.sweep == sweep:
            self._submitted.unlink(missing_ok=True)

    def order(self, verb: str, runs: Sequence[str]) -> Path:
        """Leave an order for the store's driver; return its file, which is removed once it is
        obeyed."""
        make_folder(self._orders)
        path = self._orders / f"{time.time_ns():020}-{os.getpid()}.json"
        write_whole(path, to_json({"order": verb, "runs": list(runs)}))
        return path

    def orders(self) -> Iterator[tuple[str, list[str], Path]]:
        """Yield (order, runs, file) of every order, the oldest first. Remove files that are no
        orders."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(self._orders)):
                if name.startswith("."):  # not whole yet
                    continue
                match read_json(self._orders / name):
                    case {"order": str(what), "runs": [*runs]} if all(map(is_id, runs)):
                        yield what, runs, self._orders / name
                    case _:
                        (self._orders / name).unlink(missing_ok=True)

    def plan_path(self, name: str) -> Path:
        return self.root / "sweeps" / f"{sweep_file_name(name)}.json"

    def plan_stamp(self, name: str) -> tuple[int, int] | None:
        """Return a stamp that changes when the plan is written again; None where there is no
        plan."""
        try:
            file_stat = self.plan_path(name).stat()
        except FileNotFoundError:
            return None
        return file_stat.st_ino, file_stat.st_mtime_ns

    def plans(self) -> list[Path]:
        """List the files of all plans, the last driven first."""
        paths = (self.root / "sweeps").glob("*.json")
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)

    def write_plan(self, plan: Plan) -> None:
        """Write the file of a plan.

        Raises Failure for a plan that nobody could read again, before anything is written, and
        where the file then differs from what was written.
        """
        path, content = self.plan_path(plan.name), plan.readable_bytes()
        make_folder(path.parent)
        write_whole(path, content)
        if read_file(path) != content:
            raise Failure(f"{path}: is not what was written; is the disk sound?")

    def read_plan(self, name: str) -> Plan | None:
        """Read the plan file without checking its seal; None where it is missing or torn.

        Raises Failure for other JSON. Use `Ledger.sealed_plan` to compute with a plan: only a
        caller that writes the plan again may rely on this one.
        """
        return self.hashed_plan(name)[0]

    def hashed_plan(self, name: str) -> tuple[Plan | None, str]:
        """Read the plan as `read_plan` does; return it with the sha256 of the file it was read
        from."""
        path = self.plan_path(name)
        tree, sha256 = read_hashed(path)
        try:
            return Plan.from_tree(tree) if tree is not None else None, sha256
        except ValueError as error:
            raise Failure(f"{path}: {error}; {WRITES_AGAIN}") from error

    def looks_view(self) -> list[Look]:
        """Read the looks from `looks.jsonl`. Lines that are no whole look are skipped."""
        try:
            lines = read_file(self.looks).split(b"\n")
        except FileNotFoundError:
            return []
        looks = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                looks.append(json.loads(line))
        return [look for look in looks if is_look(look)]


def _stop_line(sweep: str | None) -> bytes:
    return json.dumps({"sweep": sweep}).encode() + b"\n"
