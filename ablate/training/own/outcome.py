"""The outcome of a program: the cause of its failure, or the result and the predictions that it
left.

Used by training/own/command.py once a program has ended. Where a result may be is checked in
run/program.py `read_program`, so a new place also needs its key there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
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
)
from ablate.training.own.curves import to_number

TAIL = 64 << 20  # bytes of the output that are searched for a result
MOST_RESULT = 16 << 20  # bytes of a result file
LAST_LINES = 50  # that may name the cause of a failure
# "KeyError: 'x'", "pkg.errors.ConfigKeyError: ...": as Python ends a traceback.
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: |$)")
_AFTER_TRACEBACK = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: |$)")  # of any name
_TRACEBACK = "Traceback (most recent call last)"
_HINT = re.compile(r"HYDRA_FULL_ERROR|^(?:hint|note|tip|help|warning)\b", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"\bOutOfMemoryError\b|\bMemoryError\b|CUDA out of memory")


def read_output(log: Path, begin: int) -> str:
    """Read what this attempt printed, only the end of a long output."""
    with open(log, "rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - TAIL))
        return file.read().decode(errors="replace").replace("\r", "\n")


def fail(code: int, output: str) -> NoReturn:
    """Raise the error of a program that ended with an exit code other than 0, or by a signal
    (below 0), with its cause."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    if code > 0:
        end = f"with exit code {code}"
    else:
        end = f"by {signal_words(-code)}"
    text = f"the command ended {end}: {cause(lines)}"
    last_lines = "\n".join(lines[-20:])
    if _OUT_OF_MEMORY.search(last_lines):
        raise MemoryError(text)
    raise RuntimeError(text)


def cause(lines: Sequence[str]) -> str:
    """Return the line that says why a program failed: the last line of an exception, or else the
    last one that is no hint."""
    messages = [line for line in lines[-LAST_LINES:] if not _HINT.search(line.strip())]
    traced, error_lines = False, []
    for line in messages:
        traced |= line.lstrip().startswith(_TRACEBACK)
        is_error = _ERROR.match(line) or (traced and _AFTER_TRACEBACK.match(line))
        if is_error and not line.startswith(_TRACEBACK):
            error_lines.append(line)
    for candidates in (error_lines, messages, lines):
        if candidates:
            return short_error(candidates[-1].strip())
    return "it printed nothing"


def read_result(
    program: Program, folder: Path, output: str, run: OwnRun
) -> tuple[str, dict[str, float]]:
    """Return the place that names the result in messages, and its numbers: the metrics and, where
    given, `n`, the number of test examples. Raises UserError for an invalid result."""
    keys = [metric["key"] for metric in run.metrics]
    place, values = _values(program, folder, output)
    for key in keys:
        if key not in values:
            listing = short_error(", ".join(str(name) for name in values) or "nothing")
            raise UserError(f"{place}: lacks {key}, which the yaml declares; it has {listing}")
    numbers: dict[str, float] = {}
    for key in (*keys, "n"):
        if key not in values:
            continue
        number = to_number(values[key])
        if number is None:
            value_text = short_error(repr(values[key]))
            raise UserError(f"{place}: {key}: expected a number, got {value_text}")
        numbers[key] = number
    return place, numbers


def _values(program: Program, folder: Path, output: str) -> tuple[str, Mapping[str, Any]]:
    pattern = program.result.get("lines")
    if pattern is not None:
        matches = list(re.finditer(pattern, output, re.MULTILINE))
        if not matches:
            raise UserError(f"trainer.result.lines: nothing that it printed matches {pattern!r}")
        return "trainer.result.lines", matches[-1].groupdict()
    name = program.result["file"]
    place = f"trainer.result.file: {name}"
    try:
        with open_file(folder / name) as file:
            content = file.read(MOST_RESULT + 1)
        if len(content) > MOST_RESULT:
            raise UserError(f"{place}: is larger than {MOST_RESULT:,} bytes; write metrics alone")
        values = json.loads(content)
    except FileNotFoundError:
        raise UserError(f"{place}: missing, though the command ended with exit code 0") from None
    except NotRegular:
        raise UserError(f"{place}: is no regular file; have the program write one") from None
    except OSError as error:
        raise UserError(f"{place}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is no JSON ({short_error(str(error))})") from error
    if not isinstance(values, dict):
        raise UserError(f"{place}: expected an object of metrics, got {short_error(repr(values))}")
    return place, values


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
