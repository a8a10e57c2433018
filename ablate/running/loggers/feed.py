"""The process of one logger: it reads the folders of a sweep's runs, and hands them on.

It only needs to know whether the driver still lives: its standard input ends when the driver has
ended, in whichever way. Then it looks once more, and ends.

Used by running/loggers/__init__.py, which starts it as a process for each logger of an `ablate
sweep`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from ablate.planning import LOGGERS, PlannedRun
from ablate.running.loggers.pages import Logger, page_of, seal_of
from ablate.shared import Lock, make_folder
from ablate.store import StoreFolder

EVERY_S = 2.0  # between two looks
OVER_S = 600  # for the rest, once the driver has ended: a service may hang


class Feeder:
    """A reader of one sweep's runs, which hands them on to one logger."""

    def __init__(self, store: StoreFolder, sweep: str, logger: Logger) -> None:
        self._store, self._sweep, self._logger = store, sweep, logger
        self._seals = dict(logger.seals(sweep))
        self._steps: dict[str, int] = {}  # the checkpoint up to which a run was handed on
        self._runs: dict[str, PlannedRun] = {}
        self._complete: set[str] = set()  # handed on in full
        self._plan_at = 0  # when the plan was written that was read last

    def turn(self) -> None:
        """Hand on what is new. Raises any error of the service."""
        self._read_plan()
        folders = self._store.folders()
        for run in self._runs.values():
            if run.id in folders and run.id not in self._complete and self._hand_on(run):
                self._complete.add(run.id)

    def _hand_on(self, run: PlannedRun) -> bool:
        """Hand on what is new of a run. Returns whether it is handed on in full."""
        folder = self._store.rundir(run.id)
        result = folder.read_result()
        step = folder.newest_step() if result is None else None
        if result is None and step in (0, self._steps.get(run.id)):
            return False
        if result is None or self._seals.get(run.id) != seal_of(result):
            self._logger.hand_on(page_of(self._sweep, run, folder, result, step))
        self._steps[run.id] = step or 0
        return result is not None

    def _read_plan(self) -> None:
        """Add the new runs of the plan, which grows in a search."""
        with suppress(FileNotFoundError):
            stamp = self._store.plan_path(self._sweep).stat().st_mtime_ns
            if stamp != self._plan_at and (plan := self._store.read_plan(self._sweep)) is not None:
                self._plan_at = stamp
                self._runs |= {run.id: run for run in plan.runs()}


def main(request: dict[str, Any]) -> None:
    """Hand on runs until the driver has ended. Only one process at a time does so for a logger's
    folder."""
    os.nice(10)  # trainings go first
    name, folder = request["logger"], Path(request["folder"])
    make_folder(folder)
    lock = Lock(folder / f".{name}.lock")
    while not lock.acquire(EVERY_S):
        if _has_driver_ended(0.0):
            raise TimeoutError(f"{lock.path}: process {lock.notes().pid} still hands on")
    lock.note(pid=os.getpid())
    module, _, attribute = LOGGERS[name].path.partition(":")
    make = getattr(importlib.import_module(module), attribute)
    logger = make(request["settings"], folder)
    feeder = Feeder(StoreFolder(Path(request["store"])), request["sweep"], logger)
    feeder.turn()
    while not _has_driver_ended(EVERY_S):
        feeder.turn()
    signal.alarm(OVER_S)
    feeder.turn()


def _has_driver_ended(wait_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        main(json.loads(sys.stdin.readline()))
    except Exception as error:
        traceback.print_exc()
        line = " ".join(str(error).split()) or "no word"
        print(f"{type(error).__name__}: {line}", file=sys.stderr, flush=True)
        os._exit(1)  # whatever threads of the service still wait for
    os._exit(0)
