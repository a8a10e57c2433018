"""An image-text set as it lies in a folder: tables of images and texts, and the images beside them.

FOLDER/train*.csv, test*.csv, ...    a column of paths below FOLDER, and one of texts
FOLDER/train*.parquet, ...           so, or a column of the images themselves
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.shared.dataset import Listing, parse_slice, split_of
from ablate.shared.errors import UserError, unknown

PATH = "path"  # of the images, where `data.image` names no other column
_ROWS = 1024  # that are read at once of a parquet file


def files(found: Listing, split: str) -> list[Path]:
    """The tables of a split, in name order."""
    tables = (file for file in found.files if file.endswith((".csv", ".parquet")))
    return [Path(file) for file in tables if split_of(file) == split]


def column(file: Path, key: str, name: str) -> Iterator[Any]:
    """The values of a column, row by row. Raises UserError, `key` first, where it is not there, and
    for a file that can't be read."""
    read = _of_parquet if file.suffix == ".parquet" else _of_csv
    try:
        yield from read(file, key, name)
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's are ValueErrors
        raise UserError(f"data.path: {file}: can't be read: {error}") from error


def _of_csv(file: Path, key: str, name: str) -> Iterator[Any]:
    with open(file, newline="", encoding="utf-8-sig") as stream:  # some programs begin with a mark
        reader = csv.DictReader(stream, strict=True)
        _check(file, key, name, reader.fieldnames or ())
        columns = len(reader.fieldnames or ())
        for number, row in enumerate(reader):
            if None in row:  # a text would be cut at its comma
                raise UserError(
                    f"data.path: row {number} of {file}: has {columns + len(row[None])} cells, and "
                    f"the table {columns} columns; put a text with a comma into double quotes"
                )
            yield row[name]


def _of_parquet(file: Path, key: str, name: str) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        _check(file, key, name, opened.schema_arrow.names)
        for batch in opened.iter_batches(_ROWS, columns=[name]):
            yield from batch.column(0).to_pylist()


def _check(file: Path, key: str, name: str, there: Collection[str]) -> None:
    if name not in there:
        raise unknown(key, name, there, f"a column of {file}:")


def texts(found: Listing, split: str, name: str) -> list[str]:
    """Of each row of a split. Raises UserError, with the row, where there is none."""
    read: list[str] = []
    for file in files(found, split):
        for number, text in enumerate(column(file, "data.text", name)):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"data.text: row {number} of {file} has no text")
            read.append(text)
    return read


def classes(found: Listing, splits: Iterable[str], name: str) -> list[str]:
    """The texts of these splits, each once, as they first come: a text's place is its class."""
    each = (texts(found, split, name) for split in splits)
    return [*dict.fromkeys(itertools.chain.from_iterable(each))]


def test_classes(found: Listing, data: Mapping[str, Any]) -> int | None:
    """How many texts the test split has; None where it is cut from the training split."""
    if not isinstance(data["test"], str):
        return None
    part = parse_slice("test", data["test"])
    every = texts(found, part.split, str(data["text"]))
    return len({every[row] for row in part.rows(len(every))})
