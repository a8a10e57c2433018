"""Chooses what of a table is shown: rows, columns, cells, an order. Computes nothing: every number
stays that of the whole table.

Used by cli/printing.py (`--rows`, `--columns`, `--where`, `--sort` of `ablate table`) and
cli/looking.py (`ablate plot --rows`). A new order also needs its name in the option `sort` of
`TableView`, cli/printing.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ablate.analysis import Sentence, Summary, SummaryLine, Table, TableColumn, TableRow
from ablate.planning import (
    Cell,
    Plan,
    matches_value,
    parse_word,
    read_labels,
    value_at,
    value_text,
)
from ablate.shared import UserError, unknown_value

SORTS = ("gain",)
Places = set[tuple[str, str]]  # (row, column)


def choose_part(
    table: Table,
    plan: Plan,
    *,
    rows: str | None = None,
    columns: str | None = None,
    conditions: Sequence[str] = (),
    sort: str | None = None,
) -> Table:
    """Return the part of a table that is shown, always with the baseline. `plan`: that the table is
    of; `rows`, `columns`: labels; `conditions`: KEY=VALUE settings, all of which a cell must have;
    `sort`: one of SORTS, the best first. Raises UserError for a label, a key or a value that the
    table doesn't have."""
    if sort is not None and sort not in SORTS:
        raise unknown_value("--sort", sort, SORTS)
    if rows is columns is sort is None and not conditions:
        return table
    places = {(entry.row, column.label) for column in table.columns for entry in column.entries}
    if rows is not None:
        selection = _rows(table, plan, rows)
        places = {(row, column) for row, column in places if row in selection}
    if columns is not None:
        selection = _columns(table, columns)
        places = {(row, column) for row, column in places if column in selection}
    if conditions:
        places &= _having(table, plan, conditions)
    if not places:
        raise UserError("--rows, --columns and --where: no cell of the table is in all of these")
    part = _part_of(table, places, sort)
    caption = next(note for note in part.notes if note.kind == "caption")
    extended_caption = caption.followed_by(part_words(table, part, sort))
    notes = (extended_caption if note is caption else note for note in part.notes)
    return dataclasses.replace(part, notes=tuple(notes))


def _rows(table: Table, plan: Plan, text: str) -> tuple[str, ...]:
    return read_labels("--rows", text, [row.label for row in table.rows], plan.row_names)


def _columns(table: Table, text: str) -> tuple[str, ...]:
    labels = [column.label for column in table.columns if column.label]
    if not labels:
        raise UserError(f"--columns: {table.sweep} has one column, without a name; leave it out")
    also = {column.heading: column.label for column in table.columns if column.label}
    return read_labels("--columns", text, labels, also)


def _having(table: Table, plan: Plan, conditions: Sequence[str]) -> Places:
    """Return the places whose cells have all settings of `conditions`, as rows and columns set the
    keys, or by default where they don't. Raises UserError for a key that none of them sets, and for
    a value that no cell has."""
    cells = {(cell.row, cell.column): cell for cell in plan.cells}
    rows = {row.label: row.settings for row in plan.rows}
    columns = {column.label: column.settings for column in plan.columns}
    keys = dict.fromkeys(key for part in (*columns.values(), *rows.values()) for key in part)
    if not keys:
        raise UserError(f"--where {conditions[0]}: no row and no column of {plan.name} sets a key")
    plan_labels = _own_labels(table)

    def value(row: str, column: str, key: str) -> Any:
        set_by = {**columns[plan_labels[column]], **rows[row]}
        return set_by[key] if key in set_by else _default(cells[row, plan_labels[column]], key)

    all_places = [(entry.row, column.label) for column in table.columns for entry in column.entries]
    settings = {key: {place: value(*place, key) for place in all_places} for key in keys}
    return set(all_places).intersection(*(_places_with(text, settings) for text in conditions))


def _places_with(text: str, settings: Mapping[str, Mapping[tuple[str, str], Any]]) -> Places:
    """Return the places whose setting is the value, or one of the values, of `text`, KEY=VALUE. A
    text may be given as it is spelled, also if it has commas or looks like a number. `settings`: by
    key and place. Raises UserError for a key or a value that isn't there."""
    key, _, spelling = text.partition("=")
    places = {place for place, value in settings.get(key, {}).items() if value == spelling}
    if places:
        return places
    word = parse_word(text, {})
    if word.key not in settings:
        raise unknown_value("--where", word.key, settings, "a key that rows or columns set, one of")
    values = settings[word.key]
    pieces = [piece.strip() for piece in spelling.split(",")]
    places = {
        place
        for place, value in values.items()
        if value in pieces or any(matches_value(v, value) for v in word.values)
    }
    if not places:
        raise unknown_value(
            f"--where {word.key}", spelling, dict.fromkeys(map(value_text, values.values()))
        )
    return places


