"""Lays out a table as grids: columns of `--show`, rows, columns of the sweep and blocks below; as
wide as papers do.

Used by `__init__.py` here, for every table that people read, and by page.py (`ablate report`).
Another layout also needs `python tests/test_formats.py`, which writes tests/golden/table.*.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ablate.analysis import (
    WARNING_KINDS,
    Entry,
    Summary,
    SummaryLine,
    Table,
    TableColumn,
    TableRow,
    table_headline,
    wins,
)
from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable
from ablate.report.formats.parts import (
    DEFAULT_SHOW,
    IMPROVED,
    INTERVALS,
    OTHERS_HEADING,
    ShownPart,
    bracket,
    fates,
    interval,
    interval_form,
    paper_apart,
    parts_of,
)
from ablate.shared import UserError, amount_text

if TYPE_CHECKING:
    from ablate.analysis import Estimate

SIDE_BY_SIDE = 3  # columns of a sweep at most
UNFINISHED = " (unfinished)"
LISTED_WARNINGS = tuple(kind for kind in WARNING_KINDS if kind != "smoke")  # the headline has that
# Of the notes on a table: all; without those on how its numbers are computed; none.
FULL, SHORT, NO_NOTES = NOTES = ("full", "short", "none")
FEW_ROWS = 3  # of which no column makes a grid of its own
EFFECT_HEADINGS = {
    "row_contrast": "difference",
    "sequence": "mean minus the target",
    "pair": "interaction",
    "shapley": "share",
}  # of blocks whose numbers are no gains
BLOCK_LINES = {
    "row_contrast": "rows",
    "placement": "effect",
    "pair": "pair",
    "shapley": "change",
}  # which are no rows
# What heads a line's `column`.
COLUMN_HEADINGS = {
    "row_contrast": "column",
    "contrast": "columns",
    "group": "group",
    "sequence": "column",
}


def sheet(
    table: Table,
    show: Sequence[str],
    transpose: bool,
    width: int,
    wide: bool | None = None,
    notes: str = FULL,
) -> PrintedTable:
    """Lay out the table: `wide`, by default where it has groups, or columns side by side if they
    are few and fit into `width` characters, else one below the other; `transpose`: one grid with
    the variants as its columns. `notes`: one of NOTES."""
    whole_table = table.full_table or table
    has_exact_notes = any(note.is_exact for note in table.notes)
    if notes == SHORT:
        table = table.without_exact_notes()
    elif notes == NO_NOTES:
        table = dataclasses.replace(table, notes=())
    is_smoke = bool(whole_table.texts("smoke"))
    if is_smoke:  # whose means have no intervals
        show = [part for part in show if part not in INTERVALS]
    blocks = [_block(table, block, interval_form(show), notes) for block in table.blocks]
    if tuple(show) == DEFAULT_SHOW and table.is_of_changes:
        show = [part for part in show if part not in ("gain", "verdict")]  # of cells nobody asks
    if not transpose and (table.groups if wide is None else wide):
        if "gain" not in show:
            table = table.without_notes("gain")
        grids = list(wide_grids(table, show))
        extra_caption = tuple(wide_words(table))
    else:
        parts = list(parts_of(table, show))
        if not parts:
            raise UserError(
                f"--show {','.join(show)}: the table of {table.sweep} has nothing of it; "
                f"--show {','.join(DEFAULT_SHOW)} is what tables show"
            )
        table = explained(table, parts)
        grids = _long(table, parts, transpose, width)
        extra_caption = tuple(cut_words(table, show)) if notes == FULL else ()
    if notes == SHORT and has_exact_notes:
        extra_caption += (_details_words(table),)
    return PrintedTable(
        title=(table.title or table.sweep) + ("" if table.complete else UNFINISHED),
        trained_on=table.trained_on,
        grids=(*blocks, *grids) if table.is_of_changes else (*grids, *blocks),
        notes=table.texts(*LISTED_WARNINGS),
        caption=(*table.texts("caption"), *(extra_caption if notes != NO_NOTES else ())),
        footnotes=(*table.footnotes,),
        exact=tuple(dict.fromkeys(note.text for note in table.notes if note.is_exact)),
        headline=table_headline(whole_table),
        is_smoke=is_smoke,
        is_of_changes=table.is_of_changes,
    )


def _details_words(table: Table) -> str:
    command = shlex.join(["ablate", "table", *(table.words or [table.sweep]), "--notes", FULL])
    return f"How the numbers are computed: `{command}`."


def _long(table: Table, parts: Sequence[ShownPart], transpose: bool, width: int) -> list[Grid]:
    if transpose:
        return [_transposed(table, parts)]
    grids = [_grid(table, column, parts) for column in table.columns]
    if len(grids) > 1 and len(table.rows) <= FEW_ROWS:
        grids = [_stacked(table, parts)]
    if 1 < len(table.columns) <= SIDE_BY_SIDE:
        joint_grid = _side_by_side(table, parts)
        grids = [joint_grid] if sum(joint_grid.widths) <= width else grids
    return grids


# --- Grids --------------------------------------------------------------------------------------


def cells_of(table: Table, entry: Entry | None, parts: Sequence[ShownPart]) -> list[GridCell]:
    """Return the cells of an entry. The gain's cell bears the footnotes that explain it, or without
    a gain the verdict's; the last cell bears the entry's others."""
    if entry is None:
        return [GridCell("", number=part.number) for part in parts]
    marks: list[set[int]] = [set() for _ in parts]
    marks[-1].update(table.marks(entry.row, entry.column, "footnote"))
    if (bears := gain_bearer(parts)) is not None:
        marks[bears].update(table.marks(entry.row, entry.column, "gain"))
    return [
        dataclasses.replace(part.cell(entry), notes=tuple(sorted(some)))
        for part, some in zip(parts, marks, strict=True)
    ]


def gain_bearer(parts: Sequence[ShownPart]) -> int | None:
    """Return the index of the part that bears the footnotes of gains: the gain's, else the
    verdict's."""
    places = [i for i, part in enumerate(parts) if part.is_gain]
    places += [i for i, part in enumerate(parts) if part.is_verdict]
    return places[0] if places else None


