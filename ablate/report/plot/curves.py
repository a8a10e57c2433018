"""Draws learning curves: training loss and the validation metric by epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.planning.probing import again
from ablate.report.plot.form import Form
from ablate.report.plot.inks import inks
from ablate.report.plot.measured import Nothing, RunDirs, in_order, named
from ablate.report.plot.style import Drawing

ACROSS = 3  # columns in a line
BANDS = 8  # rows at most: of more, bands hide the lines


def curves(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw the mean of the runs that reached an epoch, and a band from the lowest to the highest.

    A panel a column and a quantity; no bands where there are many rows.
    """
    if not plan.task.trains:
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
