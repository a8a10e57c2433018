"""The disk of the store that is driven: whether it is full, and whether the store is still there.

A full disk pauses a sweep, and costs no attempt. A store that was removed, moved or replaced ends
the sweep.

Used by `ablate sweep`, before it starts (cli/driving.py, api/nouns.py) and while it trains
(running/driver.py, running/board.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from ablate.running.view import View
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    NoRoom,
    file_identity,
)
from ablate.store import Store

# A full disk has room again when it has so much, and room for checkpoints: little at first, since a
# quota may be small, then each time twice as much, up to the most.
SPARE_BYTES, MOST_SPARE_BYTES = 1 << 20, 64 << 20
ROOM_AGAIN = "the disk has room again; the sweep goes on"


class Disk:
    """A watch on the disk of a store during a drive. `waiting`: the message about a full disk."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self.waiting: str | None = None
        self._store, self._say = store, say
        self._spare = SPARE_BYTES
        self._probed_at = 0.0
        self._ledger = file_identity(store.ledger)

    def ran_out(self) -> None:
        if self.waiting is None:
            self.waiting = full(self._store)
            self._say(self.waiting)

    def lacks(self, runs: Iterable[str]) -> bool:
        """Return whether the disk is still full. Tries at most once a second, with the size of
        checkpoints of `runs`."""
        if self.waiting and time.monotonic() - self._probed_at > 1:
            self._probed_at = time.monotonic()
            if self._has_room(runs):
                self.waiting = None
                self._spare = min(2 * self._spare, MOST_SPARE_BYTES)
                self._say(ROOM_AGAIN)
        return self.waiting is not None

    def has_room_now(self) -> bool:
        """Return whether the small files of a driver fit, and begin to wait where they don't."""
        if not self._has_room(()):
            self.ran_out()
        return self.waiting is None

    def is_plenty(self, runs: Iterable[str]) -> bool:
        """Return whether the disk surely has room, after it has had room again several times: then
        it is another disk that is full."""
        return self._spare == MOST_SPARE_BYTES and not self.waiting and self._has_room(runs)

    def _has_room(self, runs: Iterable[str]) -> bool:
        largest_size = 0  # of the runs' newest checkpoints
        for run in runs:
            for _, path in self._store.rundir(run).checkpoints()[:1]:
                with contextlib.suppress(FileNotFoundError):  # its run has ended this moment
                    largest_size = max(largest_size, path.stat().st_size)
        return has_room(self._store.root, self._spare + 2 * largest_size)

    def has_store(self) -> bool:
        """Return whether ledger and lock of the store are the files that the drive began with."""
        if self._ledger is None or file_identity(self._store.ledger) != self._ledger:
            return False
        return self._store.driver.is_in_place()

    def check_store(self) -> None:
        """Raise Failure where the store is not the one that the drive began with. Called in each
        round, before anything is written."""
        if not self.has_store():
            raise Failure(
                f"{self._store.root}: was removed, moved or replaced while it was driven, so the "
                f"sweep has stopped; where the store is now, the same command goes on"
            )


def await_disk_room(store: Store, view: Callable[[], AbstractContextManager[View]]) -> None:
    """Wait until the first files of a driver (notes, ledger, plan) fit on the disk."""
    folder = _existing(store.root)
    if not has_room(folder, SPARE_BYTES):
        with view() as watching:
            watching.say(full(store))
            while not has_room(folder, SPARE_BYTES):
                time.sleep(1)
            watching.say(ROOM_AGAIN)


def retry_on_full_disk(store: Store, say: Callable[[str], None], work: Callable[[], None]) -> None:
    """Call `work` until the store's disk has room for it.

    Raises NoRoom if another disk is full.
    """
    while True:
        try:
            return work()
        except NoRoom as error:
            folder, size = _existing(store.cache), error.bytes_needed + SPARE_BYTES
            if not error.bytes_needed and _is_free(folder, size):
                raise
            say(f"{error}; free some space, and the sweep goes on")
        while not _is_free(folder, size):
            time.sleep(1)
        say(ROOM_AGAIN)


def full(store: Store) -> str:
    """Return the message about a full disk."""
    return f"the disk of {store.root} is full; free some space, and the sweep goes on"


def has_room(folder: Path, size: int) -> bool:
    """Return whether `size` bytes can be written in the folder. Tries it, since free space does not
    show a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in DISK_FULL_ERRORS:
            raise
        return False
    return True


def _is_free(folder: Path, size: int) -> bool:
    """Return whether `size` bytes can be written. Checks free space first: `has_room` would fill a
    smaller disk for a moment."""
    return shutil.disk_usage(folder).free >= size and has_room(folder, size)


def _existing(folder: Path) -> Path:
    """Return the folder, or the first existing folder above it."""
    return next(f for f in (folder, *folder.absolute().parents) if f.is_dir())
