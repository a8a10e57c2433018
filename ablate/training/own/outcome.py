"""The outcome of a program: the cause of its failure, or the result and the predictions that it
left.

Used by training/own/command.py once a program has ended. Where a result may be is checked in
run/result_source.py, so a new place also needs its key there; tables are read in result_table.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ablate.run import OwnRun, Program
from ablate.shared import (
    NotRegular,
    UserError,
    open_file,
    short_error,
    signal_words,
    system,
)
from ablate.training.own.result_table import (
    ABSENT,
    best_row,
    check_last_rows,
    csv_rows,
    event_rows,
    flat_names,
    json_rows,
    lacks,
    listing,
    rows_by_step,
    to_number,
    value_at,
    value_of_last,
)

TAIL = 64 << 20  # bytes of the output that are searched for a result
MOST_RESULT = 16 << 20  # bytes of an object of metrics
MOST_TABLE = 256 << 20  # bytes of a table
EVENT_FILES = "*.tfevents.*"  # of TensorBoard, in one folder
SET_ASIDE = ".attempt-"  # in the names of files that an earlier attempt left as its result
_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a terminal
_OUT_OF_MEMORY = re.compile(r"\bOutOfMemoryError\b|\bMemoryError\b|CUDA out of memory")


def read_output(log: Path, begin: int, own_lines: Iterable[tuple[int, int]] = ()) -> str:
    """Read what this attempt printed, only the end of a long output.

    own_lines: where (begin, end) lines of the worker lie in the log, in bytes and in order. They
    are left out: a pattern would match a value on validation data, and a program may have printed
    half a line before one.
    """
    with open(log, "rb") as file:
        start = file.seek(max(begin, file.seek(0, os.SEEK_END) - TAIL))
        content = file.read()
    parts, place = [], 0
    for line_begin, line_end in own_lines:
        parts.append(content[place : max(place, line_begin - start)])
        place = max(place, line_end - start)
    parts.append(content[place:])
    return b"".join(parts).decode(errors="replace").replace("\r", "\n")


def fail(code: int, output: str) -> NoReturn:
    """Raise the error of a program that ended with an exit code other than 0, or by a signal
    (below 0), with its cause."""
    plain = _COLOURS.sub("", output)
    lines = [line.rstrip() for line in plain.splitlines() if line.strip()]
    if code > 0:
        end = f"with exit code {code}"
    else:
        end = f"by {signal_words(-code)}"
    text = f"the command ended {end}: {short_error(system.failure_cause(lines))}"
    last_lines = "\n".join(lines[-20:])
    if _OUT_OF_MEMORY.search(last_lines):
        raise MemoryError(text)
    raise RuntimeError(text)


def read_result(
    program: Program, folder: Path, output: str, run: OwnRun
) -> tuple[str, dict[str, float]]:
    """Return the place that names the result in messages, and its numbers: the metrics and, where
    an object or the output gives it, `n`, the number of test examples. Raises UserError, one line,
    for an invalid result."""
    result = program.result
    keys = result.keys(run.metrics)
    values: Mapping[str, Any]
    if result.patterns:
        place = "trainer.result.lines"
        values = _matched(result.patterns, [*keys.values()], output)
    elif result.is_table:
        place, values = _of_table(program, [*keys.values()], folder)
    else:
        place = f"trainer.result.file: {result.file}"
        values = _object(result_files(program, folder, place)[0], place)
    if "n" in values and not result.is_table:
        keys["n"] = "n"
    numbers: dict[str, float] = {}
    for name, key in keys.items():
        value, names = value_at(values, key), [*flat_names(values)]
        if value is None and key not in names:
            raise lacks(place, key, names)
        number = to_number(value)
        if number is None:
            value_text = short_error(repr(value))
            raise UserError(f"{place}: {key}: expected a number, got {value_text}")
        numbers[name] = number
    return place, numbers


def result_files(program: Program, folder: Path, place: str) -> list[Path]:
    """Return the file of a result, or the event files of its folder in the order of their times.
    Raises UserError where there is none or, for a file, where a pattern names several."""
    result = program.result
    assert result.path is not None
    files = left_as_result(program, folder)
    if not files:
        all_files = [
            path for path in folder.rglob("*") if path.is_file() and SET_ASIDE not in path.name
        ]
        event_folders = [path.parent for path in all_files if path.match(EVENT_FILES)]
        candidates = event_folders if result.tensorboard and event_folders else all_files
        names = sorted(path.relative_to(folder).as_posix() for path in candidates)
        raise UserError(
            f"{place}: missing, though the command ended with exit code 0; its folder has "
            f"{listing(result.path, names)}"
        )
    places = {file if result.tensorboard is None else file.parent for file in files}
    if len(places) > 1:
        names = sorted(path.relative_to(folder).as_posix() for path in places)
        raise UserError(f"{place}: names {', '.join(names)}; name one of them")
    return files


def left_as_result(program: Program, folder: Path) -> list[Path]:
    """List the files in a run's folder that its program left as its result, in order; none where
    the output has it."""
    result = program.result
    if result.path is None:
        return []
    exact = folder / result.path
    paths = [exact] if os.path.lexists(exact) else sorted(folder.glob(result.path))
    if result.tensorboard is not None:
        paths = [file for path in paths for file in sorted(path.glob(EVENT_FILES))]
    return [path for path in paths if SET_ASIDE not in path.name]


def _matched(patterns: Sequence[str], keys: Sequence[str], output: str) -> dict[str, Any]:
    """Return the groups of each pattern's last match on the output."""
    values: dict[str, Any] = {}
    for pattern in patterns:
        matches = list(re.finditer(pattern, output, re.MULTILINE))
        if matches:
            values |= matches[-1].groupdict()
        elif not {*keys}.isdisjoint(re.compile(pattern).groupindex):
            lines = [line for line in output.splitlines() if line.strip()]
            last_line = f"its last line is {short_error(lines[-1])}" if lines else "it printed none"
            raise UserError(
                f"trainer.result.lines: no line that it printed matches {pattern!r}; {last_line}"
            )
    return values


