"""A table set for the terminal, for GitHub, and for other programs. Computes nothing.

`rich` and `md` show the same words; `csv` is tidy, one number a row, and `json` is the whole
`Table`: numbers there are exact (the shortest text that reads back as the same float).
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ablate.report.table import METRICS, Entry, Table, TableColumn, TableRow, level, number
from ablate.rundir import to_json
from ablate.spec import unknown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.stats import Estimate


def render(table: Table, format: str) -> Any:
    """The table in one of FORMATS: a text, but for `rich`, which a console prints."""
    if format not in FORMATS:
        raise unknown("--format", format, FORMATS)
    return FORMATS[format](table)


# --- Words that rich and md share ---------------------------------------------------------------


def _interval(estimate: Estimate | None, metric: str, sign: bool = False) -> str:
    """`+0.62 [+0.21, +1.03]`; without an interval `+0.62 [-]`, without anything `-`."""
    if estimate is None:
        return "-"
    mean = number(estimate.mean, metric, sign)
    if estimate.low is None or estimate.high is None:
        return f"{mean} [-]"
    return f"{mean} [{number(estimate.low, metric, sign)}, {number(estimate.high, metric, sign)}]"


def _state(entry: Entry, table: Table) -> str:
    """The verdict and what became of the runs."""
    parts = []
    if entry.row == table.baseline:
        parts.append("baseline")
    elif entry.verdict is not None:
        parts.append(entry.verdict + _needs(entry))
    for seeds, what in (
        (entry.diverged, "diverged"),
        (entry.collapsed, "collapsed"),
        (entry.missing, "missing"),
    ):
        if seeds:
            parts.append(f"{len(seeds)}/{entry.planned} {what}")
    return "; ".join(parts) or "-"


def _needs(entry: Entry) -> str:
    from ablate import stats

    if entry.verdict != stats.CANT_TELL or not (entry.gain and entry.gain.sd):
        return ""
    return f" (needs {entry.seeds_needed or f'>{stats.MOST_SEEDS}'})"


def _marks(footnotes: tuple[int, ...]) -> str:
    """Footnote numbers as superscripts: they can't be taken for part of a number."""
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "˒".join(str(footnote).translate(raised) for footnote in footnotes)


def _headings(table: Table, column: TableColumn) -> list[str]:
    unit = METRICS[table.metric].unit
    value = f"{table.metric} {unit}".strip()
    return [
        "variant",
        f"{value} [{level(table.alpha)} CI]",
        f"gain [{level(table.gain_alpha)} CI]{_marks(column.footnotes)}",
        "n",
        "verdict" if table.complete else "runs",
    ]


@dataclasses.dataclass(frozen=True)
class _Line:
    """A row of a block as it is printed."""

    cells: tuple[str, ...]
    bold: bool  # the gain: only where the verdict is "helps"
    grey: bool


def _block(table: Table, column: TableColumn) -> Iterator[str | _Line]:
    """The lines of a column; a text heads the family of rows that follows."""
    entries = {entry.row: entry for entry in column.entries}
    shown: list[tuple[TableRow, Entry]] = [
        (row, entries[row.label]) for row in table.rows if row.label in entries
    ]
    family = None
    for row, entry in shown:
        if row.family != family:
            yield row.family or "others"
            family = row.family
        yield _Line(
            cells=(
                row.label + _marks(row.footnotes),
                _interval(entry.accuracy, table.metric),
                "" if entry.row == table.baseline else _interval(entry.gain, table.metric, True),
                str(entry.n),
                _state(entry, table) + _marks(entry.footnotes),
            ),
            bold=entry.verdict == "helps",
            grey=bool(entry.diverged),
        )


def _below(table: Table) -> list[str]:
    """Caption, notes and footnotes: the lines under the blocks."""
    numbered = [f"{_marks((i,))} {text}" for i, text in enumerate(table.footnotes, start=1)]
    return [*table.notes, *table.caption, *numbered]


# --- The formats --------------------------------------------------------------------------------


def _rich(table: Table) -> RenderableType:
    # Text everywhere: a console would read the brackets of an interval as markup.
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    parts: list[RenderableType] = [Text(table.title or table.sweep, style="bold")]
    for column in table.columns:
        title = Text(column.label, "bold") if column.label else None
        grid = Grid(
            box=box.SIMPLE_HEAD,
            title=title,
            title_justify="left",
            pad_edge=False,
            collapse_padding=True,
        )
        for position, heading in enumerate(_headings(table, column)):
            if position in (1, 2, 3):
                grid.add_column(Text(heading), justify="right", no_wrap=True)
            else:
                grid.add_column(Text(heading), overflow="fold")
        for line in _block(table, column):
            if isinstance(line, str):
                grid.add_section()
                grid.add_row(Text(line, style="italic"))
                continue
            cells = [Text(cell) for cell in line.cells]
            if line.bold:
                cells[2].stylize("bold")
            grid.add_row(*cells, style="dim" if line.grey else None)
        parts.append(grid)
    parts += [Text(line) for line in _below(table)]
    return Group(*parts)


