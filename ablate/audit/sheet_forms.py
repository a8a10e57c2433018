"""Reads the files of a sheet, each in its form, into lines: csv, json, jsonl, parquet.

A line has a place, which errors name, and values by column name. A value is what the form has: a
text of a csv, or whatever JSON and parquet contain.

Used by audit/sheet.py for a sheet of one file or several, and by audit/job_folders.py for the file
that each job left. A new form needs its line in `FORMS`, and the help of `ablate import`
(cli/importing.py).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.audit.sheet_values import is_missing, plain_text, value_text
from ablate.planning import SheetKeys
from ablate.shared import MOST_BYTES, NotRegular, UserError, count_text, is_shallow, read_file

Line = tuple[str, Mapping[str, Any]]  # "line 4", its values by column
# The line of a file of a run that has none, so that the run is refused and not left out unseen.
NO_LINE: Line = ("without a line", {})
MOST_LINES = 1_000_000  # runs that a sheet may have
BATCH = 256  # lines of a parquet file that are decoded at once
FRAME_INDEX = "__index_level_"  # begins the column that pandas makes of an index without a name
RUN = "run"  # the column of the folder of each job, or of the run of a tracker
FOLDER = "folder"  # this column, where the jobs have a `run` themselves
HISTORY = "log_history"  # the list of a trainer_state.json, as Hugging Face's Trainer writes it
MARKS_OF_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # Excel's "Unicode text" begins with one


def read_content(path: Path, place: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file. Raises UserError, which begins with `place`, where it has more
    than `most_bytes`, or isn't there."""
    try:
        if (size := path.stat().st_size) > most_bytes:
            raise UserError(f"{place}: has {size:,} bytes; expected at most {most_bytes:,}")
        return read_file(path)
    except FileNotFoundError:
        raise UserError(f"{place}: no such file") from None
    except NotRegular as error:
        raise UserError(f"{place}: {error.strerror}") from error


def read_lines(content: bytes, name: str, keys: SheetKeys) -> list[Line]:
    """Read the lines of a file by the suffix of its name.

    Raises UserError for another suffix, and for content that is not of that form.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in FORMS:
        raise UserError(
            f"{name}: expected a file {', '.join(FORMS)}, or the folder of jobs, of MLflow or of "
            f"TensorBoard{EXPORTS.get(suffix, '')}"
        )
    if keys.comment is not None and FORMS[suffix] is not _read_csv:
        raise UserError(f"--comment: {name} has no lines that are comments; leave the option out")
    return FORMS[suffix](content, name, keys)


def check_columns(columns: Sequence[str], place: str) -> None:
    """Raise UserError where two columns have the same name."""
    if twice := [name for name, often in Counter(columns).items() if often > 1]:
        raise UserError(f"{place}: two columns are named {twice[0]!r}; rename one of them")


def with_column(values: Mapping[str, Any], name: str, value: str, place: str) -> dict[str, Any]:
    """Add a column that the reader makes, such as the file of each line.

    Raises UserError where the sheet has a column of this name itself.
    """
    if name in values:
        raise UserError(
            f"{place}: has a column {name!r}, as the one that tells its runs apart is called here; "
            f"name it otherwise"
        )
    return {name: value, **values}


def with_run_column(lines_by_run: Mapping[str, Sequence[Line]]) -> tuple[list[Line], str]:
    """Add the column of the run that each line is of, by the path of the run's folder.

    Returns the lines, and the name of the column: RUN, or FOLDER where a line has a RUN of its own.
    """
    has_run = any(RUN in values for lines in lines_by_run.values() for _, values in lines)
    column = FOLDER if has_run else RUN
    return [
        (place, with_column(values, column, run, place))
        for run, lines in lines_by_run.items()
        for place, values in lines
    ], column


def with_settings(
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    option_columns: Collection[str],
    place: str,
    source: str,
) -> dict[str, Any]:
    """Join what a run was given and its results, of which a result of the same name wins.

    `option_columns`: the columns that the user's options name. Raises UserError where one
    of these is both, with two values. `source`: what has the results, such as "metrics.csv".
    """
    own_results = {
        key: value for key, value in results.items() if key not in settings or not is_missing(value)
    }
    for key in sorted({*option_columns} & settings.keys() & own_results.keys()):
        if plain_text(settings[key]) != plain_text(results[key]):
            raise UserError(
                f"{place}: {key!r} is both a setting and a column of {source}; rename one of them"
            )
    return {**settings, **own_results}


def check_text_options(keys: SheetKeys, name: str) -> None:
    """Raise UserError where options of texts were given for results that are read without them."""
    is_given = {
        "--comment": keys.comment is not None,
        "--encoding": keys.encoding != SheetKeys.encoding,
    }
    for option in is_given:
        if is_given[option]:
            raise UserError(f"{option}: is of no use for {name}; leave the option out")


# --- Text ---------------------------------------------------------------------------------------


def decoded_text(content: bytes, name: str, encoding: str = "utf-8") -> str:
    """Return the text of a file, without a byte order mark. Raises UserError for bytes that are not
    of that encoding, and for an encoding that Python doesn't know."""
    is_default = encoding == "utf-8"
    try:
        text = content.decode("utf-8-sig" if is_default else encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: byte {error.start} is no {encoding.upper()}; {_other_encoding(content)}"
        ) from error
    except (LookupError, UnicodeError) as error:  # unknown, or no encoding of files
        raise UserError(
            f"--encoding {encoding}: expected one such as utf-16, latin-1 or cp1252"
        ) from error
    if "\0" in text:
        raise UserError(f"{name}: has zeros between its letters; {_other_encoding(content)}")
    return text.removeprefix("\ufeff")


