"""Make whole sweeps with known gains: that of the golden tables, and one with groups of columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ablate.planning.cell import Column, ColumnGroup
from ablate.report.formats import DEFAULT_SHOW
from support.tables import BLOCKS, finished, make_plan, tabulate, text_of

# Per cent by seed; the intervals of the pooled rows are +- 0.35.
SOWN = {
    "pre": 90 + BLOCKS + [0.05, -0.05, 0.0],
    "helps": 92 + BLOCKS + [-0.05, 0.0, 0.05],
    "hurts": 88 + BLOCKS + [0.0, 0.05, -0.05],
    "as good": 90.0 + BLOCKS + [-0.05, 0.05, 0.0],
    "diverges": 91 + BLOCKS + [0.05, 0.0, -0.05],
    "collapses": 89 + BLOCKS + [0.0, 0.0, 0.05],
    "wild_100%": 90 + np.array([-0.6, 0.9, 0.3]),
}
SIZE = {"parameters": 22_050_664, "multiply_adds": 4.6e9}
MORE = {
    column: np.random.default_rng(seed).normal(0, 0.02, (7, 3)) for seed, column in enumerate("SB")
}
COLUMNS = {"S/4": {"lr": 1}, "B/4": {"lr": 2}}


def planted_sweep(complete=True):
    """Make the sweep of the golden tables: known gains and spreads, a row that diverges, one that
    collapses. Unless `complete`, a run is missing. Returns its plan and its results."""
    plan = make_plan(
        list(SOWN),
        tuple(COLUMNS),
        families={"diverges": "un|stable", "collapses": "un|stable"},
        confounds={"hurts": ("optim.lr",)},
        margin=0.5,
        contrasts={"steeper": {"across": "lr", "from": 1, "to": 2}},
    )
    columns = tuple(Column(label, settings) for label, settings in COLUMNS.items())
    plan = replace(plan, columns=columns)
    results = {}
    for cell in plan.cells:
        values = scores_of(cell.column)[[*SOWN].index(cell.row)]
        for seed, run in cell.ids.items():
            cost = {"seconds": 60.0, "images_per_s": 1e4, "peak_bytes": 2 * 10**9, **SIZE}
            results[run] = finished(values[seed] / 100, **cost, utilisation=0.25)
            results[run]["test"]["top5"] = 0.99
    results["diverges@S/4#1"] = {"status": "diverged", "step": 12}
    results["collapses@B/4#0"]["collapsed"] = True
    results["hurts@S/4#2"]["device"] = "H100"
    if not complete:
        results["as good@B/4#2"] = None
    return plan, results


def scores_of(column):
    """Compute scores in per cent, rows x seeds: `helps` gains half a point more in B/4."""
    y = np.array([*SOWN.values()]) + MORE[column[0]]
    y[1] += 0.5 * (column == "B/4")
    return y


def whole():
    """Make the gain table of the complete planted sweep."""
    plan, results = planted_sweep()
    return tabulate(plan, results, cost=True)


def golden(format):
    """Render the table of the file `golden/table.FORMAT`."""
    how = {} if format in ("csv", "tidy", "json") else {"show": (*DEFAULT_SHOW, "top5", "params")}
    return text_of(whole(), format, **how)


# Points that `dpn` gains, by column, seed after seed.
GAINS = {
    "pets, S/4": [2.0, 2.1, 1.9],
    "svhn, S/4": [-1.0, -1.1, -0.9],
    "dmlab, S/4": [0.1, -0.2, 0.3],
    "pets, B/4": [1.0, 1.2, 1.1],
    "svhn, B/4": [0.4, 0.5, 0.3],
    "dmlab, B/4": [3.0, 3.1, 3.0],
}
GROUPS = (
    ColumnGroup("Natural", {"pets": "Pets", "svhn": "svhn"}),
    ColumnGroup("Made", {"dmlab": "dmlab"}),
)


def grouped_sweep(groups=GROUPS, **analysis):
    """Make a sweep of two rows with groups of columns, and return its plan and its results."""
    plan = make_plan(["vit", "dpn"], tuple(GAINS), **analysis)
    columns = tuple(Column(label, {"model.arch": label.split(", ")[1]}) for label in GAINS)
    results = {
        run: finished(0.7 + 0.01 * GAINS[cell.column][seed] * (cell.row == "dpn"))
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }
    return replace(plan, columns=columns, groups=groups), results
