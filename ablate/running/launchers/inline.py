"""Trains one run at a time in the driver's own process: for debuggers and tests."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.running.gpus import find
from ablate.running.launchers import Progress, Slot, Tree, silent, worker_options
from ablate.running.launchers.local import Here, environment, slots
from ablate.shared.errors import UserError
from ablate.shared.rundir import RunDir


class Inline(Here):
    """`start` returns when the run is done. Everything loads into this process, torch included.

    A signal meanwhile reaches the worker itself, and none of its own is left to stop afterwards.
    """

    def __init__(self, settings: Tree, cache: Path) -> None:
        self.devices = find(settings["devices"], os.environ.get("CUDA_VISIBLE_DEVICES"))
        gpus = self.devices.gpus
        if len(gpus) > 1:
            raise UserError(
                f"launcher.devices: launcher=inline trains on one, got "
                f"{', '.join(gpu.index for gpu in gpus)}"
            )
        self.slots = slots(gpus, 1) if gpus else [Slot("inline", "cpu", "cpu")]
        self._settings, self._cache = settings, cache
        self._exits: dict[str, int] = {}

    def warm(self) -> None:
        """Do nothing: torch loads in this process, with the first question or run."""

    def ask(self, verb: str, question: Tree, progress: Progress = silent) -> dict[str, Any]:
        answer: dict[str, Any] = self._worker().answer(verb, question, progress)
        return answer

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        questions = {slot.name: {"device": slot.device} for slot in slots if slot.device != "cpu"}
        why = {name: self.ask("kernel", question)["why"] for name, question in questions.items()}
        return {name: line for name, line in why.items() if line}

    def start(self, run: RunDir, slot: Slot, settled: Tree | None = None) -> None:
        worker = self._worker()
        options = worker_options(slot, self._settings, self._cache, settled)
        self._exits[run.id] = worker.work(str(run.path), options)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        exits, self._exits = self._exits, {}
        return exits

    def free(self) -> None:
        pass

    def _worker(self) -> Any:
        """Import the worker by name: the process boundary is here. What CUDA reads when it starts
        is set before."""
        if self.slots[0].device != "cpu":
            os.environ.update({**environment(self.slots), **self.slots[0].environment})
        return importlib.import_module("ablate.training.worker")