def _of_table(program: Program, keys: Sequence[str], folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the place of the table and the values of its result: with `best` those of the best
    row, else the last value of each of `keys`."""
    result = program.result
    if result.tensorboard is not None:
        place = f"trainer.result.tensorboard: {result.tensorboard}"
        rows = event_rows(result_files(program, folder, place), place)
    else:
        place = f"trainer.result.file: {result.file}"
        [file] = result_files(program, folder, place)
        content = _content(file, place, MOST_TABLE)
        rows = (csv_rows if file.suffix.lower() == ".csv" else json_rows)(content, place)
        if result.best is None:
            for key in keys:
                check_last_rows(rows, key, result.step, place)
        if result.step is not None:
            rows = rows_by_step(rows, result.step, place)
    if result.best is None:
        return place, {key: value_of_last(rows, key, place)[1] for key in keys}
    row = best_row(rows, result.best.key, result.best.direction, place)
    place = f"{place}: {row.place}, where {result.best.key} is best"
    return place, {name: cell for name, cell in row.cells.items() if cell not in ABSENT}


def _content(file: Path, place: str, limit: int) -> bytes:
    try:
        with open_file(file) as opened:
            content = opened.read(limit + 1)
    except NotRegular:
        raise UserError(f"{place}: is no regular file; have the program write one") from None
    except OSError as error:
        raise UserError(f"{place}: {error.strerror}") from error
    if len(content) > limit:
        raise UserError(f"{place}: is larger than {limit:,} bytes; write metrics alone")
    return content


def _object(file: Path, place: str) -> Mapping[str, Any]:
    content = _content(file, place, MOST_RESULT)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is no JSON ({short_error(str(error))})") from error
    if not isinstance(values, dict):
        raise UserError(f"{place}: expected an object of metrics, got {short_error(repr(values))}")
    return values


def read_predictions(program: Program, folder: Path) -> np.ndarray | None:
    """Return the array that the program left; None where the yaml names none. Raises UserError for
    a file that is no complete .npy of numbers."""
    if program.predictions is None:
        return None
    place, file = f"trainer.predictions: {program.predictions}", folder / program.predictions
    try:
        with open_file(file):
            pass  # it is no pipe, on which numpy would wait
        # Mapped, a header that promises more numbers than there are is refused.
        array: np.ndarray = np.array(np.load(file, mmap_mode="r", allow_pickle=False))
    except NotRegular:
        raise UserError(f"{place}: is no regular file; have the program write one") from None
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise UserError(f"{place}: {short_error(str(error))}") from error
    return array