def explained(table: Table, parts: Sequence[ShownPart]) -> Table:
    """Return the table without the footnotes of gains, if no part bears them."""
    return table if gain_bearer(parts) is not None else table.without_notes("gain")


def headings_of(table: Table, column: TableColumn, parts: Sequence[ShownPart]) -> list[GridCell]:
    """Return the headings of a column's parts. The gain's heading bears the column's footnotes;
    without a gain the last does."""
    bears = next((i for i, part in enumerate(parts) if part.is_gain), len(parts) - 1)
    marks = table.marks(None, column.label)
    return [
        GridCell(part.heading, marks if i == bears else (), number=part.number)
        for i, part in enumerate(parts)
    ]


def _row_name(table: Table, row: str) -> GridCell:
    return GridCell(row, table.marks(row, None))


def _lines(
    table: Table, columns: Sequence[TableColumn], parts: Sequence[ShownPart]
) -> Iterator[GridLine]:
    """Make one line for each row that is in any of the columns, under the name of its family."""
    by_row = [{entry.row: entry for entry in column.entries} for column in columns]
    above = None
    for row in table.rows:
        entries = [column_entries.get(row.label) for column_entries in by_row]
        if not any(entries):
            continue
        if row.family != above:
            cell_count = len(columns) * len(parts)
            yield GridLine.headed(GridCell(row.family or OTHERS_HEADING), 1 + cell_count)
            above = row.family
        cells = [cell for entry in entries for cell in cells_of(table, entry, parts)]
        grey = all(entry.diverged for entry in entries if entry)
        yield GridLine((_row_name(table, row.label), *cells), grey=grey)


def _grid(table: Table, column: TableColumn, parts: Sequence[ShownPart]) -> Grid:
    """Lay out one column of the sweep: a line per variant."""
    headings = headings_of(table, column, parts)
    lines = _lines(table, [column], parts)
    return Grid(column.heading, (GridCell("variant"), *headings), tuple(lines))


def _side_by_side(table: Table, parts: Sequence[ShownPart]) -> Grid:
    """Lay out all columns of the sweep side by side, each under its heading."""
    headings = [cell for column in table.columns for cell in headings_of(table, column, parts)]
    spans = [(column.heading, len(parts)) for column in table.columns]
    lines = _lines(table, table.columns, parts)
    return Grid("", (GridCell("variant"), *headings), tuple(lines), spans=(("", 1), *spans))


