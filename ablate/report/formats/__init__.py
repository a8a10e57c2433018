"""Sets a table for the terminal, for papers and wikis, and for other programs. Computes nothing.

`rich`, `md`, `latex` and `html` show the same words, laid out by `layout`. `csv` has the numbers
of the table, a line each row, column and metric; `tidy` has every fact behind it, one a line, and
`json` is the whole `Table`. Their numbers are exact (the shortest text that reads back as the same
float). `ablate_formats/NAME.py` adds a format that shows the words, too.

Used by cli/printing.py (`ablate table`), api/tables.py (Python) and audit/export.py (the tables of
a bundle). A new format also needs its name in cli/options.py `TableFormat`, and its golden file
(`python tests/test_formats.py`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from ablate.analysis import Table
from ablate.report.formats import grid, latex, spreadsheet, tidy
from ablate.report.formats.grid import WIDTH, PrintedTable, TableFormat, split
from ablate.report.formats.latex import LatexFloat as LatexFloat
from ablate.report.formats.layout import FULL, UNFINISHED, sheet
from ablate.report.formats.layout import NOTES as NOTES
from ablate.report.formats.parts import DEFAULT_SHOW as DEFAULT_SHOW
from ablate.report.formats.parts import SHOW as SHOW
from ablate.report.formats.parts import check_show as check_show
from ablate.report.formats.tidy import CSV_FIELDS as CSV_FIELDS
from ablate.report.text import encodable
from ablate.run import parts
from ablate.shared import printable, unknown_value

FLOAT = LatexFloat()

TERMINAL, TEX = "rich", "latex"
SET = {
    TERMINAL: TableFormat(grid.rich, ending=""),
    "md": TableFormat(grid.markdown, "md"),
    TEX: TableFormat(partial(latex.latex, floated=FLOAT), "tex", width=80, notes=FULL),
    "html": TableFormat(grid.html, "html", notes=FULL),
}
DATA_FORMATS: dict[str, Callable[[Table], str]] = {
    "csv": spreadsheet.csv,
    "tidy": tidy.csv,
    "json": tidy.json,
}
OUR_FORMATS = (*SET, *DATA_FORMATS)
parts.extend(SET, "ablate_formats", TableFormat)
FORMATS = (*SET, *DATA_FORMATS)
# Of the files that a table is kept in: the format of each ending.
FORMAT_ENDINGS = {form.ending: name for name, form in SET.items() if form.ending} | {
    "csv": "csv",
    "tidy.csv": "tidy",
    "json": "json",
}


def render_table(
    table: Table,
    format: str,
    *,
    show: Sequence[str] = DEFAULT_SHOW,
    transpose: bool = False,
    width: int = WIDTH,
    wide: bool | None = None,
    floated: LatexFloat = FLOAT,
    notes: str | None = None,
) -> Any:
    """Set the table in one of FORMATS: a text, or for `rich` an object that a console prints.

    `show`: the parts to print, from `check_show`; `transpose`: variants become columns; `wide`:
    lines are architectures x variants, None for a table with groups;
    `floated`: LaTeX's; `notes`: one of NOTES, None for those of the format: LaTeX and HTML have
    all. `csv`, `tidy` and `json` ignore all of this.
    Raises UserError for another format, and for other notes.
    """
    if notes is not None and notes not in NOTES:
        raise unknown_value("--notes", notes, NOTES)
    if format in DATA_FORMATS:
        return DATA_FORMATS[format](table)
    if format not in FORMATS:
        raise unknown_value("--format", format, FORMATS)
    form = SET[format]
    printed = sheet(table, show, transpose, min(width, form.width), wide, notes or form.notes)
    return set_sheet(printed, format, width, floated, table.complete)


def set_sheet(
    sheet: PrintedTable,
    format: str,
    width: int = WIDTH,
    floated: LatexFloat = FLOAT,
    complete: bool = True,
) -> Any:
    """Set a sheet that is laid out in one of the formats for readers."""
    if format == TEX and floated.caption is not None:
        title = floated.caption + UNFINISHED * (not complete)
        sheet = dataclasses.replace(sheet, title=title, trained_on="")
    sheet = _with_texts(sheet, printable)
    if format == TERMINAL:  # now, since a spelling may be longer than the sign: it is laid out
        sheet = _with_texts(sheet, partial(encodable, encoding=sys.stdout.encoding))
    if format == TEX:
        return latex.latex(sheet, floated)
    return SET[format].text(split(sheet, width) if format == TERMINAL else sheet)


def _with_texts(part: Any, change: Callable[[str], str]) -> Any:
    """Return a part with all of its texts changed: a title, a label or a device may come from a
    stranger, or have signs that the terminal lacks."""
    if isinstance(part, str):
        return change(part)
    if isinstance(part, tuple):
        return tuple(_with_texts(item, change) for item in part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        texts = {f.name: _with_texts(getattr(part, f.name), change) for f in fields(part)}
        return dataclasses.replace(part, **texts)
    return part
