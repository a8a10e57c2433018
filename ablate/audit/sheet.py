"""Reads a sheet of results that were made elsewhere, in any of its forms, into runs.

`ablate import` and `Store.add_runs` read sheets; `ablate verify` compares a store with its sheets.

A sheet is csv, tsv, jsonl, parquet, a pandas frame, or the folder of a Hydra multirun. Each of its
lines has a place, which errors name, and values by column name. The sheet may come from a stranger:
the size of its content is bounded before it is read, and files that it names must lie in its own
folder.

Used by `ablate import` (cli/keeping.py, audit/importing.py), `Store.add_runs` of Python
(api/nouns.py) and `ablate verify` of an imported sweep (audit/verify.py).
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.audit.sheet_files import PredictionsFile, file_within, read_predictions
from ablate.audit.sheet_values import (
    decimals_of,
    read_label,
    read_number,
    read_seed,
    value_text,
)
from ablate.planning import Imported, Plan, PlannedRun, SheetKeys, SheetSource
from ablate.shared import (
    MOST_BYTES,
    NotRegular,
    UserError,
    count_text,
    is_shallow,
    read_file,
    sha256_of,
    unknown_value,
)

Line = tuple[str, Mapping[str, Any]]  # "line 4", its values by column
FRAME = "a pandas frame"
MOST_LINES = 1_000_000  # runs that a sheet may have
BATCH = 256  # lines of a parquet file that are decoded at once
FRAME_INDEX = "__index_level_"  # begins the column that pandas makes of an index without a name


@dataclass(frozen=True)
class Sheet:
    """The lines of a sheet, the names of its columns, and the hash of its bytes.

    `folder`: the folder of the files that the sheet names.
    """

    name: str
    columns: Sequence[str]
    lines: Sequence[Line]
    sha256: str
    folder: Path


@dataclass(frozen=True)
class SheetRun:
    """A run of a sheet.

    `values`: by metric, as the sheet has them; not finite for a run that diverged. `undeclared`:
    the values of all columns that the user's declaration doesn't name.
    """

    place: str
    row: str
    column: str
    seed: int
    values: Mapping[str, float]
    decimals: int = 0  # of its values, as they are written
    predictions: PredictionsFile | None = None
    undeclared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.values.values()))

    @property
    def marks_examples(self) -> bool:
        """True if its predictions say of each example whether it is right, or if the run diverged.

        Nobody reads the predictions of a run that diverged.
        """
        has_marks = self.predictions is not None and self.predictions.right is not None
        return has_marks or self.diverged

    @property
    def label(self) -> str:
        return f"{self.row}{f'@{self.column}' * bool(self.column)}#{self.seed}"


# --- The forms of a sheet -------------------------------------------------------------------------


def read_sheet(source: Path, result: str | None = None) -> Sheet:
    """Read a file, or the folder of a Hydra multirun whose jobs each left a file named `result`.

    Raises UserError for another form, and for a file that is not of its form.
    """
    if source.is_dir():
        from ablate.audit.multirun import read_multirun

        lines, sha256 = read_multirun(source, result)
        return _sheet(str(source), lines, sha256, source)
    if result is not None:
        raise UserError(f"--result: is of a Hydra multirun's jobs, and {source} is a file")
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl}
    readers |= {".parquet": _read_parquet}
    if source.suffix not in readers:
        forms = ", ".join(readers)
        raise UserError(f"{source}: expected a file {forms}, or the folder of a Hydra multirun")
    content = _content(source)
    lines = readers[source.suffix](content, str(source))
    return _sheet(str(source), lines, hashlib.sha256(content).hexdigest(), source.parent)


def _content(source: Path) -> bytes:
    try:
        if (size := source.stat().st_size) > MOST_BYTES:
            raise UserError(f"{source}: has {size:,} bytes; a sheet has at most {MOST_BYTES:,}")
        return read_file(source)
    except FileNotFoundError:
        raise UserError(f"{source}: no such file") from None
    except NotRegular as error:
        raise UserError(f"{source}: {error.strerror}") from error


def read_frame(frame: Any) -> Sheet:
    """Read a pandas frame. The sheet's hash is that of the frame written as csv."""
    columns = [str(name) for name in frame.columns]
    _check_columns(columns, FRAME)
    renamed_frame = frame.set_axis(columns, axis=1)
    lines = [
        (f"row {number}", {key: _of_frame(value) for key, value in record.items()})
        for number, record in enumerate(renamed_frame.to_dict("records"))
    ]
    content = frame.to_csv(index=False).encode()
    return _sheet(FRAME, lines, hashlib.sha256(content).hexdigest(), Path.cwd())


