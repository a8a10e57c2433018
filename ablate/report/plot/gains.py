"""Draws gains over the baseline: all columns in one panel (`gain`), or row by row (`forest`).

Used by `ablate plot` and `ablate export`, through FIGURE_KINDS in `__init__.py`, which names this
file and its functions. page.py draws its own forest with `by_seed` and `limits`, `changes.py` takes
`limits_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median_low
from typing import Literal

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from ablate.analysis import Entry, Table, confidence_level, joint_words
from ablate.planning import Plan
from ablate.report.plot.form import (
    BLACK,
    GREY,
    FigureForm,
    Ink,
    Nothing,
    NotYet,
    RunDirs,
    cell_name,
    inks,
)
from ablate.report.plot.style import Drawing, Subject
from ablate.shared import amount_text

FAR = 5  # times as wide as the middle interval: one that is wider is cut, to leave others to see
ROW_WIDTH = 0.1  # inches of a row in a column: its mark, and the dots of its seeds
NO_INTERVAL = "[-]"  # as tables print it


def gain(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw the form of Dual PatchNorm's Figure 1: one point for each row in each column. Columns
    that have no room side by side go on in a further panel below. Rows of a single column have
    their names on an axis, unless families share a style."""
    entries = _with_gains(plan, table, form)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    if len(table.columns) == 1 and form.grouping is None:
        return _gain_of_one_column(plan, table, form, entries, rows)
    styles = {row.label: form.style_of(row) for row in plan.rows}
    columns, ink = [column.label for column in table.columns], inks(plan, styles)
    headings = [form.wrapped_name(column.heading) for column in table.columns]
    is_wide, across = _columns_across(form, headings, len(rows))
    lines = -(-len(columns) // across)
    width = max(6, 3.2 + _column_width(headings, len(rows)) * across)
    height = max(4.2, 1.6 + 0.18 * len(rows)) + 2.6 * (lines - 1)
    sheet = Drawing(
        Subject(
            plan,
            table,
            form,
            "gain",
            _heading(table),
        ),
        panels=(lines, 1),
        size=(width, height),
        wide=is_wide,
    )
    ends = limits(table, entries)
    for line, (axes,) in enumerate(sheet.panels):
        columns_here = range(line * across, min((line + 1) * across, len(columns)))
        axes.set_ylim(*ends)
        axes.axhline(0, color=BLACK, linewidth=0.8)
        axes.set_xticks(range(len(columns_here)), [headings[c] for c in columns_here])
        axes.tick_params(axis="x", length=0)
        for edge in range(1, len(columns_here)):
            axes.axvline(edge - 0.5, color="#DDDDDD", linewidth=0.6)
        axes.set_xlim(-0.5, across - 0.5)
        axes.set_ylabel(_axis(table))
    for entry in entries:
        line, column = divmod(columns.index(entry.column), across)
        x = column + 0.8 * (rows.index(entry.row) + 0.5) / len(rows) - 0.4
        large = entry.row == form.highlight
        (axes,) = sheet.panels[line]
        point = _mark(sheet, axes, table, entry, x, ends, ink[entry.row], "up", large)
        sheet.names.setdefault(styles[entry.row], point)
    sheet.names = {styles[row]: sheet.names[styles[row]] for row in rows}
    sheet.foot(*_foot(plan, table, entries, form), length=1)
    return sheet


def _gain_of_one_column(
    plan: Plan, table: Table, form: FigureForm, entries: list[Entry], rows: list[str]
) -> Drawing:
    """Draw the gains of a single column, row by row."""
    sheet = Drawing.of_lines(
        Subject(
            plan,
            table,
            form,
            "gain",
            _heading(table),
        ),
        titles=[table.columns[0].heading],
        names=rows,
        words=(),
        x=_axis(table),
    )
    ((axes,),) = sheet.panels
    ends, ink = limits(table, entries), inks(plan)
    axes.set_xlim(*ends)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.grid(axis="x", visible=True)
    for entry in entries:
        y, large = rows.index(entry.row), entry.row == form.highlight
        _mark(sheet, axes, table, entry, y, ends, ink[entry.row], "right", large)
    sheet.foot(*_foot(plan, table, entries, form))
    return sheet


def _column_width(headings: Sequence[str], rows: int) -> float:
    """Return the inches that a column needs: for the marks of its rows, and for its heading."""
    letters = max(len(line) for heading in headings for line in heading.split("\n"))
    return max(1.1, ROW_WIDTH * rows, 0.08 * letters + 0.1)


def _columns_across(form: FigureForm, headings: Sequence[str], rows: int) -> tuple[bool, int]:
    """Return whether columns need both columns of a paper, and how many stand side by side: as many
    in each panel as in the others, where that takes no further panel."""
    width = _column_width(headings, rows)
    rooms = form.rooms_for_columns()
    room = next((room for room in rooms if len(headings) * width <= room), rooms[-1])
    lines = -(-len(headings) // max(1, int(room // width)))
    return room > rooms[0], -(-len(headings) // lines)


def forest(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw one panel for each column, with the interval and the verdict of each row."""
    entries = _with_gains(plan, table, form)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    ink, margin = inks(plan), plan.analysis.margin
    words = {
        (entry.row, entry.column): _numbers(table, entry)
        if form.style == "page"
        else entry.verdict or ""
        for entry in entries
    }
    sheet = Drawing.of_lines(
        Subject(
            plan,
            table,
            form,
            "forest",
            _heading(table),
        ),
        titles=[column.heading for column in table.columns],
        names=rows,
        words=list(words.values()),
        x=_axis(table),
    )
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
                sheet.write_right(axes, y, words[entry.row, entry.column])
    shade = ""
    if margin is not None:
        amount = amount_text(f"{margin:g}", table.metric_of().points)
        shade = f"Shaded: the margin of {amount}."
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
    if not _has_interval(entry) and any(map(_has_interval, table.entries)):
        axes.annotate(
            NO_INTERVAL,
            (placed([gain.mean])[0][0], placed([gain.mean])[1][0]),
            (0, rcParams["lines.markersize"]),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize="small",
            color=GREY,
        )
    seeds = by_seed(table, entry)
    direction = (1, 0) if up else (0, -1)
    dots = sheet.dots(axes, *placed([*seeds.values()]), ink.colour, direction)
    gains_text = ", ".join(
        f"{s}: {table.metric_of().text(gain, sign=True)}" for s, gain in seeds.items()
    )
    sheet.tell(
        dots, f"{cell_name(entry.row, entry.column)}, gain by {table.of_value}: {gains_text}"
    )
    return point


def _with_gains(plan: Plan, table: Table, form: FigureForm) -> list[Entry]:
    entries = [entry for entry in table.entries if entry.gain is not None]
    shown_entries = [entry for entry in entries if form.shows(entry.row)]
    if shown_entries:
        return shown_entries
    if entries:
        row_names = ", ".join(dict.fromkeys(entry.row for entry in entries))
        raise Nothing(f"--rows: no row of these has a gain; these have: {row_names}")
    baseline = plan.baseline_words
    if table.target is not None:
        raise Nothing(
            f"{plan.name}: no gain, since means are judged against analysis.target; "
            f"`analysis.target=null` draws gains"
        )
    if len(plan.rows) == 1:
        raise Nothing(f"{plan.name}: no gain, since the baseline {baseline} is the only row")
    if table.complete:
        raise Nothing(f"{plan.name}: no gain, since no row shares a seed with {baseline}")
    raise NotYet(
        f"{plan.name}: no gain yet, since no row has finished a seed that {baseline} has "
        f"finished, too"
    )


def by_seed(table: Table, entry: Entry) -> dict[int, float]:
    """Return the gain of each seed that the baseline has finished, too. Of a sheet without seeds,
    whose numbers of runs link no rows, the gain of each run over the mean of the baseline's."""
    column = next(column for column in table.columns if column.label == entry.column)
    base = next(
        column_entry.values for column_entry in column.entries if column_entry.row == table.baseline
    )
    sign = table.metric_of().sign
    if table.repeats == "runs":
        base = dict.fromkeys(entry.values, fmean(base.values()))
    return {s: sign * (value - base[s]) for s, value in entry.values.items() if s in base}


def _reach(table: Table, entry: Entry) -> tuple[float, float]:
    """Return the ends of a gain's drawing: of its interval and its seeds."""
    gain = entry.gain
    assert gain is not None
    ends = [end for end in (gain.low, gain.high) if end is not None]
    ends += [gain.mean, *by_seed(table, entry).values()]
    return min(ends), max(ends)


def limits(table: Table, entries: list[Entry]) -> tuple[float, float]:
    """Return the range over which gains are drawn."""
    gains = [entry.gain for entry in entries if entry.gain is not None]
    return limits_of([gain.mean for gain in gains], [_reach(table, entry) for entry in entries])


def limits_of(
    means: Sequence[float], reaches: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Return the range over which means are drawn. It contains zero, every mean, and every reach
    (interval and seeds) except those more than FAR times as wide as the median one of those that
    have a width, with a margin of 5 % at each end."""
    # Differences of equal gains may be off by their last digits.
    widths = [high - low for low, high in reaches if not math.isclose(low, high, abs_tol=1e-9)]
    width_limit = FAR * median_low(widths or [0.0])
    ends = [end for low, high in reaches if high - low <= width_limit for end in (low, high)]
    ends += [0.0, *means]
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
    contrast = metric.contrast_with(table.baseline_words)
    return f"{contrast[0].upper()}{contrast[1:]}: {metric.name}"


def _axis(table: Table) -> str:
    return table.metric_of().with_points(table.metric_of().change)


def _numbers(table: Table, entry: Entry) -> str:
    """Write the gain as tables print it, and its verdict."""
    gain = entry.gain
    assert gain is not None
    metric = table.metric_of()
    interval = metric.interval(gain.low, gain.high, sign=True) or NO_INTERVAL
    return f"{metric.text(gain.mean, sign=True)} {interval} {entry.verdict or ''}".rstrip()


def _has_interval(entry: Entry) -> bool:
    gain = entry.gain
    return gain is not None and gain.low is not None and gain.high is not None


def _reason_without_interval(plan: Plan, table: Table, entry: Entry) -> str:
    """Say why the table gives the gain no interval; "" where its notes on the whole table do."""
    for note in table.notes_by_place[entry.row, entry.column]:
        if note.key in ("interval.wide", "gain.no-spread"):
            text = note.text.removeprefix("-: ").rstrip(".")
            return f"{text[0].lower()}{text[1:]}"
    if plan.changes is not None:
        return "this design judges its changes, not its cells: see the figure `changes`"
    if not table.complete:
        return "not all runs have finished"
    return f"a single {table.of_value} has none" if entry.n == 1 else ""


def _interval_lines(
    plan: Plan, table: Table, entries: Sequence[Entry], form: FigureForm
) -> list[str]:
    """Say what the bars are, where there are any, and why gains have none."""
    lines = []
    if any(map(_has_interval, entries)):
        together = joint_words(plan, table.columns)
        if together and form.rows:
            together += " of the whole sweep, whichever rows are shown"
        level = confidence_level(table.gain_alpha)
        bars = f"Bars: {level} intervals over {table.trained_repeats}"
        lines.append(f"{bars}, {together}." if together else f"{bars}.")
    cells_by_reason: dict[str, list[str]] = {}
    for entry in entries:
        if not _has_interval(entry):
            reason = _reason_without_interval(plan, table, entry)
            cells_by_reason.setdefault(reason, []).append(cell_name(entry.row, entry.column))
    if not lines and len(cells_by_reason) == 1:
        (reason,) = cells_by_reason
        return [f"No gain has an interval{': ' if reason else ''}{reason}."]
    return lines + [
        f"{NO_INTERVAL}, without an interval{': ' if reason else ''}{reason}: {', '.join(cells)}."
        for reason, cells in cells_by_reason.items()
    ]


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
    better = "" if table.metric_of().neutral else "A gain above 0 is better. "
    bars = _interval_lines(plan, table, entries, form)
    warnings = table.unmarked_notes("warning")
    lines = [
        f"{better}{' '.join(bars)} Dots: single {table.of_value}s.",
        # Averages and contrasts, which that one is about, are not drawn here.
        *(note.text for note in warnings if note.key != "looks.below"),
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
