"""Keeps the states of a drive's runs: read from the ledger, counted, and recorded in it."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Sized
from typing import Any

from ablate.running.room import Room
from ablate.store.events import RunState
from ablate.store.ledger import Ledger


class RunStates:
    """Records every change in the ledger first. `stopping`: signals that were heard."""

    def __init__(self, ledger: Ledger, room: Room, stopping: Sized) -> None:
        self.states: dict[str, RunState] = {}
        self._counts: Counter[str] = Counter()
        self._ledger, self._room, self._stopping = ledger, room, stopping

    @property
    def counts(self) -> dict[str, int]:
        """Count runs by status; kept, since it is read several times a second."""
        return {status: count for status, count in self._counts.items() if count}

    def add(self, runs: Iterable[str]) -> None:
        """Add runs."""
        states = self._ledger.states(runs)
        self.states |= states
        self._counts.update(str(state.status) for state in states.values())

    def record(self, run: str, kind: str, **detail: Any) -> None:
        """Append an event; on a full disk wait until there is room, or a signal."""
        while True:
            try:
                state = self._ledger.record(run, kind, **detail)
                self._counts[self.states[run].status] -= 1
                self._counts[state.status] += 1
                self.states[run] = state
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or self._stopping:
                    raise
                self._room.ran_out()
                time.sleep(1)
