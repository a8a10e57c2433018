"""Reads a sheet of results that were made elsewhere, in any of its forms, into runs.

`ablate import` and `Store.add_runs` read sheets; `ablate verify` compares a store with its sheets.

A sheet is a file, several files, a pandas frame, or the folder of jobs or of a tracker. Each of its
lines has a place, which errors name, and values by column name. The sheet may come from a stranger:
the size of its content is bounded before it is read, and files that it names must lie in its own
folder.

Used by `ablate import` (cli/importing.py, audit/importing.py), `Store.add_runs` of Python
(api/nouns.py) and `ablate verify` of an imported sweep (audit/verify.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ablate.audit.job_folders import is_multirun, read_jobs
from ablate.audit.sheet_files import PredictionsFile, file_within, read_predictions
from ablate.audit.sheet_forms import (
    NO_LINE,
    RUN,
    Line,
    check_columns,
    check_text_options,
    read_content,
    read_lines,
    with_column,
)
from ablate.audit.sheet_lines import named_columns, shape_lines
from ablate.audit.sheet_values import (
    FILE_REMEDIES,
    FRAME_REMEDIES,
    UNNAMED,
    Remedies,
    decimals_of,
    read_label,
    read_number,
    read_seed,
)
from ablate.audit.trackers import (
    RUN_NAME,
    is_mlflow,
    is_part_of_mlflow,
    is_tensorboard,
    read_mlflow,
    read_tensorboard,
)
from ablate.planning import DeclaredImport, Imported, Plan, PlannedRun, SheetKeys, SheetSource
from ablate.shared import MOST_BYTES, UserError, expected_words, sha256_of

FRAME = DeclaredImport.FRAME
FILE = "file"  # the column of the name of a file, where a sheet is several
MOST_LISTED = 3  # columns that an error names
_LAST_NUMBER = re.compile(r"[0-9]+$")


@dataclass(frozen=True)
class Sheet:
    """The lines of a sheet, the names of its columns, and the hash of its bytes.

    `folder`: the folder of the files that the sheet names. `keys`: how it was read. `notes`:
    sentences on the lines that were left out.
    """

    name: str
    columns: Sequence[str]
    lines: Sequence[Line]
    sha256: str
    folder: Path
    keys: SheetKeys
    notes: tuple[str, ...] = ()

    @property
    def default_name(self) -> str:
        """The name of its sweep where the user gives none: that of its file or folder."""
        return Path(os.path.abspath(self.name)).stem

    @property
    def path(self) -> str:
        """The absolute path of its file or folder; FRAME for a frame."""
        return FRAME if self.is_frame else os.path.abspath(self.name)

    @property
    def is_frame(self) -> bool:
        return self.name == FRAME

    @property
    def remedies(self) -> Remedies:
        return FRAME_REMEDIES if self.is_frame else FILE_REMEDIES


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
    def results(self) -> Mapping[str, float]:
        """The numbers of a run that finished; none of a run that diverged."""
        return {} if self.diverged else self.values

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


# --- Reading it -----------------------------------------------------------------------------------


def read_sheet(sources: Sequence[Path], keys: SheetKeys) -> Sheet:
    """Read a sheet: a file, several files, a folder of jobs that each left a file, or the folder of
    MLflow or TensorBoard. Its lines are those that `keys` chooses and shapes.

    Raises UserError for another form, for a file that is not of its form, and for options that
    don't fit it.
    """
    source = sources[0]
    if len(sources) > 1:
        if folders := [path for path in sources if path.is_dir()]:
            raise UserError(f"{folders[0]}: is a folder; give one folder, or files")
        if keys.result is not None:
            raise UserError("--result: is of a folder of jobs, and several files were given")
        source = _common_folder(sources)
        names = [Path(os.path.relpath(path, source)).as_posix() for path in sources]
        if twice := [name for name, often in Counter(names).items() if often > 1]:
            raise UserError(f"{twice[0]}: was given twice")
        keys = replace(keys, files=tuple(names))
    reader_columns: list[str] = []
    if keys.files:
        lines, sha256 = _read_files(source, keys)
        reader_columns = [FILE]
    elif source.is_dir():
        lines, run_column, sha256 = _read_folder(source, keys)
        reader_columns = [run_column, RUN_NAME]
    elif keys.result is not None and source.exists():
        raise UserError(f"--result: is of a folder of jobs, and {source} is a file")
    else:
        content = read_content(source, str(source))
        lines = read_lines(content, str(source), keys)
        sha256 = hashlib.sha256(content).hexdigest()
    folder = source if keys.files or source.is_dir() else source.parent
    shaped, notes = shape_lines(lines, keys, reader_columns)
    return _sheet(str(source), shaped, sha256, folder, keys, notes)


def _common_folder(files: Sequence[Path]) -> Path:
    """Return the deepest folder that all files are in or below."""
    return Path(os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files]))


def _read_files(folder: Path, keys: SheetKeys) -> tuple[list[Line], str]:
    """Return the lines of the files of a folder, with the name of their file as a column, and a
    hash of all."""
    lines: list[Line] = []
    hashed = hashlib.sha256()
    size = 0
    for name in keys.files:
        content = read_content(folder / name, name)
        size += len(content)
        if size > MOST_BYTES:
            raise UserError(f"{folder}: its files have more than {MOST_BYTES:,} bytes")
        hashed.update(hashlib.sha256(content).digest())
        for line_place, values in read_lines(content, name, keys) or [NO_LINE]:
            place = f"{name}: {line_place}"
            lines.append((place, with_column(values, FILE, name, place)))
    return lines, hashed.hexdigest()


def _read_folder(folder: Path, keys: SheetKeys) -> tuple[list[Line], str, str]:
    """Return the lines of a folder, the name of the column of their runs, and a hash of what was
    read."""
    if keys.result is not None:
        return read_jobs(folder, keys.result, keys)
    check_text_options(keys, str(folder))
    if is_part_of_mlflow(folder):
        raise UserError(
            f"{folder}: is one experiment or run of MLflow; give the folder of all, and --where "
            f"experiment=NAME"
        )
    run_column = RUN
    if is_mlflow(folder):
        lines = read_mlflow(folder, history=keys.epochs is not None)
    elif is_multirun(folder):
        raise UserError(f"{folder}: --result FILE: missing; which file has each job's numbers?")
    elif is_tensorboard(folder):
        lines, run_column = read_tensorboard(folder, named_columns(keys))
    else:
        raise UserError(
            f"{folder}: has no files of MLflow or TensorBoard; give --result FILE, such as "
            f"metrics.csv, where each job left one, or name the files themselves"
        )
    content = json.dumps(lines, sort_keys=True, default=str).encode()
    return lines, run_column, hashlib.sha256(content).hexdigest()


def read_frame(frame: Any, keys: SheetKeys) -> Sheet:
    """Read a pandas frame. The sheet's hash is that of the frame written as csv.

    Raises UserError for anything else.
    """
    if not (hasattr(frame, "columns") and hasattr(frame, "set_axis")):
        raise UserError(
            f"expected {FRAME}, got {type(frame).__name__}; `ablate import FILE` reads a file"
        )
    columns = [str(name) for name in frame.columns]
    check_columns(columns, FRAME)
    renamed_frame = frame.set_axis(columns, axis=1)
    lines = [
        (f"row {number}", {key: _of_frame(value) for key, value in record.items()})
        for number, record in enumerate(renamed_frame.to_dict("records"))
    ]
    content = frame.to_csv(index=False).encode()
    return _sheet(FRAME, lines, hashlib.sha256(content).hexdigest(), Path.cwd(), keys, [])


def _sheet(
    name: str,
    lines: Sequence[Line],
    sha256: str,
    folder: Path,
    keys: SheetKeys,
    notes: Sequence[str],
) -> Sheet:
    if not lines:
        raise UserError(f"{name}: has no line with values")
    columns = dict.fromkeys(itertools.chain.from_iterable(values for _, values in lines))
    return Sheet(name, list(columns), lines, sha256, folder, keys, tuple(notes))


def _of_frame(value: Any) -> Any:
    """Return a value of a frame as Python's own; None for a missing one, which pandas writes as
    nan."""
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value


# --- Its runs -------------------------------------------------------------------------------------


def runs_of(sheet: Sheet) -> list[SheetRun]:
    """Return the runs of a sheet, in its order. Without a seed column, a row's runs are numbered.

    Raises UserError, which begins with the place, for a column that the sheet lacks, a line that
    lacks a value, a value that is not a number, and two lines of one run.
    """
    keys = sheet.keys
    for name in keys.used:
        if name not in sheet.columns:
            expectation = expected_words(name, sheet.columns)
            raise UserError(
                f"{sheet.name}: columns: {expectation}{_remedy_of_missing(sheet, name)}"
            )
    if twice := [name for name, often in Counter(keys.used).items() if often > 1]:
        raise UserError(f"{sheet.name}: {twice[0]}: was given for two things")
    numbers: Counter[tuple[str, str]] = Counter()
    undeclared_columns = [
        name for name in sheet.columns if name not in keys.used and not _is_ignored(name, keys)
    ]
    earlier_lines: dict[tuple[str, str, int], Line] = {}
    sheet_runs = []
    for line in sheet.lines:
        run = _run(sheet, line, numbers, undeclared_columns)
        run_key = run.row, run.column, run.seed
        if run_key in earlier_lines:
            earlier_line = earlier_lines[run_key]
            raise UserError(
                f"{sheet.name}: {earlier_line[0]} and {line[0]} are of the same run, {run.label}: "
                f"{_remedy_of_two(earlier_line[1], line[1], sheet)}"
            )
        earlier_lines[run_key] = line
        sheet_runs.append(run)
    return sheet_runs


def _remedy_of_missing(sheet: Sheet, missing: str) -> str:
    """Return the way out for a column that isn't there, "" where none is known.

    Spaces may stand between columns. Where it is a metric's, numbered columns may hold a run each.
    """
    if len(sheet.columns) == 1 and len(sheet.columns[0].split()) > 1:
        if sheet.is_frame:
            return r"; read a file with spaces between columns by `pd.read_csv(sep=r'\s+')`"
        return "; a tab, a comma or a semicolon has to separate columns"
    if missing not in sheet.keys.metrics.values() or sheet.keys.wide:
        return ""
    patterns = Counter(_LAST_NUMBER.sub("*", name) for name in sheet.columns)
    pattern, often = patterns.most_common(1)[0]
    if often == 1:
        return ""
    if sheet.is_frame:
        return f"; make a row of each column {pattern!r} by `frame.melt` if each is a run"
    return f"; give --wide {shlex.quote(pattern)} if each such column is a run"


def _remedy_of_two(earlier: Mapping[str, Any], later: Mapping[str, Any], sheet: Sheet) -> str:
    """Return the way out where two lines are of one run."""
    keys = sheet.keys
    names = [name or UNNAMED for name in earlier if earlier[name] != later.get(name)]
    if not names:
        return "leave one of them out"
    ways = []
    if sheet.is_frame:
        run_columns = [name for name in (keys.row, keys.column, keys.seed) if name is not None]
        ways.append(
            f"`frame.drop_duplicates({run_columns}, keep='last')` keeps one row of each run"
        )
    elif keys.epochs is None:
        ways.append("--epochs last keeps the last line of a run")
    ways.append("--column makes columns of what differs")
    if not sheet.is_frame:
        ways.append("--where leaves lines out")
    return f"they differ in {', '.join(names[:MOST_LISTED])}; {', '.join(ways)}"


def _run(
    sheet: Sheet,
    line: Line,
    numbers: Counter[tuple[str, str]],
    undeclared_columns: Sequence[str],
) -> SheetRun:
    keys = sheet.keys
    place, values = line

    def cell_place(name: str) -> str:
        return f"{sheet.name}: {place}: {name}"

    def label(name: str) -> str:
        return read_label(values.get(name), cell_place(name), sheet.remedies)

    row = label(keys.row)
    column = label(keys.column) if keys.column else ""
    if keys.seed is None:
        seed = numbers[row, column]
        numbers[row, column] += 1
    else:
        seed = read_seed(values.get(keys.seed), cell_place(keys.seed))
    metric_values = {key: values.get(name) for key, name in keys.metrics.items()}
    predictions = None
    if keys.predictions is not None:
        file_name = label(keys.predictions)
        file = file_within(sheet.folder, file_name, cell_place(keys.predictions))
        predictions = read_predictions(file, cell_place(keys.predictions))
    return SheetRun(
        place=place,
        row=row,
        column=column,
        seed=seed,
        values={
            key: read_number(value, cell_place(keys.metrics[key]), keys.decimal, sheet.remedies)
            for key, value in metric_values.items()
        },
        decimals=max(decimals_of(value, keys.decimal) for value in metric_values.values()),
        predictions=predictions,
        undeclared={name: values[name] for name in undeclared_columns if name in values},
    )


def _is_ignored(column: str, keys: SheetKeys) -> bool:
    """Return whether no note may name an undeclared column."""
    return any(column == pattern or fnmatchcase(column, pattern) for pattern in keys.ignore)


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
        else:
            try:
                findings += [*_differing(_same_sheet(source), ids, results)]
                continue
            except UserError as error:  # also of a file of predictions that was moved
                reason = str(error).removeprefix(f"{source.file}: ")
        notes.append(f"{source.file}: {reason}: its numbers are those that the ledger sealed")
    return findings, notes


def _same_sheet(source: SheetSource) -> Sheet:
    """Read a sheet again. Raises UserError if it is gone, can't be read, or has other bytes than
    those that were imported."""
    file = Path(source.file)
    if source.file == FRAME:
        raise UserError("is in no file")
    if not file.exists():
        raise UserError("is not here")
    changed = UserError("is another file by now")
    try:
        if not file.is_dir() and sha256_of(file) != source.sha256:
            raise changed
        sheet = read_sheet([file], source.read)
    except OSError as error:
        raise UserError(f"can't be read ({error.strerror})") from error
    if sheet.sha256 != source.sha256:
        raise changed
    return sheet


def _differing(
    sheet: Sheet,
    ids: Mapping[tuple[str, str, int], PlannedRun],
    results: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield a line for each run whose test result differs from its line in the sheet."""
    for line in runs_of(sheet):
        run = ids.get((line.row, line.column, line.seed))
        numbers = line.results
        if run is None or run.id not in results:
            continue
        if (test := results[run.id].get("test", {})) != numbers:
            difference = f"{test}, but {numbers} in {sheet.name}: {line.place}"
            yield f"{run.id} {run.label}: {difference}"
