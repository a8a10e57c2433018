"""Draws what probes measured: gradient norms, attention distances, maps of scales and of tokens.

Used by `ablate plot` and `ablate report`, through FIGURE_KINDS in `__init__.py`, which names this
file and its functions. A figure of a new probe needs its entry there, too; probes are in
run/choices.py `PROBES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ablate.analysis import Table
from ablate.planning import Plan
from ablate.report.plot.form import (
    GREY,
    PANEL,
    WIDEST,
    FigureForm,
    Ink,
    Nothing,
    NotYet,
    RunDirs,
    cell_name,
    inks,
    probed,
)
from ablate.report.plot.style import Drawing, Subject
from ablate.run import (
    FIRST_SCALE,
    GRADNORM_STEPS,
    gradnorm_profile,
    read_gradnorm,
    scale_summary,
)

MAP = "cividis"  # light and dark in order, whatever the eye
UPRIGHT = 8  # depths at most whose names stand side by side
CHANNELS = ("red", "green", "blue")
EDGE = 1.6, 1.0  # inches of a figure of maps: its colour bar, its heading and notes
NARROW = 5  # maps at most side by side in one column of a paper


def gradnorm(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw two panels for each column: by depth at the end, and the embedding by step."""
    arrays_by_cell = {
        cell: stepped
        for cell, by_seed in probed(plan, table, rundir, form, "gradnorm").items()
        if (stepped := {seed: arrays for seed, arrays in by_seed.items() if len(arrays["steps"])})
    }
    if not arrays_by_cell:
        raise NotYet(f"{plan.name}: no run has recorded a step for gradnorm yet")
    columns = [c.label for c in plan.columns if c.label in {column for _, column in arrays_by_cell}]
    ink = inks(plan)
    heading, size = "Gradient norms by depth and by step", (8.6, 1.1 + 2.7 * len(columns))
    sheet = Drawing(
        Subject(
            plan,
            table,
            form,
            "gradnorm",
            heading,
        ),
        panels=(len(columns), 2),
        size=size,
    )
    for (row, column), by_seed in arrays_by_cell.items():
        depth_axes, step_axes = sheet.axes[columns.index(column)]
        profiles = [gradnorm_profile(arrays) for arrays in by_seed.values()]
        labels = profiles[0][0]
        depth = range(len(labels))
        mean = _band(depth_axes, depth, np.stack([norms for _, norms in profiles]), ink[row])
        (line,) = depth_axes.plot(depth, mean, **ink[row].mark(linestyle=ink[row].dashes))
        words = ", ".join(f"{k} {v:.3g}" for k, v in zip(labels, mean, strict=True))
        sheet.tell(line, f"{cell_name(row, column)}: {words}, n = {len(by_seed)}", row)
        depth_axes.set_xticks(depth, labels, rotation=90 if len(labels) > UPRIGHT else 0)

        embedding_curves = [(a["steps"], read_gradnorm(a)[1][:, 0]) for a in by_seed.values()]
        # One that diverged ends early.
        common_steps = min((steps for steps, _ in embedding_curves), key=len)
        norms = np.stack([norms[: len(common_steps)] for _, norms in embedding_curves])
        mean = _band(step_axes, common_steps, norms, ink[row])
        (line,) = step_axes.plot(common_steps, mean, **ink[row].line())
        sheet.tell(line, f"{cell_name(row, column)}: {labels[0]}, n = {len(by_seed)}")
        depth_axes.set_title(plan.heading(column), loc="left")
        depth_axes.set_ylabel("gradient norm")
        step_axes.set_ylabel(f"gradient norm of the {labels[0]}")
        for axes in (depth_axes, step_axes):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    sheet.axes[-1][0].set_xlabel("depth: embedding, blocks, head")
    sheet.axes[-1][1].set_xlabel("step")
    sheet.foot(
        "Norm of the gradient of all parameters at a depth, before clipping; the embedding without "
        f"its norms. By depth: mean over the last tenth of the steps, at most {GRADNORM_STEPS:,}. "
        "Lines: means over seeds; bands: from the lowest to the highest."
    )
    return sheet


def _band(axes: Any, x: Any, values: Any, ink: Ink) -> Any:
    """Draw the range over seeds (n, points) and return the mean. Values without a logarithm are
    left out: nan, inf, and the zeros of the first steps, in which a zero head has no gradient."""
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    if len(values) > 1:
        axes.fill_between(x, values.min(0), values.max(0), **ink.band())
    return values.mean(0)


