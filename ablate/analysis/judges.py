"""Judges the columns of a table, by the design of its sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis.course import Cells, ColumnCourse, courses_of, follow, look_events
from ablate.analysis.scores import Results, Scores, by_replicate
from ablate.analysis.seeding import Seeding, nobody
from ablate.analysis.table import Table
from ablate.planning.design import Fixed, Looks
from ablate.planning.plan import Plan
from ablate.planning.search import Grower, Search
from ablate.store.events import Look
from ablate.store.past_looks import PastLooks
from ablate.store.store import Store

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.correct import Predictions
    from ablate.analysis.stats import ColumnGains, Method
    from ablate.analysis.stats.estimate import Bools


class Once:
    """Judges a column when every run of the sweep has a result."""

    def __init__(self, plan: Plan):
        self._plan = plan

    def courses(
        self,
        cells: Cells,
        results: Results,
        predictions: Predictions | None,
        past: PastLooks | None,
    ) -> dict[str, ColumnCourse]:
        """Return the looks at every column so far, by its label."""
        return {}

    def gains(
        self,
        block: Sequence[Scores],
        method: Method,
        right: Bools | None,
        course: ColumnCourse | None,
    ) -> ColumnGains:
        """Compute the gains of a column with their intervals. `right`: see `analysis.correct`."""
        return gains(self._plan, block, method, right)

    def events(
        self, table: Table, results: Results, readers: Mapping[str, Any], past: PastLooks
    ) -> Iterator[Look]:
        """Yield the looks at gains that it is to read this table, as the ledger has them."""
        if table.is_look:
            yield past.judged().event()

    def grower(
        self,
        store: Store,
        search: Search | None,
        record: Callable[[Look], None] = nobody,
        say: Callable[[str], None] = nobody,
    ) -> Grower | None:
        """Return what adds runs to the plan as results come, if anything does."""
        return search


class AtLooks(Once):
    """Judges the rows of a column at each of its looks, as far as results go."""

    def courses(
        self,
        cells: Cells,
        results: Results,
        predictions: Predictions | None,
        past: PastLooks | None,
    ) -> dict[str, ColumnCourse]:
        return follow(self._plan, cells, results, predictions, past)

    def gains(
        self,
        block: Sequence[Scores],
        method: Method,
        right: Bools | None,
        course: ColumnCourse | None,
    ) -> ColumnGains:
        """As the looks judged them; without intervals on other sets."""
        from ablate.analysis import stats

        found = gains(self._plan.design.compared(self._plan), block, method, None)
        means = means_alone(found)
        if course is None or not course.rows:
            return means
        judged = (course.rows.get(scored.cell.row) for scored in block)
        rows = (row.gain if row else mean for row, mean in zip(judged, means.rows, strict=True))
        return stats.ColumnGains(
            rows=tuple(rows),
            spreads=course.spreads,
            df=course.df,
            kept=found.kept,
            tripped=course.tripped,
            ratio=course.ratio,
            void=found.void,
        )

    def events(
        self, table: Table, results: Results, readers: Mapping[str, Any], past: PastLooks
    ) -> Iterator[Look]:
        curves, probes, predictions = (readers[x] for x in ("curves", "probes", "predictions"))
        courses = courses_of(self._plan, results, curves, probes, predictions, past)
        yield from (look.event() for look in look_events(self._plan, courses, past))

    def grower(
        self,
        store: Store,
        search: Search | None,
        record: Callable[[Look], None] = nobody,
        say: Callable[[str], None] = nobody,
    ) -> Grower:
        return Seeding(self._plan, store, record, say, search)


def judge_of(plan: Plan) -> Once:
    return {Fixed: Once, Looks: AtLooks}[type(plan.design)](plan)


def gains(plan: Plan, block: Sequence[Scores], method: Method, right: Bools | None) -> ColumnGains:
    """Compute the gains of a column, positive if better; none without a baseline."""
    import numpy as np

    from ablate.analysis import stats

    labels = [found.cell.row for found in block]
    if plan.baseline not in labels:
        return stats.ColumnGains((None,) * len(block))
    sign = plan.metric.sign
    y = np.array([[sign * value for value in by_replicate(found.main, plan)] for found in block])
    unstable = np.array([bool(found.unstable) for found in block])
    flips = None if right is None else stats.Flips((right,))
    return stats.column_gains(y, labels.index(plan.baseline), method, unstable, flips)


def means_alone(gains: ColumnGains) -> ColumnGains:
    """Return the mean gains, without intervals."""
    from ablate.analysis import stats

    rows = (
        None
        if row is None
        else stats.RowGain(stats.Estimate(row.gain.mean, None, None, row.gain.n))
        for row in gains.rows
    )
    return stats.ColumnGains(tuple(rows), void=gains.void)
