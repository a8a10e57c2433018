"""Draws gradient norms by depth and by step (Dual PatchNorm, arXiv 2302.01327, Fig. 2 and 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.report.plot.form import Form
from ablate.report.plot.inks import inks
from ablate.report.plot.measured import RunDirs, named, probed
from ablate.report.plot.style import Drawing
from ablate.shared.metrics.probed import LAST, depths, profile

UPRIGHT = 8  # depths at most whose names stand side by side


def gradnorm(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw two panels for each column: by depth at the end, and the embedding by step."""
    found = {
        cell: {seed: arrays for seed, arrays in by_seed.items() if len(arrays["steps"])}
        for cell, by_seed in probed(plan, table, rundir, form, "gradnorm").items()
    }
    columns = [c.label for c in plan.columns if c.label in {column for _, column in found}]
    ink = inks(plan)
    heading, size = "Gradient norms by depth and by step", (8.6, 1.1 + 2.7 * len(columns))
    sheet = Drawing(plan, table, form, "gradnorm", heading, (len(columns), 2), size)
    legend: dict[str, Any] = {}
    for (row, column), by_seed in found.items():
        left, right = sheet.axes[columns.index(column)]
        profiles = [profile(arrays) for arrays in by_seed.values()]
        labels = profiles[0][0]
        depth = range(len(labels))
        mean = _band(left, depth, np.stack([norms for _, norms in profiles]), ink[row].colour)
        (line,) = left.plot(depth, mean, **ink[row].mark(linestyle=ink[row].dashes))
        words = ", ".join(f"{k} {v:.3g}" for k, v in zip(labels, mean, strict=True))
        sheet.tell(line, f"{named(row, column)}: {words}, n = {len(by_seed)}")
        left.set_xticks(depth, labels, rotation=90 if len(labels) > UPRIGHT else 0)
        legend.setdefault(row, line)

        first = [(a["steps"], depths(a)[1][:, 0]) for a in by_seed.values()]
        shared = min((steps for steps, _ in first), key=len)  # one that diverged ends early
        norms = np.stack([norms[: len(shared)] for _, norms in first])
        mean = _band(right, shared, norms, ink[row].colour)
        (line,) = right.plot(shared, mean, **ink[row].line())
        sheet.tell(line, f"{named(row, column)}: {labels[0]}, n = {len(by_seed)}")
        left.set_title(plan.heading(column), loc="left")
        left.set_ylabel("gradient norm")
        right.set_ylabel(f"gradient norm of the {labels[0]}")
        for axes in (left, right):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    sheet.axes[-1][0].set_xlabel("depth: embedding, blocks, head")
    sheet.axes[-1][1].set_xlabel("step")
    sheet.legend(legend)
    sheet.foot(
        "Norm of the gradient of all parameters at a depth, before clipping; the embedding without "
        f"its norms. By depth: mean over the last tenth of the steps, at most {LAST:,}. Lines: "
        "means over seeds; bands: from the lowest to the highest."
    )
    return sheet


def _band(axes: Any, x: Any, values: Any, colour: str) -> Any:
    """Draw the range over seeds (n, points) and return the mean. Values without a logarithm are
    left out: nan, inf, and the zeros of the first steps, in which a zero head has no gradient."""
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    if len(values) > 1:
        axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
    return values.mean(0)
