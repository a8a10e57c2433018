"""Draws gains over the baseline: all columns in one panel (`gain`), or row by row (`forest`)."""

from __future__ import annotations

from statistics import median_low
from typing import Any

from matplotlib import rcParams
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from ablate.analysis.captions import family, level, sentence
from ablate.analysis.table import Entry, Table
from ablate.planning.plan import Plan
from ablate.planning.probing import again
from ablate.report.plot.form import BLACK, Form, Nothing, RunDirs, inks, named
from ablate.report.plot.style import Drawing

ACROSS = 2  # columns of a forest in a line
FAR = 5  # times as wide as the middle interval: one that is wider is cut, to leave others to see


def gain(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw the form of Dual PatchNorm's Figure 1: one point for each row in each column."""
    bold = {"markersize": 2 * rcParams["lines.markersize"], "markeredgecolor": BLACK, "zorder": 3}
    styles = {row.label: form.style_of(row) for row in plan.rows}
    entries = _with_gains(plan, table, form)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    columns = [column.label for column in table.columns]
    ink = inks(plan, styles)
    headings = {column.label: column.heading for column in table.columns}
    column = max(1.1, 0.08 * len(rows))
    size = (max(6, 3.2 + column * len(columns)), max(4.2, 1.6 + 0.18 * len(rows)))
    sheet = Drawing(plan, table, form, "gain", _heading(table), (1, 1), size)
    axes = sheet.axes[0][0]
    low, high = limits(table, entries)
    axes.set_ylim(low, high)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    legend: dict[str, Any] = {}
    for entry in entries:
        found, stands_out = entry.gain, entry.row == form.highlight
        assert found is not None
        x = columns.index(entry.column) + 0.8 * (rows.index(entry.row) + 0.5) / len(rows) - 0.4
        if found.low is not None and found.high is not None:
            ends = [found.low, found.high]
            width = 2.5 if stands_out else 1
            (bar,) = axes.plot([x, x], ends, color=ink[entry.row].colour, linewidth=width)
            sheet.tell(bar, _words(table, entry))
        for end, arrow in _cut(table, entry, (low, high), (CARETDOWN, CARETUP)):
            axes.plot([x], [end], marker=arrow, color=ink[entry.row].colour, clip_on=False)
        mark = ink[entry.row].mark(linestyle="none", **bold if stands_out else {})
        (point,) = axes.plot([x], [found.mean], **mark)
        sheet.tell(point, _words(table, entry))
        seeds = by_seed(table, entry)
        xs = [x] * len(seeds)
        dots = sheet.dots(axes, xs, [*seeds.values()], ink[entry.row].colour, (1, 0))
        sheet.tell(dots, _seeds(table, entry, seeds))
        legend.setdefault(styles[entry.row], point)
    axes.set_xticks(range(len(columns)), [headings[column] for column in columns])
    axes.tick_params(axis="x", length=0)
    for edge in range(1, len(columns)):
        axes.axvline(edge - 0.5, color="#DDDDDD", linewidth=0.6)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylabel(_axis(table))
    sheet.legend({styles[row]: legend[styles[row]] for row in rows}, length=1)
    sheet.foot(*_foot(plan, table, entries, form))
    return sheet


def forest(plan: Plan, table: Table, rundir: RunDirs, form: Form) -> Drawing:
    """Draw one panel for each column, with the interval and the verdict of each row."""
    entries = _with_gains(plan, table, form)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    ink = inks(plan)
    lines, across = form.across(len(table.columns), ACROSS)
    size = (2.2 + 4.2 * across, 1 + (0.8 + 0.3 * len(rows)) * lines)
    sheet = Drawing(plan, table, form, "forest", _heading(table), (lines, across), size)
    panels = [axes for (axes,) in sheet.columns(len(table.columns))]
    letters = "medium" if form.style == "page" else "small"
    low, high = limits(table, entries)
    for n, (axes, column) in enumerate(zip(panels, table.columns, strict=True)):
        axes.set_xlim(low, high)
        axes.axvline(0, color=BLACK, linewidth=0.8)
        if plan.analysis.margin is not None:
            axes.axvspan(-plan.analysis.margin, plan.analysis.margin, color="#EEEEEE", zorder=0)
        for entry in entries:
            if entry.column != column.label:
                continue
            found, y = entry.gain, rows.index(entry.row)
            assert found is not None
            if found.low is not None and found.high is not None:
                (bar,) = axes.plot([found.low, found.high], [y, y], color=ink[entry.row].colour)
                sheet.tell(bar, _words(table, entry))
            for end, arrow in _cut(table, entry, (low, high), (CARETLEFT, CARETRIGHT)):
                axes.plot([end], [y], marker=arrow, color=ink[entry.row].colour, clip_on=False)
            (point,) = axes.plot([found.mean], [y], **ink[entry.row].mark(linestyle="none"))
            sheet.tell(point, _words(table, entry))
            seeds = by_seed(table, entry)
            ys = [y] * len(seeds)
            dots = sheet.dots(axes, [*seeds.values()], ys, ink[entry.row].colour, (0, -1))
            sheet.tell(dots, _seeds(table, entry, seeds))
            place = axes.get_yaxis_transform()
            words = _numbers(table, entry) if form.style == "page" else entry.verdict or ""
            axes.text(1.02, y, words, transform=place, va="center_baseline", fontsize=letters)
        axes.set_yticks(range(len(rows)), [""] * len(rows) if n % across else rows)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_title(column.heading, loc="left")
        axes.set_xlabel(_axis(table))
    margin = plan.analysis.margin
    points = table.of().points
    shade = [] if margin is None else [f"Shaded: the margin of {margin:g} {points}."]
    sheet.foot(*_foot(plan, table, entries, form), *shade)
    return sheet


def _with_gains(plan: Plan, table: Table, form: Form) -> list[Entry]:
    entries = [entry for entry in table.entries if entry.gain is not None]
    shown = [entry for entry in entries if form.shows(entry.row)]
    if shown:
        return shown
    if entries:
        others = ", ".join(dict.fromkeys(entry.row for entry in entries))
        raise Nothing(f"--rows: no row of these has a gain; these have: {others}")
    if len(plan.rows) == 1:
        raise Nothing(f"{plan.name}: no gain, since the baseline {plan.baseline} is the only row")
    if table.complete:
        raise Nothing(f"{plan.name}: no gain, since no row shares a seed with {plan.baseline}")
    raise Nothing(
        f"{plan.name}: no gain yet, since no row has finished a seed that {plan.baseline} has "
        f"finished, too; run {again(plan)}"
    )


def by_seed(table: Table, entry: Entry) -> dict[int, float]:
    """The gain of each seed that the baseline has finished, too."""
    column = next(column for column in table.columns if column.label == entry.column)
    base = next(other.values for other in column.entries if other.row == table.baseline)
    sign = table.of().sign
    return {s: sign * (value - base[s]) for s, value in entry.values.items() if s in base}


def _reach(table: Table, entry: Entry) -> tuple[float, float]:
    """The ends of what is drawn of a gain: its interval and its seeds."""
    gain = entry.gain
    assert gain is not None
    ends = [end for end in (gain.low, gain.high) if end is not None]
    ends += [gain.mean, *by_seed(table, entry).values()]
    return min(ends), max(ends)


def limits(table: Table, entries: list[Entry]) -> tuple[float, float]:
    """From where to where gains are drawn: zero, every mean, and every reach but those that are
    more than FAR times as wide as the middle one; and a little air."""
    gains = [entry.gain for entry in entries if entry.gain is not None]
    whole = [_reach(table, entry) for entry in entries]
    most = FAR * median_low([high - low for low, high in whole] or [0.0])
    ends = [end for low, high in whole if high - low <= most for end in (low, high)]
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
    return f"{sentence(table.of().over(table.baseline))}: {table.of().name}"


def _axis(table: Table) -> str:
    return f"{table.of().change}, {table.of().points}"


def _numbers(table: Table, entry: Entry) -> str:
    """Write the gain as tables print it, and its verdict."""
    found = entry.gain
    assert found is not None
    of = table.of()
    text = (
        f"{of.text(found.mean, sign=True)} {of.interval(found.low, found.high, sign=True)}".rstrip()
    )
    return " ".join([text, entry.verdict or ""]).rstrip()


def _words(table: Table, entry: Entry) -> str:
    return f"{named(entry.row, entry.column)}: {_numbers(table, entry)}, n = {entry.n}"


def _seeds(table: Table, entry: Entry, seeds: dict[int, float]) -> str:
    said = ", ".join(f"{s}: {table.of().text(gain, sign=True)}" for s, gain in seeds.items())
    return f"{named(entry.row, entry.column)}, gain by seed: {said}"


def _foot(plan: Plan, table: Table, entries: list[Entry], form: Form) -> list[str]:
    """Write the caption: how to read the figure, and the notes of the table."""
    drawn = {(entry.row, entry.column) for entry in entries}
    absent = [
        named(entry.row, entry.column)
        for entry in table.entries
        if entry.row != table.baseline
        and form.shows(entry.row)
        and (entry.row, entry.column) not in drawn
    ]
    whole = " of the whole sweep, whichever rows are shown" if form.rows else ""
    lines = [
        f"A gain above 0 is better. Bars: {level(table.gain_alpha)} intervals over training seeds, "
        f"simultaneous over the {family(plan, table.columns)}{whole}. Dots: single seeds.",
        *table.texts("warning"),
    ]
    ends = limits(table, entries)
    cut = [
        f"{named(entry.row, entry.column)} {_numbers(table, entry)}"
        for entry in entries
        if _cut(table, entry, ends, (0, 0))
    ]
    if cut:
        lines.append(f"Cut at the arrows: {'; '.join(cut)}.")
    unstable = [
        f"{named(entry.row, entry.column)} ({len(entry.diverged)} of {entry.planned})"
        for entry in table.entries
        if entry.diverged and form.shows(entry.row)
    ]
    if unstable:
        lines.append(f"Diverged: {', '.join(unstable)}.")
    return lines + ([f"Without a gain: {', '.join(absent)}."] if absent else [])
