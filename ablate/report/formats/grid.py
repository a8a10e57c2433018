"""Grids of cells with footnote marks, which every format for readers sets: a terminal by rich,
Markdown for GitHub, an HTML fragment (table.html: headings with a scope, no scripts, no links).
LaTeX has a module of its own.

Used by `__init__.py` here, for every table that people read, `layout.py` and `latex.py`. Another
look also needs `python tests/test_formats.py`, which writes tests/golden/table.*.
"""

from __future__ import annotations

import dataclasses
import functools
import html as escapes
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.analysis import title_line
from ablate.report.text import encodable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


WIDTH = 100  # characters that side-by-side columns may take


@dataclass(frozen=True)
class GridCell:
    """A text with its footnote marks."""

    text: str
    notes: tuple[int, ...] = ()
    bold: bool = False  # a gain: only where the verdict is "helps" or "better"
    number: bool = False  # set to the right
    verdict: bool = False  # a word on a gain

    @property
    def width(self) -> int:
        """The width in characters of the text and its footnote marks, with the commas between
        these."""
        return len(self.text) + len(",".join(map(str, self.notes)))


@dataclass(frozen=True)
class GridLine:
    """A row of a grid; a `heading` has text in its first cell only."""

    cells: tuple[GridCell, ...]
    grey: bool = False
    heading: bool = False

    @classmethod
    def headed(cls, heading: GridCell, columns: int) -> GridLine:
        """Return a line with a heading across this many columns."""
        return cls((heading, *[GridCell("")] * (columns - 1)), heading=True)


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

    def columns(self, indices: Sequence[int]) -> Grid:
        """Return a grid of only these columns, in this order."""
        lines = [
            dataclasses.replace(x, cells=tuple(x.cells[i] for i in indices)) for x in self.lines
        ]
        heads = [i for i, (_, size) in enumerate(self.spans) for _ in range(size)]
        column_heads = [heads[i] for i in indices] if heads else []
        return dataclasses.replace(
            self,
            headings=tuple(self.headings[i] for i in indices),
            lines=tuple(lines),
            spans=tuple(
                (self.spans[head][0], column_heads.count(head))
                for head in dict.fromkeys(column_heads)
            ),
        )

    def part(self, indices: Sequence[int]) -> Grid:
        """Return the grid of these columns; if columns are left out, without the lines that have no
        text in the others."""
        part, is_whole = self.columns(indices), len(indices) == len(self.headings)
        lines = (x for x in part.lines if is_whole or x.heading or any(c.text for c in x.cells[1:]))
        return dataclasses.replace(part, lines=tuple(lines))


@dataclass(frozen=True)
class PrintedTable:
    """Everything that is printed of a table. `footnotes` are numbered from 1."""

    title: str
    grids: tuple[Grid, ...]
    caption: tuple[str, ...]
    notes: tuple[str, ...] = ()  # to read before any number is believed
    footnotes: tuple[str, ...] = ()
    # Of `caption` and `footnotes`: the texts that say how numbers are computed.
    exact: tuple[str, ...] = ()
    headline: str = ""  # the result in a sentence
    is_smoke: bool = False  # then the headline says that it is a smoke test
    is_of_changes: bool = False  # see `Table.is_of_changes`
    trained_on: str = ""  # in a sentence

    @property
    def notes_after_first(self) -> bool:
        """True if the notes follow the first of several tables, which nobody should read without
        them: effects of changes, above the means of the cells."""
        return self.is_of_changes and bool(self.notes)

    @property
    def heading(self) -> str:
        """The title and what the runs were trained on."""
        return title_line(self.title, self.trained_on)


FOLDED = 24  # characters: where a column of words may break
LEAST_WIDTH = 10  # characters that a column of words may be folded to


def split(sheet: PrintedTable, width: int) -> PrintedTable:
    """Split grids that are wider than `width` characters; each part repeats the first column."""
    grids = [part for grid in sheet.grids for part in _fitting(grid, width)]
    return dataclasses.replace(sheet, grids=tuple(grids))