def _sheet(name: str, lines: Sequence[Line], sha256: str, folder: Path) -> Sheet:
    if not lines:
        raise UserError(f"{name}: has no line with values")
    columns = dict.fromkeys(itertools.chain.from_iterable(values for _, values in lines))
    return Sheet(name, list(columns), lines, sha256, folder)


def _check_columns(columns: Sequence[str], place: str) -> None:
    """Raise UserError where two columns have the same name."""
    if twice := [name for name, often in Counter(columns).items() if often > 1]:
        raise UserError(f"{place}: two columns are named {twice[0]!r}")


def _read_csv(content: bytes, name: str) -> list[Line]:
    text = decoded_text(content, name)
    head = text.partition("\n")[0]
    between = max(",\t;", key=head.count)  # the first of equally frequent ones
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True)
    lines: list[Line] = []
    try:
        columns = [part.strip() for part in next(rows, [])]
        _check_columns(columns, f"{name}: line 1")
        for row in rows:
            place = f"line {rows.line_num}"
            if len(row) != len(columns) and row:
                raise UserError(
                    f"{name}: {place}: has {count_text(len(row), 'value')} for "
                    f"{count_text(len(columns), 'column')}"
                )
            if any(part.strip() for part in row):
                values = (part.strip() for part in row)
                lines.append((place, dict(zip(columns, values, strict=True))))
    except csv.Error as error:
        raise UserError(f"{name}: line {rows.line_num}: is no csv ({error})") from error
    return lines


def decoded_text(content: bytes, name: str) -> str:
    """Return the text of a file. Raises UserError for one that is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start} is no UTF-8") from error


def _read_jsonl(content: bytes, name: str) -> list[Line]:
    lines: list[Line] = []
    for number, text in enumerate(decoded_text(content, name).splitlines(), 1):
        if text.strip():
            place = f"line {number}"
            lines.append((place, flat(read_object(text, f"{name}: {place}"))))
    return lines


def read_object(text: str, place: str) -> Mapping[str, Any]:
    """Parse the JSON object in a text. Raises UserError for anything else.

    A number that a float can't hold stays a text, which whoever reads it as a number refuses.
    """
    try:
        tree = json.loads(text, parse_float=_float)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is no JSON ({error})") from error
    check_shallow(tree, place)
    if not isinstance(tree, dict):
        raise UserError(
            f"{place}: expected an object such as {{...}}, got {value_text(text.strip())}"
        )
    return tree


def check_shallow(tree: Any, place: str) -> None:
    """Raise UserError for a tree that is nested deeper than any result is."""
    if not is_shallow(tree):
        raise UserError(f"{place}: is nested deeper than any result is; give plain values")


def _float(literal: str) -> float | str:
    number = float(literal)
    lost = math.isinf(number) or (not number and any(digit in literal for digit in "123456789"))
    return literal if lost else number


def flat(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Return the values of nested objects, by dotted keys."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping)
        values |= flat(value, f"{above}{key}.") if inner else {f"{above}{key}": value}
    return values


def _read_parquet(content: bytes, name: str) -> list[Line]:
    """Read the lines of a parquet file, without columns of lists and structs.

    A null means no number, whereas nan is a number: pandas would not distinguish them, so pyarrow
    reads the file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        if (rows := file.metadata.num_rows) > MOST_LINES:
            raise UserError(f"{name}: has {rows:,} rows; a sheet has at most {MOST_LINES:,}")
        fields = [
            arrow_field
            for arrow_field in file.schema_arrow
            if not pyarrow.types.is_nested(arrow_field.type)
        ]
        columns = [
            arrow_field.name
            for arrow_field in fields
            if not arrow_field.name.startswith(FRAME_INDEX)
        ]
        _check_columns([arrow_field.name for arrow_field in fields], name)
        return list(_of_batches(file.iter_batches(BATCH, columns=columns), name))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{name}: is no parquet file ({reason:.200})") from error


def _of_batches(batches: Iterator[Any], name: str) -> Iterator[Line]:
    """Yield the lines of a parquet file.

    A dictionary repeats a long value in a few bytes, so the decoded bytes are counted: UserError
    for more than MOST_BYTES.
    """
    decoded, number = 0, 0
    for batch in batches:
        decoded += batch.nbytes
        if decoded > MOST_BYTES or number > MOST_LINES:
            raise UserError(f"{name}: decodes to more than the {MOST_BYTES:,} bytes of a sheet")
        for record in batch.to_pylist():
            yield f"row {number}", record
            number += 1


def _of_frame(value: Any) -> Any:
    """Return a value of a frame as Python's own; None for a missing one, which pandas writes as
    nan."""
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value


# --- Its runs -------------------------------------------------------------------------------------


