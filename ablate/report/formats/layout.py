"""Lays out a table as grids: columns of `--show`, rows, columns of the sweep, blocks below."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.analysis.across import Summary
from ablate.analysis.captions import level
from ablate.analysis.footnotes import setting
from ablate.analysis.headline import headline
from ablate.analysis.scores import short
from ablate.analysis.table import Entry, Table, TableColumn
from ablate.planning.plan import METRICS as NAMES
from ablate.planning.plan import is_metric
from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable
from ablate.shared.errors import UserError, unknown
from ablate.shared.metrics import Metric

if TYPE_CHECKING:
    from ablate.analysis.stats import Estimate

SHOW = ("accuracy", "gain", "ci", "n", "verdict", "params", "macs", "cost", "chosen", "paper")
DEFAULT = ("accuracy", "gain", "ci", "n", "verdict")
SIDE_BY_SIDE = 3  # columns of a sweep at most
FEW_ROWS = 3  # of which no column makes a grid of its own


def check_show(text: str, own: Collection[str] = ()) -> tuple[str, ...]:
    """Split and check the parts of `--show`. `own`: metrics of the sweep at hand. Raises UserError
    for an unknown part."""
    show = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in show or (text,):
        if part not in (*SHOW, *own) and not is_metric(part):
            raise unknown("--show", part, (*SHOW, *(own or NAMES)))
    if not set(show) - {"ci"}:
        raise UserError("--show: ci is the interval of another part; add accuracy or gain")
    return show


def sheet(table: Table, show: Sequence[str], transpose: bool, width: int) -> PrintedTable:
    """Lay out the table: columns side by side if they are few and fit into `width` characters, else
    one below the other; `transpose`: one grid with the variants as its columns."""
    parts = list(_parts(table, show))
    blocks = [_block(table, block, "ci" in show) for block in table.blocks]
    if transpose:
        grids = [_transposed(table, parts)]
    else:
        grids = [_column(table, column, parts) for column in table.columns]
        if len(grids) > 1 and len(table.rows) <= FEW_ROWS:
            grids = [_stacked(table, parts)]
        if 1 < len(table.columns) <= SIDE_BY_SIDE:
            wide = _side_by_side(table, parts)
            grids = [wide] if sum(wide.widths) <= width else grids
    return PrintedTable(
        title=(table.title or table.sweep) + ("" if table.complete else " (unfinished)"),
        grids=(*grids, *blocks),
        notes=table.notes,
        caption=table.caption,
        footnotes=table.footnotes,
        headline=headline(table),
    )


# --- Cells --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A column of a column."""

    heading: str
    cell: Callable[[Entry], GridCell]
    number: bool = True
    is_gain: bool = False


def _parts(table: Table, show: Sequence[str]) -> Iterator[_Part]:
    ci = "ci" in show
    for name in show:
        if name in _PARTS:
            yield from _PARTS[name](table, ci)
        elif name != "ci":
            yield _other(table, name, ci)


def _interval(
    estimate: Estimate | None, metric: Metric, sign: bool = False, ci: bool = True
) -> str:
    """Write "+0.62 [+0.21, +1.03]"; without an interval "+0.62 [-]"; without an estimate "-"."""
    if estimate is None:
        return "-"
    mean = metric.text(estimate.mean, sign)
    if not ci:
        return mean
    if estimate.low is None or estimate.high is None:
        return f"{mean} [-]"
    return f"{mean} [{metric.text(estimate.low, sign)}, {metric.text(estimate.high, sign)}]"


def _value_heading(metric: Metric, alpha: float, ci: bool) -> str:
    bracket = f"[{level(alpha)} CI]" if ci else ""
    return " ".join(filter(None, (metric.key, metric.unit, bracket)))


def _accuracy(table: Table, ci: bool) -> Iterator[_Part]:
    def cell(entry: Entry) -> GridCell:
        text = _interval(entry.accuracy, table.of(), ci=ci)
        return GridCell(text + _never(entry.never, entry), number=True)

    yield _Part(_value_heading(table.of(), table.alpha, ci), cell)


def _other(table: Table, name: str, ci: bool) -> _Part:
    def cell(entry: Entry) -> GridCell:
        if name == table.metric:
            return next(_accuracy(table, ci)).cell(entry)
        if (other := entry.others.get(name)) is None:
            return GridCell("-", number=True)
        text = _interval(other.estimate, table.of(name), ci=ci) + _never(other.never, entry)
        return GridCell(text, number=True)

    return _Part(_value_heading(table.of(name), table.alpha, ci), cell)


def _never(never: Sequence[int], entry: Entry) -> str:
    return f"; {len(never)}/{entry.planned} never" if never else ""


