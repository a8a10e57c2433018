"""The folder of a store: runs, plans, the ledger's file, looks, caches.

`Liveness` is the one door to workers: is a run's worker alive, what does it say, and stopping it.
Whoever can know answers: for a worker on this host the lock of its folder, which the kernel frees
when it dies; for an attempt elsewhere, which the `started` event and the link to its folder name,
the pilot that holds it. A launcher answers for the workers of its own, `Store.liveness` for all
others, which is whom drivers ask of workers that they adopt, and readers of every one.
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
from pathlib import Path
from typing import Protocol

from ablate.planning import Plan, sweep_file_name
from ablate.shared import (
    ATTEMPTS_FOLDER,
    RUNS_FOLDER,
    Failure,
    Lock,
    Notes,
    RunDir,
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
WRITES_AGAIN = "the same `ablate sweep` or `ablate import` writes it again"


class Liveness(Protocol):
    """Answers for the workers of runs. `tests/launcher_contract.py` holds every launcher to it."""

    def alive(self, run: RunDir) -> bool:
        """Has the run a worker that lives? On this host true only while it does, false only once it
        is gone. Elsewhere false also where it was given up for dead: what it still writes is never
        read."""

    def notes(self, run: RunDir) -> Notes:
        """What its worker notes of itself: pid, slot, phase, step, total; the last one's stay, with
        how it ended (exit, error). Nothing where the file is not whole."""

    def stop(self, run: RunDir, now: bool = False) -> None:
        """Ask its worker to checkpoint and stop, if one lives; `now`: kill it."""


class HostLock:
    """The answer on this host: the kernel frees a run's lock when the worker that holds it dies.

    Where locks don't reach other hosts, a worker that notes another one is taken for dead once it
    has noted nothing for a minute: until then nobody else may write into its folder.
    """

    @functools.cached_property
    def _asked(self) -> dict[str, int | None]:
        """Map runs to the process that was asked to stop: once, since a second signal may reach
        another handler than the first."""
        return {}

    def alive(self, run: RunDir) -> bool:
        return run.lock.is_held() or self._noted_elsewhere(run)

    def notes(self, run: RunDir) -> Notes:
        return run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        if self.host(run) is None:  # the number of a process there is another one's here
            if now:
                run.lock.signal(signal.SIGKILL)
            elif (pid := run.lock.notes().pid) != self._asked.get(run.id) and run.lock.is_held():
                run.ask_to_stop()
                if run.lock.signal(signal.SIGTERM):
                    self._asked[run.id] = pid

    def host(self, run: RunDir) -> str | None:
        """Of its last worker, None where that is this one."""
        host = run.lock.notes().host
        return None if host == platform.node() else host

    def _noted_elsewhere(self, run: RunDir) -> bool:
        if not is_fresh(run.lock.path) or self.host(run) is None:
            return False
        return run.lock.notes().exit is None and not run.has_result()


class WhoCanKnow:
    """The answer of a store for any run of it."""

    def __init__(self, pilots: Path) -> None:
        self._here, self._elsewhere = HostLock(), Pilots(pilots)

    def alive(self, run: RunDir) -> bool:
        return self._of(run).alive(run)

    def notes(self, run: RunDir) -> Notes:
        return self._of(run).notes(run)

    def stop(self, run: RunDir, now: bool = False) -> None:
        self._of(run).stop(run, now)

    def _of(self, run: RunDir) -> Liveness:
        return self._here if run.attempt is None else self._elsewhere


class StoreFolder:
    """Where everything of a store lies. Only this class knows the names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / RUNS_FOLDER
        self.attempts = root / ATTEMPTS_FOLDER  # of attempts off the driver's host
        self.pilots = root / "pilots"  # what trains these attempts, and what it is told
        self.ledger = root / "ledger.db"
        self.driver = Lock(root / "driver.lock")
        self._stop = root / "stop.json"  # asks the driver to
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

    def command(self, *words: str) -> str:
        """`ablate WORDS` of this store, as a shell takes it."""
        here = self.root == Path(os.environ.get("ABLATE_STORE", "runs"))
        return shlex.join(["ablate", *words, *(() if here else ("--store", str(self.root)))])

    def rundir(self, run: str) -> RunDir:
        if not is_id(run):
            raise ValueError(f"not a run id: {run!r}")
        return RunDir(self.runs / run)

    def folders(self) -> set[str]:
        """The ids of all runs that have a folder: one look, however many there are."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return {name for name in os.listdir(self.runs) if name.isalnum()}
        return set()

    def take_turn(self, wait_s: float = 0.0) -> bool:
        """The driver's lock, and no driver beats on another host, which locks may not reach."""
        if not self.driver.acquire(wait_s):
            return False
        if not beats_elsewhere(self.root):
            return True
        self.driver.release()
        time.sleep(wait_s)
        return False

    def driven_here(self) -> bool:
        """Is whoever noted itself as the driver a process of this host?"""
        return self.driver.notes().host in (None, platform.node())

    def ask_to_stop(self) -> bool:
        """Ask the driver to stop: by a signal on its host, else by a file that it looks for. False
        where it can't hear yet."""
        if self.driven_here():
            return self.driver.signal(signal.SIGTERM)
        write_whole(self._stop, to_json(self.driver.notes().tree()))
        return True

    def asked_to_stop(self) -> bool:
        """For the driver: has another host asked it?"""
        asked = self._stop.exists() and read_json(self._stop)
        if asked:
            self._stop.unlink()
        return bool(asked) and Notes.of(asked) == self.driver.notes()

    def order(self, what: str, runs: Sequence[str]) -> Path:
        """Leave an order for whoever drives the store; its file goes once it is obeyed."""
        make_folder(self._orders)
        path = self._orders / f"{time.time_ns():020}-{os.getpid()}.json"
        write_whole(path, to_json({"order": what, "runs": list(runs)}))
        return path

    def orders(self) -> Iterator[tuple[str, list[str], Path]]:
        """(what, runs, file) of every order, the oldest first. What is no order goes."""
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
        """Another one when the plan has been written again; None where there is none."""
        try:
            found = self.plan_path(name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def plans(self) -> list[Path]:
        """The files of all plans, the last driven first."""
        found = (self.root / "sweeps").glob("*.json")
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)

    def write_plan(self, plan: Plan) -> None:
        """Write the file of a plan. Raises Failure, before anything is written, for a plan that
        nobody could read again, and where the file is not what was written."""
        path, content = self.plan_path(plan.name), plan.readable_bytes()
        make_folder(path.parent)
        write_whole(path, content)
        if read_file(path) != content:
            raise Failure(f"{path}: is not what was written; is the disk sound?")

    def read_plan(self, name: str) -> Plan | None:
        """The plan as it lies there, None where it is missing or torn. Raises Failure for other
        JSON. Whoever goes by it asks `Ledger.sealed_plan`, but for who writes it again."""
        return self.hashed_plan(name)[0]

    def hashed_plan(self, name: str) -> tuple[Plan | None, str]:
        """As `read_plan`, and the sha256 of the file that it was read from."""
        path = self.plan_path(name)
        tree, sha256 = read_hashed(path)
        try:
            return Plan.from_tree(tree) if tree is not None else None, sha256
        except ValueError as error:
            raise Failure(f"{path}: {error}; {WRITES_AGAIN}") from error

    def looks_view(self) -> list[Look]:
        """Every whole line of `looks.jsonl`."""
        try:
            lines = read_file(self.looks).split(b"\n")
        except FileNotFoundError:
            return []
        looks = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                looks.append(json.loads(line))
        return [look for look in looks if is_look(look)]
