"""Where the workers of a drive write: in the folders of runs, or each attempt in one of its own.

An attempt on another host can be given up for dead and write on: see `ablate.store.attempts`. The
`started` event names the attempt, so that a later driver knows which one counts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ablate.shared.rundir import RunDir
from ablate.store import attempts
from ablate.store.ledger import Ledger
from ablate.store.store import Store


class Folders:
    """Those of a drive. `remote`: its workers are on other hosts."""

    def __init__(self, store: Store, ledger: Ledger, remote: bool) -> None:
        self._store, self._ledger, self._remote = store, ledger, remote
        self._starts: dict[str, int] = {}  # how often each run was started
        self._numbers: dict[str, int] = {}  # of the attempt that is about to start
        self._before: dict[str, str | None] = {}  # the attempt that the newest one goes on from
        self._told: set[str] = set()  # attempts that have surely ended

    def add(self, runs: Collection[str]) -> None:
        """Take runs on as their last driver left them."""
        for run, (count, attempt) in self._ledger.starts(runs).items():
            self._starts[run] = count
            if attempt is not None:
                attempts.appoint(self._store, run, attempt)

    def begin(self, run: str) -> tuple[RunDir, dict[str, Any]]:
        """The folder of a new attempt, and what the `started` event says of it."""
        self._before[run] = self._store.rundir(run).attempt
        if not self._remote:
            attempts.bring_home(self._store, run)
            return self._store.rundir(run), {}
        folder, number = attempts.fork(self._store, run, self._starts.get(run, 0) + 1)
        self._numbers[run] = number
        return folder, {"attempt": number}

    def began(self, run: str) -> None:
        """The ledger names the attempt now."""
        self._starts[run] = self._starts.get(run, 0) + 1
        if self._remote:
            attempts.appoint(self._store, run, self._numbers[run])
        if self._before[run] in self._told:
            attempts.forget(self._store, self._before[run])

    def ended(self, folder: RunDir) -> None:
        """Its worker has surely ended: it left an exit code."""
        if folder.attempt is not None:
            self._told.add(folder.attempt)

    def result(self, run: str) -> dict[str, Any] | None:
        """Of a run that has ended, as it was recorded. Raises Failure where it was edited."""
        return self._store.result(run, self._ledger.seals([run]).get(run))

    def publish(self, run: str) -> None:
        """The attempt that counts has ended with a result."""
        attempts.publish(self._store, run)
