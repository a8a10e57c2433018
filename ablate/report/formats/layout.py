"""Lays out a table as grids: columns of `--show`, rows, columns of the sweep, blocks below."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ablate.analysis.across import Summary
from ablate.analysis.headline import headline
from ablate.analysis.table import Entry, Table, TableColumn
from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable
from ablate.report.formats.parts import (
    OTHERS,
    ShownPart,
    bracket,
    cut_words,
    interval,
    interval_form,
    parts_of,
)
from ablate.report.formats.wide import wide_caption, wide_grids

SIDE_BY_SIDE = 3  # columns of a sweep at most
UNFINISHED = " (unfinished)"
FEW_ROWS = 3  # of which no column makes a grid of its own
WHERE = {"contrast": "columns", "group": "group"}  # heads a line's `column`


def sheet(
    table: Table, show: Sequence[str], transpose: bool, width: int, wide: bool | None = None
) -> PrintedTable:
    """Lay out the table: `wide`, by default as the table says, or columns side by side if they are
    few and fit into `width` characters, else one below the other; `transpose`: one grid with the
    variants as its columns."""
    blocks = [_block(table, block, interval_form(show)) for block in table.blocks]
    details = table.details
    if not transpose and (table.wide or table.groups if wide is None else wide):
        if "gain" not in show:
            table = table.without_gain_footnotes()
        grids = list(wide_grids(table, show))
        details = tuple(wide_caption(table))
    else:
        parts = list(parts_of(table, show))
        table = explained(table, parts)
        grids = _long(table, parts, transpose, width)
        details = (*cut_words(table, show), *details)
    return PrintedTable(
        title=(table.title or table.sweep) + ("" if table.complete else UNFINISHED),
        trained_on=table.trained_on,
        grids=(*grids, *blocks),
        notes=table.notes,
        caption=(*table.caption, *details),
        footnotes=table.footnotes,
        headline=headline(table.whole or table),
    )


def _long(table: Table, parts: Sequence[ShownPart], transpose: bool, width: int) -> list[Grid]:
    if transpose:
        return [_transposed(table, parts)]
    grids = [_column(table, column, parts) for column in table.columns]
    if len(grids) > 1 and len(table.rows) <= FEW_ROWS:
        grids = [_stacked(table, parts)]
    if 1 < len(table.columns) <= SIDE_BY_SIDE:
        beside = _side_by_side(table, parts)
        grids = [beside] if sum(beside.widths) <= width else grids
    return grids


# --- Grids --------------------------------------------------------------------------------------


def cells_of(entry: Entry | None, parts: Sequence[ShownPart]) -> list[GridCell]:
    """The gain's bears the footnotes that explain it, without one the verdict's; the last one
    bears the entry's others."""
    if entry is None:
        return [GridCell("", number=part.number) for part in parts]
    cells = [part.cell(entry) for part in parts]
    marks: list[set[int]] = [set() for _ in parts]
    of_gain = {*entry.gain_footnotes}
    marks[-1] |= {*entry.footnotes} - of_gain
    if (bears := gain_bearer(parts)) is not None:
        marks[bears] |= of_gain
    return [
        dataclasses.replace(cell, notes=tuple(sorted(some)))
        for cell, some in zip(cells, marks, strict=True)
    ]


def gain_bearer(parts: Sequence[ShownPart]) -> int | None:
    """The place of the part that bears the footnotes of gains: the gain's, else the verdict's."""
    places = [i for i, part in enumerate(parts) if part.is_gain]
    places += [i for i, part in enumerate(parts) if part.is_verdict]
    return places[0] if places else None


def explained(table: Table, parts: Sequence[ShownPart]) -> Table:
    """The table without the footnotes of gains, where no part bears them."""
    return table if gain_bearer(parts) is not None else table.without_gain_footnotes()


def headings_of(column: TableColumn, parts: Sequence[ShownPart]) -> list[GridCell]:
    """The gain's bears the column's footnotes; without one the last does."""
    bears = next((i for i, part in enumerate(parts) if part.is_gain), len(parts) - 1)
    return [
        GridCell(part.heading, column.footnotes if i == bears else (), number=part.number)
        for i, part in enumerate(parts)
    ]


