"""The results of a sweep, read once: the metric of every run, what became of the run, and which
test images it got right. Everything that judges gains takes them from here.

Used by `reading.py` and `tabulate.py`, for every table, by `seeding.py` (`ablate sweep`), and by
report/power.py and report/designs.py (`ablate plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ablate.analysis import stats
from ablate.analysis.judging import is_partial
from ablate.analysis.scores import (
    Correct,
    Curves,
    Predictions,
    Probes,
    Results,
    Scores,
    all_scores,
    blocks_of,
    cell_scores,
    mean_by_replicate,
    on_set,
    results_on,
    right_images,
    sets_of,
)
from ablate.planning import Column, Plan


class RunFiles(NamedTuple):
    """Readers of the files of runs; None where these files are not read."""

    curves: Curves | None = None
    probes: Probes | None = None
    predictions: Predictions | None = None


NO_FILES = RunFiles()


@dataclass(frozen=True)
class ColumnEvidence:
    """The results of the runs of a column: the scores of its R rows, in the plan's order. `on`: the
    set of `eval.also` that they are of, "" for the runs' own test set. S: the plan's seeds."""

    plan: Plan
    column: Column
    scores: tuple[Scores, ...]
    results: Results
    predictions: Predictions | None
    on: str = ""

    @cached_property
    def y(self) -> stats.Floats:
        """The metric (R, S), positive if better, NaN where a run has none."""
        import numpy as np

        sign = self.plan.metric.sign
        values = [
            [sign * scores.main.by_seed.get(seed, np.nan) for seed in self.plan.seeds]
            for scores in self.scores
        ]
        return np.array(values, float).reshape(len(self.scores), len(self.plan.seeds))

    @cached_property
    def failed(self) -> stats.Bools:
        """The runs (R, S) that diverged, collapsed or never reached the metric's threshold."""
        import numpy as np

        marks = [
            [seed in scores.unstable or seed in scores.main.never for seed in self.plan.seeds]
            for scores in self.scores
        ]
        return np.array(marks, bool).reshape(len(self.scores), len(self.plan.seeds))

    @cached_property
    def unstable(self) -> stats.Bools:
        """The rows (R,) of which a run diverged or collapsed."""
        import numpy as np

        return np.array([bool(scores.unstable) for scores in self.scores])

    def means(self, plan: Plan) -> stats.Floats:
        """Return the mean (R, N) of each of the N replicates of `plan`, positive if better, NaN for
        one without values. `plan`: the column's, or one with fewer seeds."""
        import numpy as np

        sign = self.plan.metric.sign
        return np.array(
            [
                [sign * value for value in mean_by_replicate(scores.main, plan)]
                for scores in self.scores
            ]
        )

    @cached_property
    def images(self) -> Correct:
        """The test images that the runs get right, read from their predictions."""
        if not self.scores:
            return Correct(None)
        return right_images(self.plan, self.scores, self.results, self.on, self.predictions)


@dataclass(frozen=True)
class Evidence:
    """The results of the runs of a plan. `cells`: the scores of each cell by (row, column); `also`:
    metrics in addition to the plan's; `withheld`: runs whose results are not used -> why."""

    plan: Plan
    results: Results
    cells: Mapping[tuple[str, str], Scores]
    files: RunFiles = NO_FILES
    also: tuple[str, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def collect(
        cls,
        plan: Plan,
        results: Results,
        files: RunFiles = NO_FILES,
        also: Iterable[str] = (),
        withheld: Mapping[str, str] | None = None,
    ) -> Evidence:
        """Collect the scores of all cells. Raises UserError for a metric that was not measured."""
        names = tuple(also)
        cells = all_scores(plan, results, names, files.curves, files.probes)
        return cls(plan, results, cells, files, names, withheld or {})

    @cached_property
    def columns(self) -> tuple[ColumnEvidence, ...]:
        """The columns of the plan, on the runs' own test sets."""
        return tuple(
            ColumnEvidence(self.plan, column, tuple(block), self.results, self.files.predictions)
            for column, block in blocks_of(self.plan, self.cells)
        )

    def on_other_sets(self, column: ColumnEvidence) -> Iterator[ColumnEvidence]:
        """Yield the same runs as a column has on each further set that they were tested on."""
        for name in sets_of(self.plan, column.column.label):
            tested = results_on(self.results, name)
            scores = tuple(
                cell_scores(
                    on_set(score.cell, name), self.plan, tested, self.also, self.files.curves
                )
                for score in column.scores
            )
            yield ColumnEvidence(
                self.plan, column.column, scores, self.results, self.files.predictions, name
            )

    @cached_property
    def compared(self) -> Plan:
        """The plan with the seeds that all cells share: C columns, R rows, N replicates."""
        return self.plan.design.compared(self.plan)

    @cached_property
    def y(self) -> stats.Floats:
        """The metric (C, R, N), positive if better, NaN where it is missing."""
        import numpy as np

        plan = self.compared
        y = np.full((len(plan.columns), len(plan.rows), len(plan.replicates)), np.nan)
        for c, column in enumerate(self.columns):
            if column.scores:
                y[c, self._rows(column)] = column.means(plan)
        return y

    @cached_property
    def unstable(self) -> stats.Bools:
        """The cells (C, R) of which a run diverged or collapsed."""
        import numpy as np

        unstable = np.zeros((len(self.plan.columns), len(self.plan.rows)), dtype=bool)
        for c, column in enumerate(self.columns):
            if column.scores:
                unstable[c, self._rows(column)] = column.unstable
        return unstable

    @cached_property
    def omitted(self) -> stats.Bools:
        """The cells (C, R) with a run that is left out: it diverged, never reached the threshold,
        or was skipped by the user."""
        import numpy as np

        omitted = np.zeros((len(self.plan.columns), len(self.plan.rows)), dtype=bool)
        for c, column in enumerate(self.columns):
            for row, scores in zip(self._rows(column), column.scores, strict=True):
                skipped = self.compared.skipped_seeds(scores.cell)
                omitted[c, row] = is_partial(self.compared, scores) or bool(skipped)
        return omitted

    def images(self) -> list[stats.Bools] | None:
        """Read which images the runs of all rows get right, an array (R, N, images) for each
        column; None where the plan doesn't judge by images, or one of the columns is not known."""
        import numpy as np

        if self.plan.spread != "images":
            return None
        indices = [self.plan.seeds.index(seed) for seed in self.compared.seeds]
        arrays = []
        for column in self.columns:
            if (right := column.images.right) is None:
                return None
            marks = np.zeros((len(self.plan.rows), len(indices), right.shape[-1]), dtype=bool)
            marks[self._rows(column)] = right[:, indices]
            arrays.append(marks)
        return arrays

    def _rows(self, column: ColumnEvidence) -> list[int]:
        """Return the plan's index of each row of a column."""
        labels = [row.label for row in self.plan.rows]
        return [labels.index(scores.cell.row) for scores in column.scores]
