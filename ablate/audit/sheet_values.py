"""Reads the values of a sheet's lines: numbers, seeds, labels.

A value is a text of a csv, or whatever JSON, parquet or a frame contains. Only plain decimal
notation is a number. `1_000`, digits of other scripts and numbers that a float can't hold are
refused, since each would be read as a result that nobody wrote.

Used by `ablate import` (audit/sheet.py and the files that read and shape its lines) and
`ablate import --loop` (audit/loop_log.py).
"""

from __future__ import annotations

import datetime
import math
import re
import shlex
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from ablate.shared import LARGEST_INTEGER, UserError

UNNAMED = "the column without a name"  # such as the index that pandas writes
LONGEST = 60  # characters of a value that an error shows
EXACT = 2**53  # from here on a float stands for several whole numbers
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
_SEPARATED = re.compile(r"[+-]?[0-9]{1,3}([., '\u2019\u00a0\u202f][0-9]{3})+([.,][0-9]+)?")
# "0.80 ± 0.02", "80.1 +/- 0.3", "80.1 \pm 0.3", "80.1 (0.3)"
_MEAN_AND_SPREAD = re.compile(r"±|\+/?-|\\pm|[0-9] *\([0-9.,]+\)")
_NOT_FINITE = re.compile(r"[+-]?\.?(nan|inf|infinity)", re.IGNORECASE)  # yaml writes .nan


@dataclass(frozen=True)
class Remedies:
    """The ways out that errors on values name, by the means that the form of the sheet has.

    `omission`: of a column and a text in it, None of no value: what leaves such lines out.
    `divergence`: how a run that diverged is written. `comma`: how decimal commas are read.
    """

    omission: Callable[[str, str | None], str]
    divergence: str
    comma: str


def _omission_by_option(column: str, text: str | None) -> str:
    condition = f"{column}!={'' if text is None else text}"
    return f"--where {shlex.quote(condition)} leaves such lines out"


def _omission_by_pandas(column: str, text: str | None) -> str:
    if text is None:
        return f"`frame.dropna(subset=[{column!r}])` leaves such rows out"
    return f"`frame[frame[{column!r}] != {text!r}]` leaves such rows out"


def _omission_by_crash(column: str, text: str | None) -> str:
    return "leave the line out, or write crash for its outcome"


FILE_REMEDIES = Remedies(
    _omission_by_option,
    "; of a run that diverged write nan, or inf where nan is stored as a null (pandas)",
    "give --decimal ,",
)
FRAME_REMEDIES = Remedies(
    _omission_by_pandas,
    "; of a run that diverged write inf",
    "read the file by `pd.read_csv(decimal=',')`",
)
LOOP_REMEDIES = replace(FILE_REMEDIES, omission=_omission_by_crash, divergence="")


def value_text(value: Any) -> str:
    """Return the value as an error shows it, on one line."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python refuses to write them all
        return f"a whole number of {value.bit_length():,} bits"
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def is_missing(value: Any) -> bool:
    """Return whether there is no value: an empty text, or a null."""
    return value is None or (isinstance(value, str) and not value)


def plain_text(value: Any) -> str:
    """Return the text by which a value is chosen and matched: "" of a missing one, "3" of 3.0, and
    true and false as JSON writes them."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def read_number(
    value: Any, place: str, decimal: str = ".", remedies: Remedies = FILE_REMEDIES
) -> float:
    """Read the number of a metric; nan or infinite for a run that diverged. `decimal`: the mark
    before the decimals of a text. Raises UserError."""
    if is_missing(value):
        omission = remedies.omission(_column_of(place), value)
        raise UserError(f"{place}: is empty; {omission}{remedies.divergence}")
    if isinstance(value, float):
        return value
    if isinstance(value, str) and _NOT_FINITE.fullmatch(value):
        return float(value.replace(".", ""))
    exact = _exact(_with_point(value, decimal))
    if exact is None:
        raise UserError(
            f"{place}: expected a number such as 90{decimal}31, got {value_text(value)}"
            f"{_remedy(value, place, decimal, remedies)}"
        )
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


def read_label(value: Any, place: str, remedies: Remedies = FILE_REMEDIES) -> str:
    """Read the name of a row, a column or a file. Raises UserError."""
    if is_missing(value) or (isinstance(value, float) and math.isnan(value)):
        omission = remedies.omission(_column_of(place), value if isinstance(value, str) else None)
        raise UserError(f"{place}: expected a name, got nothing; {omission}")
    text = plain_text(value)
    kinds = (str, int, float, Decimal, datetime.date)
    if not isinstance(value, kinds) or not text.isprintable() or not text.strip():
        raise UserError(f"{place}: expected a name, got {value_text(value)}")
    return text


def decimals_of(value: Any, decimal: str = ".") -> int:
    """Return how many decimals are written: 2 for "93.10"."""
    text = _with_point(value, decimal) if isinstance(value, str) else repr(value)
    return len(text.partition(".")[2]) if "e" not in text.lower() else 0


MOST_DECIMALS = 12  # of a metric that a user declares


def decimals_needed(values: Iterable[float]) -> int:
    """Return the decimals with which most values show three figures: 7 for 3.2e-05."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 0
    return min(MOST_DECIMALS, 2 - math.floor(math.log10(statistics.median(sizes))))


def _with_point(value: Any, decimal: str) -> Any:
    """Return a text with a point before its decimals. One that has a point already stays as it is,
    with another mark: it is no number then."""
    if not isinstance(value, str) or decimal == ".":
        return value
    return value.replace(".", " ").replace(decimal, ".", 1)


def _column_of(place: str) -> str:
    return place.rpartition(": ")[2]


def _remedy(value: Any, place: str, decimal: str, remedies: Remedies) -> str:
    """Return the way out for a text that is no number, "" where none is known."""
    if not isinstance(value, str):
        return ""
    if _MEAN_AND_SPREAD.search(value):
        return (
            ": a mean and a spread have no runs behind them, and verdicts are about runs; give the "
            "result of each run a line, or the mean alone, which gets no interval and no verdict"
        )
    if value.strip().endswith("%"):
        return "; leave out the %, which is no part of the number"
    if _DECIMAL.fullmatch(value.strip()) and value != value.strip():
        return "; leave out the spaces"
    is_separated = _SEPARATED.fullmatch(value) is not None
    if decimal == "," and "." in value and (is_separated or _DECIMAL.fullmatch(value)):
        return "; with --decimal , no number may have a point"
    if decimal == "." and _DECIMAL_COMMA.fullmatch(value):
        if is_separated:
            return (
                f"; take the comma out if it separates thousands; {remedies.comma} if it stands "
                f"before decimals"
            )
        return f"; {remedies.comma} where a comma stands before decimals"
    if is_separated:
        return "; write it without marks between thousands"
    if not any(letter.isdecimal() for letter in value):
        return f"; {remedies.omission(_column_of(place), value)}"
    return ""


def _exact(value: Any) -> Decimal | None:
    """Return the exact number that a text or a whole number states; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    return None
