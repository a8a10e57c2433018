"""Lays out two sweeps side by side: a grid for each column that both have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablate.analysis.headline import headline
from ablate.analysis.table import Table
from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable
from ablate.report.formats.layout import UNFINISHED, cells_of, explained, headings_of
from ablate.report.formats.parts import ShownPart, cut_words, parts_of
from ablate.report.pair import SweepPair, caption, notes


def beside(pair: SweepPair, show: Sequence[str]) -> PrintedTable:
    """Lay out the gains of both, `show` of each. The footnotes of the second go on with the numbers
    of the first."""
    first, second = (explained(table, list(parts_of(table, show))) for table in pair.tables)
    after = len(first.footnotes)
    later = {i: after + i for i in range(1, 1 + len(second.footnotes))}
    tables = first, second.remarked(later)
    parts = [list(parts_of(table, show)) for table in tables]
    grids = tuple(_grid(pair, tables, parts, place) for place in range(len(pair.columns)))
    told = ((table.sweep, headline(table.whole or table)) for table in tables)
    return PrintedTable(
        title=" and ".join(_name(table) for table in tables),
        grids=grids,
        notes=tuple(notes(pair)),
        caption=(
            *caption(pair),
            *dict.fromkeys(line for t in tables for line in cut_words(t, show)),
        ),
        footnotes=(*first.footnotes, *second.footnotes),
        headline=" ".join(f"{name}: {text}" for name, text in told if text),
        trained_on=" ".join(f"{table.sweep}: {_lowered(table.trained_on)}" for table in tables),
    )


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _name(table: Table) -> str:
    return table.sweep + ("" if table.complete else UNFINISHED)


def _grid(
    pair: SweepPair, tables: Sequence[Table], parts: Sequence[Sequence[ShownPart]], place: int
) -> Grid:
    labels = pair.columns[place]
    columns = [
        next(column for column in table.columns if column.label == label)
        for table, label in zip(tables, labels, strict=True)
    ]
    headings = [
        cell for column, of in zip(columns, parts, strict=True) for cell in headings_of(column, of)
    ]
    title = dict.fromkeys(column.heading for column in columns if column.heading)
    spans = ((_name(table), len(of)) for table, of in zip(tables, parts, strict=True))
    lines = []
    for shared in pair.rows:
        found = [
            next((entry for entry in column.entries if entry.row == label), None)
            for column, label in zip(columns, shared.labels, strict=True)
        ]
        if not any(found):
            continue
        marks = tuple(_marks(tables, shared.labels))
        cells = [c for e, of in zip(found, parts, strict=True) for c in cells_of(e, of)]
        grey = all(entry.diverged for entry in found if entry)
        lines.append(GridLine((GridCell(shared.labels[0], marks), *cells), grey=grey))
    return Grid(
        " beside ".join(title),
        (GridCell("variant"), *headings),
        tuple(lines),
        spans=(("", 1), *spans),
    )


def _marks(tables: Sequence[Table], labels: Sequence[str]) -> Iterator[int]:
    for table, label in zip(tables, labels, strict=True):
        yield from next(row.footnotes for row in table.rows if row.label == label)
