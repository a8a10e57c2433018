"""The table of curves that a program writes while it trains: a csv, or JSON lines.

Used by training/own/command.py while a program trains. What the yaml may say of the table is
run/program.py `Curves`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.run import Program
from ablate.shared import NotRegular, UserError, open_file
from ablate.training.own.handle import TEST, Handle
from ablate.training.own.result_table import to_number, value_at

PART = 1 << 16  # bytes that are read and logged before the program is looked at again
LONGEST = 1 << 20  # bytes of a line


class ProgramCurves:
    """The table of one attempt. New lines are logged as it grows; all lines again after it has
    shrunk, since then the program writes them anew."""

    def __init__(
        self, program: Program, metrics: Sequence[Mapping[str, Any]], folder: Path, handle: Handle
    ) -> None:
        self._curves = program.curves
        self._folder = folder
        self._file: Path | None = None  # which of those that a pattern names is read
        self._handle = handle
        self._offset = 0  # bytes that were read
        self._names: list[str] = []  # of a csv's columns
        self._columns = validation_columns(program.result.keys(metrics))
        self._owners = {column: key for key, names in self._columns.items() for column in names}
        self._present: set[str] = set()  # columns of metrics that the table has had
        # Columns that `Handle.log` can't take: its own arguments, and names under which it keeps
        # the values of metrics, such as those on the test set.
        self._left_out = {"step", "self"}
        for key in self._columns:
            self._left_out |= {f"val_{key}", f"{TEST}{key}"} - self._owners.keys()
        self._step, self._values = -1, dict[str, float]()  # of the newest step
        self._is_logged = True

    def log_new_lines(self) -> bool:
        """Log some of the lines that are new and whole; return whether there are more. Raises
        UserError where the table is no regular file, and for a line that is too long."""
        lines, has_more = self._new_lines()
        self._log_all(lines)
        return has_more

    def read_rest(self) -> None:
        """Log all that is left once the program has ended, including an unfinished last line.
        Raises as `log_new_lines`."""
        while self.log_new_lines():
            pass
        lines, _ = self._new_lines(ended=True)
        self._log_all(lines)

    def _current_file(self) -> Path | None:
        """Return the table as it is now: of several files that a pattern names the one that was
        written last, since an attempt before may have left another; None where there is none."""
        if self._curves is None:
            return None
        exact = self._folder / self._curves.file
        if exact.exists():
            return exact
        times_ns = {}
        for file in self._folder.glob(self._curves.file):
            with contextlib.suppress(OSError):  # the program has removed it
                times_ns[file] = file.stat().st_mtime_ns
        return max(times_ns, key=times_ns.__getitem__, default=None)

    def _new_lines(self, ended: bool = False) -> tuple[str, bool]:
        file_now = self._current_file()
        if file_now is None:
            return "", False
        if file_now != self._file:
            self._file, self._offset, self._names = file_now, 0, []
        assert self._curves is not None
        place = f"trainer.curves.file: {self._curves.file}"
        try:
            with open_file(self._file) as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                new = file.read(PART)
                if b"\n" not in new and len(new) == PART:
                    new += file.read(LONGEST - PART)
        except NotRegular:
            raise UserError(f"{place}: is no regular file; have the program write one") from None
        lines_end = new.rfind(b"\n") + 1
        if not lines_end and len(new) == LONGEST:
            raise UserError(f"{place}: a line has more than {LONGEST:,} bytes; write shorter ones")
        if not ended:
            new = new[:lines_end]
        text = new.decode(errors="replace")
        if self._offset == 0:
            text = text.removeprefix("\ufeff")  # of an editor, or of pandas as utf-8-sig
        self._offset += len(new)
        return text, bool(new) and self._offset < size

    def _log_all(self, lines: str) -> None:
        for row in self._rows(lines):
            self._take(row)
        self._log()

    def _rows(self, text: str) -> Iterator[Mapping[str, Any]]:
        assert self._file is not None or not text
        if self._file is not None and self._file.suffix in (".jsonl", ".json", ".ndjson"):
            for line in text.splitlines():
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
            return
        csv.field_size_limit(LONGEST)  # a line is bounded already
        for record in csv.reader(text.splitlines()):
            cells = [cell.strip() for cell in record]
            if self._curves is not None and self._curves.step in cells:
                self._names = cells  # once more, where a program that began again appends
            elif self._names:
                yield dict(zip(self._names, cells, strict=False))

    def _take(self, row: Mapping[str, Any]) -> None:
        """Take the values of a row. Rows of one step are one line of the run's curves, as where a
        program writes training and validation each in a row: a later value of a column counts."""
        assert self._curves is not None
        for column in self._owners.keys() - row.keys():
            if (cell := value_at(row, column)) is not None:
                row = {**row, column: cell}
        self._present |= self._owners.keys() & row.keys()
        numbers = {}
        for column, cell in row.items():
            metric, number = self._owners.get(column), to_number(cell)
            if number is not None and metric in (None, self._validated_by(column)):
                numbers[column] = number
        step = numbers.pop(self._curves.step, None)
        if step is None or not math.isfinite(step) or step < 0 or not numbers:
            return
        values = {}
        for column, number in numbers.items():
            key = self._owners.get(column, column)
            is_finite = math.isfinite(number) or self._handle.judges(key)
            if key.isidentifier() and key not in self._left_out and is_finite:
                values[key] = number
        if int(step) != self._step:
            self._log()
            self._step, self._values = int(step), {}
        elif self._values | values == self._values:
            return
        self._values |= values
        self._is_logged = False

    def _log(self) -> None:
        """Log the values of the newest step, unless they are logged already."""
        if self._is_logged:
            return
        if self._step <= self._handle.step:
            self._handle.rewind(self._step - 1)  # it began again, or goes on from before
        self._handle.log(self._step, **self._values)
        self._is_logged = True

    def _validated_by(self, column: str) -> str | None:
        """Return the metric whose values on validation a column has; None for other columns.

        It is the first of the metric's columns that the table has had. The others have values on
        training, as `acc` next to `val_acc` in Keras, or on the test set.
        """
        metric = self._owners.get(column)
        if metric is None:
            return None
        columns = (name for name in self._columns[metric] if name in self._present)
        return metric if column == next(columns, None) else None


def validation_columns(result_keys: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the columns that may have the values of each metric on validation, by its name, the
    likeliest first. `result_keys`: the name that each metric has in the result."""
    owners = {key: metric for metric, key in result_keys.items()}
    for metric in result_keys:
        owners.setdefault(metric, metric)  # a metric called val_acc has its own column
    for metric, key in result_keys.items():
        for column in (f"val_{metric}", f"val_{key}"):
            owners.setdefault(column, metric)
    return {
        metric: [
            column
            for column in dict.fromkeys((f"val_{metric}", f"val_{key}", key, metric))
            if owners[column] == metric and not _is_of_test(column, metric)
        ]
        for metric, key in result_keys.items()
    }


def _is_of_test(column: str, metric: str) -> bool:
    """Return whether a column is named after the test set, as the `key` of a metric may be, which
    says where its result is: a part of the name begins with "test", as in eval/test_acc and
    Test.acc, but not in latest_acc."""
    parts = re.split(r"[^A-Za-z0-9]+", column)
    is_own = column in (metric, f"val_{metric}")  # of a metric that is called so itself
    return not is_own and any(part.lower().startswith("test") for part in parts)
