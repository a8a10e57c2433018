"""Sets a table for a terminal, with rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.report.formats.grid import Grid, GridCell, PrintedTable
from ablate.report.formats.markdown import below, marks

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


def rich(sheet: PrintedTable) -> RenderableType:
    # Text everywhere: a console would read the brackets of an interval as markup.
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(sheet.heading, style="bold")]
    parts += [Text(sheet.headline)] if sheet.headline else []
    parts += [_grid(grid) for grid in sheet.grids]
    parts += [Text(line) for line in sheet.notes]
    parts += [Text(line, style="dim") for line in below(sheet)[len(sheet.notes) :]]
    return Group(*parts)


def _grid(grid: Grid) -> Table:
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
    at = 0
    for text, size in grid.spans:  # above the first of its columns
        heads[at] = text
        at += size
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


COLOURS = {"helps": "green", "hurts": "red", "unstable": "yellow", "can't tell": "yellow"}


def _text(cell: GridCell) -> Text:
    from rich.text import Text

    colour = next((c for word, c in COLOURS.items() if cell.text.startswith(word)), "")
    style = colour if cell.verdict else "bold" if cell.bold else ""
    text = Text(cell.text, style=style)
    text.append(marks(cell.notes), "not bold")
    return text
