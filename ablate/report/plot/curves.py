"""Draws curves by column: of trainings by epoch, and of searches by their number of trials."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ablate.analysis import stats
from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.planning.probing import again
from ablate.report.plot.form import Form, Nothing, RunDirs, in_order, inks, named
from ablate.report.plot.style import Drawing

ACROSS = 3  # columns in a line
BANDS = 8  # rows at most: of more, bands hide the lines


def curves(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw the mean of the runs that reached an epoch, and a band from the lowest to the highest.

    A panel a column and a quantity; no bands where there are many rows.
    """
    if not plan.task.curve:
        raise Nothing(f"{plan.name}: its runs take no steps, so they have no curves")
    found: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    first, by = plan.task.metrics[0], plan.task.clock
    for run in in_order(plan, table, form):
        for line in rundir(run.id).read_metrics():
            if by in line and ("train_loss" in line or f"val_{first.key}" in line):
                epochs = found.setdefault((run.cell.row, run.cell.column), {})
                epochs.setdefault(line[by], []).append(line)
    if not found:
        raise Nothing(f"{plan.name}: no run has a validation yet; run {again(plan)}")
    every = (
        ("train_loss", "training loss", 1.0),
        (f"val_{first.key}", first.with_unit(first.validated), first.scale),
    )
    logged = {
        key for epochs in found.values() for lines in epochs.values() for e in lines for key in e
    }
    quantities = [one for one in every if one[0] in logged]
    ink, columns = inks(plan), [column.label for column in plan.columns]
    lines, across = form.across(len(columns), ACROSS)
    size = (2.6 + 3.4 * across, 6 * lines)
    sheet = Drawing(
        plan, table, form, "curves", "Learning curves", (len(quantities) * lines, across), size
    )
    panels = sheet.columns(len(columns), len(quantities))
    banded = len({row for row, _ in found}) <= BANDS
    legend: dict[str, Any] = {}
    for part, (key, name, scale) in enumerate(quantities):
        for (row, column), epochs in found.items():
            axes = panels[columns.index(column)][part]
            drawn_at = {e: [line for line in epochs[e] if key in line] for e in sorted(epochs)}
            x = [epoch for epoch, lines_there in drawn_at.items() if lines_there]
            if not x:
                continue
            values = [[scale * line[key] for line in drawn_at[epoch]] for epoch in x]
            low, high = ([end(v) for v in values] for end in (min, max))
            if banded:
                axes.fill_between(x, low, high, color=ink[row].colour, alpha=0.18, linewidth=0)
            mean = [np.mean(v) for v in values]
            (drawn,) = axes.plot(x, mean, **ink[row].line())
            n = max(map(len, values))
            sheet.tell(drawn, f"{named(row, column)}: {name}, ends at {mean[-1]:.4g}, n = {n}")
            legend.setdefault(row, drawn)
        for n, parts in enumerate(panels):
            parts[part].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            if n % across == 0:
                parts[part].set_ylabel(name)
    for parts, column in zip(panels, columns, strict=True):
        parts[0].set_title(plan.heading(column), loc="left")
        parts[-1].set_xlabel(by)
    sheet.legend(legend)
    absent = [
        named(cell.row, cell.column)
        for cell in plan.cells
        if form.shows(cell.row) and (cell.row, cell.column) not in found
    ]
    article = "a" if by == "step" else "an"
    bands = "; bands: from the lowest run to the highest" if banded else ""
    sheet.foot(
        f"Lines: means over the seeds that reached {article} {by}{bands}.",
        *([f"Without a validation: {', '.join(absent)}."] if absent else []),
    )
    return sheet


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
