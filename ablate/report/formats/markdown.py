"""Sets a table in Markdown for GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable


def markdown(sheet: PrintedTable) -> str:
    lines = [f"**{_escape(sheet.heading)}**", ""]
    lines += [_escape(sheet.headline), ""] if sheet.headline else []
    for grid in sheet.grids:
        lines += [*_grid(grid), ""]
    lines += [f"- {_prose(line)}" for line in below(sheet)]
    return "\n".join(lines) + "\n"


def below(sheet: PrintedTable) -> list[str]:
    """List notes, caption and footnotes: the lines under the grids of a plain text."""
    numbered = [f"{marks((i,))} {text}" for i, text in enumerate(sheet.footnotes, start=1)]
    return [*sheet.notes, *sheet.caption, *numbered]


def marks(footnotes: Sequence[int]) -> str:
    """Write footnote numbers as superscripts, which nobody reads as part of a number."""
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "˒".join(str(footnote).translate(raised) for footnote in footnotes)


def _grid(grid: Grid) -> Iterator[str]:
    if grid.title:
        note = f" ({_escape(grid.note)})" if grid.note else ""
        yield from (f"**{_escape(grid.title)}**{note}", "")
    # Markdown has one line of headings: each says whose it is.
    heads = [text for text, size in grid.spans for _ in range(size)] or [""] * len(grid.headings)
    headings = [
        f"{_escape(head)}: {_cell(cell)}" if head else _cell(cell)
        for head, cell in zip(heads, grid.headings, strict=True)
    ]
    yield _piped(headings)
    yield f"|{'|'.join('---:' if cell.number else '---' for cell in grid.headings)}|"
    for line in grid.lines:
        yield _piped(_cells(line))


def _cells(line: GridLine) -> list[str]:
    if line.heading:
        first, *others = line.cells
        return [f"*{_escape(first.text)}*{marks(first.notes)}", *("" for _ in others)]
    return [_cell(cell) for cell in line.cells]


def _cell(cell: GridCell) -> str:
    text = _escape(cell.text)
    return (f"**{text}**" if cell.bold else text) + marks(cell.notes)


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """Escape a sentence, but for commands in `backticks`, which are copied as written."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if i % 2 else _escape(part, ends=True) for i, part in enumerate(parts))


def _escape(text: str, ends: bool = False) -> str:
    """Escape a text so that GitHub shows it as written, on one line. `ends`: keep outer spaces.

    No link, no image, no mention: nothing in a label is to be followed, or fetched by whoever
    looks, nor calls somebody. GitHub takes an escaped or encoded `@` for one all the same.
    """
    for character in "\\|*_`~":
        text = text.replace(character, "\\" + character)
    text = re.sub(r"\](?=[(\[:])|(?<=:)/(?=/)|(?<=www)\.|!(?=\[)", r"\\\g<0>", text)
    text = re.sub(r"\s+", " ", text.replace("&", "&amp;").replace("<", "&lt;"))
    text = re.sub(r"(?<![\w`])@(?=\w)", "@<!-- -->", text)
    return text if ends else text.strip()
