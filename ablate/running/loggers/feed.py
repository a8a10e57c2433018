"""The process of one logger: it reads the folders of a sweep's runs, and hands them on.

It needs nothing of the driver but to know that it is still there: its standard input ends when the
driver has ended, in whichever way. Then it looks once more, and ends.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from ablate.planning.cell import PlannedRun
from ablate.planning.logger import LOGGERS
from ablate.running.loggers.page import Logger, page_of, seal_of
from ablate.shared.files import make_folder
from ablate.shared.lock import Lock
from ablate.store.folder import StoreFolder

EVERY_S = 2.0  # between two looks
OVER_S = 600  # for the rest, once the driver has ended: a service may hang


class Feeder:
    """Of one sweep, to one logger."""

    def __init__(self, store: StoreFolder, sweep: str, logger: Logger) -> None:
        self._store, self._sweep, self._logger = store, sweep, logger
        self._done = dict(logger.done(sweep))
        self._seen: dict[str, int] = {}  # the checkpoint up to which a run was handed on
        self._left: list[PlannedRun] = []  # runs of which something may come
        self._known: set[str] = set()
        self._read = 0

    def turn(self) -> None:
        """Hand on what is new. Raises whatever the service does."""
        self._take_plan()
        begun = self._store.folders()
        self._left = [run for run in self._left if run.id not in begun or not self._over(run)]

    def _over(self, run: PlannedRun) -> bool:
        """Hand on what is new of a run; is it handed on in full?"""
        folder = self._store.rundir(run.id)
        result = folder.read_result()
        step = folder.newest_step() if result is None else None
        if result is None and step in (0, self._seen.get(run.id)):
            return False
        if result is None or self._done.get(run.id) != seal_of(result):
            self._logger.hand_on(page_of(self._sweep, run, folder, result, step))
        self._seen[run.id] = step or 0
        return result is not None

    def _take_plan(self) -> None:
        """The runs that are new in it: a search makes it grow."""
        try:
            at = self._store.plan_path(self._sweep).stat().st_mtime_ns
        except FileNotFoundError:
            return
        if at != self._read and (plan := self._store.read_plan(self._sweep)) is not None:
            self._read = at
            self._left += [run for run in plan.runs() if run.id not in self._known]
            self._known.update(run.id for run in self._left)


def main(told: dict[str, Any]) -> None:
    """Hand on until the driver has ended. One process at a time does so for a logger's folder."""
    os.nice(10)  # trainings go first
    name, folder = told["logger"], Path(told["folder"])
    make_folder(folder)
    lock = Lock(folder / f".{name}.lock")
    over = False
    while not lock.acquire(EVERY_S):
        if _over(0.0):
            raise TimeoutError(f"another process still hands on to {folder}")
    module, _, attribute = LOGGERS[name].path.partition(":")
    make = getattr(importlib.import_module(module), attribute)
    feeder = Feeder(StoreFolder(Path(told["store"])), told["sweep"], make(told["settings"], folder))
    while not over:
        feeder.turn()
        over = _over(EVERY_S)
    signal.alarm(OVER_S)
    feeder.turn()


def _over(wait_s: float) -> bool:
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
