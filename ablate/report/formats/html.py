"""Sets a table as an HTML fragment: headings with a scope, no scripts, no links."""

from __future__ import annotations

import html as escapes
import re
from collections.abc import Iterator

from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable

# A grid scrolls by itself where a screen is narrower.
STYLE = (
    ".gains .grid{overflow-x:auto}.gains table{border-collapse:collapse;margin:1em 0}"
    ".gains caption{text-align:left;font-weight:bold}"
    ".gains caption small{font-weight:normal}"
    ".gains th,.gains td{padding:.15em .6em;text-align:left;font-weight:normal}"
    ".gains thead{border-top:2px solid;border-bottom:1px solid}"
    ".gains tbody{border-bottom:1px solid}"
    ".gains .number{text-align:right;white-space:nowrap}.gains .grey{opacity:.6}"
)


def html(sheet: PrintedTable) -> str:
    return "\n".join(_section(sheet)) + "\n"


def _section(sheet: PrintedTable) -> Iterator[str]:
    yield '<section class="gains">'
    yield f"<style>{STYLE}</style>"
    yield f"<h2>{_escape(sheet.heading)}</h2>"
    if sheet.headline:
        yield f"<p>{_escape(sheet.headline)}</p>"
    for grid in sheet.grids:
        yield from _grid(grid)
    if sheet.notes:
        yield f"<p><strong>{' '.join(map(prose, sheet.notes))}</strong></p>"
    yield from (f"<p>{prose(line)}</p>" for line in sheet.caption)
    for number, text in enumerate(sheet.footnotes, start=1):
        yield f"<p><sup>{number}</sup> {prose(text)}</p>"
    yield "</section>"


def _grid(grid: Grid) -> Iterator[str]:
    yield '<div class="grid" tabindex="0">'
    yield "<table>"
    if grid.title:
        note = f" <small>({_escape(grid.note)})</small>" if grid.note else ""
        yield f"<caption>{_escape(grid.title)}{note}</caption>"
    yield "<thead>"
    if grid.spans:
        heads = [
            f'<th scope="colgroup" colspan="{size}">{_escape(text)}</th>' if text else "<td></td>"
            for text, size in grid.spans
        ]
        yield f"<tr>{''.join(heads)}</tr>"
    headings = [_cell(cell, "th", ' scope="col"') for cell in grid.headings]
    yield f"<tr>{''.join(headings)}</tr>"
    yield from ("</thead>", "<tbody>")
    yield from map(_line, grid.lines)
    yield from ("</tbody>", "</table>", "</div>")


def _line(line: GridLine) -> str:
    if line.heading:
        first = line.cells[0]
        text = f"<em>{_escape(first.text)}</em>{_marks(first)}"
        return f'<tr><th scope="rowgroup" colspan="{len(line.cells)}">{text}</th></tr>'
    first, *others = line.cells
    cells = [_cell(first, "th", ' scope="row"'), *(_cell(cell, "td") for cell in others)]
    kind = ' class="grey"' if line.grey else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _cell(cell: GridCell, tag: str, attributes: str = "") -> str:
    text = _escape(cell.text)
    text = f"<strong>{text}</strong>" if cell.bold else text
    kind = ' class="number"' if cell.number else ""
    return f"<{tag}{attributes}{kind}>{text}{_marks(cell)}</{tag}>"


def _marks(cell: GridCell) -> str:
    return f"<sup>{','.join(map(str, cell.notes))}</sup>" if cell.notes else ""


def prose(text: str) -> str:
    """Escape a sentence; commands in `backticks` are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escape(text))


def _escape(text: str) -> str:
    return escapes.escape(text, quote=False)