def _lines(
    table: Table, columns: Sequence[TableColumn], parts: Sequence[ShownPart]
) -> Iterator[GridLine]:
    """Make one row for each variant in any of the columns, under the name of its family."""
    found = [{entry.row: entry for entry in column.entries} for column in columns]
    family = None
    for row in table.rows:
        entries = [by_row.get(row.label) for by_row in found]
        if not any(entries):
            continue
        if row.family != family:
            empty = [GridCell("", number=part.number) for _ in columns for part in parts]
            yield GridLine((GridCell(row.family or OTHERS), *empty), heading=True)
            family = row.family
        cells = [cell for entry in entries for cell in cells_of(entry, parts)]
        grey = all(entry.diverged for entry in entries if entry)
        yield GridLine((GridCell(row.label, row.footnotes), *cells), grey=grey)


def _column(table: Table, column: TableColumn, parts: Sequence[ShownPart]) -> Grid:
    headings = (GridCell("variant"), *headings_of(column, parts))
    return Grid(column.heading, headings, tuple(_lines(table, [column], parts)))


def _stacked(table: Table, parts: Sequence[ShownPart]) -> Grid:
    """The columns one below the other, under their labels."""
    lines = []
    for column in table.columns:
        empty = [GridCell("", number=part.number) for part in parts]
        lines.append(GridLine((GridCell(column.heading, column.footnotes), *empty), heading=True))
        lines += _lines(table, [column], parts)
    headings = [GridCell(part.heading, number=part.number) for part in parts]
    return Grid("", (GridCell("variant"), *headings), tuple(lines))


def _side_by_side(table: Table, parts: Sequence[ShownPart]) -> Grid:
    headings = [cell for column in table.columns for cell in headings_of(column, parts)]
    return Grid(
        title="",
        headings=(GridCell("variant"), *headings),
        lines=tuple(_lines(table, table.columns, parts)),
        spans=(("", 1), *((column.heading, len(parts)) for column in table.columns)),
    )


def _transposed(table: Table, parts: Sequence[ShownPart]) -> Grid:
    """A line a column of the sweep and part, under the column's label; with one part a column."""
    headings = [GridCell(row.label, row.footnotes, number=True) for row in table.rows]
    lines = []
    for column in table.columns:
        by_row = {entry.row: cells_of(entry, parts) for entry in column.entries}
        empty = [GridCell("", number=True) for _ in table.rows]
        names = headings_of(column, parts)
        if len(parts) == 1:
            names = [GridCell(column.heading or names[0].text, names[0].notes)]
        elif column.heading:
            lines.append(GridLine((GridCell(column.heading), *empty), heading=True))
        for i, name in enumerate(names):
            cells = [
                by_row[row.label][i] if row.label in by_row else GridCell("") for row in table.rows
            ]
            right = [dataclasses.replace(cell, number=True) for cell in cells]
            lines.append(GridLine((dataclasses.replace(name, number=False), *right)))
    first = parts[0].heading if len(parts) == 1 else ""
    return Grid("", (GridCell(first), *headings), tuple(lines))


def _block(table: Table, block: Summary, ci: str) -> Grid:
    """An average, a contrast or the effects of a placement: an effect a line."""
    where = any(line.column for line in block.lines) and block.kind in WHERE
    sampled = any(line.sampled for line in block.lines)
    judged = any(line.verdict for line in block.lines)
    told_as = bracket(ci, table.gain_alpha)
    change = "change of " * (block.kind == "contrast") + table.of().change
    headings = [
        GridCell("effect" if block.kind == "placement" else "variant"),
        *([GridCell(WHERE[block.kind])] if where else []),
        GridCell(change + told_as, number=True),
        *([GridCell(f"if columns were a sample{told_as}", number=True)] if sampled else []),
        *([GridCell("columns", number=True)] if sampled else []),
        GridCell("n", number=True),
        *([GridCell("verdict" if table.complete else "")] if judged else []),
    ]
    lines = []
    for line in block.lines:
        gain = interval(line.gain, table.of(), True, ci)
        sample = interval(line.sampled, table.of(), True, ci)
        cells = [
            GridCell(line.label),
            *([GridCell(line.column)] if where else []),
            GridCell(gain, bold=line.verdict == "helps", number=True),
            *([GridCell(sample, number=True)] if sampled else []),
            *([GridCell(str(len(line.columns)), number=True)] if sampled else []),
            GridCell(str(line.gain.n), number=True),
            *([GridCell(line.verdict or "")] if judged else []),
        ]
        lines.append(GridLine(tuple(cells)))
    note = f"{block.note}; {block.contrasts} contrasts" if block.contrasts > 1 else block.note
    return Grid(block.title, tuple(headings), tuple(lines), note=note)