def runs_of(sheet: Sheet, keys: SheetKeys) -> list[SheetRun]:
    """Return the runs of a sheet, in its order. Without a seed column, a row's runs are numbered.

    Raises UserError, which begins with the place, for a column that the sheet lacks, a line that
    lacks a value, a value that is not a number, and two lines of one run.
    """
    for name in keys.used:
        if name not in sheet.columns:
            raise unknown_value(f"{sheet.name}: columns", name, sheet.columns)
    if twice := [name for name, often in Counter(keys.used).items() if often > 1]:
        raise UserError(f"{sheet.name}: {twice[0]}: was given for two things")
    numbers: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str, int], str] = {}
    sheet_runs = []
    for place, values in sheet.lines:
        run = _run(sheet, keys, place, values, numbers)
        run_key = run.row, run.column, run.seed
        if run_key in places:
            raise UserError(
                f"{sheet.name}: {places[run_key]} and {place} are of the same run, {run.label}: "
                f"leave one of them out"
            )
        places[run_key] = place
        sheet_runs.append(run)
    return sheet_runs


def _run(
    sheet: Sheet,
    keys: SheetKeys,
    place: str,
    values: Mapping[str, Any],
    numbers: Counter[tuple[str, str]],
) -> SheetRun:
    def cell_place(name: str) -> str:
        return f"{sheet.name}: {place}: {name}"

    row = read_label(values.get(keys.row), cell_place(keys.row))
    column = read_label(values.get(keys.column), cell_place(keys.column)) if keys.column else ""
    if keys.seed is None:
        seed = numbers[row, column]
        numbers[row, column] += 1
    else:
        seed = read_seed(values.get(keys.seed), cell_place(keys.seed))
    metric_values = {key: values.get(name) for key, name in keys.metrics.items()}
    predictions = None
    if keys.predictions is not None:
        file_name = read_label(values.get(keys.predictions), cell_place(keys.predictions))
        file = file_within(sheet.folder, file_name, cell_place(keys.predictions))
        predictions = read_predictions(file, cell_place(keys.predictions))
    return SheetRun(
        place=place,
        row=row,
        column=column,
        seed=seed,
        values={
            key: read_number(value, cell_place(keys.metrics[key]))
            for key, value in metric_values.items()
        },
        decimals=max(map(decimals_of, metric_values.values())),
        predictions=predictions,
        undeclared={key: value for key, value in values.items() if key not in keys.used},
    )


# --- What its numbers promise ---------------------------------------------------------------------


