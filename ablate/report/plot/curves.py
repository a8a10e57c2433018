"""Learning curves: training loss and validation accuracy by epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ablate.plan import Plan
from ablate.report.plot.measured import Nothing, RunDirs, again, in_order, named
from ablate.report.plot.style import Sheet, inks
from ablate.report.table import Table

SHOWN = (("train_loss", "training loss", 1.0), ("val_top1", "validation top-1 accuracy, %", 100.0))


def curves(plan: Plan, table: Table, rundir: RunDirs) -> Sheet:
    """The mean of the runs that got to an epoch, and a band from the lowest of them to the highest.

    A panel a column and a quantity.
    """
    found: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for run in in_order(plan):
        for line in rundir(run.id).read_metrics():
            epochs = found.setdefault((run.cell.row, run.cell.column), {})
            epochs.setdefault(line["epoch"], []).append(line)
    if not found:
        raise Nothing(f"{plan.name}: no run has been validated yet: {again(plan)}")
    ink, columns = inks(plan), [column.label for column in plan.columns]
    sheet = Sheet(plan, table, "curves", (len(SHOWN), len(columns)), (2.6 + 3.4 * len(columns), 6))
    legend: dict[str, Any] = {}
    for (key, name, scale), panels in zip(SHOWN, sheet.axes, strict=True):
        for (row, column), epochs in found.items():
            axes = panels[columns.index(column)]
            x = sorted(epochs)
            values = [[scale * line[key] for line in epochs[epoch]] for epoch in x]
            low, high = ([end(v) for v in values] for end in (min, max))
            axes.fill_between(x, low, high, color=ink[row].colour, alpha=0.18, linewidth=0)
            mean = [np.mean(v) for v in values]
            (drawn,) = axes.plot(x, mean, **ink[row].line())
            n = max(map(len, values))
            sheet.tell(drawn, f"{named(row, column)}: {name}, ends at {mean[-1]:.4g}, n = {n}")
            legend.setdefault(row, drawn)
        panels[0].set_ylabel(name)
        for axes in panels:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes, column in zip(sheet.axes[0], columns, strict=True):
        axes.set_title(column, loc="left")
    for axes in sheet.axes[-1]:
        axes.set_xlabel("epoch")
    sheet.legend(legend)
    sheet.foot(
        "Lines: means of the runs that got there; bands: from the lowest run to the highest."
    )
    return sheet