def _other_encoding(content: bytes) -> str:
    if content.startswith(MARKS_OF_UTF16):
        return "it begins as UTF-16 does: give --encoding utf-16"
    if b"\0" in content:
        return "give --encoding utf-16-le"
    return "give --encoding latin-1, or whichever it was saved in"


def _lines_of(text: str) -> Iterator[str]:
    """Return the lines of a text with their ends. `str.splitlines` would also split at a form feed,
    and at separators that may stand within a value, such as U+2028."""
    return io.StringIO(text, newline="")


_EXCELS_SEPARATOR = re.compile(r'sep=([^"])')  # in the first line of a csv that Excel opens


def _first_line(text: str) -> str:
    """Return the first line that is not empty, without its end; "" where all are."""
    return next((line.rstrip("\r\n") for line in _lines_of(text) if line.strip()), "")


def _read_csv(content: bytes, name: str, keys: SheetKeys) -> list[Line]:
    text = decoded_text(content, name, keys.encoding)
    if keys.comment:  # an empty line in the place of a comment keeps the numbers of the others
        uncommented_lines = [
            "\n" if line.startswith(keys.comment) else line for line in _lines_of(text)
        ]
        text = "".join(uncommented_lines)
    head = _first_line(text)
    between = max(",\t;", key=head.count)  # the first of equally frequent ones
    if declaration := _EXCELS_SEPARATOR.fullmatch(head):
        between = declaration[1]
        text = text.replace(head, "", 1)  # an empty line keeps the numbers of the others
        head = _first_line(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True)
    value_rows: list[tuple[str, list[str]]] = []
    columns: list[str] = []
    head_place = name
    try:
        for row in rows:
            place = f"line {rows.line_num}"
            values = [part.strip() for part in row]
            if not any(values):
                continue
            while columns and len(values) > len(columns) and not values[-1]:
                values.pop()  # a comma ends each line, but not the head
            if not columns:
                columns, head_place = values, f"{name}: {place}"
            elif len(values) != len(columns):
                raise UserError(
                    f"{name}: {place}: has {count_text(len(row), 'value')} for "
                    f"{count_text(len(columns), 'column')}{_remedy_of_width(head, row, columns)}"
                )
            else:
                value_rows.append((place, values))
    except csv.Error as error:
        raise UserError(f"{name}: line {rows.line_num}: is no csv ({error})") from error
    # Excel ends each line with the separators of columns that were emptied.
    kept = [
        (number, column)
        for number, column in enumerate(columns)
        if column or any(values[number] for _, values in value_rows)
    ]
    check_columns([column for _, column in kept], head_place)
    return [
        (place, {column: values[number] for number, column in kept}) for place, values in value_rows
    ]


def _remedy_of_width(head: str, row: Sequence[str], columns: Sequence[str]) -> str:
    """Return the way out for a line whose number of values is not that of the columns."""
    if head.startswith("#") or row[0].startswith("#"):
        return "; give --comment '#' to leave out the lines that begin with it"
    if len(columns) == 1:
        return (
            "; the first line has to name the columns: take what stands above them out, or give "
            "--comment TEXT, with which such lines begin"
        )
    if len(row) > len(columns):
        return "; put a value that has a separator in it into double quotes"
    return "; write all of them, the last ones also where they are empty"


# --- JSON ---------------------------------------------------------------------------------------


def _read_jsonl(content: bytes, name: str, keys: SheetKeys) -> list[Line]:
    lines: list[Line] = []
    for number, text in enumerate(_lines_of(decoded_text(content, name, keys.encoding)), 1):
        if text.strip():
            place = f"line {number}"
            lines.append((place, _of_object(read_tree(text, f"{name}: {place}"), name, place)))
    return lines


