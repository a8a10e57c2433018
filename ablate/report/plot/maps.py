"""Draws maps: scales of the values of a patch (Dual PatchNorm, Fig. 3), lengths of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from ablate.analysis.table import Table
from ablate.planning.plan import Plan
from ablate.report.plot.form import Form
from ablate.report.plot.measured import Nothing, RunDirs, named, probed
from ablate.report.plot.style import Drawing, mosaic
from ablate.shared.metrics.probed import FIRST, summary


def scales(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw one panel for each cell with a map for each channel, of its first measured seed."""
    found: dict[tuple[str, str], tuple[int, Any]] = {}
    specs = {(cell.row, cell.column): cell.spec for cell in plan.cells}
    for cell, by_seed in probed(plan, table, rundir, form, "scales").items():
        seed, arrays = next(iter(by_seed.items()))
        if FIRST in arrays:
            side, channels = specs[cell]["model"]["patch"], specs[cell]["data"]["channels"]
            found[cell] = seed, arrays[FIRST].reshape(side, side, channels)
    if not found:
        raise Nothing(
            f"{plan.name}: no row has a learned norm before the patch embedding; add a row with "
            f"stem=dpn or stem=pre"
        )
    everything = np.concatenate([scale.ravel() for _, scale in found.values()])
    heading = "Learned scale of the norm before the patch embedding"
    most = max(scale.shape[-1] for _, scale in found.values())
    size = (3.3 + 0.9 * most, 1.2 + 2.1 * len(found))
    sheet = Drawing(plan, table, form, "scales", heading, (len(found), 1), size)
    told = ["By place in a patch; the initial scale is 1. Means:"]
    for (axes,), (cell, (seed, scale)) in zip(sheet.axes, found.items(), strict=True):
        image = mosaic(axes, scale.transpose(2, 0, 1), everything.min(), everything.max())
        means = ", ".join(f"{name} {mean:.3f}" for name, mean in summary(scale).items())
        sheet.tell(axes, f"{named(*cell)}: {means}")
        told.append(f"{named(*cell)}, seed {seed}: {means}.")
        axes.set_title(named(*cell), loc="left", fontsize="small")
        names = ("red", "green", "blue") if scale.shape[-1] == 3 else ("grey",)
        _name_maps(axes, scale.shape[1], names)
    panels = [axes for (axes,) in sheet.axes]
    sheet.figure.colorbar(image, ax=panels, shrink=0.8, panchor=False, label="scale")
    sheet.foot(*told)
    return sheet


def tokens(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw one panel for each cell with a map of places for each layer; mean over seeds."""
    found = {
        cell: (sorted(by_seed), np.mean([arrays["norms"] for arrays in by_seed.values()], 0))
        for cell, by_seed in probed(plan, table, rundir, form, "tokens").items()
    }
    most = max(len(norms) for _, norms in found.values())
    size = (max(5.5, 1.8 + 0.75 * most), 1.2 + 1.35 * len(found))
    sheet = Drawing(
        plan, table, form, "tokens", "Length of tokens by layer and place", (len(found), 1), size
    )
    for (axes,), (cell, (seeds, norms)) in zip(sheet.axes, found.items(), strict=True):
        image = mosaic(axes, norms, norms.min(), norms.max())
        by_layer = ", ".join(f"{mean:.3g}" for mean in norms.mean((1, 2)))
        sheet.tell(axes, f"{named(*cell)}: means by layer {by_layer}; n = {len(seeds)}")
        axes.set_title(named(*cell), loc="left", fontsize="small")
        means = norms.mean((1, 2))
        names = [f"{layer}\n({mean:.3g})" for layer, mean in enumerate(means)]
        _name_maps(axes, norms.shape[2], names)
        thin = 20 if form.style == "page" else 8
        sheet.figure.colorbar(
            image, ax=axes, shrink=0.9, panchor=False, label="length", aspect=thin
        )
    sheet.foot(
        "Mean length of the token at each place before the first block (0) and behind each block, "
        "over validation images and seeds; in brackets: the mean of a map. Every panel has its "
        "own colour scale: compare panels by their numbers."
    )
    return sheet


def _name_maps(axes: Any, width: int, names: Any) -> None:
    for n, name in enumerate(names):
        middle = n * (width + 1) + (width - 1) / 2
        axes.annotate(
            name,
            (middle, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -3),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize="small",
        )
