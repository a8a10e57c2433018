"""Draws gains over the baseline: all columns in one panel (`gain`), or row by row (`forest`)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Literal

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from ablate.analysis import Entry, Table, confidence_level, family_words
from ablate.planning import Plan
from ablate.report.plot.form import BLACK, FigureForm, Ink, Nothing, RunDirs, cell_name, inks
from ablate.report.plot.style import Drawing

ACROSS = 2  # columns of a forest in a line
FAR = 5  # times as wide as the middle interval: one that is wider is cut, to leave others to see


def gain(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw the form of Dual PatchNorm's Figure 1: one point for each row in each column."""
    styles = {row.label: form.style_of(row) for row in plan.rows}
    entries = _with_gains(plan, table, form)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    columns = [column.label for column in table.columns]
    ink = inks(plan, styles)
    column = max(1.1, 0.08 * len(rows))
    size = (max(6, 3.2 + column * len(columns)), max(4.2, 1.6 + 0.18 * len(rows)))
    sheet = Drawing(plan, table, form, "gain", _heading(table), (1, 1), size)
    axes, ends = sheet.axes[0][0], limits(table, entries)
    axes.set_ylim(*ends)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    for entry in entries:
        x = columns.index(entry.column) + 0.8 * (rows.index(entry.row) + 0.5) / len(rows) - 0.4
        large = entry.row == form.highlight
        point = _mark(sheet, axes, table, entry, x, ends, ink[entry.row], "up", large)
        sheet.names.setdefault(styles[entry.row], point)
    axes.set_xticks(range(len(columns)), [column.heading for column in table.columns])
    axes.tick_params(axis="x", length=0)
    for edge in range(1, len(columns)):
        axes.axvline(edge - 0.5, color="#DDDDDD", linewidth=0.6)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylabel(_axis(table))
    sheet.names = {styles[row]: sheet.names[styles[row]] for row in rows}
    sheet.foot(*_foot(plan, table, entries, form), length=1)
    return sheet


