"""Which images of a test set each run got right, from the predictions that it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ablate.analysis.scores import Results, Scores
from ablate.planning.plan import Plan

if TYPE_CHECKING:  # numpy, which `--help` does without
    from ablate.analysis.stats.estimate import Bools

# A run's predictions on a set of `eval.also`, "" being its own test set, whose hash its result has;
# None where there are none. Raises Failure where they are not what the run left.
Predictions = Callable[[str, str, str], Any]


class Correct(NamedTuple):
    """`right` (R, S, N): does row r with seed s get image i right? False where a run did not
    finish; None where none did, or where predictions lack, and `lacking` says which."""

    right: Bools | None
    lacking: str = ""


def correct(
    plan: Plan, block: Sequence[Scores], results: Results, on: str, predictions: Predictions
) -> Correct:
    """Of the runs of a column; `on`: a set of `eval.also`, "" for their own test set."""
    import numpy as np

    right: Bools | None = None
    for r, found in enumerate(block):
        for s, seed in enumerate(plan.seeds):
            if seed not in found.main.by_seed or seed in found.diverged:
                continue
            run = found.cell.ids[seed]
            told = results[run] or {}
            said = told["also"][on] if on else told
            table = predictions(run, on, said.get("predictions_sha256", ""))
            if table is None:
                return Correct(None, f"seed {seed} of {found.cell.row} has no predictions")
            if right is None:
                right = np.zeros((len(block), len(plan.seeds), len(table)), dtype=bool)
            if len(table) != right.shape[-1]:
                return Correct(None, f"{found.cell.row} was tested on other images")
            right[r, s] = table["rank"] == 0
    return Correct(right)