def _fitting(grid: Grid, width: int) -> Iterator[Grid]:
    widths = [
        size if cell.number or not i else min(size, FOLDED)
        for i, (cell, size) in enumerate(zip(grid.headings, grid.widths, strict=True))
    ]
    if len(widths) > 2 and not grid.headings[-1].number:  # words at the end fold before they move
        widths[-1] = min(widths[-1], LEAST_WIDTH)
    excess = sum(widths) - width
    if 0 < excess <= widths[0] - LEAST_WIDTH:  # so does the first column, where that is enough
        widths[0] -= excess
    column_heads = [head for head, (_, size) in enumerate(grid.spans) for _ in range(size)]
    indices = [0]
    for i in range(1, len(widths)):
        if len(indices) > 1 and sum(widths[j] for j in (*indices, i)) > width:
            # What stands under one heading moves as a whole, where it fits.
            moved = [j for j in indices[1:] if column_heads and column_heads[j] == column_heads[i]]
            if len(moved) == len(indices) - 1 or sum(widths[j] for j in (0, *moved, i)) > width:
                moved = []
            yield _part(grid, indices[: len(indices) - len(moved)], width)
            indices = [0, *moved]
        indices.append(i)
    yield _part(grid, indices, width)


def _part(grid: Grid, indices: Sequence[int], width: int) -> Grid:
    part = grid.part(indices)
    least_widths = (
        size if cell.number else min(size, LEAST_WIDTH)
        for cell, size in zip(part.headings, part.widths, strict=True)
    )
    return dataclasses.replace(part, narrow=sum(least_widths) > width)


@dataclass(frozen=True)
class TableFormat:
    """How readers see a table: its text, the ending of its file ("": it has none), how many
    characters side-by-side columns may take, and which notes it has."""

    text: Callable[[PrintedTable], Any]
    ending: str
    width: int = WIDTH
    notes: str = "short"  # of `layout.NOTES`: those that are printed by default


REPORT_FOLDER = Path(__file__).parents[1]


@functools.cache
def template(name: str) -> Any:
    """Load the template of a report, by its path in this folder."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REPORT_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["prose"] = lambda text: markupsafe.Markup(prose(text))
    environment.filters["text"] = lambda text: markupsafe.Markup(_escape_html(text))
    return environment.get_template(name)


def html(sheet: PrintedTable) -> str:
    return str(template("formats/table.html").render(sheet=sheet))


def prose(text: str) -> str:
    """Escape a sentence; commands in `backticks` are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escape_html(text))


def _escape_html(text: str) -> str:
    return escapes.escape(text, quote=False)


def markdown(sheet: PrintedTable) -> str:
    lines = [f"**{_escape_markdown(sheet.heading)}**", ""]
    lines += [_escape_markdown(sheet.headline), ""] if sheet.headline else []
    for position, grid in enumerate(sheet.grids):
        lines += [*_grid(grid), ""]
        if position == 0 and sheet.notes_after_first:
            lines += [*(f"- {_prose(note)}" for note in sheet.notes), ""]
    lines += [f"- {_prose(line)}" for line in below(sheet)]
    return "\n".join(lines) + "\n"


def below(sheet: PrintedTable) -> list[str]:
    """List notes, caption and footnotes: the lines under the grids of a plain text. The notes are
    left out where they follow the first grid."""
    numbered = [f"{marks((i,))} {text}" for i, text in enumerate(sheet.footnotes, start=1)]
    notes = () if sheet.notes_after_first else sheet.notes
    return [*notes, *sheet.caption, *numbered]


def marks(footnotes: Sequence[int]) -> str:
    """Write footnote numbers as superscripts, which nobody reads as part of a number."""
    superscripts = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "˒".join(str(footnote).translate(superscripts) for footnote in footnotes)


def _grid(grid: Grid) -> Iterator[str]:
    if grid.title:
        note = f" ({_escape_markdown(grid.note)})" if grid.note else ""
        yield from (f"**{_escape_markdown(grid.title)}**{note}", "")
    # Markdown has one line of headings: each says whose it is.
    heads = [text for text, size in grid.spans for _ in range(size)] or [""] * len(grid.headings)
    headings = [
        f"{_escape_markdown(head)}: {_cell(cell)}" if head else _cell(cell)
        for head, cell in zip(heads, grid.headings, strict=True)
    ]
    yield _piped(headings)
    yield f"|{'|'.join('---:' if cell.number else '---' for cell in grid.headings)}|"
    for line in grid.lines:
        yield _piped(_cells(line))


