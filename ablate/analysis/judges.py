"""Judges the columns of a table, by the design of its sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.analysis.course import ColumnCourse, follow
from ablate.analysis.scores import Scores, by_replicate
from ablate.planning.design import Fixed, Looks
from ablate.planning.plan import Plan

if TYPE_CHECKING:  # numpy and scipy, which `--help` does without
    from ablate.analysis.stats import ColumnGains, Method, RowGain
    from ablate.analysis.stats.estimate import Bools


class Once:
    """Judges a column when every run of the sweep has a result."""

    def courses(self, plan: Plan, *found: Any) -> dict[str, ColumnCourse]:
        """Return the looks at every column so far, by its label. `found`: see `follow`."""
        return {}

    def gains(
        self, plan: Plan, block: Sequence[Scores], method: Method, right: Bools | None, _: Any
    ) -> ColumnGains:
        """Compute the gains of a column with their intervals. `right`: see `analysis.correct`; the
        last is the column's course."""
        return gains(plan, block, method, right)


class AtLooks(Once):
    """Judges the rows of a column at each of its looks, as far as results go."""

    def courses(self, plan: Plan, *found: Any) -> dict[str, ColumnCourse]:
        return follow(plan, *found)

    def gains(
        self,
        plan: Plan,
        block: Sequence[Scores],
        method: Method,
        right: Bools | None,
        course: ColumnCourse | None,
    ) -> ColumnGains:
        """As the looks judged them; without intervals on other sets."""
        from ablate.analysis import stats

        found = gains(plan.design.compared(plan), block, method, None)
        means = means_alone(found)
        if course is None or not course.rows:
            return means
        judged = (course.rows.get(scored.cell.row) for scored in block)
        return stats.ColumnGains(
            rows=tuple(r.gain if r else mean for r, mean in zip(judged, means.rows, strict=True)),
            spreads=course.spreads,
            df=course.df,
            kept=found.kept,
            tripped=course.tripped,
            ratio=course.ratio,
            void=found.void,
        )


JUDGES: Mapping[Any, Once] = {Fixed: Once(), Looks: AtLooks()}


def judge_of(plan: Plan) -> Once:
    return JUDGES[type(plan.design)]


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

    def alone(row: RowGain | None) -> RowGain | None:
        if row is None:
            return None
        return stats.RowGain(stats.Estimate(row.gain.mean, None, None, row.gain.n))

    return stats.ColumnGains(tuple(map(alone, gains.rows)), void=gains.void)
