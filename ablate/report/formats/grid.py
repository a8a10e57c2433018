"""Grids of cells with footnote marks, the input of every format for readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis.table import headed

WIDTH = 100  # characters that side-by-side columns may take


@dataclass(frozen=True)
class GridCell:
    """A text with its footnote marks."""

    text: str
    notes: tuple[int, ...] = ()
    bold: bool = False  # a gain: only where the verdict is "helps"
    number: bool = False  # set to the right
    verdict: bool = False  # a word on a gain

    @property
    def width(self) -> int:
        """In characters, with its marks and what is between them."""
        return len(self.text) + len(",".join(map(str, self.notes)))


@dataclass(frozen=True)
class GridLine:
    """A row of a grid; a `heading` has text in its first cell only."""

    cells: tuple[GridCell, ...]
    grey: bool = False
    heading: bool = False

    @classmethod
    def headed(cls, first: GridCell, columns: int) -> GridLine:
        """A heading across so many columns."""
        return cls((first, *[GridCell("")] * (columns - 1)), heading=True)


@dataclass(frozen=True)
class Grid:
    """A grid. `spans`: (text, number of columns) of the line above the headings, if any."""

    title: str
    headings: tuple[GridCell, ...]
    lines: tuple[GridLine, ...]
    spans: tuple[tuple[str, int], ...] = ()
    note: str = ""
    narrow: bool = False  # for so few characters that an interval takes several lines

    @property
    def widths(self) -> list[int]:
        """The width of each column in characters."""
        rows = [self.headings, *(line.cells for line in self.lines if not line.heading)]
        columns = range(len(self.headings))
        return [2 + max(row[i].width for row in rows) for i in columns]

    def columns(self, which: Sequence[int]) -> Grid:
        """Return a grid of only these columns, in this order."""
        lines = [dataclasses.replace(x, cells=tuple(x.cells[i] for i in which)) for x in self.lines]
        heads = [i for i, (_, size) in enumerate(self.spans) for _ in range(size)]
        over = [heads[i] for i in which] if heads else []
        return dataclasses.replace(
            self,
            headings=tuple(self.headings[i] for i in which),
            lines=tuple(lines),
            spans=tuple((self.spans[head][0], over.count(head)) for head in dict.fromkeys(over)),
        )

    def part(self, which: Sequence[int]) -> Grid:
        """The same without the lines that have nothing there, where columns are left out."""
        part, whole = self.columns(which), len(which) == len(self.headings)
        lines = (x for x in part.lines if whole or x.heading or any(c.text for c in x.cells[1:]))
        return dataclasses.replace(part, lines=tuple(lines))


@dataclass(frozen=True)
class PrintedTable:
    """Everything that is printed of a table. `footnotes` are numbered from 1."""

    title: str
    grids: tuple[Grid, ...]
    caption: tuple[str, ...]
    notes: tuple[str, ...] = ()  # to read before any number is believed
    footnotes: tuple[str, ...] = ()
    headline: str = ""  # the result in a sentence
    trained_on: str = ""  # in a sentence

    @property
    def heading(self) -> str:
        """The title and what the runs were trained on."""
        return headed(self.title, self.trained_on)


FOLDED = 24  # characters: where a column of words may break
LEAST = 10  # characters that a column of words may be folded to


def split(made: PrintedTable, width: int) -> PrintedTable:
    """Split grids that are wider than `width` characters; each part repeats the first column."""
    grids = [part for grid in made.grids for part in _fitting(grid, width)]
    return dataclasses.replace(made, grids=tuple(grids))


def _fitting(grid: Grid, width: int) -> Iterator[Grid]:
    widths = [
        size if cell.number or not i else min(size, FOLDED)
        for i, (cell, size) in enumerate(zip(grid.headings, grid.widths, strict=True))
    ]
    if len(widths) > 2 and not grid.headings[-1].number:  # words at the end fold before they move
        widths[-1] = min(widths[-1], LEAST)
    under = [head for head, (_, size) in enumerate(grid.spans) for _ in range(size)]
    which = [0]
    for i in range(1, len(widths)):
        if len(which) > 1 and sum(widths[j] for j in (*which, i)) > width:
            # What stands under one heading moves as a whole, where it fits.
            moved = [j for j in which[1:] if under and under[j] == under[i]]
            if len(moved) == len(which) - 1 or sum(widths[j] for j in (0, *moved, i)) > width:
                moved = []
            yield _part(grid, which[: len(which) - len(moved)], width)
            which = [0, *moved]
        which.append(i)
    yield _part(grid, which, width)


def _part(grid: Grid, which: Sequence[int], width: int) -> Grid:
    part = grid.part(which)
    least = (
        size if cell.number else min(size, LEAST)
        for cell, size in zip(part.headings, part.widths, strict=True)
    )
    return dataclasses.replace(part, narrow=sum(least) > width)


@dataclass(frozen=True)
class TableFormat:
    """How readers see a table: its text, the ending of its file ("": it has none), and how many
    characters side-by-side columns may take."""

    text: Callable[[PrintedTable], Any]
    ending: str
    width: int = WIDTH
