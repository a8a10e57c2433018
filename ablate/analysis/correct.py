"""Which images of a test set each run got right, from the predictions that it left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ablate.analysis import stats
from ablate.analysis.scores import Results, Scores, blocks_of
from ablate.planning.plan import Plan
from ablate.shared.metrics import Metric

# A run's predictions on a set of `eval.also`, "" being its own test set, whose hash its result has;
# None where there are none. Raises Failure where they are not what the run left.
Predictions = Callable[[str, str, str], Any]


SHARE = 0.01  # points between the share of right examples and the metric, which may be rounded


class Correct(NamedTuple):
    """`right` (R, S, N): does row r with seed s get image i right? False where a run did not
    finish; None where none did, or where predictions lack, and `lacking` says which."""

    right: stats.Bools | None
    lacking: str = ""


def correct(
    plan: Plan, block: Sequence[Scores], results: Results, on: str, predictions: Predictions | None
) -> Correct:
    """Of the runs of a column; `on`: a set of `eval.also`, "" for their own test set."""
    import numpy as np

    if predictions is None:
        return Correct(None, "no predictions are read here")
    right: stats.Bools | None = None
    for r, found in enumerate(block):
        for s, seed in enumerate(plan.seeds):
            if seed not in found.main.by_seed or seed in found.diverged:
                continue
            run = found.cell.ids[seed]
            told = results[run] or {}
            said = told["also"][on] if on else told
            table = predictions(run, on, said.get("predictions_sha256", ""))
            if table is None:
                return Correct(None, f"seed {seed} of {found.cell.row} has no predictions.npy")
            if right is None:
                right = np.zeros((len(block), len(plan.seeds), len(table)), dtype=bool)
            if len(table) != right.shape[-1]:
                return Correct(None, f"{found.cell.row} was tested on other images")
            marks = _marks(plan.metric, table, found.main.by_seed[seed])
            if marks is None:
                return Correct(None, f"predictions.npy of {found.cell.row} is not right or wrong")
            right[r, s] = marks
    return Correct(right)


def _marks(metric: Metric, table: Any, value: float) -> stats.Bools | None:
    """Which images are right by a run's predictions; of a program these say it by themselves, and
    their share is the metric's value in %, else None."""
    if table.dtype.names and "rank" not in table.dtype.names:  # of a lean bundle
        return table["class"] == table["label"] if metric.right_within == 1 else None
    if table.dtype.names:
        marks: stats.Bools = table["rank"] < metric.right_within
        return marks
    marks = table.astype(bool)
    same = table.ndim == 1 and table.dtype.kind in "bui" and bool((marks == table).all())
    return marks if same and abs(100 * marks.mean() - value) < SHARE else None


class Rights:
    """Which images runs get right, where anything asks for it; predictions are read once."""

    def __init__(
        self, plan: Plan, results: Results, predictions: Predictions | None, asked: bool
    ) -> None:
        self._plan, self._results, self._predictions = plan, results, predictions
        self._asked = asked
        self._columns: dict[tuple[str, str], Correct] = {}

    def of(self, block: Sequence[Scores], on: str) -> Correct:
        """Of the runs of a column; `on`: a set of `eval.also`, "" for their own test set."""
        if not self._asked or not block:
            return Correct(None)
        place = block[0].cell.column, on
        if place not in self._columns:
            made = correct(self._plan, block, self._results, on, self._predictions)
            self._columns[place] = made
        return self._columns[place]

    def of_rows(
        self, cells: Mapping[tuple[str, str], Scores], seeds: Sequence[int]
    ) -> list[stats.Bools] | None:
        """Of each column, of all rows (R, seeds, N); None where one is not known."""
        import numpy as np

        if not self._asked or self._plan.spread != "images":
            return None
        rows = [row.label for row in self._plan.rows]
        at = [self._plan.seeds.index(seed) for seed in seeds]
        found = []
        for _, block in blocks_of(self._plan, cells):
            if (right := self.of(block, "").right) is None:
                return None
            every = np.zeros((len(rows), len(at), right.shape[-1]), dtype=bool)
            every[[rows.index(scored.cell.row) for scored in block]] = right[:, at]
            found.append(every)
        return found
