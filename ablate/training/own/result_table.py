"""The row of a table that is a program's result: of a csv, of JSON lines, or of TensorBoard's
event files.

Used by training/own/outcome.py, where the yaml's `result` names such a table; `to_number` and
`value_at` by training/own/curves.py, too. What the yaml may say is run/result_source.py `Result`.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.run import DIRECTIONS, read_events
from ablate.shared import UserError, count_text, short_error

ABSENT = (None, "")  # cells of a column that a row has no value of
MOST_NAMES = 20  # that an error lists


@dataclass(frozen=True)
class ResultRow:
    """A row of a table. place: its line or step, in words."""

    place: str
    cells: Mapping[str, Any]


def csv_rows(content: bytes, place: str) -> list[ResultRow]:
    """Return the lines below the header of a csv. Raises UserError for a line of another number of
    values, as a line that was cut off is."""
    rows: list[ResultRow] = []
    names: list[str] = []
    text = content.decode("utf-8-sig", errors="replace")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            if not cells:
                continue
            if not names:
                names = [cell.strip() for cell in cells]
            elif [cell.strip() for cell in cells] != names:  # a header may come once more
                if len(cells) != len(names):
                    raise UserError(
                        f"{place}: line {reader.line_num} has {count_text(len(cells), 'value')}, "
                        f"the header {count_text(len(names), 'column')}"
                    )
                values = [cell.strip() for cell in cells]
                by_name = dict(zip(names, values, strict=True))
                rows.append(ResultRow(f"line {reader.line_num}", by_name))
    except csv.Error as error:
        raise UserError(f"{place}: line {reader.line_num}: {error}") from error
    if not rows:
        raise UserError(f"{place}: has no line below a header")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{place}: has two columns {name}; give each a name of its own")
    return rows


def json_rows(content: bytes, place: str) -> list[ResultRow]:
    """Return the lines of a file of JSON objects. Raises UserError for a line that is none."""
    rows = []
    for number, line in enumerate(content.decode("utf-8-sig", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError):
            cells = None
        if not isinstance(cells, dict):
            raise UserError(f"{place}: line {number} is no JSON object: {short_error(line)}")
        rows.append(ResultRow(f"line {number}", cells))
    if not rows:
        raise UserError(f"{place}: is empty")
    return rows


def event_rows(files: Sequence[Path], place: str) -> list[ResultRow]:
    """Return a row for each step of the scalars in event files, which are in the order of their
    times. Raises UserError without the package that reads them, and where there is no scalar."""
    by_step = read_events(files, place).by_step
    if not by_step:
        raise UserError(f"{place}: its event files have no scalars")
    return [ResultRow(f"step {step}", cells) for step, cells in by_step.items()]


# --- Which row counts -----------------------------------------------------------------------------


def rows_by_step(rows: Iterable[ResultRow], column: str, place: str) -> list[ResultRow]:
    """Join the rows of a step to one. A step that goes back drops the rows from there on: the
    program writes them again. Raises UserError for a row without a step."""
    joined: list[tuple[float, ResultRow]] = []
    for row in rows:
        step = to_number(row.cells.get(column))
        if step is None or not math.isfinite(step):
            raise UserError(
                f"{place}: {row.place} has no number in {column}, the column of "
                f"trainer.result.step; it has {listing(column, flat_names(row.cells))}"
            )
        while joined and joined[-1][0] > step:
            joined.pop()
        cells = {key: cell for key, cell in row.cells.items() if cell not in ABSENT}
        if joined and joined[-1][0] == step:
            cells = {**joined.pop()[1].cells, **cells}
        joined.append((step, ResultRow(row.place, cells)))
    return [row for _, row in joined]


def check_last_rows(rows: Sequence[ResultRow], key: str, step: str | None, place: str) -> None:
    """Raise UserError where only rows at the end of a file lack a value of this column: that may be
    a nan, written as nothing.

    step: the column by which the rows are joined. Then rows with other columns than those before,
    such as that of the test, lack nothing, nor do rows of a step that has the value in another row.
    """
    places = [n for n, row in enumerate(rows) if value_at(row.cells, key) not in ABSENT]
    end = places[-1] + 1 if places else 0
    if step is not None and places:
        last_step = rows[places[-1]].cells.get(step)
        while end < len(rows) and rows[end].cells.get(step) == last_step:
            end += 1
            places.append(end - 1)
    if not 1 < len(places) == end < len(rows):
        return
    remedy = "write nan where it diverged"
    if step is None:
        remedy += (
            ", or name the column of steps by trainer.result.step, which joins the lines of a step"
        )
    elif not _columns(rows[end:]) <= _columns(rows[:end]):
        return
    raise UserError(f"{place}: {rows[end].place} has no {key}, though all before it have; {remedy}")


def _columns(rows: Iterable[ResultRow]) -> set[str]:
    """Return the columns of which some row has a value."""
    return {name for row in rows for name, cell in row.cells.items() if cell not in ABSENT}


def value_of_last(rows: Sequence[ResultRow], key: str, place: str) -> tuple[ResultRow, Any]:
    """Return the last row that has a value of this column, and the value. Raises UserError where no
    row has one."""
    for row in reversed(rows):
        value = value_at(row.cells, key)
        if value not in ABSENT:
            return row, value
    raise lacks(place, key, [name for row in rows for name in flat_names(row.cells)])


def best_row(rows: Sequence[ResultRow], key: str, direction: str, place: str) -> ResultRow:
    """Return the first of the rows with the best finite value of the column `key`. Raises UserError
    where no row has one."""
    losses = []
    for n, row in enumerate(rows):
        number = to_number(value_at(row.cells, key))
        if number is not None and math.isfinite(number):
            losses.append((-DIRECTIONS[direction] * number, n))
    if not losses:
        raise lacks(place, key, [name for row in rows for name in flat_names(row.cells)])
    return rows[min(losses)[1]]


# --- Values by their names ------------------------------------------------------------------------


def to_number(cell: Any) -> float | None:
    """Return the number that a cell or a JSON value is; None for anything else."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def value_at(cells: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key: that of this very name or, in nested objects, of a path whose
    parts are joined by / or a dot. None where there is none."""
    if key in cells:
        return cells[key]
    for place in (match.start() for match in re.finditer(r"[/.]", key)):
        inner = cells.get(key[:place])
        if isinstance(inner, Mapping):
            value = value_at(inner, key[place + 1 :])
            if value is not None:
                return value
    return None


def flat_names(cells: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the names of all values, those of nested objects as a/b."""
    for key, value in cells.items():
        if isinstance(value, Mapping) and value:
            yield from flat_names(value, f"{above}{key}/")
        else:
            yield f"{above}{key}"


def lacks(place: str, key: str, names: Iterable[str]) -> UserError:
    """Make the error for a result without this key; `names`: what it has instead."""
    return UserError(f"{place}: lacks {key}, which the yaml declares; it has {listing(key, names)}")


def listing(key: str, names: Iterable[str]) -> str:
    """List the names that there are in place of `key`, the most similar first."""

    def similarity(name: str) -> float:
        return difflib.SequenceMatcher(None, key.lower(), name.lower()).ratio()

    distinct = sorted(dict.fromkeys(names), key=similarity, reverse=True)
    text = ", ".join(distinct[:MOST_NAMES]) or "nothing"
    number = len(distinct) - MOST_NAMES
    return short_error(f"{text} and {number} more" if number > 0 else text)