def _markdown(table: Table) -> str:
    lines = [f"**{_escape(table.title or table.sweep)}**", ""]
    for column in table.columns:
        if column.label:
            lines += [f"**{_escape(column.label)}**", ""]
        lines += [_piped(_headings(table, column)), "|---|---:|---:|---:|---|"]
        for line in _block(table, column):
            if isinstance(line, str):
                lines.append(_piped([f"*{_escape(line)}*", "", "", "", ""]))
                continue
            cells = [_escape(cell) for cell in line.cells]
            if line.bold:
                cells[2] = f"**{cells[2]}**"
            lines.append(_piped(cells))
        lines.append("")
    lines += [f"- {_escape(line)}" for line in _below(table)]
    return "\n".join(lines) + "\n"


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """So that GitHub shows it as written, on one line of a table."""
    for character in "\\|*_`~":
        text = text.replace(character, "\\" + character)
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


CSV_FIELDS = ("sweep", "column", "row", "seed", "quantity", "value", "text")


def _csv(table: Table) -> str:
    """Tidy: `quantity` names what `value` (a number) or `text` (words) is.

    An empty row means of the column, an empty row and column of the table; `seed` is given for
    the quantity METRIC.run only, which is what one run got.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for column, row, seed, quantity, value in _facts(table):
        is_text = isinstance(value, str)
        number = "" if value is None or is_text else value
        text = value if is_text else ""
        writer.writerow([table.sweep, column, row, seed, quantity, number, text])
    return file.getvalue()


Fact = tuple[str, str, int | str, str, float | str | None]  # column, row, seed, quantity, value


def _facts(table: Table) -> Iterator[Fact]:
    """Everything that the table says, one thing at a time."""
    yield "", "", "", "title", table.title
    yield "", "", "", "complete", int(table.complete)
    yield "", "", "", "alpha", table.alpha
    yield "", "", "", "gain.alpha", table.gain_alpha
    yield "", "", "", "seeds", len(table.seeds)
    yield from (("", "", "", "caption", text) for text in table.caption)
    yield from (("", "", "", "note", text) for text in table.notes)
    for column in table.columns:
        yield from _column_facts(table, column)
        for entry in column.entries:
            yield from _entry_facts(table, entry)


def _column_facts(table: Table, column: TableColumn) -> Iterator[Fact]:
    for quantity, value in (
        ("contrasts", column.contrasts),
        ("spread", column.spread),
        ("spread.df", column.df),
        ("spread.rows", column.pooled_rows),
        *_estimate_facts("correlation", column.correlation),
        *(("test.n", size) for size in column.test_sizes),
        *(("note", table.footnotes[i - 1]) for i in column.footnotes),
    ):
        yield column.label, "", "", quantity, value


def _entry_facts(table: Table, entry: Entry) -> Iterator[Fact]:
    row = next(row for row in table.rows if row.label == entry.row)
    for seed, value in entry.values.items():
        yield entry.column, entry.row, seed, f"{table.metric}.run", value
    for quantity, fact in (
        ("family", row.family),
        *_estimate_facts(table.metric, entry.accuracy),
        *_estimate_facts("gain", entry.gain),
        ("runs.planned", entry.planned),
        ("runs.missing", len(entry.missing)),
        ("runs.diverged", len(entry.diverged)),
        ("runs.collapsed", len(entry.collapsed)),
        ("pool", entry.pool or None),
        ("verdict", entry.verdict),
        ("seeds_needed", entry.seeds_needed),
        *(("note", table.footnotes[i - 1]) for i in (*row.footnotes, *entry.footnotes)),
    ):
        if fact is not None:
            yield entry.column, entry.row, "", quantity, fact


def _estimate_facts(quantity: str, estimate: Estimate | None) -> Iterator[tuple[str, float | None]]:
    if estimate is None:
        return
    yield quantity, estimate.mean
    for name in ("low", "high", "sd", "n"):
        if (value := getattr(estimate, name)) is not None:
            yield f"{quantity}.{name}", value


def _json(table: Table) -> str:
    return to_json(dataclasses.asdict(table)).decode()


FORMATS: dict[str, Callable[[Table], RenderableType]] = {
    "rich": _rich,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
}
