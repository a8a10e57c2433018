"""The table of curves that a program writes while it trains: a csv, or JSON lines.

Used by training/own/command.py while a program trains; `to_number` by training/own/outcome.py. What
the yaml may say of the table is run/program.py `Curves`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.run import Program
from ablate.shared import NotRegular, UserError, open_file
from ablate.training.own.handle import Handle

PART = 1 << 16  # bytes that are read and logged before the program is looked at again
LONGEST = 1 << 20  # bytes of a line


class ProgramCurves:
    """The table of one attempt. New lines are logged as it grows; all lines again after it has
    shrunk, since then the program writes them anew."""

    def __init__(self, program: Program, folder: Path, handle: Handle) -> None:
        self._curves = program.curves
        self._folder = folder
        self._file: Path | None = None  # which of those that a pattern names is read
        self._handle = handle
        self._offset = 0  # bytes that were read
        self._names: list[str] = []  # of a csv's columns
        self._with_val: set[str] = set()  # metrics X that have had a column val_X

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
        self._offset += len(new)
        return new.decode(errors="replace"), bool(new) and self._offset < size

    def _log_all(self, lines: str) -> None:
        for row in self._rows(lines):
            self._log(row)

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
        for cells in csv.reader(text.splitlines()):
            if self._curves is not None and self._curves.step in cells:
                self._names = cells  # once more, where a program that began again appends
            elif self._names:
                yield dict(zip(self._names, cells, strict=False))

    def _log(self, row: Mapping[str, Any]) -> None:
        assert self._curves is not None
        self._with_val.update(metric for column in row if (metric := self._validated_by(column)))
        numbers = {}
        for key, cell in row.items():
            number = to_number(cell)
            # Values of a metric `acc` are those on validation, unless there is a column val_acc:
            # then they are those on training, as Keras writes both.
            if number is not None and key not in self._with_val:
                numbers[key] = number
        step = numbers.pop(self._curves.step, None)
        if step is None or not math.isfinite(step) or step < 0 or not numbers:
            return
        values = {}
        for column, number in numbers.items():
            key = self._validated_by(column) or column
            if key.isidentifier() and (math.isfinite(number) or self._handle.judges(key)):
                values[key] = number
        if step <= self._handle.step:
            self._handle.rewind(int(step) - 1)  # it began again, or goes on from before
        self._handle.log(int(step), **values)

    def _validated_by(self, column: str) -> str | None:
        """Return the metric X whose values on validation a column val_X has; None for another."""
        metric = column.removeprefix("val_")
        if metric in (column, "train_loss") or self._handle.judges(column):
            return None
        return metric if self._handle.judges(metric) else None


def to_number(cell: Any) -> float | None:
    """Return the number that a cell or a JSON value is; None for anything else."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None