def _read_json(content: bytes, name: str, keys: SheetKeys) -> list[Line]:
    """Read a list of objects; an object of columns, each a list or, as pandas writes them, an
    object by number; a trainer_state.json; or an object that is one line itself."""
    tree = read_tree(decoded_text(content, name, keys.encoding), name)
    list_name = ""
    if isinstance(tree, Mapping) and isinstance(tree.get(HISTORY), list):
        tree, list_name = tree[HISTORY], HISTORY
    if isinstance(tree, Mapping) and (records := _records(tree, name)) is not None:
        tree = records
    if isinstance(tree, list):
        places = (f"{list_name}[{number}]" for number in range(len(tree)))
        return [
            (place, _of_object(item, name, place)) for place, item in zip(places, tree, strict=True)
        ]
    return [("the object", _of_object(tree, name, "the whole"))]


def _records(columns: Mapping[str, Any], name: str) -> list[dict[str, Any]] | None:
    """Return the lines of an object of columns; None for any other object.

    Raises UserError for columns of unequal lengths.
    """
    values = list(columns.values())
    if values and all(isinstance(column, list) for column in values):
        lengths = {key: len(column) for key, column in columns.items()}
        if len({*lengths.values()}) > 1:
            short = min(lengths, key=lengths.__getitem__)
            long = max(lengths, key=lengths.__getitem__)
            raise UserError(
                f"{name}: {long} has {lengths[long]} values and {short} has {lengths[short]}; "
                f"write null where a run has none"
            )
        rows = zip(*values, strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]
    numbers = list(values[0]) if values and isinstance(values[0], Mapping) else []
    if not numbers or not all(number.isdecimal() for number in numbers):
        return None
    if any(not isinstance(column, Mapping) or list(column) != numbers for column in values):
        return None
    return [{key: column[number] for key, column in columns.items()} for number in numbers]


def _of_object(tree: Any, name: str, place: str) -> dict[str, Any]:
    """Return the values of an object by dotted keys. Raises UserError for any other JSON."""
    if not isinstance(tree, Mapping):
        raise UserError(
            f"{name}: {place}: expected an object such as {{...}}, got {value_text(tree)}"
        )
    return flat(tree, f"{name}: {place}")


def read_tree(text: str, place: str) -> Any:
    """Parse JSON. A number that a float can't hold stays a text, which whoever reads it as a number
    refuses. Raises UserError for no JSON, and for an object that has a key twice."""
    try:
        tree = json.loads(text, parse_float=_float, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is no JSON ({error})") from error
    check_shallow(tree, place)
    return tree


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ValueError for a key that it has twice, whose last value
    Python would take in silence."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return values


def check_shallow(tree: Any, place: str) -> None:
    """Raise UserError for a tree that is nested deeper than any result is."""
    if not is_shallow(tree):
        raise UserError(f"{place}: is nested deeper than any result is; give plain values")


def _float(literal: str) -> float | str:
    number = float(literal)
    lost = math.isinf(number) or (not number and any(digit in literal for digit in "123456789"))
    return literal if lost else number


def flat(tree: Mapping[Any, Any], place: str, above: str = "") -> dict[str, Any]:
    """Return the values of nested objects, by dotted keys. Raises UserError where two of them have
    one such key, as of {"test": {"acc": 1}, "test.acc": 2}."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{above}{key}"
        inner = flat(value, place, f"{name}.") if isinstance(value, Mapping) else {name: value}
        if common := values.keys() & inner.keys():
            raise UserError(f"{place}: {min(common)} is there twice; rename one of them")
        values |= inner
    return values


# --- Parquet ------------------------------------------------------------------------------------


def _read_parquet(content: bytes, name: str, keys: SheetKeys) -> list[Line]:
    """Read the lines of a parquet file, without columns of lists and structs.

    A null means no number, whereas nan is a number: pandas would not distinguish them, so pyarrow
    reads the file.
    """
    import pyarrow
    from pyarrow import parquet

    check_text_options(keys, name)
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
        check_columns([arrow_field.name for arrow_field in fields], name)
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


# By suffix: how a file of another form becomes a sheet.
EXPORTS: Mapping[str, str] = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "; save a workbook as CSV UTF-8"),
    ".db": "; of MLflow's database `mlflow experiments csv -x ID -o runs.csv` makes one",
}

# By suffix: reads the lines of a file from its bytes, its name and the keys of the sheet.
FORMS: Mapping[str, Callable[[bytes, str, SheetKeys], list[Line]]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _read_csv),
    **{".json": _read_json, ".jsonl": _read_jsonl, ".parquet": _read_parquet},
}
