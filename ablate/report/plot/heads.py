"""Draws the attention distance of heads by layer (DTN, arXiv 2112.02624)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.report.plot.form import Form
from ablate.report.plot.inks import GREY, inks
from ablate.report.plot.measured import RunDirs, named, probed
from ablate.report.plot.style import Drawing

ACROSS = 2  # columns in a line


def uniform(height: int, width: int) -> float:
    """Compute the distance of uniform attention, in grid units: 7.2808 on 14 x 14."""
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width)), -1).reshape(-1, 2)
    return float(np.linalg.norm(places[:, None] - places[None], axis=-1).mean())


def attention(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw one panel for each column: a point for every head of every seed, a line for the mean."""
    found = probed(plan, table, rundir, form, "attention")
    columns = [c.label for c in plan.columns if c.label in {column for _, column in found}]
    rows = [r.label for r in plan.rows if r.label in {row for row, _ in found}]
    ink = inks(plan)
    lines, across = form.across(len(columns), ACROSS)
    heading, size = "Attention distance of every head", (2.4 + 4 * across, 4.2 * lines)
    sheet = Drawing(plan, table, form, "attention", heading, (lines, across), size)
    panels = [axes for (axes,) in sheet.columns(len(columns))]
    legend: dict[str, Any] = {}
    grids: dict[str, tuple[int, int]] = {}
    for (row, column), by_seed in found.items():
        axes = panels[columns.index(column)]
        aside = 0.5 * ((rows.index(row) + 0.5) / len(rows) - 0.5)
        for seed, arrays in by_seed.items():
            layers, heads = arrays["distance"].shape
            x = np.repeat(np.arange(1, layers + 1) + aside, heads)
            (points,) = axes.plot(x, arrays["distance"].ravel(), **ink[row].mark(linestyle="none"))
            sheet.tell(points, f"{named(row, column)}: seed {seed}, {layers} x {heads} heads")
            h, w = map(int, arrays["grid"])
            grids[column] = (h, w)
        mean = np.mean([arrays["distance"].mean(1) for arrays in by_seed.values()], 0)
        (line,) = axes.plot(np.arange(1, len(mean) + 1) + aside, mean, **ink[row].line())
        axes.set_xticks(range(1, len(mean) + 1))
        legend.setdefault(row, (line, points))
    for column, grid in grids.items():
        axes = panels[columns.index(column)]
        everywhere = uniform(*grid)
        axes.axhline(everywhere, color=GREY, linewidth=0.8, linestyle=":")
        place = axes.get_yaxis_transform()
        axes.text(1, everywhere, " uniform", color=GREY, transform=place, va="center")
        axes.set_title(plan.heading(column), loc="left")
        axes.set_xlabel("layer")
        axes.set_ylim(bottom=0)
    for axes in panels[::across]:
        axes.set_ylabel("mean attention distance, grid units")
    sheet.legend(legend)
    sheet.foot(
        "A point: a head of one seed, mean over validation images; from patches to patches, class "
        "token left out. Lines: means over heads and seeds. Dotted: a head that looks everywhere "
        "alike."
    )
    return sheet