def _stacked(table: Table, parts: Sequence[ShownPart]) -> Grid:
    """Lay out the columns one below the other, under their labels."""
    lines = []
    for column in table.columns:
        name = GridCell(column.heading, table.marks(None, column.label))
        lines.append(GridLine.headed(name, 1 + len(parts)))
        lines += _lines(table, [column], parts)
    headings = [GridCell(part.heading, number=part.number) for part in parts]
    return Grid("", (GridCell("variant"), *headings), tuple(lines))


def _transposed(table: Table, parts: Sequence[ShownPart]) -> Grid:
    """Lay out a line per part of each column of the sweep, under the column's label; with a single
    part, a line per column."""
    headings = [dataclasses.replace(_row_name(table, row.label), number=True) for row in table.rows]
    lines = []
    for column in table.columns:
        by_row = {entry.row: cells_of(table, entry, parts) for entry in column.entries}
        names = headings_of(table, column, parts)
        if len(parts) == 1:
            names = [GridCell(column.heading or names[0].text, names[0].notes)]
        elif column.heading:
            lines.append(GridLine.headed(GridCell(column.heading), 1 + len(table.rows)))
        for i, name in enumerate(names):
            cells = [
                by_row[row.label][i] if row.label in by_row else GridCell("") for row in table.rows
            ]
            right = [dataclasses.replace(cell, number=True) for cell in cells]
            lines.append(GridLine((dataclasses.replace(name, number=False), *right)))
    corner = parts[0].heading if len(parts) == 1 else ""
    return Grid("", (GridCell(corner), *headings), tuple(lines))


def _block_note(table: Table, block: Summary, notes: str) -> str:
    """Return what is printed of a block in addition to its title. `notes`: one of NOTES."""
    if notes == NO_NOTES:
        return ""
    parts = [block.note]
    if notes == FULL:
        parts.append(block.basis)
        if block.contrasts > 1:
            error = f"{100 * table.gain_alpha:.4g} %"
            parts.append(f"{block.contrasts} comparisons share an error rate of {error}")
    return "; ".join(filter(None, parts))


def _block(table: Table, block: Summary, ci: str, notes: str) -> Grid:
    """Lay out a block with a line per row or effect; a change has all of its parts in one line."""
    if block.kind == "change":
        return _changes(table, block, ci, notes)
    with_column = any(line.column for line in block.lines) and block.kind in COLUMN_HEADINGS
    with_counts = any(line.sampled for line in block.lines)
    # Two columns are hardly a sample: where no interval can be given, the mean alone is repeated.
    with_sampled = bool(ci) and any(_has_interval(line.sampled) for line in block.lines)
    has_verdicts = any(line.verdict for line in block.lines)
    level = bracket(ci, table.gain_alpha)
    change = EFFECT_HEADINGS.get(block.kind, table.metric_of().change)
    if block.kind == "contrast":
        change = f"change of {change}"
    headings = (
        GridCell("variant" if block.of_rows else BLOCK_LINES[block.kind]),
        GridCell(COLUMN_HEADINGS.get(block.kind, "")),
        GridCell(change + level, number=True),
        GridCell(f"if columns were a sample{level}", number=True),
        GridCell("columns", number=True),
        GridCell("n", number=True),
        GridCell("verdict" if table.complete else ""),
    )
    lines = []
    for line in block.lines:
        gain = interval(line.gain, table.metric_of(), True, ci)
        sample = "-"
        if _has_interval(line.sampled):
            sample = interval(line.sampled, table.metric_of(), True, ci)
        cells = (
            GridCell(_effect_name(line)),
            GridCell(line.column),
            GridCell(gain, bold=line.is_good_from or line.verdict in IMPROVED, number=True),
            GridCell(sample, number=True),
            GridCell(str(len(line.columns)), number=True),
            GridCell(str(line.gain.n), number=True),
            GridCell(line.verdict or ""),
        )
        lines.append(GridLine(cells))
    visibility = (True, with_column, True, with_sampled, with_counts, True, has_verdicts)
    grid = Grid(block.title, headings, tuple(lines), note=_block_note(table, block, notes))
    return grid.columns([place for place, is_visible in enumerate(visibility) if is_visible])


