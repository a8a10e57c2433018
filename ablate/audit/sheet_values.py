"""Reads the values of a sheet's lines: numbers, seeds, labels.

A value is a text of a csv, or whatever JSON, parquet or a frame contains. Only plain decimal
notation is a number. `1_000`, digits of other scripts and numbers that a float can't hold are
refused, since each would be read as a result that nobody wrote.

Used by `ablate import` (audit/sheet.py and audit/multirun.py).
"""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from typing import Any

from ablate.shared import LARGEST_INTEGER, UserError

LONGEST = 60  # characters of a value that an error shows
EXACT = 2**53  # from here on a float stands for several whole numbers
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_NOT_FINITE = re.compile(r"[+-]?\.?(nan|inf|infinity)", re.IGNORECASE)  # yaml writes .nan


def value_text(value: Any) -> str:
    """Return the value as an error shows it, on one line."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python refuses to write them all
        return f"a whole number of {value.bit_length():,} bits"
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def is_missing(value: Any) -> bool:
    """Return whether there is no value: an empty text, or a null."""
    return value is None or (isinstance(value, str) and not value)


def read_number(value: Any, place: str) -> float:
    """Read the number of a metric; nan or infinite for a run that diverged. Raises UserError."""
    if is_missing(value):
        raise UserError(
            f"{place}: is empty: leave the line of a run without a result out; of one that "
            f"diverged write nan, or inf where nan is stored as a null (pandas)"
        )
    if isinstance(value, float):
        return value
    if isinstance(value, str) and _NOT_FINITE.fullmatch(value):
        return float(value.replace(".", ""))
    exact = _exact(value)
    if exact is None:
        raise UserError(f"{place}: expected a number such as 90.31, got {value_text(value)}")
    number = float(exact)
    if math.isinf(number) or (not number and exact):
        raise UserError(
            f"{place}: expected a number that a float can hold, up to 1.8e308, got "
            f"{value_text(value)}; of a run that diverged write nan"
        )
    return number


def read_seed(value: Any, place: str) -> int:
    """Read a seed exactly: a whole number from 0 to LARGEST_INTEGER. Raises UserError."""
    if isinstance(value, float) and abs(value) >= EXACT:
        raise UserError(
            f"{place}: expected a seed, got {value!r}, which is rounded; write seeds from 2^53 on "
            f"as whole numbers"
        )
    exact = _exact(str(value) if isinstance(value, float) else value)
    if exact is not None and 0 <= exact <= LARGEST_INTEGER and exact == exact.to_integral_value():
        return int(exact)
    raise UserError(
        f"{place}: expected a seed, a whole number from 0 to {LARGEST_INTEGER}, got "
        f"{value_text(value)}"
    )


def read_label(value: Any, place: str) -> str:
    """Read the name of a row, a column or a file. Raises UserError."""
    if is_missing(value) or (isinstance(value, float) and math.isnan(value)):
        raise UserError(f"{place}: expected a name, got nothing")
    is_integral = isinstance(value, float) and value.is_integer()
    text = str(int(value) if is_integral else value)
    kinds = (str, int, float, Decimal, datetime.date)
    if not isinstance(value, kinds) or not text.isprintable() or not text.strip():
        raise UserError(f"{place}: expected a name, got {value_text(value)}")
    return text


def decimals_of(value: Any) -> int:
    """Return how many decimals are written: 2 for "93.10"."""
    text = value if isinstance(value, str) else repr(value)
    return len(text.partition(".")[2]) if "e" not in text.lower() else 0


def _exact(value: Any) -> Decimal | None:
    """Return the exact number that a text or a whole number states; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    return None
