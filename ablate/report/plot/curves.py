"""Draws curves by column: of trainings by epoch, and of searches by their number of trials.

Used by `ablate plot` and `ablate report`, through FIGURE_KINDS in `__init__.py`, which names this
file and its functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ablate.analysis import Table, stats
from ablate.planning import Plan
from ablate.report.plot.form import FigureForm, Nothing, NotYet, RunDirs, cell_name, in_order, inks
from ablate.report.plot.style import Drawing, Subject

MOST_ACROSS = 3  # columns of the table that stand side by side
MOST_BANDED_ROWS = 8  # with more rows, bands would hide the lines


def curves(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw the mean of the runs that reached an epoch, and a band from the lowest to the highest.

    There is one panel for each column and quantity; no bands where there are many rows.
    """
    if not plan.task.curve:
        raise Nothing(f"{plan.name}: its runs take no steps, so they have no curves")
    epochs_by_cell: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    metric, clock = plan.task.metrics[0], plan.task.clock
    for run in in_order(plan, table, form):
        for line in rundir(run.id).read_metrics():
            if clock in line and ("train_loss" in line or f"val_{metric.key}" in line):
                epochs = epochs_by_cell.setdefault((run.cell.row, run.cell.column), {})
                epochs.setdefault(line[clock], []).append(line)
    if not epochs_by_cell:
        entries = [entry for entry in table.entries if form.shows(entry.row)]
        if plan.design.trains and not any(entry.missing for entry in entries):
            raise Nothing(
                f"{plan.name}: its finished runs logged no loss and no validation; `curves:` in "
                "a program's yaml names the file that has them, and a function logs them by "
                "`run.log`"
            )
        raise NotYet(f"{plan.name}: no run has a loss or a validation yet")
    candidates = (
        ("train_loss", "training loss", 1.0),
        (f"val_{metric.key}", metric.with_unit(metric.validated), metric.scale),
    )
    logged = {
        key
        for epochs in epochs_by_cell.values()
        for lines in epochs.values()
        for line in lines
        for key in line
    }
    quantities = [quantity for quantity in candidates if quantity[0] in logged]
    ink, columns = inks(plan), [column.label for column in plan.columns]
    sheet = Drawing.of_panels(
        Subject(
            plan,
            table,
            form,
            "curves",
            "Learning curves",
        ),
        titles=[plan.heading(column) for column in columns],
        most_across=MOST_ACROSS,
        panel=(4.4 if len(columns) == 1 else 2.8, 2.1 * len(quantities)),
        edge=(1.6, 0.6),
        x=clock,
        y=[name for _, name, _ in quantities],
    )
    rows = list(dict.fromkeys(row for row, _ in epochs_by_cell))
    banded = len(rows) <= MOST_BANDED_ROWS
    for place, (key, name, scale) in enumerate(quantities):
        for (row, column), epochs in epochs_by_cell.items():
            axes = sheet.panels[columns.index(column)][place]
            values = {e: [scale * line[key] for line in epochs[e] if key in line] for e in epochs}
            x = sorted(epoch for epoch in values if values[epoch])
            if not x:
                continue
            low, high, mean = ([f(values[e]) for e in x] for f in (min, max, np.mean))
            if banded:
                axes.fill_between(x, low, high, **ink[row].band())
            (curve,) = axes.plot(x, mean, **ink[row].marked_line(len(x), rows.index(row)))
            n = max(map(len, values.values()))
            sheet.tell(
                curve, f"{cell_name(row, column)}: {name}, ends at {mean[-1]:.4g}, n = {n}", row
            )
        for panels in sheet.panels:
            panels[place].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    absent = [
        cell_name(cell.row, cell.column)
        for cell in plan.cells
        if form.shows(cell.row) and (cell.row, cell.column) not in epochs_by_cell
    ]
    article = "a" if clock == "step" else "an"
    bands = "; bands: from the lowest run to the highest" if banded else ""
    sheet.foot(
        f"Lines: means over the seeds that reached {article} {clock}{bands}.",
        *([f"Without a validation: {', '.join(absent)}."] if absent else []),
    )
    return sheet


def tuning(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw the expected best validation score of k trials, and a band for 80 % of draws: one panel
    for each column. The trials of all searches of a row are pooled. A pruned trial counts with its
    last score, a diverged one with that of guessing. k runs up to the number of trials of one
    search."""
    if plan.tune is None:
        raise Nothing(f"{plan.name}: nothing is tuned; add `tune:` to the sweep file")
    metric = plan.objective
    sign, scale = metric.sign, metric.scale
    scores: dict[tuple[str, str], list[float]] = {}
    for trial in plan.trials:
        if trial.score is not None and form.shows(trial.cell.row):
            cell = scores.setdefault((trial.cell.row, trial.cell.column), [])
            cell.append(sign * scale * trial.score)
    if not scores:
        raise NotYet(f"{plan.name}: no round of trials has ended yet")
    ink, columns = inks(plan), [column.label for column in plan.columns]
    rows = list(dict.fromkeys(row for row, _ in scores))
    sheet = Drawing.of_panels(
        Subject(
            plan,
            table,
            form,
            "tuning",
            "Best score of a search by its number of trials",
        ),
        titles=[plan.heading(column) for column in columns],
        most_across=MOST_ACROSS,
        panel=(3.4, 3.6),
        x="trials, k",
        y=[metric.with_unit(f"best {metric.validated}")],
    )
    for (row, column), cell_scores in scores.items():
        [axes] = sheet.panels[columns.index(column)]
        expected = stats.expected_best(np.array(cell_scores))
        best, low, high = (sign * curve[: plan.tune.trials_each] for curve in expected)
        x = np.arange(1, len(best) + 1)
        axes.fill_between(x, low, high, **ink[row].band())
        (line,) = axes.plot(x, best, **ink[row].marked_line(len(x), rows.index(row)))
        best_text = f"best of {len(cell_scores)} trials {sign * max(cell_scores):.4g}"
        sheet.tell(
            line, f"{cell_name(row, column)}: {best_text}, expected of one {best[0]:.4g}", row
        )
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    sheet.foot(
        "Lines: expected best of k trials, drawn with replacement from the trials made (Dodge et "
        "al. 2019); bands: 80 % of draws. Where lines cross, the ranking depends on the budget.",
        *(["Every panel has its own scale."] if len(columns) > 1 else []),
    )
    return sheet
