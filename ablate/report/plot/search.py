"""Draws the result of searches by their budget: does the ranking of variants depend on it?"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ablate.analysis import stats
from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.planning.probing import again
from ablate.report.plot.form import Form
from ablate.report.plot.inks import inks
from ablate.report.plot.measured import Nothing, RunDirs, named
from ablate.report.plot.style import Drawing

ACROSS = 3  # columns in a line


def tuning(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw the expected best validation score of k trials, and a band for 80 % of draws.

    A panel a column. The scores are those that all searches of a row were told: of a pruned trial
    its last, of a diverged one that of guessing; k goes as far as one search does.
    """
    if plan.tune is None:
        raise Nothing(f"{plan.name}: nothing is tuned; add `tune:` to the sweep file")
    metric = plan.judged
    sign, scale = metric.sign, metric.scale
    scores: dict[tuple[str, str], list[float]] = {}
    for trial in plan.trials:
        if trial.score is not None and form.shows(trial.cell.row):
            cell = scores.setdefault((trial.cell.row, trial.cell.column), [])
            cell.append(sign * scale * trial.score)
    if not scores:
        raise Nothing(f"{plan.name}: no round of trials has ended yet; run {again(plan)}")
    ink, columns = inks(plan), [column.label for column in plan.columns]
    lines, across = form.across(len(columns), ACROSS)
    size = (2.6 + 3.4 * across, 3.6 * lines)
    heading = "Best score of a search by its number of trials"
    sheet = Drawing(plan, table, form, "tuning", heading, (lines, across), size)
    panels = [axes for (axes,) in sheet.columns(len(columns))]
    legend: dict[str, Any] = {}
    for (row, column), found in scores.items():
        axes = panels[columns.index(column)]
        expected = stats.expected_best(np.array(found))
        best, low, high = (curve[: plan.tune.trials_each] for curve in expected)
        x = np.arange(1, len(best) + 1)
        axes.fill_between(
            x, sign * low, sign * high, color=ink[row].colour, alpha=0.18, linewidth=0
        )
        (drawn,) = axes.plot(x, sign * best, **ink[row].line())
        most = f"best of {len(found)} trials {sign * max(found):.4g}"
        sheet.tell(drawn, f"{named(row, column)}: {most}, expected of one {sign * best[0]:.4g}")
        legend.setdefault(row, drawn)
    for axes, column in zip(panels, columns, strict=True):
        axes.set_title(plan.heading(column), loc="left")
        axes.set_xlabel("trials, k")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for axes in panels[::across]:
        axes.set_ylabel(metric.with_unit(f"best {metric.validated}"))
    sheet.legend(legend)
    sheet.foot(
        "Lines: expected best of k trials, drawn with replacement from the trials made (Dodge et "
        "al. 2019); bands: 80 % of draws. Where lines cross, the ranking depends on the budget."
    )
    return sheet