def _gain(table: Table, ci: bool) -> Iterator[_Part]:
    def cell(entry: Entry) -> GridCell:
        is_baseline = entry.row == table.baseline
        text = "" if is_baseline else _interval(entry.gain, table.of(), True, ci)
        return GridCell(text, bold=entry.verdict == "helps", number=True)

    bracket = f" [{level(table.gain_alpha)} CI]" if ci else ""
    yield _Part(table.of().change + bracket, cell, is_gain=True)


def _n(table: Table, ci: bool) -> Iterator[_Part]:
    yield _Part("n", lambda entry: GridCell(str(entry.n), number=True))


def _verdict(table: Table, ci: bool) -> Iterator[_Part]:
    heading = "verdict" if table.complete else "runs"
    yield _Part(heading, lambda entry: GridCell(state(entry, table)), number=False)


def state(entry: Entry, table: Table) -> str:
    """Write the verdict, and the numbers of diverged, collapsed and missing runs."""
    parts = []
    if entry.row == table.baseline:
        parts.append("baseline")
    elif entry.verdict is not None:
        parts.append(entry.verdict)
    for seeds, what in (
        (entry.diverged, "diverged"),
        (entry.collapsed, "collapsed"),
        (entry.missing, "missing"),
    ):
        if seeds:
            parts.append(f"{len(seeds)}/{entry.planned} {what}")
    return "; ".join(parts) or "-"


def _params(table: Table, ci: bool) -> Iterator[_Part]:
    yield _Part("params", lambda entry: GridCell(short(entry.parameters), number=True))


def _macs(table: Table, ci: bool) -> Iterator[_Part]:
    yield _Part("multiply-adds", lambda entry: GridCell(short(entry.multiply_adds), number=True))


def _cost(table: Table, ci: bool) -> Iterator[_Part]:
    def of(text: Callable[[Entry], str]) -> Callable[[Entry], GridCell]:
        return lambda entry: GridCell(text(entry) if entry.cost else "-", number=True)

    yield _Part("device-hours", of(lambda e: f"{e.cost.device_s / 3600:.3g}" if e.cost else ""))
    yield _Part("s a run", of(lambda e: f"{e.cost.run_s:.3g}" if e.cost else ""))
    yield _Part("images/s", of(lambda e: short(e.cost.images_per_s if e.cost else None)))
    yield _Part("peak memory", of(lambda e: short(e.cost.peak_bytes if e.cost else None, "B")))
    yield _Part("utilisation", of(lambda e: _share(e.cost.utilisation if e.cost else None)))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2g} %"


def _chosen(table: Table, ci: bool) -> Iterator[_Part]:
    """Make a column for each searched key, with the chosen value of each search."""
    keys = dict.fromkeys(k for e in table.entries for choice in e.chosen for k in choice.params)

    def of(key: str) -> Callable[[Entry], GridCell]:
        def values(entry: Entry) -> str:
            return ", ".join(setting(choice.params[key]) for choice in entry.chosen)

        return lambda entry: GridCell(values(entry) or "-", number=True)

    for key in keys:
        yield _Part(key, of(key))


def _paper(table: Table, ci: bool) -> Iterator[_Part]:
    def printed(entry: Entry) -> GridCell:
        return GridCell(entry.against.published.printed if entry.against else "", number=True)

    def said(entry: Entry) -> GridCell:
        gain = entry.against.said if entry.against else None
        text = _interval(gain, table.of(), True) if gain or entry.row != table.baseline else ""
        return GridCell(text, number=True)

    yield _Part(table.paper or "paper", printed)
    if any(entry.against and entry.against.said for entry in table.entries):
        yield _Part("gain, ± a 95 % CI", said)
    if any(_beside(entry, table) for entry in table.entries):
        yield _Part("beside it", lambda entry: GridCell(_beside(entry, table)), number=False)


def _beside(entry: Entry, table: Table) -> str:
    """Write "-0.34, gain +0.10" or "same direction, in our interval"."""
    if (against := entry.against) is None:
        return ""
    parts = []
    if against.value is not None:
        parts.append(table.of().text(against.value, True))
    if against.gain is not None:
        parts.append(f"gain {table.of().text(against.gain, True)}")
    if against.agreement is not None:
        parts += [against.agreement, f"{'in' if against.inside else 'outside'} our interval"]
    return ", ".join(parts)


_PARTS: dict[str, Callable[[Table, bool], Iterator[_Part]]] = {
    "accuracy": _accuracy,
    "gain": _gain,
    "n": _n,
    "verdict": _verdict,
    "params": _params,
    "macs": _macs,
    "cost": _cost,
    "chosen": _chosen,
    "paper": _paper,
}


