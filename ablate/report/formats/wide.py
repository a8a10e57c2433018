"""Lays out a table as papers do: lines are architectures x variants, columns what else differs, in
a grid for each group of columns."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis.headline import wins
from ablate.analysis.table import Entry, Table, TableColumn, TableRow
from ablate.report.formats.grid import Grid, GridCell, GridLine
from ablate.report.formats.parts import OTHERS, ShownPart, fates, paper_apart, parts_of
from ablate.shared.errors import UserError

# Parts that the long table has: words are counted at the end of a line.
LONG = ("ci", "pm", "n", "verdict")


def wide_grids(table: Table, show: Sequence[str]) -> Iterator[Grid]:
    """Make a grid for each group. Each variant has a line for every part of `show` but LONG, the
    first under its own label, and one for the runs that diverged or miss.

    Raises UserError where nothing else is asked for.
    """
    shown = [name for name in show if name not in LONG]
    if not shown:
        raise UserError("--show: a wide table has no ci, n and verdict; add gain, or --no-wide")
    runs = ShownPart("runs", lambda entry: GridCell("; ".join(fates(entry)), number=True))
    parts = [part for name in shown for part in _parts(table, name)] + [runs]
    for group in (*table.groups, ""):
        if columns := [column for column in table.columns if column.group == group]:
            yield _grid(table, group or OTHERS * bool(table.groups), columns, parts)


def _parts(table: Table, name: str) -> Iterator[ShownPart]:
    return paper_apart(table) if name == "paper" else parts_of(table, [name])


def wide_caption(table: Table) -> Iterator[str]:
    """State what is counted, and where the numbers are that a wide table leaves out."""
    if not any(entry.verdict for entry in table.entries) and any(e.gain for e in table.entries):
        beyond = "below" if table.of().sign < 0 else "above"
        yield (
            f"Counts without verdicts are of means that are {beyond} the mean of {table.baseline}, "
            f"by however little."
        )
    command = shlex.join(["ablate", "table", *(table.words or [table.sweep]), "--no-wide"])
    yield f"`{command}` shows n, intervals and verdicts, column by column."


@dataclass(frozen=True)
class _Notes:
    """Footnotes, each where it is of all that stands below it: the corner, a heading or an
    architecture; else of a cell (column's label, row)."""

    corner: tuple[int, ...]
    headings: Mapping[str, tuple[int, ...]]
    archs: Mapping[str, tuple[int, ...]]
    cells: Mapping[tuple[str, str], tuple[int, ...]]

    @classmethod
    def of(cls, columns: Sequence[TableColumn]) -> _Notes:
        notes = {
            (column.label, entry.row): {*column.footnotes, *entry.footnotes}
            for column in columns
            for entry in column.entries
        }

        def common(some: Collection[TableColumn]) -> set[int]:
            found = [notes[c.label, entry.row] for c in some for entry in c.entries]
            return set.intersection(*found) if found else set()

        corner = common(columns)
        headings = {
            wide: common([c for c in columns if c.wide == wide]) - corner
            for wide in dict.fromkeys(column.wide for column in columns)
        }
        above = corner.union(*headings.values())
        archs = {
            arch: common([c for c in columns if c.arch == arch]) - above
            for arch in dict.fromkeys(column.arch for column in columns if column.arch)
        }
        for column in columns:
            for entry in column.entries:
                elsewhere = corner | headings[column.wide] | archs.get(column.arch, set())
                notes[column.label, entry.row] -= elsewhere
        return cls(_sorted(corner), _each(headings), _each(archs), _each(notes))


def _sorted(numbers: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))


def _each(notes: Mapping[Any, Collection[int]]) -> dict[Any, tuple[int, ...]]:
    return {place: _sorted(numbers) for place, numbers in notes.items()}


def _grid(
    table: Table, title: str, columns: Sequence[TableColumn], parts: Sequence[ShownPart]
) -> Grid:
    whole, notes = table.whole or table, _Notes.of(columns)
    places = {(column.arch, column.wide): column for column in columns}
    headings = dict.fromkeys(column.wide for column in columns)
    lines: list[GridLine] = []
    above = OTHERS
    for arch in dict.fromkeys(column.arch for column in columns):
        of = [places.get((arch, heading)) for heading in headings]
        for row in table.rows:
            entries = [_entry(column, row) for column in of]
            if not any(entries):
                continue
            under = ", ".join(filter(None, (arch, row.family))) or OTHERS
            if under != above:
                empty = (GridCell("", number=True) for _ in headings)
                first = GridCell(under, notes.archs.get(arch, ()))
                lines.append(GridLine((first, *empty, GridCell("")), heading=True))
                above = under
            every = (c for c in whole.columns if (c.group, c.arch) == (columns[0].group, arch))
            counted = wins(whole, [entry for c in every if (entry := _entry(c, row))])
            lines += _lines(table, row, entries, parts, notes, counted)
    alone = parts[0].heading  # of architectures that nothing else differs of
    named = (GridCell(h or alone, notes.headings[h], number=True) for h in headings)
    head = (GridCell("variant", notes.corner), *named, GridCell(f"against {table.baseline}"))
    made = Grid(title, head, tuple(lines))
    is_counted = any(line.cells[-1].text for line in lines)
    return made if is_counted else made.columns(range(len(head) - 1))


def _entry(column: TableColumn | None, row: TableRow) -> Entry | None:
    entries = column.entries if column else ()
    return next((entry for entry in entries if entry.row == row.label), None)


def _lines(
    table: Table,
    row: TableRow,
    entries: Sequence[Entry | None],
    parts: Sequence[ShownPart],
    notes: _Notes,
    counted: str,
) -> Iterator[GridLine]:
    """A line for each part that has a text; the last text of an entry bears its footnotes.
    `counted` stands at the end of the first."""
    there = [entry for entry in entries if entry]
    grid = [[part.cell(entry) if entry else GridCell("") for entry in entries] for part in parts]
    for i, entry in enumerate(entries):
        if entry and (numbers := notes.cells[entry.column, entry.row]):
            bears = max((p for p, cells in enumerate(grid) if cells[i].text), default=0)
            grid[bears][i] = dataclasses.replace(grid[bears][i], notes=numbers)
    grey = all(entry.diverged for entry in there)
    for place, (part, cells) in enumerate(zip(parts, grid, strict=True)):
        if place and not any(cell.text for cell in cells):
            continue
        label = GridCell(part.heading) if place else GridCell(row.label, row.footnotes)
        told = "" if place else counted
        right = (dataclasses.replace(cell, number=True) for cell in cells)
        yield GridLine((label, *right, GridCell(told)), grey=grey)
