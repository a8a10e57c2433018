"""Trains one run at a time in the driver's own process: for debuggers and tests."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.running.launchers import Progress, Slot, worker_options
from ablate.shared.rundir import RunDir
from ablate.store.liveness import HostLock


class Inline(HostLock):
    """`start` returns when the run is done. Everything loads into this process, torch included.

    A signal meanwhile reaches the worker itself, and none of its own is left to stop afterwards.
    """

    def __init__(self, settings: Mapping[str, Any], cache: Path) -> None:
        self.slots = [Slot("inline", "cpu", "cpu")]
        self._settings, self._cache = settings, cache
        self._exits: dict[str, int] = {}

    def warm(self) -> None:
        """Do nothing: torch loads in this process, with the first question or run."""

    def ask(
        self,
        verb: str,
        question: Mapping[str, Any],
        progress: Progress = lambda done, total: None,
    ) -> dict[str, Any]:
        answer: dict[str, Any] = _worker().answer(verb, question, progress)
        return answer

    def start(self, run: RunDir, slot: Slot) -> None:
        worker = _worker()
        options = worker_options(slot, self._settings, self._cache)
        self._exits[run.id] = worker.work(str(run.path), options)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        exits, self._exits = self._exits, {}
        return exits

    def free(self) -> None:
        pass


def _worker() -> Any:
    """Import the worker by name: the process boundary is here."""
    return importlib.import_module("ablate.training.worker")