def check_sheets(
    plan: Plan, results: Mapping[str, Mapping[str, Any]], imported: Collection[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    """Compare the results of a plan with the sheets from which it was imported.

    Returns (findings on runs whose numbers differ from those of the sheet, notes on what can't be
    checked). `results`: by run, for the runs that have one. `imported`: (path, sha256) of the
    sheets that this store read itself. A path that any other plan names is a stranger's text and is
    not opened.
    """
    if not isinstance(plan.design, Imported):
        return [], []
    ids = {(run.cell.row, run.cell.column, run.seed): run for run in plan.runs()}
    findings: list[str] = []
    notes = ["trained elsewhere: the numbers are those of the sheet, and nothing can retrain them"]
    for source in plan.design.sources:
        if (source.file, source.sha256) not in imported:
            reason = "was imported by another store, so it is not read"
        elif (sheet := _same_sheet(source)) is None:
            reason = "is another file by now" if Path(source.file).exists() else "is not here"
        else:
            findings += _differing(sheet, source.read, ids, results)
            continue
        notes.append(f"{source.file}: {reason}: its numbers are those that the ledger sealed")
    return findings, notes


def _same_sheet(source: SheetSource) -> Sheet | None:
    """Read a sheet again; None if it is gone or its bytes are not those that were imported."""
    file = Path(source.file)
    try:
        if not file.is_dir() and sha256_of(file) != source.sha256:
            return None
        sheet = read_sheet(file, source.read.result)
    except (UserError, OSError):
        return None
    return sheet if sheet.sha256 == source.sha256 else None


def _differing(
    sheet: Sheet,
    keys: SheetKeys,
    ids: Mapping[tuple[str, str, int], PlannedRun],
    results: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield a line for each run whose test result differs from its line in the sheet."""
    for line in runs_of(sheet, keys):
        run = ids.get((line.row, line.column, line.seed))
        numbers = {} if line.diverged else line.values
        if run is None or run.id not in results:
            continue
        if (test := results[run.id].get("test", {})) != numbers:
            difference = f"{test}, but {numbers} in {sheet.name}: {line.place}"
            yield f"{run.id} {run.label}: {difference}"


# --- Undeclared columns ---------------------------------------------------------------------------

# An undeclared column is taken for an outcome, or for a name of each run, where it varies within
# more than this share of the rows that have several runs; else for a setting.
OUTCOME = 0.5
MOST_NOTES = 3  # on settings in which rows differ
MOST_LISTED = 3  # labels that a sentence names
UNNAMED = "the column without a name"  # such as the index that pandas writes


def undeclared_differences(runs: Sequence[SheetRun], baseline: str) -> list[str]:
    """Return a sentence on the undeclared columns of the sheet in which rows differ from the
    baseline within a column of the table, at most MOST_NOTES, and one on those in which the runs of
    a row differ."""
    settings: dict[tuple[str, ...], list[str]] = {}  # by the labels of the runs that differ
    outcomes = []
    for name in dict.fromkeys(key for run in runs for key in run.undeclared):
        cells = _values_by_cell(runs, name)
        repeated_cells = [counts for counts in cells.values() if counts.total() > 1]
        varying = sum(len(counts) > 1 for counts in repeated_cells)
        unlike_runs = _unlike_baseline(runs, name, cells, baseline)
        # In an outcome, a row's one value that the baseline never has is set, too.
        if varying > OUTCOME * len(repeated_cells):
            unlike_runs = [run for run in unlike_runs if _is_set(cells, run, baseline)]
        if varying and not unlike_runs:
            outcomes.append(name or UNNAMED)
        elif unlike_runs:
            settings.setdefault(tuple(run.label for run in unlike_runs), []).append(name or UNNAMED)
    rows = {run.label: run.row for run in runs}
    lines = []
    named_groups = len(settings) if len(settings) <= MOST_NOTES else MOST_NOTES - 1
    for labels, names in itertools.islice(settings.items(), named_groups):
        rows_unlike = list(dict.fromkeys(rows[label] for label in labels))
        gains = "its gain" if len(rows_unlike) == 1 else "their gains"
        lines.append(
            f"{_listed(names)} {'differs' if len(names) == 1 else 'differ'} in {len(labels)} of "
            f"{count_text(len(runs), 'run')} ({_listed(rows_unlike)}), which may cause or hide "
            f"{gains}"
        )
    if other_names := [name for names in [*settings.values()][named_groups:] for name in names]:
        lines.append(
            f"rows also differ in {count_text(len(other_names), 'more column')} "
            f"({_listed(other_names)}), which may cause or hide gains"
        )
    if outcomes:
        lines.append(f"runs of one row differ in {_listed(outcomes)}, and count as repeats")
    return lines


def _values_by_cell(runs: Sequence[SheetRun], name: str) -> dict[tuple[str, str], Counter[str]]:
    """Count the values of an undeclared column, by row and column of the table."""
    cells: dict[tuple[str, str], Counter[str]] = {}
    for run in runs:
        cells.setdefault((run.row, run.column), Counter())[repr(run.undeclared.get(name))] += 1
    return cells


def _unlike_baseline(
    runs: Sequence[SheetRun],
    name: str,
    cells: Mapping[tuple[str, str], Counter[str]],
    baseline: str,
) -> list[SheetRun]:
    """Return the runs with another value than most of the baseline's have, of rows that don't have
    as much of each value as the baseline. In a sheet without the baseline, all rows are it."""
    references: dict[str, Counter[str]] = {}  # by column of the table
    for (_, column), counts in cells.items():
        if (baseline, column) in cells:
            references[column] = cells[baseline, column]
        else:
            references.setdefault(column, Counter()).update(counts)
    usual_values = {}  # of the reference, by the cells that are unlike it
    for (row, column), counts in cells.items():
        reference = references[column]
        if _shares(counts) != _shares(reference):
            [(usual_values[row, column], _)] = reference.most_common(1)
    unlike_runs = []
    for run in runs:
        value = repr(run.undeclared.get(name))
        if usual_values.get((run.row, run.column), value) != value:
            unlike_runs.append(run)
    return unlike_runs


def _is_set(cells: Mapping[tuple[str, str], Counter[str]], run: SheetRun, baseline: str) -> bool:
    """Return whether all runs of a run's row have one value, which no run of the baseline has."""
    counts = cells[run.row, run.column]
    reference = cells.get((baseline, run.column), counts)
    return len(counts) == 1 and counts.total() > 1 and not counts & reference


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = counts.total()
    return {value: count / total for value, count in counts.items()}


def _listed(names: Sequence[str]) -> str:
    """List names, of many the first MOST_LISTED."""
    if len(names) > MOST_LISTED + 1:
        names = [*names[:MOST_LISTED], f"{len(names) - MOST_LISTED} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def equal_lines(sheet: Sheet) -> list[str]:
    """Return a line on lines that are equal in every column; without seeds they may be copies."""
    places: dict[str, list[str]] = {}
    for place, values in sheet.lines:
        places.setdefault(repr(values), []).append(place)
    copies = [", ".join(some) for some in places.values() if len(some) > 1]
    return [f"the same in every column: {'; '.join(copies[:MOST_LISTED])}"] if copies else []
