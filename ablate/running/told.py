"""Says in words what happens in a drive, and to whom."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Protocol

from ablate.planning.cell import PlannedRun
from ablate.shared.metrics import Metric
from ablate.store.progress import SweepProgress


class View(Protocol):
    """Shows a drive to a reader. `say`: an event; `show`: the progress, several times a second."""

    def say(self, text: str) -> None: ...

    def show(self, progress: SweepProgress) -> None: ...


def variant(run: PlannedRun) -> tuple[str, str]:
    """Its row and column: what it shares with the runs of other seeds."""
    return run.cell.row, run.cell.column


def words_of(code: int) -> str:
    """A worker's exit code."""
    if code >= 0:
        return f"exit code {code}"
    memory = ", which the kernel sends where memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{memory}"


def summary(run: PlannedRun, result: Mapping[str, Any], metric: Metric) -> str:
    """A run's end; `metric`: of the validation score that is told."""
    label = run.label
    if result["status"] != "finished":
        return f"{result['status']} at step {result.get('step')}: {label}"
    score = result.get("validation", {}).get(metric.key)
    figure = "" if score is None else f", validation {metric.told(score)}"
    if not result.get("validation"):
        figure = ", which logged no validation"
    return f"finished: {label}{figure}, {result.get('seconds', 0):.0f} s"
