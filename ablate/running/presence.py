"""Is the store that is driven still there? It may be removed, moved or replaced meanwhile."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ablate.running.launchers import Launcher
from ablate.running.working import Working
from ablate.shared.errors import Failure
from ablate.shared.files import identity
from ablate.store.store import Store

END_S = 10.0  # for killed workers to end


class Presence:
    """Of a drive's store: ledger and lock are the files that the drive began with."""

    def __init__(self, store: Store, launcher: Launcher) -> None:
        self._store, self._launcher = store, launcher
        self._ledger = identity(store.ledger)

    def check(self) -> None:
        """Raises Failure where they are not. At each beat, before anything is written."""
        if not self._is_here():
            raise Failure(
                f"{self._store.root}: was removed, moved or replaced while it was driven, so the "
                f"sweep has stopped; where the store is now, the same command goes on"
            )

    @contextmanager
    def kept(self, working: Mapping[str, Working]) -> Iterator[None]:
        """Whatever a `with` block fails with is told as such a loss where it is one. Then the
        workers are killed: what they would write belongs to nobody, or to another store."""
        try:
            self.check()
            yield
        except (Failure, OSError, sqlite3.Error) as error:
            if self._is_here():
                raise
            left = set(working)
            for worker in working.values():
                with contextlib.suppress(OSError):
                    worker.stop(now=True)
            until = time.monotonic() + END_S
            while left and not self._launcher.remote and time.monotonic() < until:
                left -= self._launcher.poll(0.2).keys()
                left -= {run for run in left if not working[run].child}
            try:
                self.check()
            except Failure as lost:
                raise lost from error

    def _is_here(self) -> bool:
        here = self._ledger is not None and identity(self._store.ledger) == self._ledger
        return here and self._store.driver.is_in_place()