def forest(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw one panel for each column, with the interval and the verdict of each row."""
    entries = _with_gains(plan, table, form)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    ink, margin = inks(plan), plan.analysis.margin
    sheet = Drawing.of_panels(
        *(plan, table, form, "forest", _heading(table)),
        titles=[column.heading for column in table.columns],
        most_across=ACROSS,
        panel=(4.2, 0.8 + 0.3 * len(rows)),
        edge=(2.2, 1),
        x=_axis(table),
    )
    letters = "medium" if form.style == "page" else "small"
    ends = limits(table, entries)
    for (axes,), column in zip(sheet.panels, table.columns, strict=True):
        axes.set_xlim(*ends)
        axes.axvline(0, color=BLACK, linewidth=0.8)
        if margin is not None:
            axes.axvspan(-margin, margin, color="#EEEEEE", zorder=0)
        for entry in entries:
            if entry.column == column.label:
                y = rows.index(entry.row)
                _mark(sheet, axes, table, entry, y, ends, ink[entry.row], "right")
                place = axes.get_yaxis_transform()
                words = _numbers(table, entry) if form.style == "page" else entry.verdict or ""
                axes.text(1.02, y, words, transform=place, va="center_baseline", fontsize=letters)
    sheet.name_lines(rows)
    shade = (
        f"Shaded: the margin of {margin:g} {table.metric_of().points}."
        if margin is not None
        else ""
    )
    sheet.foot(*_foot(plan, table, entries, form), shade)
    return sheet


def _mark(
    sheet: Drawing,
    axes: Axes,
    table: Table,
    entry: Entry,
    place: float,
    ends: tuple[float, float],
    ink: Ink,
    way: Literal["up", "right"],
    large: bool = False,
) -> Artist:
    """Draw the interval, the mean and the seeds of a gain, which grows this way, at a place across
    it; an arrow where an end lies beyond the `ends` of what is shown. Return the mark of the mean.
    """
    gain, up = entry.gain, way == "up"
    assert gain is not None

    def placed(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
        across = [place] * len(values)
        return (across, values) if up else (values, across)

    text = f"{cell_name(entry.row, entry.column)}: {_numbers(table, entry)}, n = {entry.n}"
    if gain.low is not None and gain.high is not None:
        width = (2.5 if large else 1) if up else None
        (bar,) = axes.plot(*placed([gain.low, gain.high]), color=ink.colour, linewidth=width)
        sheet.tell(bar, text)
    arrows = (CARETDOWN, CARETUP) if up else (CARETLEFT, CARETRIGHT)
    for end, arrow in _cut(table, entry, ends, arrows):
        axes.plot(*placed([end]), marker=arrow, color=ink.colour, clip_on=False)
    bold = {"markersize": 2 * rcParams["lines.markersize"], "markeredgecolor": BLACK, "zorder": 3}
    style = ink.mark(linestyle="none", **bold if large else {})
    (point,) = axes.plot(*placed([gain.mean]), **style)
    sheet.tell(point, text)
    seeds = by_seed(table, entry)
    direction = (1, 0) if up else (0, -1)
    dots = sheet.dots(axes, *placed([*seeds.values()]), ink.colour, direction)
    gains_text = ", ".join(
        f"{s}: {table.metric_of().text(gain, sign=True)}" for s, gain in seeds.items()
    )
    sheet.tell(dots, f"{cell_name(entry.row, entry.column)}, gain by seed: {gains_text}")
    return point


def _with_gains(plan: Plan, table: Table, form: FigureForm) -> list[Entry]:
    entries = [entry for entry in table.entries if entry.gain is not None]
    shown_entries = [entry for entry in entries if form.shows(entry.row)]
    if shown_entries:
        return shown_entries
    if entries:
        row_names = ", ".join(dict.fromkeys(entry.row for entry in entries))
        raise Nothing(f"--rows: no row of these has a gain; these have: {row_names}")
    if len(plan.rows) == 1:
        raise Nothing(f"{plan.name}: no gain, since the baseline {plan.baseline} is the only row")
    if table.complete:
        raise Nothing(f"{plan.name}: no gain, since no row shares a seed with {plan.baseline}")
    raise Nothing(
        f"{plan.name}: no gain yet, since no row has finished a seed that {plan.baseline} has "
        f"finished, too; run {plan.repeat_command()}"
    )


def by_seed(table: Table, entry: Entry) -> dict[int, float]:
    """Return the gain of each seed that the baseline has finished, too."""
    column = next(column for column in table.columns if column.label == entry.column)
    base = next(
        column_entry.values for column_entry in column.entries if column_entry.row == table.baseline
    )
    sign = table.metric_of().sign
    return {s: sign * (value - base[s]) for s, value in entry.values.items() if s in base}


def _reach(table: Table, entry: Entry) -> tuple[float, float]:
    """Return the ends of a gain's drawing: of its interval and its seeds."""
    gain = entry.gain
    assert gain is not None
    ends = [end for end in (gain.low, gain.high) if end is not None]
    ends += [gain.mean, *by_seed(table, entry).values()]
    return min(ends), max(ends)


def limits(table: Table, entries: list[Entry]) -> tuple[float, float]:
    """Return the range over which gains are drawn. It contains zero, every mean, and every reach
    (interval and seeds) except those more than FAR times as wide as the median one, with a margin
    of 5 % at each end."""
    gains = [entry.gain for entry in entries if entry.gain is not None]
    reaches = [_reach(table, entry) for entry in entries]
    width_limit = FAR * median_low([high - low for low, high in reaches] or [0.0])
    ends = [end for low, high in reaches if high - low <= width_limit for end in (low, high)]
    ends += [0.0, *(gain.mean for gain in gains)]
    low, high = min(ends), max(ends)
    air = 0.05 * (high - low) or 1.0
    return low - air, high + air


def _cut(
    table: Table, entry: Entry, ends: tuple[float, float], arrows: tuple[int, int]
) -> list[tuple[float, int]]:
    """List (end, arrow) for every end that the interval or a seed exceeds."""
    low, high = _reach(table, entry)
    beyond = (low < ends[0], high > ends[1])
    return [(end, arrow) for end, arrow, is_cut in zip(ends, arrows, beyond, strict=True) if is_cut]


def _heading(table: Table) -> str:
    metric = table.metric_of()
    contrast = metric.contrast_with(table.baseline)
    return f"{contrast[0].upper()}{contrast[1:]}: {metric.name}"


def _axis(table: Table) -> str:
    return f"{table.metric_of().change}, {table.metric_of().points}"


def _numbers(table: Table, entry: Entry) -> str:
    """Write the gain as tables print it, and its verdict."""
    gain = entry.gain
    assert gain is not None
    metric = table.metric_of()
    text = (
        f"{metric.text(gain.mean, sign=True)} "
        f"{metric.interval(gain.low, gain.high, sign=True)}".rstrip()
    )
    return " ".join([text, entry.verdict or ""]).rstrip()


def _foot(plan: Plan, table: Table, entries: list[Entry], form: FigureForm) -> list[str]:
    """Write the caption: how to read the figure, and the notes of the table."""
    drawn_cells = {(entry.row, entry.column) for entry in entries}
    absent = [
        cell_name(entry.row, entry.column)
        for entry in table.entries
        if entry.row != table.baseline
        and form.shows(entry.row)
        and (entry.row, entry.column) not in drawn_cells
    ]
    scope = " of the whole sweep, whichever rows are shown" if form.rows else ""
    lines = [
        f"A gain above 0 is better. Bars: {confidence_level(table.gain_alpha)} intervals over "
        f"training seeds, simultaneous over the {family_words(plan, table.columns)}{scope}. "
        f"Dots: single seeds.",
        *table.texts("warning"),
    ]
    ends = limits(table, entries)
    cut = [
        f"{cell_name(entry.row, entry.column)} {_numbers(table, entry)}"
        for entry in entries
        if _cut(table, entry, ends, (0, 0))
    ]
    if cut:
        lines.append(f"Cut at the arrows: {'; '.join(cut)}.")
    unstable = [
        f"{cell_name(entry.row, entry.column)} ({len(entry.diverged)} of {entry.planned})"
        for entry in table.entries
        if entry.diverged and form.shows(entry.row)
    ]
    if unstable:
        lines.append(f"Diverged: {', '.join(unstable)}.")
    return lines + ([f"Without a gain: {', '.join(absent)}."] if absent else [])
