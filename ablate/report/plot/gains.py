"""Gains over the baseline: all columns in one panel (`gain`), or row by row (`forest`)."""

from __future__ import annotations

from typing import Any

from ablate.plan import Plan
from ablate.report.plot.measured import Nothing, RunDirs, again, named
from ablate.report.plot.style import BLACK, Sheet, inks
from ablate.report.table import METRICS, Entry, Table, level, number


def gain(plan: Plan, table: Table, rundir: RunDirs) -> Sheet:
    """Dual PatchNorm's Figure 1: columns from left to right, in each a point a row."""
    entries = _with_gains(plan, table)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    columns = [column.label for column in table.columns]
    ink = inks(plan)
    size = (max(6, 3.2 + 1.1 * len(columns)), max(4.2, 1.6 + 0.18 * len(rows)))
    sheet = Sheet(plan, table, "gain", (1, 1), size)
    axes = sheet.axes[0][0]
    axes.axhline(0, color=BLACK, linewidth=0.8)
    legend: dict[str, Any] = {}
    for entry in entries:
        found = entry.gain
        assert found is not None
        x = columns.index(entry.column) + 0.8 * (rows.index(entry.row) + 0.5) / len(rows) - 0.4
        if found.low is not None and found.high is not None:
            ends = [found.low, found.high]
            (bar,) = axes.plot([x, x], ends, color=ink[entry.row].colour, linewidth=1)
            sheet.tell(bar, _words(table, entry))
        (point,) = axes.plot([x], [found.mean], **ink[entry.row].mark(linestyle="none"))
        sheet.tell(point, _words(table, entry))
        legend.setdefault(entry.row, point)
    axes.set_xticks(range(len(columns)), columns)
    axes.tick_params(axis="x", length=0)
    for edge in range(1, len(columns)):
        axes.axvline(edge - 0.5, color="#DDDDDD", linewidth=0.6)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylabel(_axis(table))
    sheet.legend({row: legend[row] for row in rows})
    sheet.foot(*_foot(table, entries))
    return sheet


def forest(plan: Plan, table: Table, rundir: RunDirs) -> Sheet:
    """A panel a column; each row its interval and its verdict."""
    entries = _with_gains(plan, table)
    rows = [row.label for row in table.rows if row.label in {entry.row for entry in entries}]
    ink = inks(plan)
    columns = len(table.columns)
    size = (2.2 + 4.2 * columns, 1.8 + 0.3 * len(rows))
    sheet = Sheet(plan, table, "forest", (1, columns), size)
    for axes, column in zip(sheet.axes[0], table.columns, strict=True):
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
            (point,) = axes.plot([found.mean], [y], **ink[entry.row].mark(linestyle="none"))
            sheet.tell(point, _words(table, entry))
            axes.text(
                1.02, y, _numbers(table, entry), transform=axes.get_yaxis_transform(), va="center"
            )
        first = axes is sheet.axes[0][0]
        axes.set_yticks(range(len(rows)), rows if first else [""] * len(rows))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_title(column.label, loc="left")
        axes.set_xlabel(_axis(table))
    margin = plan.analysis.margin
    shade = [] if margin is None else [f"Shaded: the margin of {margin:g}."]
    sheet.foot(*_foot(table, entries), *shade)
    return sheet


def _with_gains(plan: Plan, table: Table) -> list[Entry]:
    entries = [entry for entry in table.entries if entry.gain is not None]
    if not entries:
        raise Nothing(
            f"{plan.name}: no gain yet: {plan.baseline} and another row must have finished with "
            f"the same seed: {again(plan)}"
        )
    return entries


def _axis(table: Table) -> str:
    metric = METRICS[table.metric]
    return f"gain over {table.baseline}: {metric.name}, {metric.points}"


def _numbers(table: Table, entry: Entry) -> str:
    """The gain as tables print it, and its verdict."""
    found = entry.gain
    assert found is not None
    low, high = found.low, found.high
    text = number(found.mean, table.metric, sign=True)
    if low is not None and high is not None:
        ends = (number(end, table.metric, sign=True) for end in (low, high))
        text += f" [{', '.join(ends)}]"
    return " ".join([text, entry.verdict or ""]).rstrip()


def _words(table: Table, entry: Entry) -> str:
    return f"{named(entry.row, entry.column)}: {_numbers(table, entry)}, n = {entry.n}"


def _foot(table: Table, entries: list[Entry]) -> list[str]:
    """How to read it; and what a reader of the table is told, who is told it here, too."""
    drawn = {(entry.row, entry.column) for entry in entries}
    absent = [
        named(entry.row, entry.column)
        for entry in table.entries
        if entry.row != table.baseline and (entry.row, entry.column) not in drawn
    ]
    lines = [
        f"+ is better. Bars: {level(table.gain_alpha)} intervals over training seeds, simultaneous "
        f"over the contrasts of the table's family.",
        *(note for note in table.notes if not note.startswith("UNFINISHED")),
    ]
    unstable = [
        f"{named(entry.row, entry.column)} ({len(entry.diverged)} of {entry.planned})"
        for entry in table.entries
        if entry.diverged
    ]
    if unstable:
        lines.append(f"Diverged: {', '.join(unstable)}.")
    return lines + ([f"Without a gain: {', '.join(absent)}."] if absent else [])
