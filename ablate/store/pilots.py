"""The files through which a driver and its pilots communicate, in the store's `pilots/`.

A pilot is a process on another host that holds devices and trains the attempts that it is given.

    pilots/driver.json       the driver: its beat, how many runs wait, whether it is done
    pilots/store.json        the driver: a token, and hashes of the decoded data
    pilots/ID/orders.json    the driver: the attempts that this pilot has, and which shall stop
    pilots/ID/beat.json      the pilot: its beat, its slots, notes of its workers, exit codes
    pilots/ID/stop.json      whoever stops the workers that a dead driver left: as in orders

Each file has one writer, which replaces it by a rename, and contains everything that its writer has
to say: whoever misses one state of it reads the next. Each lies in a folder where its reader
writes, too, since that makes a client of a network file system look again. A driver removes the
folder of a pilot that it gives up for dead; a pilot without a folder kills its workers and ends.

Used by `running/launchers/pilots.py` (the driver's side) and `running/launchers/pilot.py` (the
pilot's). A new entry in one of the files needs both, one to write it and one to read it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.run import META_FILE, RunDir
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    Notes,
    read_json,
    sha256_of,
)

BEAT_S = 2.0  # between two beats
LOOK_S = 0.5  # between two looks at the files of the other side
READS = 20  # of a file that is replaced every time, before that is an error
STALE_S = 60.0  # without a beat, before a driver or a pilot counts as gone

VISIBLE = "give --store a folder that every node sees"

_numbers = itertools.count()


class PilotDir:
    """The folder of one pilot: a process on a cluster's node that trains what it is given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self._orders = path / "orders.json"
        self._beat = path / "beat.json"
        self._stop = path / "stop.json"

    def create(self) -> None:
        self.path.mkdir(parents=True)

    def remove(self) -> None:
        """Remove the folder at once, by a rename, whatever is written there meanwhile.

        If this process dies during that, only a folder named `.ID.gone` is left.
        """
        trash = self.path.with_name(f".{self.id}.gone")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, trash)
        shutil.rmtree(trash, ignore_errors=True)

    def write_beat(self, tree: Mapping[str, Any]) -> None:
        """Write the pilot's beat. Raises FileNotFoundError where the driver has given the pilot
        up."""
        put(self._beat, tree)

    def write_orders(self, tree: Mapping[str, Any]) -> None:
        with contextlib.suppress(FileNotFoundError):  # a pilot that has ended
            put(self._orders, tree)

    def write_stop(self, attempt: str, at_once: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            stops = self.stops()
            stops[attempt] = at_once
            put(self._stop, stops)

    def beat(self) -> dict[str, Any]:
        """Read the pilot's last beat, {} before the first."""
        return read_beat(self._beat)

    def orders(self) -> dict[str, Any]:
        return read_beat(self._orders)

    def stops(self) -> dict[str, bool]:
        """Map each attempt that shall stop to whether it shall stop at once."""
        stops: dict[str, bool] = {}
        stops |= self.orders().get("stop", {})  # by the driver
        stops |= read_beat(self._stop)  # by others, after its death
        return stops

    def is_fresh(self) -> bool:
        """Return whether the pilot's last beat is younger than STALE_S."""
        return is_fresh(self._beat)

    def held_attempts(self) -> dict[str, Notes]:
        """Map each attempt that the pilot was given, and whose end it has not reported, to the
        notes of its worker."""
        beat = self.beat()
        if beat.get("over"):
            return {}
        given_attempts = self.orders().get("runs", {})
        ended_attempts = beat.get("ended", {})
        worker_notes = beat.get("runs", {})
        return {
            attempt: Notes.from_tree(worker_notes.get(attempt))
            for attempt in given_attempts
            if attempt not in ended_attempts
        }


class Pilots:
    """The pilots of a store: the liveness of attempts on other hosts, for every reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._attempts: dict[str, tuple[PilotDir, Notes]] = {}
        self._looked_at = -math.inf

    def pilots(self) -> Iterator[PilotDir]:
        """Yield every pilot that has written a beat."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(self.path)):
                if not name.startswith(".") and (self.path / name / "beat.json").exists():
                    yield PilotDir(self.path / name)

    def alive(self, run: RunDir) -> bool:
        return run.attempt in self._living_attempts()

    def notes(self, run: RunDir) -> Notes:
        """Return the notes of the run's worker, from its pilot's beat while the pilot lives.

        What a worker writes into an open file may reach other hosts late. Without a living pilot,
        or notes in its beat, the notes are those in the run's folder.
        """
        _, notes = self._living_attempts().get(run.attempt or "", (None, Notes()))
        return notes or run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        attempt = run.attempt or ""
        if attempt in self._living_attempts():
            self._attempts[attempt][0].write_stop(attempt, now)

    def _living_attempts(self) -> dict[str, tuple[PilotDir, Notes]]:
        """Map each attempt that a living pilot holds to (pilot, notes of its worker).

        The files are read again after LOOK_S: callers ask once for each of many runs, but the
        answers are in the files of a few pilots.
        """
        if time.monotonic() - self._looked_at > LOOK_S:
            attempts: dict[str, tuple[PilotDir, Notes]] = {}
            for pilot in self.pilots():
                if pilot.is_fresh():
                    for attempt, notes in pilot.held_attempts().items():
                        attempts[attempt] = (pilot, notes)
            self._attempts = attempts
            self._looked_at = time.monotonic()
        return self._attempts


class DriverBeat:
    """The beat of this process as a store's driver, written by a thread while the process works."""

    def __init__(self, root: Path, every_s: float = BEAT_S) -> None:
        self.waiting = 0  # runs without a slot
        self.full: OSError | None = None  # the disk, when the last beat was to be written
        self._root = root
        self._file = root / "pilots" / "driver.json"
        self._every_s = every_s
        self._identity: dict[str, Any] = {"pid": os.getpid(), "host": platform.node()}
        self._beats = 0
        self._broken: Exception | None = None
        self._end_event = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def begin(self) -> None:
        """Write the first beat and start the thread. The process holds the driver's lock, so a
        process that `driver.json` names no longer drives."""
        self._write(is_done=False)
        self._thread.start()

    def check(self) -> None:
        """Raise Failure if another process drives the store by now.

        That happens if this one was silent for so long that it was taken for dead. An error that
        ended the thread is raised, too.
        """
        if self._broken is not None:
            raise self._broken
        beat = read_beat(self._file)
        beat_identity = {key: beat.get(key) for key in self._identity}
        if beat and beat_identity != self._identity:
            raise Failure(
                f"{self._root}: process {beat.get('pid')} of {beat.get('host')} drives this store "
                f"now, which had no sign of this one for {STALE_S:.0f} s; workers go on"
            )

    def end(self) -> bool:
        """Write that this process is done; return False if another process drives the store by
        now."""
        self._end_event.set()
        self._thread.join()
        try:
            self.check()
            self._write(is_done=True)
        except Failure:
            return False
        except FileNotFoundError:  # the store is gone
            pass
        return True

    def _go_on(self) -> None:
        while not self._end_event.wait(self._every_s):
            try:
                self.check()
                self._write(is_done=False)
            except Exception as error:
                self._broken = error
                return

    def _write(self, is_done: bool) -> None:
        self._beats += 1
        self.full = None
        beat = {"beat": self._beats, "waiting": self.waiting, "done": is_done}
        try:
            put(self._file, self._identity | beat)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            self.full = error


def beats_elsewhere(root: Path) -> dict[str, Any]:
    """Return what a living driver on another host wrote in `driver.json`, {} where there is none.

    That driver's lock may not reach this host.
    """
    file = root / "pilots" / "driver.json"
    beat = read_beat(file)
    is_over = beat.get("done")
    is_local = beat.get("host") == platform.node()
    if is_over or is_local or not is_fresh(file):
        return {}
    return beat


def is_fresh(file: Path) -> bool:
    """Return whether a file was written less than STALE_S ago, by this host's clock."""
    with contextlib.suppress(OSError):
        return time.time() - file.stat().st_mtime < STALE_S
    return False


def write_proof(root: Path, token: str) -> None:
    """Write `pilots/store.json`: the token, and the hash of each decoded dataset's META_FILE.

    A node must see the same token and data in order to be used: see `check_proof`.
    """
    data = {meta.parent.name: sha256_of(meta) for meta in root.glob(f"cache/*/{META_FILE}")}
    put(root / "pilots" / "store.json", {"token": token, "data": data})


def store_token(root: Path) -> str | None:
    """Return the store's own token; None before its first pilot."""
    token = read_beat(root / "pilots" / "store.json").get("token")
    return token if isinstance(token, str) else None


def check_proof(root: Path, token: str) -> None:
    """Raise Failure unless this host sees the store with that token, and the store's decoded
    data."""
    proof = read_beat(root / "pilots" / "store.json")
    if proof.get("token") != token:
        raise Failure(f"{platform.node()} does not see the driver's store in {root}; {VISIBLE}")
    for fingerprint, sha256 in proof.get("data", {}).items():
        try:
            is_same = sha256_of(root / "cache" / fingerprint / META_FILE) == sha256
        except OSError:
            is_same = False
        if not is_same:
            raise Failure(
                f"{platform.node()} does not see the data {fingerprint} in {root}/cache; {VISIBLE}"
            )


def put(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all, by a rename.

    It is not forced to the disk, since what counts is in the ledger and in the folders of runs.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{next(_numbers)}")
    try:
        temporary.write_text(json.dumps(tree))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_beat(path: Path) -> dict[str, Any]:
    """Read a JSON object, {} where there is none.

    A file that was replaced on its server during the read (ESTALE on NFS v3) is read again, up to
    READS times: {} would be taken for what its writer says. Raises OSError after that.
    """
    for _ in range(READS):
        try:
            tree = read_json(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            stale = error
        else:
            return tree if isinstance(tree, dict) else {}
    raise stale
