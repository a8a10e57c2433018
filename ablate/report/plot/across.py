"""Draws the metric over a number that columns set: a depth, a size, a rate.

Used by `ablate plot` and `ablate report`, through FIGURE_KINDS in `__init__.py`, which names this
file and its functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from ablate.analysis import Estimate, Table, confidence_level
from ablate.planning import Column, Plan, value_text
from ablate.report.plot.form import FigureForm, Nothing, NotYet, RunDirs, cell_name, ink_of, inks
from ablate.report.plot.style import Drawing, Subject

ACROSS = 3  # rows in a line
APART = 0.036  # of an axis, between two marks that stand side by side: 1.2 marks in a panel
TOGETHER = 0.8  # of the space between two numbers: at most what the marks of a number take
WIDE = 30  # times the least number: from there on an axis counts in powers


def across(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw the mean of each cell over the number, with its interval over seeds.

    A panel a row, and in it a line for each setting of the columns' other keys; one panel with a
    line a row where columns set nothing else.
    """
    key, lines = _lines(plan)
    key_name = plan.design.column_noun or key
    means = {(e.row, e.column): e.accuracy for e in table.entries if e.accuracy is not None}
    rows = [row.label for row in plan.rows if form.shows(row.label)]
    if not any(row in rows for row, _ in means):
        raise NotYet(f"{plan.name}: no run has a result yet")
    setting_texts, ink = [_other_settings(plan, line[0], key) for line in lines], inks(plan)
    alone = len(lines) == 1
    metric = table.metric_of()
    sheet = Drawing.of_panels(
        Subject(
            plan,
            table,
            form,
            "across",
            f"{metric.name} over {key_name}",
        ),
        titles=[""] if alone else rows,
        most_across=ACROSS,
        panel=(3.4, 3.6),
        x=key_name,
        y=[metric.with_unit(metric.name)],
    )
    panels = [axes for (axes,) in sheet.panels]
    for axes in panels[1:]:
        axes.sharex(panels[0])
        axes.sharey(panels[0])
    side_by_side = len(rows) if alone else len(lines)
    number_by_index = _numbers(plan.columns, key)
    texts = {x: value_text(plan.columns[i].settings[key]) for i, x in number_by_index.items()}
    numbers = sorted(texts)
    is_log = numbers[0] > 0 and numbers[-1] >= WIDE * numbers[0]
    spacing = _spacing([math.log(n) if is_log else n for n in numbers], side_by_side)
    for n, (row, c) in enumerate((row, c) for row in rows for c in range(len(lines))):
        axes, place = panels[n // side_by_side], n % side_by_side
        style = ink[row] if alone else ink_of(place + 1)
        labels = {number_by_index[i]: plan.columns[i].label for i in lines[c]}
        points = {x: means[row, label] for x, label in labels.items() if (row, label) in means}
        offset = spacing * (place - (side_by_side - 1) / 2)
        moved = [x * math.exp(offset) if is_log else x + offset for x in points]
        for x, mean in zip(moved, points.values(), strict=True):
            ends = [end for end in (mean.low, mean.high) if end is not None]
            axes.plot([x] * len(ends), ends, linewidth=1, color=style.colour)
        values = [mean.mean for mean in points.values()]
        (line,) = axes.plot(moved, values, **style.line() | style.mark())
        values_at = ", ".join(
            f"{metric.text(mean.mean)} at {texts[x]}" for x, mean in points.items()
        )
        text = f"{cell_name(row, setting_texts[c] or key_name)}: {values_at}"
        sheet.tell(line, text, row if alone else setting_texts[c])
    if is_log:
        panels[0].set_xscale("log")
    panels[0].set_xticks(numbers, [texts[number] for number in numbers])
    panels[0].set_xticks([], minor=True)
    for axes in panels:
        axes.margins(0.1)
    sheet.foot(*_interval_lines(table, means, rows), *table.texts("warning"))
    return sheet


def _spacing(numbers: Sequence[float], side_by_side: int) -> float:
    """Return the space between marks that stand side by side at the same number. `numbers`: those
    of the axis, sorted, their logarithms on a logarithmic axis, in whose unit the space is."""
    narrowest = min(after - before for before, after in itertools.pairwise(numbers))
    return min(APART * (numbers[-1] - numbers[0]), TOGETHER * narrowest / side_by_side)


def _interval_lines(
    table: Table, means: Mapping[tuple[str, str], Estimate], rows: Sequence[str]
) -> list[str]:
    """Say what the bars are, where there are any, and which means of these rows have none."""
    means_here = {cell: mean for cell, mean in means.items() if cell[0] in rows}
    bare: dict[str, list[str]] = {}  # reason -> cells without an interval
    for cell, mean in means_here.items():
        if mean.low is None:
            reason = "a single seed has none" if mean.n < 2 else "its seeds are equal"
            reason = "a smoke test has none" if mean.sd else reason
            bare.setdefault(reason, []).append(cell_name(*cell))
    lines = []
    if sum(map(len, bare.values())) < len(means_here):
        level = confidence_level(table.alpha)
        lines.append(f"Bars: {level} intervals of each mean, over {table.trained_repeats}.")
    for reason, cells in sorted(bare.items()):
        if len(cells) == len(means_here):
            return [f"No mean has an interval: {reason}."]
        if cells:
            lines.append(f"Without a bar, since {reason}: {', '.join(cells)}.")
    return lines


def _lines(plan: Plan) -> tuple[str, list[list[int]]]:
    """Choose the key that is drawn over; return it with the columns of each line in its order. Of
    several numbers it is the one that makes the fewest lines, and among these the one that changes
    from column to column. Raises Nothing where no number differs."""
    columns = plan.columns
    series = ((_series(columns, key), key) for key in columns[0].settings)
    candidates = [
        (len(lines), lines, key)
        for lines, key in series
        if sum(map(len, lines)) == len(columns) and max(map(len, lines)) > 1
    ]
    if not candidates:
        raise Nothing(f"{plan.name}: its columns do not differ in a number")
    _, lines, key = min(candidates)
    return key, lines


def _series(columns: Sequence[Column], key: str) -> list[list[int]]:
    """Indices of the columns that differ in a number of `key` alone, in its order: a list for each
    setting of the other keys. Of columns that have the same number, as of "1" and "1.0" in a sheet,
    it has one alone."""
    groups: dict[str, dict[float, int]] = {}
    for index, number in _numbers(columns, key).items():
        rest = repr(sorted((k, v) for k, v in columns[index].settings.items() if k != key))
        groups.setdefault(rest, {})[number] = index
    return [[group[number] for number in sorted(group)] for group in groups.values()]


def _numbers(columns: Sequence[Column], key: str) -> dict[int, float]:
    """Return the numbers that columns set for `key`, by the index of the column."""
    numbers = {index: column.number_of(key) for index, column in enumerate(columns)}
    return {index: number for index, number in numbers.items() if number is not None}


def _other_settings(plan: Plan, column: int, key: str) -> str:
    """Return the settings of a column without that of `key`: "optim.lr=0.003", as text."""
    settings = plan.columns[column].settings
    return ", ".join(f"{k}={value_text(value)}" for k, value in settings.items() if k != key)
