"""Draws learning curves: training loss and the validation metric by epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.planning.probing import again
from ablate.report.plot.measured import Nothing, RunDirs, in_order, named
from ablate.report.plot.style import Drawing, folded, inks

ACROSS = 3  # columns in a line
BANDS = 8  # rows at most: of more, bands hide the lines


def curves(plan: Plan, table: Table, rundir: RunDirs) -> Drawing:
    """Draw the mean of the runs that reached an epoch, and a band from the lowest to the highest.

    A panel a column and a quantity; no bands where there are many rows.
    """
    if not plan.task.trains:
        raise Nothing(f"{plan.name}: its runs take no steps, so they have no curves")
    found: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for run in in_order(plan, table):
        for line in rundir(run.id).read_metrics():
            epochs = found.setdefault((run.cell.row, run.cell.column), {})
            epochs.setdefault(line["epoch"], []).append(line)
    if not found:
        raise Nothing(f"{plan.name}: no run has a validation yet; run {again(plan)}")
    first = plan.task.metrics[0]
    quantities = (
        ("train_loss", "training loss", 1.0),
        (f"val_{first.key}", first.with_unit(first.validated), first.scale),
    )
    ink, columns = inks(plan), [column.label for column in plan.columns]
    lines, across = folded(len(columns), ACROSS)
    size = (2.6 + 3.4 * across, 6 * lines)
    sheet = Drawing(
        plan, table, "curves", "Learning curves", (len(quantities) * lines, across), size
    )
    panels = sheet.columns(len(columns), len(quantities))
    banded = len({row for row, _ in found}) <= BANDS
    legend: dict[str, Any] = {}
    for part, (key, name, scale) in enumerate(quantities):
        for (row, column), epochs in found.items():
            axes = panels[columns.index(column)][part]
            x = sorted(epochs)
            values = [[scale * line[key] for line in epochs[epoch]] for epoch in x]
            low, high = ([end(v) for v in values] for end in (min, max))
            if banded:
                axes.fill_between(x, low, high, color=ink[row].colour, alpha=0.18, linewidth=0)
            mean = [np.mean(v) for v in values]
            (drawn,) = axes.plot(x, mean, **ink[row].line())
            n = max(map(len, values))
            sheet.tell(drawn, f"{named(row, column)}: {name}, ends at {mean[-1]:.4g}, n = {n}")
            legend.setdefault(row, drawn)
        for n, parts in enumerate(panels):
            parts[part].xaxis.set_major_locator(MaxNLocator(integer=True))
            if n % across == 0:
                parts[part].set_ylabel(name)
    for parts, column in zip(panels, columns, strict=True):
        parts[0].set_title(plan.heading(column), loc="left")
        parts[-1].set_xlabel("epoch")
    sheet.legend(legend)
    absent = [
        named(cell.row, cell.column) for cell in plan.cells if (cell.row, cell.column) not in found
    ]
    bands = "; bands: from the lowest run to the highest" if banded else ""
    sheet.foot(
        f"Lines: means over the seeds that reached an epoch{bands}.",
        *([f"Without a validation: {', '.join(absent)}."] if absent else []),
    )
    return sheet
