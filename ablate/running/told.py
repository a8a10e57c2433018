"""What a drive says of its runs, in words."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from ablate.planning.plan import PlannedRun
from ablate.shared.metrics import Metric


def variant(run: PlannedRun) -> tuple[str, str]:
    """Its row and column: what it shares with the runs of other seeds."""
    return run.cell.row, run.cell.column


def words_of(code: int) -> str:
    """A worker's exit code."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def summary(run: PlannedRun, result: Mapping[str, Any], metric: Metric) -> str:
    """A run's end; `metric`: of the validation score that is told."""
    label = run.label
    if result["status"] != "finished":
        return f"{result['status']} at step {result.get('step')}: {label}"
    score = result.get("validation", {}).get(metric.key)
    figure = "" if score is None else f", validation {metric.told(score)}"
    return f"finished: {label}{figure}, {result.get('seconds', 0):.0f} s"