# --- Grids --------------------------------------------------------------------------------------


def _cells(entry: Entry | None, parts: Sequence[_Part]) -> list[GridCell]:
    """The last one bears the entry's footnotes."""
    if entry is None:
        return [GridCell("", number=part.number) for part in parts]
    cells = [part.cell(entry) for part in parts]
    return [*cells[:-1], dataclasses.replace(cells[-1], notes=entry.footnotes)]


def _headings(column: TableColumn, parts: Sequence[_Part]) -> list[GridCell]:
    """The gain's bears the column's footnotes; without one the last does."""
    bears = next((i for i, part in enumerate(parts) if part.is_gain), len(parts) - 1)
    return [
        GridCell(part.heading, column.footnotes if i == bears else (), number=part.number)
        for i, part in enumerate(parts)
    ]


def _lines(
    table: Table, columns: Sequence[TableColumn], parts: Sequence[_Part]
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
            yield GridLine((GridCell(row.family or "others"), *empty), heading=True)
            family = row.family
        cells = [cell for entry in entries for cell in _cells(entry, parts)]
        grey = all(entry.diverged for entry in entries if entry)
        yield GridLine((GridCell(row.label, row.footnotes), *cells), grey=grey)


def _column(table: Table, column: TableColumn, parts: Sequence[_Part]) -> Grid:
    headings = (GridCell("variant"), *_headings(column, parts))
    return Grid(column.heading, headings, tuple(_lines(table, [column], parts)))


def _stacked(table: Table, parts: Sequence[_Part]) -> Grid:
    """The columns one below the other, under their labels."""
    lines = []
    for column in table.columns:
        empty = [GridCell("", number=part.number) for part in parts]
        lines.append(GridLine((GridCell(column.heading, column.footnotes), *empty), heading=True))
        lines += _lines(table, [column], parts)
    headings = [GridCell(part.heading, number=part.number) for part in parts]
    return Grid("", (GridCell("variant"), *headings), tuple(lines))


def _side_by_side(table: Table, parts: Sequence[_Part]) -> Grid:
    headings = [cell for column in table.columns for cell in _headings(column, parts)]
    return Grid(
        title="",
        headings=(GridCell("variant"), *headings),
        lines=tuple(_lines(table, table.columns, parts)),
        spans=(("", 1), *((column.heading, len(parts)) for column in table.columns)),
    )


def _transposed(table: Table, parts: Sequence[_Part]) -> Grid:
    """A line a column of the sweep and part, under the column's label; with one part a column."""
    headings = [GridCell(row.label, row.footnotes, number=True) for row in table.rows]
    lines = []
    for column in table.columns:
        by_row = {entry.row: _cells(entry, parts) for entry in column.entries}
        empty = [GridCell("", number=True) for _ in table.rows]
        names = _headings(column, parts)
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


def _block(table: Table, block: Summary, ci: bool) -> Grid:
    """An average, a contrast, a trend or the effects of a placement: an effect a line."""
    where = any(line.column for line in block.lines) and block.kind in ("contrast", "trend")
    told = any(line.where for line in block.lines)
    sampled = any(line.sampled for line in block.lines)
    bracket = f" [{level(table.gain_alpha)} CI]" if ci else ""
    change = table.of().change
    what = {"contrast": f"change of {change}", "trend": f"slope of {change}"}
    headings = [
        GridCell("effect" if block.kind == "placement" else "variant"),
        *([GridCell("columns")] if where else []),
        GridCell(what.get(block.kind, change) + bracket, number=True),
        *([GridCell(f"if columns were a sample{bracket}", number=True)] if sampled else []),
        *([GridCell("columns", number=True)] if sampled else []),
        GridCell("n", number=True),
        GridCell("verdict" if table.complete else ""),
        *([GridCell("by the columns' verdicts")] if told else []),
    ]
    lines = []
    for line in block.lines:
        gain = _interval(line.gain, table.of(), True, ci)
        sample = _interval(line.sampled, table.of(), True, ci)
        cells = [
            GridCell(line.label),
            *([GridCell(line.column)] if where else []),
            GridCell(gain, bold=line.verdict == "helps", number=True),
            *([GridCell(sample, number=True)] if sampled else []),
            *([GridCell(str(len(line.columns)), number=True)] if sampled else []),
            GridCell(str(line.gain.n), number=True),
            GridCell(line.verdict or ""),
            *([GridCell(line.where)] if told else []),
        ]
        lines.append(GridLine(tuple(cells)))
    note = f"{block.note}; {block.contrasts} contrasts" if block.contrasts > 1 else block.note
    return Grid(block.title, tuple(headings), tuple(lines), note=note)
