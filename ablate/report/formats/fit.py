"""Fits a grid into the columns of a paper: how wide its texts are in LaTeX, what is folded, and
where it is split."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ablate.report.formats.grid import Grid, GridCell

# Points that every common class has: letter or A4 paper, letters of 10 points. A column of a
# two-column article is the narrowest of two columns, that of a one-column article of one.
COLUMN, TEXT = 225.0, 340.0
GAP = 6.0  # between two columns: twice \tabcolsep
LEAST = 30.0  # points that a column of words may be folded to

# Points of characters in Computer Modern, the widest of common faces, of 8 points (\\footnotesize).
_CLASSES = {
    2.5: "ijl.,:;'!|`[]·’",
    3.4: "frst()I- ",
    4.3: "acegz0123456789_$~^\\J–“”",
    6.7: "wABCDEFGHKLNOPRTUVXYZ+=<>−×±≤≥≈µ",
    9.0: "mMWQ%#&@→←∞—",
    12.0: "…",
}
_POINTS = {character: size for size, some in _CLASSES.items() for character in some}
_LETTER, _GREEK, _NUMBERED = 4.8, 7.0, 30.0  # the last: set as U+4E2D
_BOLD, _MARK = 1.18, 3.8
LONG = 16  # characters of a word that may be broken
_BREAKS = re.compile(r"[^=./,_:@+-]*[=./,_:@+-]|[^=./,_:@+-]+")


def is_set(character: str) -> bool:
    """Can every LaTeX set it? ASCII, and Latin letters with an accent."""
    base = unicodedata.decomposition(character).partition(" ")[0]
    return character.isascii() or (bool(base) and not base.startswith("<") and ord(character) < 256)


def pieces(word: str) -> list[str]:
    """The parts of a word between which a line may end: of a long one behind its signs, and at
    characters that LaTeX sets by their number."""
    found: list[str] = []
    for part in _BREAKS.findall(word) if len(word) > LONG else [word]:
        runs = itertools.groupby(part, lambda c: _size(c) == _NUMBERED)
        for alone, run in ((alone, "".join(some)) for alone, some in runs):
            found += [*run] if alone else [run]
    return found


def points(text: str, bold: bool = False) -> float:
    """The width of a line in \\footnotesize, rather too large than too small."""
    return sum(map(_size, text)) * (_BOLD if bold else 1)


def _size(character: str) -> float:
    if (size := _POINTS.get(character)) is not None:
        return size
    if unicodedata.name(character, "").startswith("GREEK"):
        return _GREEK
    return _LETTER if is_set(character) else _NUMBERED


def _marks(cell: GridCell) -> float:
    return _MARK * len(",".join(map(str, cell.notes)))


def _width(cell: GridCell) -> float:
    text = cell.text.replace("-", "−") if cell.number else cell.text
    return points(text, cell.bold) + _marks(cell)


def _longest(text: str, bold: bool = False) -> float:
    found = (points(piece, bold) for word in text.split() for piece in pieces(word))
    return max(found, default=0.0)


@dataclass(frozen=True)
class FittedGrid:
    """A grid and its widths in points. `folded`: of each column the width of its paragraphs, None
    where its cells are single lines."""

    grid: Grid
    widths: tuple[float, ...]
    folded: tuple[float | None, ...]
    room: float

    @property
    def width(self) -> float:
        return sum(self.widths) + GAP * (len(self.widths) - 1)

    def across(self, at: int, count: int) -> float:
        """The width of `count` columns from the one at `at`."""
        return sum(self.widths[at : at + count]) + GAP * (count - 1)


def fitted(grid: Grid) -> Iterator[FittedGrid]:
    """Fit a grid into a column of a paper, else into its text, else in parts; each part repeats the
    first column."""
    for room in (COLUMN, TEXT):
        if whole := _fit(grid, range(len(grid.headings)), room):
            yield whole
            return
    which = [0]
    for i in range(1, len(grid.headings)):
        if len(which) > 1 and _fit(grid, [*which, i], TEXT) is None:
            yield _part(grid, which)
            which = [0]
        which.append(i)
    yield _part(grid, which)


def _part(grid: Grid, which: Sequence[int]) -> FittedGrid:
    room = TEXT
    while (found := _fit(grid, which, room)) is None:  # a word that is wider than a page
        room *= 1.1
    return found


def _fit(grid: Grid, which: Sequence[int], room: float) -> FittedGrid | None:
    """The grid of these columns in `room` points: as it is, else with its headings folded, else
    with columns of words folded, too; None where it is too wide even so."""
    if len(which) < len(grid.headings):
        grid = grid.columns(which)
        told = (x for x in grid.lines if x.heading or any(cell.text for cell in x.cells[1:]))
        grid = dataclasses.replace(grid, lines=tuple(told))
    lines = [line.cells for line in grid.lines if not line.heading]
    columns = [[cells[i] for cells in lines] for i in range(len(which))]
    body = [max(map(_width, cells), default=0.0) for cells in columns]
    natural: list[float] = []
    for measure in (points, _longest):
        heads = (measure(head.text) + _marks(head) for head in grid.headings)
        widths = [max(pair) for pair in zip(body, heads, strict=True)]
        at = 0
        for text, count in grid.spans:
            lacking = measure(text) - sum(widths[at : at + count]) - GAP * (count - 1)
            widths[at + count - 1] += max(0.0, lacking)
            at += count
        natural = natural or widths
        spare = room - sum(widths) - GAP * (len(widths) - 1)
        if spare >= 0:
            for i, width in enumerate(natural):  # of the headings, as many as there is room for
                more = min(spare, max(0.0, width - widths[i]))
                widths[i] += more
                spare -= more
            return FittedGrid(grid, tuple(widths), (None,) * len(widths), room)
    words = [i for i, head in enumerate(grid.headings) if not head.number]
    least = {i: _least(grid.headings[i], columns[i]) for i in words}
    spare = (
        room
        - GAP * (len(widths) - 1)
        - sum(width for i, width in enumerate(widths) if i not in words)
    )
    if sum(least.values()) > spare:
        return None
    folded: list[float | None] = [None] * len(widths)
    left = sorted(words, key=lambda i: widths[i] - least[i])  # what needs little gets it whole
    while left:
        i, *left = left
        share = (spare - least[i] - sum(least[j] for j in left)) / (len(left) + 1)
        if least[i] + share < widths[i]:
            widths[i] = folded[i] = least[i] + share
        spare -= widths[i]
    return FittedGrid(grid, tuple(widths), tuple(folded), room)


def _least(head: GridCell, cells: Sequence[GridCell]) -> float:
    """The width of a column of words in which each part of a word has room."""
    return max(LEAST, *(_longest(cell.text, cell.bold) + _marks(cell) for cell in (head, *cells)))


def lines_of(text: str, width: float) -> list[str]:
    """Fold a heading to lines of so many points."""
    found: list[str] = []
    for word in text.split():
        parts = pieces(word) if points(word) > width else [word]
        for i, part in enumerate(parts):
            joined = f"{found[-1]}{'' if i else ' '}{part}" if found else ""
            if joined and points(joined) <= width:
                found[-1] = joined
            else:
                found.append(part)
    return found or [""]