def _cells(line: GridLine) -> list[str]:
    if line.heading:
        heading, *spanned_cells = line.cells
        return [
            f"*{_escape_markdown(heading.text)}*{marks(heading.notes)}",
            *("" for _ in spanned_cells),
        ]
    return [_cell(cell) for cell in line.cells]


def _cell(cell: GridCell) -> str:
    text = _escape_markdown(cell.text)
    return (f"**{text}**" if cell.bold else text) + marks(cell.notes)


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """Escape a sentence, but for commands in `backticks`, which are copied as written."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if i % 2 else _escape_markdown(part, ends=True) for i, part in enumerate(parts)
    )


def _escape_markdown(text: str, ends: bool = False) -> str:
    """Escape a text so that GitHub shows it as written, on one line. `ends`: keep outer spaces.

    No link, no image, no mention: nothing in a label is to be followed, or fetched by whoever
    looks, nor calls somebody. GitHub takes an escaped or encoded `@` for one all the same.
    """
    for character in "\\|*`~":
        text = text.replace(character, "\\" + character)
    # Between letters and digits an underscore is one: `val_loss` stays readable as text.
    text = re.sub(r"((?<=[^\W_])_+(?=[^\W_]))|_", lambda match: match[1] or r"\_", text)
    text = re.sub(r"\](?=[(\[:])|(?<=:)/(?=/)|(?<=www)\.|!(?=\[)", r"\\\g<0>", text)
    text = re.sub(r"\s+", " ", text.replace("&", "&amp;").replace("<", "&lt;"))
    text = re.sub(r"(?<![\w`])@(?=\w)", "@<!-- -->", text)
    if text.count("$") > 1:  # what is between two is a formula, and no backslash prevents it
        text = text.replace("$", "<span>$</span>")
    return text if ends else text.strip()


def rich(sheet: PrintedTable) -> RenderableType:
    # Text everywhere: a console would read the brackets of an interval as markup.
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(sheet.heading, style="bold")]
    parts += [Text(sheet.headline)] if sheet.headline else []
    notes = [Text(line) for line in sheet.notes]
    for position, grid in enumerate(sheet.grids):
        parts.append(_rich_table(grid))
        if position == 0 and sheet.notes_after_first:
            parts += [*notes, Text()]
    lines = below(sheet)
    if not sheet.notes_after_first:
        parts += notes
        lines = lines[len(notes) :]
    parts += [Text(line, style="dim") for line in lines]
    return Group(*parts)


def _rich_table(grid: Grid) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text(grid.title, "bold")
    if grid.note:
        title.append(f"\n({grid.note})", "not bold dim")
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title if grid.title else None,
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    heads = [""] * len(grid.headings)
    start = 0
    for text, size in grid.spans:  # above the first of its columns
        heads[start] = text
        start += size
    for head, cell in zip(heads, grid.headings, strict=True):
        heading = Text(f"{head}\n") if grid.spans else Text()
        heading.append(_text(cell))
        if cell.number:
            # Where it does not fit it goes on in the next line: no number is ever cut.
            table.add_column(heading, justify="right", no_wrap=not grid.narrow, overflow="fold")
        else:
            table.add_column(heading, overflow="fold")
    for line in grid.lines:
        if line.heading:
            table.add_section()
            heading = Text(style="italic")
            table.add_row(heading.append(_text(line.cells[0])))
        else:
            table.add_row(*map(_text, line.cells), style="dim" if line.grey else None)
    return table


COLOURS = {
    "helps": "green",
    "hurts": "red",
    "better": "green",
    "worse": "red",
    "unstable": "yellow",
    "can't tell": "yellow",
}


def _text(cell: GridCell) -> Text:
    from rich.text import Text

    colour = next((c for word, c in COLOURS.items() if cell.text.startswith(word)), "")
    style = colour if cell.verdict else "bold" if cell.bold else ""
    text = Text(cell.text, style=style)
    text.append(encodable(marks(cell.notes), sys.stdout.encoding), "not bold")
    return text
