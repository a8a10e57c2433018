"""Pauses a sweep on a full disk. The pause costs no attempt."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ablate.shared.files import FULL
from ablate.store.store import Store

# A full disk has room again when it has so much, and room for checkpoints: little at first, since a
# quota may be small, then each time twice as much, up to the most.
SPARE_BYTES, MOST_SPARE_BYTES = 1 << 20, 64 << 20
ROOM_AGAIN = "the disk has room again; the sweep goes on"


class Room:
    """Watches the space on the store's disk. `waiting`: the message about a full disk, or None."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self.waiting: str | None = None
        self._store, self._say = store, say
        self._spare = SPARE_BYTES
        self._probed_at = 0.0

    def ran_out(self) -> None:
        if self.waiting is None:
            self.waiting = full(self._store)
            self._say(self.waiting)

    def lacks(self, runs: Iterable[str]) -> bool:
        """Is the disk still full? Tries once a second, with the size of checkpoints of `runs`."""
        if self.waiting and time.monotonic() - self._probed_at > 1:
            self._probed_at = time.monotonic()
            if self._has_room(runs):
                self.waiting = None
                self._spare = min(2 * self._spare, MOST_SPARE_BYTES)
                self._say(ROOM_AGAIN)
        return self.waiting is not None

    def is_plenty(self, runs: Iterable[str]) -> bool:
        """Has the disk room, as it had again and again? Then what is full is another disk."""
        return self._spare == MOST_SPARE_BYTES and not self.waiting and self._has_room(runs)

    def _has_room(self, runs: Iterable[str]) -> bool:
        newest = (self._store.rundir(run).checkpoints()[:1] for run in runs)
        size = max((path.stat().st_size for found in newest for _, path in found), default=0)
        return has_room(self._store.root, self._spare + 2 * size)


def full(store: Store) -> str:
    """Return the message about a full disk."""
    return f"the disk of {store.root} is full; free some space, and the sweep goes on"


def has_room(folder: Path, size: int) -> bool:
    """Can `size` bytes be written there? Tries it, since free space does not show a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True