def _has_interval(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.low is not None and estimate.high is not None


def _changes(table: Table, block: Summary, ci: str, notes: str) -> Grid:
    """Lay out the effects of changes: a line per change, its parts from left to right."""
    parts = [*dict.fromkeys(line.part for line in block.lines)]
    level, has_verdicts = bracket(ci, table.gain_alpha), any(line.verdict for line in block.lines)
    headings = [GridCell("change")]
    for part in parts:
        headings += [GridCell(part + level, number=True), GridCell("n", number=True)]
        headings += [GridCell("verdict" if table.complete else "")] * has_verdicts
    by_change: dict[str, dict[str, SummaryLine]] = {}
    for line in block.lines:
        by_change.setdefault(line.label, {})[line.part] = line
    lines = []
    for by_part in by_change.values():
        cells = [GridCell(_effect_name(next(iter(by_part.values()))))]
        for part in parts:
            effect = by_part.get(part)
            gain = interval(effect.gain, table.metric_of(), True, ci) if effect else ""
            word = (effect.verdict or "") if effect else ""
            cells += [
                GridCell(gain, bold=word in IMPROVED, number=True),
                GridCell(str(effect.gain.n) if effect else "", number=True),
            ]
            cells += [GridCell(word)] * has_verdicts
        lines.append(GridLine(tuple(cells)))
    return Grid(block.title, tuple(headings), tuple(lines), note=_block_note(table, block, notes))


def _effect_name(line: SummaryLine) -> str:
    """Name a row or an effect, and say where it can't be separated from a change of the code: the
    versions are in a footnote, and in tidy CSV and JSON."""
    return f"{line.label} (confounded with the code version)" if line.code else line.label


# Parts that the long table has: words are counted at the end of a line.
LONG_PARTS = ("ci", "pm", "n", "verdict")


def wide_grids(table: Table, show: Sequence[str]) -> Iterator[Grid]:
    """Make a grid for each group. Each variant has a line for every part of `show` but LONG_PARTS,
    the first under its own label, and one for the runs that diverged or are missing. Raises
    UserError where `show` has no other parts."""
    part_names = [name for name in show if name not in LONG_PARTS]
    if not part_names:
        raise UserError("--show: a wide table has no ci, n and verdict; add gain, or --no-wide")
    runs = ShownPart("runs", lambda entry: "; ".join(fates(entry, table)))
    part_iterators = (
        paper_apart(table) if name == "paper" else parts_of(table, [name]) for name in part_names
    )
    parts = [*itertools.chain(*part_iterators), runs]
    for group in (*table.groups, ""):
        if columns := [column for column in table.columns if column.group == group]:
            yield _wide_grid(table, group or OTHERS_HEADING * bool(table.groups), columns, parts)


CORNER, HEADING, ARCH = range(3)
Below = tuple[int | str, str]  # where footnotes are: one of these and its text, or a cell


def _wide_marks(table: Table, columns: Sequence[TableColumn]) -> dict[Below, tuple[int, ...]]:
    """Place footnotes: each at the highest place where it holds for all below, (CORNER, ""),
    (HEADING, its text) or (ARCH, its name); else at a cell (column's label, row)."""
    cells: dict[Below, set[int]] = {
        (c.label, e.row): {*table.marks(None, c.label), *table.marks(e.row, c.label)}
        for c in columns
        for e in c.entries
    }
    places = {place: column for column in columns for place in _above(column)}
    marks: dict[Below, set[int]] = {}
    for kind in (CORNER, HEADING, ARCH):
        above = set[int]().union(*marks.values())
        for place in [place for place in places if place[0] == kind]:
            covered_columns = [c for c in columns if place in _above(c)]
            cell_marks = [cells[c.label, e.row] for c in covered_columns for e in c.entries]
            marks[place] = set.intersection(*cell_marks) - above if cell_marks else set()
    for column in columns:
        elsewhere = set[int]().union(*(marks[place] for place in _above(column)))
        for entry in column.entries:
            cells[column.label, entry.row] -= elsewhere
    return {place: tuple(sorted(numbers)) for place, numbers in (marks | cells).items()}


def _above(column: TableColumn) -> list[Below]:
    """Return the places above a column whose footnotes are for all below: the corner, its heading,
    and its architecture, if it has one."""
    return [(CORNER, ""), (HEADING, column.wide), *[(ARCH, column.arch)] * bool(column.arch)]


def _wide_grid(
    table: Table, title: str, columns: Sequence[TableColumn], parts: Sequence[ShownPart]
) -> Grid:
    full_table, marks = table.full_table or table, _wide_marks(table, columns)
    places = {(column.arch, column.wide): column for column in columns}
    headings = dict.fromkeys(column.wide for column in columns)
    lines: list[GridLine] = []
    above = OTHERS_HEADING
    for arch in dict.fromkeys(column.arch for column in columns):
        arch_columns = [places.get((arch, heading)) for heading in headings]
        for row in table.rows:
            entries = [_entry(column, row) for column in arch_columns]
            if not any(entries):
                continue
            subheading = ", ".join(filter(None, (arch, row.family))) or OTHERS_HEADING
            if subheading != above:
                heading_cell = GridCell(subheading, marks.get((ARCH, arch), ()))
                lines.append(GridLine.headed(heading_cell, 2 + len(headings)))
                above = subheading
            full_columns = (
                c for c in full_table.columns if (c.group, c.arch) == (columns[0].group, arch)
            )
            wins_text = wins(full_table, [entry for c in full_columns if (entry := _entry(c, row))])
            lines += _wide_lines(table, row, entries, parts, marks, wins_text)
    alone = parts[0].heading  # of architectures that nothing else differs of
    heading_cells = (GridCell(h or alone, marks[HEADING, h], number=True) for h in headings)
    head = (
        GridCell("variant", marks[CORNER, ""]),
        *heading_cells,
        GridCell(f"against {table.baseline}"),
    )
    grid = Grid(title, head, tuple(lines))
    is_counted = any(line.cells[-1].text for line in lines)
    return grid if is_counted else grid.columns(range(len(head) - 1))


def _entry(column: TableColumn | None, row: TableRow) -> Entry | None:
    entries = column.entries if column else ()
    return next((entry for entry in entries if entry.row == row.label), None)


def _wide_lines(
    table: Table,
    row: TableRow,
    entries: Sequence[Entry | None],
    parts: Sequence[ShownPart],
    marks: dict[Below, tuple[int, ...]],
    wins_text: str,
) -> Iterator[GridLine]:
    """Yield a line for each part that has a text; the last text of an entry bears its footnotes.
    `wins_text` comes at the end of the first line."""
    present_entries = [entry for entry in entries if entry]
    grid = [[part.cell(entry) if entry else GridCell("") for entry in entries] for part in parts]
    for i, entry in enumerate(entries):
        if entry and (numbers := marks[entry.column, entry.row]):
            bears = max((p for p, cells in enumerate(grid) if cells[i].text), default=0)
            grid[bears][i] = dataclasses.replace(grid[bears][i], notes=numbers)
    grey = all(entry.diverged for entry in present_entries)
    for place, (part, cells) in enumerate(zip(parts, grid, strict=True)):
        if place and not any(cell.text for cell in cells):
            continue
        label = GridCell(part.heading) if place else _row_name(table, row.label)
        end_text = "" if place else wins_text
        right = (dataclasses.replace(cell, number=True) for cell in cells)
        yield GridLine((label, *right, GridCell(end_text)), grey=grey)


def cut_words(table: Table, show: Sequence[str]) -> Iterator[str]:
    """State that intervals of means end where the metric does, where such intervals are shown."""
    metric, means = table.metric_of(), [entry.accuracy for entry in table.entries if entry.accuracy]
    if (
        metric.most is None
        or not {"ci", "pm"} & {*show}
        or not {"accuracy", table.metric} & {*show}
    ):
        return
    if any(mean.n > 1 and (mean.low == 0 or mean.high == metric.most) for mean in means):
        end = amount_text(f"{metric.most:g}", metric.unit)
        yield f"Intervals of the mean are cut at 0 and {end}."


def wide_words(table: Table) -> Iterator[str]:
    """State what a wide table counts, and where to find the numbers that it leaves out."""
    if not any(entry.verdict for entry in table.entries) and any(e.gain for e in table.entries):
        beyond = "below" if table.metric_of().sign < 0 else "above"
        yield (
            f"Without verdicts, the counts are of means {beyond} that of {table.baseline_words}, "
            f"by however little."
        )
    command = shlex.join(["ablate", "table", *(table.words or [table.sweep]), "--no-wide"])
    yield f"n, intervals and verdicts, column by column: `{command}`."