ACROSS = 2  # columns in a line


def uniform(height: int, width: int) -> float:
    """Compute the distance of uniform attention, in grid units: 7.2808 on 14 x 14."""
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width)), -1).reshape(-1, 2)
    return float(np.linalg.norm(places[:, None] - places[None], axis=-1).mean())


def attention(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw one panel for each column: a point for every head of every seed, a line for the mean."""
    arrays_by_cell = probed(plan, table, rundir, form, "attention")
    columns = [c.label for c in plan.columns if c.label in {column for _, column in arrays_by_cell}]
    rows = [r.label for r in plan.rows if r.label in {row for row, _ in arrays_by_cell}]
    ink = inks(plan)
    sheet = Drawing.of_panels(
        Subject(
            plan,
            table,
            form,
            "attention",
            "Attention distance of every head",
        ),
        titles=[plan.heading(column) for column in columns],
        most_across=ACROSS,
        panel=(4, 4.2),
        edge=(2.4, 0),
        x="layer",
        y=["mean attention distance, grid units"],
    )
    panels = {column: axes for column, (axes,) in zip(columns, sheet.panels, strict=True)}
    grids: dict[str, tuple[int, int]] = {}
    for (row, column), by_seed in arrays_by_cell.items():
        axes = panels[column]
        offset = 0.5 * ((rows.index(row) + 0.5) / len(rows) - 0.5)
        for seed, arrays in by_seed.items():
            layers, heads = arrays["distance"].shape
            x = np.repeat(np.arange(1, layers + 1) + offset, heads)
            (points,) = axes.plot(x, arrays["distance"].ravel(), **ink[row].mark(linestyle="none"))
            sheet.tell(points, f"{cell_name(row, column)}: seed {seed}, {layers} x {heads} heads")
            h, w = map(int, arrays["grid"])
            grids[column] = (h, w)
        mean = np.mean([arrays["distance"].mean(1) for arrays in by_seed.values()], 0)
        (line,) = axes.plot(np.arange(1, len(mean) + 1) + offset, mean, **ink[row].line())
        axes.set_xticks(range(1, len(mean) + 1))
        sheet.names.setdefault(row, (line, points))
    for column, grid in grids.items():
        axes, everywhere = panels[column], uniform(*grid)
        axes.axhline(everywhere, color=GREY, linewidth=0.8, linestyle=":")
        place = axes.get_yaxis_transform()
        axes.text(1, everywhere, " uniform", color=GREY, transform=place, va="center")
        axes.set_ylim(bottom=0)
    sheet.foot(
        "A point: a head of one seed, mean over validation images; from patches to patches, class "
        "token left out. Lines: means over heads and seeds. Dotted: a head that looks everywhere "
        "alike."
    )
    return sheet


def scales(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw one panel for each cell with a map for each channel, of its first measured seed."""
    scales_by_cell: dict[tuple[str, str], tuple[int, Any]] = {}
    trees = {(cell.row, cell.column): cell.spec.tree for cell in plan.cells}
    for cell, by_seed in probed(plan, table, rundir, form, "scales").items():
        seed, arrays = next(iter(by_seed.items()))
        if FIRST_SCALE in arrays:
            side, channels = trees[cell]["model"]["patch"], trees[cell]["data"]["channels"]
            scales_by_cell[cell] = seed, arrays[FIRST_SCALE].reshape(side, side, channels)
    if not scales_by_cell:
        raise Nothing(
            f"{plan.name}: no row has a learned norm before the patch embedding; add a row with "
            f"stem=dpn or stem=pre"
        )
    everything = np.concatenate([scale.ravel() for _, scale in scales_by_cell.values()])
    most_channels = max(scale.shape[-1] for _, scale in scales_by_cell.values())
    titles = {cell: _cell_title(plan, cell) for cell in scales_by_cell}
    width = max(PANEL, 0.9 * most_channels)
    sheet = Drawing.of_panels(
        Subject(
            plan,
            table,
            form,
            "scales",
            "Learned scale of the norm before the patch embedding",
        ),
        titles=[*titles.values()],
        most_across=int((WIDEST - EDGE[0]) // width),
        panel=(width, 1.9),
        edge=EDGE,
    )
    ends = everything.min(), everything.max()
    means_text = []
    for (axes,), (cell, (seed, scale)) in zip(sheet.panels, scales_by_cell.items(), strict=True):
        means = ", ".join(f"{name} {mean:.3f}" for name, mean in scale_summary(scale).items())
        means_text.append(f"{titles[cell]}, seed {seed}: {means}.")
        names = CHANNELS if scale.shape[-1] == len(CHANNELS) else ()
        image = _maps(axes, scale.transpose(2, 0, 1), ends, names)
        sheet.tell(axes, f"{cell_name(*cell)}: {means}")
    panels = [axes for (axes,) in sheet.panels]
    bar = sheet.figure.colorbar(image, ax=panels, shrink=0.8, panchor=False, label="scale")
    initial = "the initial scale is 1"
    if ends[0] < 1 < ends[1]:
        bar.ax.axhline(1, color="white", linewidth=1.5)
        initial += ", a white line on the colour bar"
    sheet.foot(f"By place in a patch; {initial}. Means:", *means_text)
    return sheet


def tokens(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw one panel for each cell with a map of places for each layer; mean over seeds."""
    norms_by_cell = {
        cell: (sorted(by_seed), np.mean([arrays["norms"] for arrays in by_seed.values()], 0))
        for cell, by_seed in probed(plan, table, rundir, form, "tokens").items()
    }
    most_layers = max(len(norms) for _, norms in norms_by_cell.values())
    size = (max(5.5, 2.2 + 0.75 * most_layers), 1.2 + 1.35 * len(norms_by_cell))
    sheet = Drawing(
        Subject(
            plan,
            table,
            form,
            "tokens",
            "Length of tokens by layer and place",
        ),
        panels=(len(norms_by_cell), 1),
        size=size,
        wide=most_layers > NARROW,
    )
    for (axes,), (cell, (seeds, norms)) in zip(sheet.axes, norms_by_cell.items(), strict=True):
        means = norms.mean((1, 2))
        names = [f"{layer}\n({_digits(mean)})" for layer, mean in enumerate(means)]
        image = _maps(axes, norms, (norms.min(), norms.max()), names, most_layers)
        axes.set_anchor("W")
        axes.set_title(form.wrapped_name(_cell_title(plan, cell)), loc="left", fontsize="small")
        _write_below(axes, -0.9, "layer\n(mean)", "right")
        means_text = ", ".join(f"{mean:.3g}" for mean in means)
        sheet.tell(axes, f"{cell_name(*cell)}: means by layer {means_text}; n = {len(seeds)}")
        thin = 20 if form.style == "page" else 8
        sheet.figure.colorbar(
            image,
            ax=axes,
            shrink=0.9,
            panchor=False,
            label="length",
            aspect=thin,
            ticks=MaxNLocator(3),  # by itself it depends on a height that is not yet laid out
        )
    sheet.foot(
        "Mean length of the token at each place before the first block (0) and behind each block, "
        "over validation images and seeds; in brackets: the mean of a map. Every panel has its "
        "own colour scale: compare panels by their numbers."
    )
    return sheet


def _cell_title(plan: Plan, cell: tuple[str, str]) -> str:
    """Return the title of a cell's panel, with the heading of its column."""
    row, column = cell
    return cell_name(row, plan.heading(column))


def _digits(number: float) -> str:
    """Write a number with three digits: 6.00, 10.9, 123."""
    return f"{number:#.3g}".rstrip(".")


def _maps(
    axes: Axes, maps: Any, ends: tuple[float, float], names: Sequence[str], places: int = 0
) -> Any:
    """Draw maps (n, h, w) side by side, a place apart, in one panel with room for so many `places`,
    each over its name; colours go from one of the `ends` to the other. Return the image."""
    number, height, width = maps.shape
    places = max(number, places)
    mosaic = np.full((height, places, width + 1), np.nan)
    mosaic[:, :number, :width] = maps.transpose(1, 0, 2)
    mosaic = mosaic.reshape(height, -1)[:, :-1]
    low, high = ends
    image = axes.imshow(mosaic, cmap=MAP, vmin=low, vmax=high, interpolation="nearest")
    axes.set_axis_off()
    for n, name in enumerate(names):
        _write_below(axes, n * (width + 1) + (width - 1) / 2, name, "center")
    return image


def _write_below(axes: Axes, x: float, text: str, ha: Literal["center", "right"]) -> None:
    """Write a text below a panel of maps, at a place across it."""
    axes.annotate(
        text,
        (x, 0),
        xycoords=("data", "axes fraction"),
        xytext=(0, -3),
        textcoords="offset points",
        ha=ha,
        va="top",
        fontsize="small",
    )
