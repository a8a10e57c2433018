"""A full disk pauses a sweep, and costs it nothing."""

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
ROOM_AGAIN = "there is room again: the sweep goes on"


class Room:
    """Has the store's disk room for more? `waiting`: what was said when it had none."""

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
        """Is the disk still full? Tried once a second, with what checkpoints of `runs` take."""
        if self.waiting and time.monotonic() - self._probed_at > 1:
            self._probed_at = time.monotonic()
            newest = (self._store.rundir(run).checkpoints()[:1] for run in runs)
            size = max((path.stat().st_size for found in newest for _, path in found), default=0)
            if has_room(self._store.root, self._spare + 2 * size):
                self.waiting = None
                self._spare = min(2 * self._spare, MOST_SPARE_BYTES)
                self._say(ROOM_AGAIN)
        return self.waiting is not None


def full(store: Store) -> str:
    """What is said while nothing can be written."""
    return f"the disk of {store.root} is full: make space, the sweep goes on"


def has_room(folder: Path, size: int) -> bool:
    """Can `size` bytes be written there? Tried, since a quota is not seen in what is free."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True
