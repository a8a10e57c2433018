"""A store: its folder, read and written through its ledger.

Used by all rooms above the store. The names of its files are in `store/folder.py`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
from collections.abc import Iterable
from typing import Any, NamedTuple

from ablate.planning import Plan, PlannedRun
from ablate.run import IMPORT_EVENT
from ablate.shared import Failure
from ablate.store.events import Look
from ablate.store.folder import StoreFolder
from ablate.store.ledger import Ledger, Unrecorded, connect_ledger
from ablate.store.pilots import beats_elsewhere

# For edited files of a run that ablate trained, and of one that was imported.
RETRY_REMEDY = "`ablate sweep ... --retry damaged` trains it again"
IMPORT_REMEDY = "the same import writes it again"


def retry_remedy(plan: Plan) -> str:
    """Return the remedy for edited files of a run: the command that trains or imports the run
    again."""
    return RETRY_REMEDY if plan.design.trains else IMPORT_REMEDY


class CheckedResults(NamedTuple):
    """Results by run, and the reasons why some are withheld.

    `results`: the result of each run, None where there is none. `withheld`: for each run of which a
    file is not the one that the run left, a line that names the file.
    """

    results: dict[str, dict[str, Any] | None]
    withheld: dict[str, str]


class Store(StoreFolder):
    """A store: its folder, and what its ledger says of it."""

    def seals(self) -> dict[str, str]:
        """Return the recorded hash of every result, by run."""
        if not self.ledger.exists() and not self.plans():
            return {}
        with Ledger.reading(self) as ledger:
            return ledger.seals()

    def results(
        self,
        runs: Iterable[PlannedRun],
        curves: bool = False,
        probes: bool = False,
        predictions: bool = False,
        weights: bool = False,
    ) -> CheckedResults:
        """Return the results of runs; every reader that prints numbers uses this.

        A result is withheld if its file is not the one that was recorded, or if a file that the
        flags name is not the one that the run left.
        """
        seals, sound = self.seals(), CheckedResults({}, {})
        for run in runs:
            if run.id in sound.results:
                continue
            folder = self.rundir(run.id)
            sound.results[run.id], fault = folder.sealed_result(
                seals.get(run.id), curves, probes, predictions, weights
            )
            if fault:
                sound.withheld[run.id] = f"{run.label}: {fault}"
        return sound

    def result(self, run: str, sha256: str | None = None) -> dict[str, Any] | None:
        """Return a run's result for deciding what to train next; None while there is none.

        `sha256`: the recorded hash of the result. Raises Failure where a file is not the one that
        the run left.
        """
        folder = self.rundir(run)
        result, fault = folder.sealed_result(sha256, curves=True)
        if fault:
            raise Failure(f"{fault}, and the choice of the next runs depends on it; {RETRY_REMEDY}")
        return result

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return the lines of the run's metrics file."""
        return self.rundir(run).read_metrics()

    def probe(self, run: str, name: str) -> dict[str, Any] | None:
        """Return what a probe measured in a run, as arrays by name; None where its file is missing
        or torn."""
        return self.rundir(run).read_probe(name)

    def predictions(self, run: str, on: str, sha256: str | None) -> Any:
        """Return a run's predictions as an array of records; None where the run left none.

        `on`: "" for the test set, or the name of a set of `eval.also`. `sha256`: the hash in the
        run's result. Raises Failure for a file with another hash.
        """
        folder = self.rundir(run)
        path = folder.predictions_on(on) if on else folder.predictions
        if not path.exists():
            return None
        if folder.hash_of(path) != sha256:
            imported = (folder.read_result() or {}).get("origin") == IMPORT_EVENT
            remedy = IMPORT_REMEDY if imported else RETRY_REMEDY
            raise Failure(f"{path}: not what the run left; {remedy}")
        return folder.read_table(path)

    def own_values(self, name: str) -> dict[str, dict[str, float]] | None:
        """Return the stored values of a metric of the user's own, by run and set.

        Only a bundle stores them. None here: the metric's function computes them.
        """
        return None

    # --- Looks ----------------------------------------------------------------------------------

    def read_looks(self) -> list[Look]:
        """Return the looks of all sweeps, the oldest first."""
        if not self.ledger.exists() and not self.plans():
            return []
        with Ledger.reading(self) as ledger:
            return ledger.looks()

    def add_look(self, look: Look) -> None:
        """Record a look unless it is recorded already; it is on the disk when this returns.

        Raises Unrecorded where this process can't write the ledger.
        """
        host = self.driver.notes().host or platform.node()
        away = (
            host != platform.node()
        )  # SQLite's locks and shared memory don't reach another machine
        if beats_elsewhere(self.root) or (away and self.driver.is_held()):
            raise Unrecorded(f"{host} drives the store, and only that machine can write the ledger")
        if not os.access(self.root, os.W_OK):
            raise Unrecorded("the store is not writable")
        try:
            inode = None
            while inode != (file := self.ledger.stat().st_ino):  # or it was made again meanwhile
                with contextlib.closing(connect_ledger(self.ledger, "rw")) as connection:
                    connection.execute("PRAGMA synchronous = FULL")
                    Ledger(connection).look(self, look)
                inode = file
        except (sqlite3.OperationalError, OSError) as error:  # read-only, full, locked for long
            raise Unrecorded(str(error)) from error