def _default(cell: Cell, key: str) -> Any:
    value = value_at(cell.spec.tree, key)
    return value.get("name") if isinstance(value, Mapping) else value


def _own_labels(table: Table) -> dict[str, str]:
    """Map the label of each of the table's columns to its label in the plan. A column on another
    test set has the runs of the column before it, and so that column's label."""
    labels, label = {}, ""
    for column in table.columns:
        label = label if column.on else column.label
        labels[column.label] = label
    return labels


def _part_of(table: Table, places: Places, sort: str | None = None) -> Table:
    """Return the table of these places and, unless it is judged itself, of the baseline."""
    across = {column for _, column in places}
    part_columns = [column for column in table.columns if column.label in across]
    reference = {table.baseline} if table.target is None else set[str]()
    labels = reference | {row for row, _ in places}
    rows = [row for row in table.rows if row.label in labels]
    if sort:
        rows = _sorted(table, rows, part_columns)
    order = [row.label for row in rows]
    columns = []
    for column in part_columns:
        row_labels = {row for row, label in places if label == column.label} | reference
        entries = [entry for entry in column.entries if entry.row in row_labels]
        entries.sort(key=lambda entry: order.index(entry.row))
        columns.append(dataclasses.replace(column, entries=tuple(entries)))
    part = dataclasses.replace(
        table, rows=tuple(rows), columns=tuple(columns), full_table=table.full_table or table
    )
    blocks = [
        dataclasses.replace(block, lines=lines)
        for block in table.blocks
        if (lines := _lines_shown(block, table, part))
    ]
    return dataclasses.replace(part, blocks=tuple(blocks))


def _sorted(
    table: Table, rows: Sequence[TableRow], columns: Sequence[TableColumn]
) -> list[TableRow]:
    """Return the rows by decreasing mean gain over `columns`, those that are shown, some of which a
    row may lack: the baseline first, rows without a gain last. Rows are in no families any more."""
    entries = [entry for column in columns for entry in column.entries]

    sign = 1 if table.target is None else table.metric_of().sign  # of what is better

    def place(row: TableRow) -> tuple[bool, float]:
        gains = [sign * e.contrast.mean for e in entries if e.row == row.label and e.contrast]
        return table.is_judged(row.label), -fmean(gains) if gains else math.inf

    return [dataclasses.replace(row, family=None) for row in sorted(rows, key=place)]


def _lines_shown(block: Summary, table: Table, part: Table) -> tuple[SummaryLine, ...]:
    """Return the lines of a block below the columns that a part of the table shows. A contrast
    between two rows needs these in its own column, any other line all columns, and an effect all
    rows, too."""
    if block.kind == "row_contrast":
        places = {(entry.row, column.label) for column in part.columns for entry in column.entries}
        return tuple(
            line for line in block.lines if {(row, line.column) for row in line.between} <= places
        )
    if len(part.columns) < len(table.columns):
        return ()
    if not block.of_rows:
        return block.lines if len(part.rows) == len(table.rows) else ()
    order = [row.label for row in part.rows]
    lines = [line for line in block.lines if line.label in order]
    return tuple(sorted(lines, key=lambda line: order.index(line.label)))


def _summarized(table: Table) -> set[tuple[str, str, str]]:
    """Return the averages, contrasts and effects below a table's columns: each as the kind and the
    name of its block, and its label, "" where the block is of rows."""
    return {
        (block.kind, block.name, "" if block.of_rows else line.label)
        for block in table.blocks
        for line in block.lines
    }


def part_words(table: Table, part: Table, sort: str | None) -> Iterator[Sentence]:
    """Yield how much of a table is shown in a part of it, and what numbers are of."""
    counts = [
        {"noun": noun, "shown": len(subset), "total": len(superset)}
        for subset, superset, noun in (
            (part.rows, table.rows, "rows"),
            (part.columns, table.columns, "columns"),
        )
        if len(subset) < len(superset)
    ]
    if len(part.entries) < len(table.entries) and not counts:
        counts = [{"noun": "cells", "shown": len(part.entries), "total": len(table.entries)}]
    if counts:
        yield Sentence("part", {"counts": counts})
    if _summarized(part) != _summarized(table):
        yield Sentence("part.blocks")
    if sort and table.target is not None:
        yield Sentence("part.sorted-by-difference")
    elif sort:
        yield Sentence("part.sorted", {"columns": len(part.columns)})
