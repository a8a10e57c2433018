"""Sets in tables: parquet files, and sets of the hub read by `datasets`; and images with captions,
whose label is the number of a text (see `ablate.run.dataset`)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.data.picture import Example, size_of
from ablate.data.stored_set import Part, Source, slice_of, wanted_splits
from ablate.run import (
    Data,
    Listing,
    dataset,
    local_splits,
    split_of,
)
from ablate.shared import DISK_FULL_ERRORS, UserError, unknown_value

# Read at once from a table, whichever is less: bounds memory, costs nothing against decoding.
_ROWS, _BYTES = 256, 16 << 20


@dataclass(frozen=True)
class _Table:
    """A parquet file, or a split of a hub set, read in Arrow batches of a few rows."""

    name: str
    rows: int
    features: Any  # datasets.Features
    batches: Callable[[list[str], int], Iterator[Any]]  # of these columns, from a row on


def parquet_files(data: Data, listing: Listing) -> dict[str, list[Path]]:
    """Return the files of each split that `data` names, in name order."""
    files_by_split = {}
    for split in wanted_splits(data, local_splits(listing)):
        files_by_split[split] = [Path(file) for file in listing.files if split_of(file) == split]
    return files_by_split


def parquet_file(parquet: Any, file: Path) -> Any:
    """Open a pyarrow.parquet.ParquetFile. Raises UserError with its name where it is none."""
    try:
        return parquet.ParquetFile(file)
    except Exception as error:  # pyarrow's errors are ValueErrors and OSErrors of its own
        raise UserError(f"data.path: {file}: not a readable parquet file: {error}") from error


def open_parquet(data: Data, listing: Listing) -> Source:
    from datasets import Features
    from pyarrow import parquet

    def batches(file: Path, columns: list[str], start: int) -> Iterator[Any]:
        try:
            with parquet_file(parquet, file) as opened:
                at_once = _at_once(file.stat().st_size, opened.metadata.num_rows)
                for group in range(opened.metadata.num_row_groups):
                    rows = opened.metadata.row_group(group).num_rows
                    if start < rows:
                        # One group at a time: of several it keeps all that it has read.
                        for batch in opened.iter_batches(at_once, [group], columns):
                            yield batch.slice(start)
                            start = max(0, start - len(batch))
                    else:
                        start -= rows
        except OSError as error:  # a page that doesn't decompress: pyarrow names no file
            raise UserError(f"data.path: {file}: damaged: {error}") from error

    tables: dict[str, list[_Table]] = {}
    for split, files in parquet_files(data, listing).items():
        tables[split] = []
        for file in files:
            with parquet_file(parquet, file) as opened:
                count = opened.metadata.num_rows
                features = Features.from_arrow_schema(opened.schema_arrow)
            read_batches = functools.partial(batches, file)
            tables[split].append(_Table(str(file), count, features, read_batches))
    return _from_tables(data, tables)


def _at_once(size: int, rows: int) -> int:
    """Return how many rows to read at once of a table of `size` bytes."""
    return max(1, min(_ROWS, _BYTES * rows // max(size, 1)))


def open_hub(data: Data) -> Source:
    import datasets

    try:
        stored = datasets.load_dataset(data.hub, revision=data.revision)
    except Exception as error:  # offline, unknown, refused: the error depends on versions
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        patterns = []
        for key in ("train", "validation", "test"):
            if isinstance(getattr(data, key), str):
                patterns.append(f"{slice_of(data, key).split}*.parquet")
        names = " and ".join(dict.fromkeys(patterns))
        raise UserError(
            f"data={data.name}: can't fetch {data.hub} (revision {data.revision}) from the hub: "
            f"{reason}; without network give data.path=FOLDER with {names}"
        ) from error

    def batches(split: str, columns: list[str], start: int) -> Iterator[Any]:
        at_once = _at_once(stored[split].data.nbytes, len(stored[split]))
        arrow = stored[split].select_columns(columns).with_format("arrow")
        return iter(arrow.skip(start).iter(at_once))

    tables = {}
    for split in wanted_splits(data, sorted(stored)):
        name = f"split {split!r} of {data.hub}"
        read_batches = functools.partial(batches, split)
        tables[split] = [_Table(name, len(stored[split]), stored[split].features, read_batches)]
    return _from_tables(data, tables)


def _from_tables(data: Data, tables: dict[str, list[_Table]]) -> Source:
    names: list[str] | None = None
    first_table: _Table | None = None
    parts = {}
    for split, pieces in tables.items():
        columns = [_columns(data, table) for table in pieces]
        for table, (_, label) in zip(pieces, columns, strict=True):
            class_names = None
            if data.rule is None:
                class_names = getattr(table.features[label], "names", None)
            if first_table is None:
                first_table, names = table, class_names
            elif class_names != names:
                raise UserError(
                    f"data.label: the classes of {table.name} ({class_names}) are not those of "
                    f"{first_table.name} ({names})"
                )
        tables_and_columns = []
        for table, (image, label) in zip(pieces, columns, strict=True):
            tables_and_columns.append((table, image, label))
        parts[split] = _part(tables_and_columns, data)
    return Source(parts, names)


def _part(pieces: list[tuple[_Table, str, str]], data: Data) -> Part:
    """Return the split that consists of these tables, one after the other, each with its columns of
    images and of labels."""
    masks = data.labels == "masks"

    def examples(start: int = 0) -> Iterator[Example]:
        for table, image, label in pieces:
            row = min(start, table.rows)
            start -= row
            if row == table.rows:
                continue
            for batch in table.batches([image, label], row):
                images = batch.column(image).to_pylist()
                labels = batch.column(label).to_pylist()
                for cell, number in zip(images, labels, strict=True):
                    place = f"row {row} of {table.name}"
                    if masks:
                        number = _example(f"the mask in {place}", number, None)
                    yield _example(place, cell, number)
                    row += 1

    def labels() -> Iterator[tuple[str, Any]]:
        for table, _, label in pieces:
            row = 0
            for batch in table.batches([label], 0):
                for number in batch.column(label).to_pylist():
                    yield f"row {row} of {table.name}", number
                    row += 1

    def sizes() -> Iterator[int]:
        for table, image, label in pieces:
            names = [image, label] if masks else [image]
            for batch in table.batches(names, 0):
                size_columns = [_sizes(table.name, batch.column(name)) for name in names]
                for file_sizes in zip(*size_columns, strict=True):
                    yield sum(file_sizes)

    return Part(sum(table.rows for table, *_ in pieces), examples, labels, sizes)


def _example(place: str, cell: Any, label: Any) -> Example:
    """Make an Example from a cell of the image column: the image's bytes, a struct of bytes and
    path, or None."""
    content, path = cell, None
    if isinstance(cell, dict):
        content, path = cell.get("bytes"), cell.get("path")
    if content is None and isinstance(path, str):
        return Example(f"{place} ({path})", Path(path), label)
    return Example(place, content, label)


def _sizes(place: str, column: Any) -> Iterator[int]:
    """Yield the size of each image's file in bytes. Copies no image."""
    import pyarrow
    from pyarrow import compute

    kinds = pyarrow.types
    fields = [field.name for field in column.type] if kinds.is_struct(column.type) else []
    content = compute.struct_field(column, "bytes") if "bytes" in fields else column
    if kinds.is_binary(content.type) or kinds.is_large_binary(content.type):
        lengths = compute.binary_length(content).to_pylist()
    else:
        lengths = [None] * len(column)
    for row, length in enumerate(lengths):
        if length is None:  # by its path, or none there
            length = size_of(_example(place, column[row].as_py(), 0))
        yield length


def _columns(data: Data, table: _Table) -> tuple[str, str]:
    """Return the columns of images and of labels: those that `data` names, else the only ones of
    their type.

    Raises UserError that lists the columns.
    """
    from datasets import ClassLabel, Image, Value

    features = table.features

    def is_image(kind: Any) -> bool:  # a file without the hub's notes shows the bare struct
        return isinstance(kind, Image) or (isinstance(kind, dict) and "bytes" in kind)

    def is_integer(kind: Any) -> bool:
        return isinstance(kind, Value) and "int" in kind.dtype

    def choose(key: str, column: str | None, contents: str, candidates: list[str]) -> str:
        if column is not None:
            if column not in features:
                raise unknown_value(f"data.{key}", column, features, f"a column of {table.name}:")
            return column
        if len(candidates) == 1:
            return candidates[0]
        column_list = ", ".join(f"{name} ({_kind(kind)})" for name, kind in features.items())
        raise UserError(
            f"data.{key}: {table.name} has {len(candidates) or 'no'} columns of {contents}; "
            f"give data.{key}=COLUMN, of: {column_list}"
        )

    images = [name for name, kind in features.items() if is_image(kind)]
    if data.labels == "masks":
        image = choose("image", data.image, "images", images)
        masks = [name for name in images if name != image]
        return image, choose("label", data.label, "masks", masks)
    labels = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
    if not labels:
        labels = [name for name, kind in features.items() if is_integer(kind)]
    image = choose("image", data.image, "images", images)
    return image, choose("label", data.label, "class numbers", labels)


def _kind(feature: Any) -> str:
    """Return the type of a column in a word: Image, ClassLabel, int64, ..."""
    name = type(feature).__name__
    if name == "Value":
        return str(feature.dtype)
    return name


def open_captions(data: Data, listing: Listing) -> Source:
    """Open images with captions. Raises UserError for tables and columns that can't be read, and
    rows without a text."""
    splits = wanted_splits(data, local_splits(listing))
    names = dataset.caption_classes(listing, splits, str(data.text))
    numbers = {text: number for number, text in enumerate(names)}
    parts = {}
    for split in splits:
        classes = [numbers[text] for text in dataset.caption_texts(listing, split, str(data.text))]

        def examples(
            start: int = 0, split: str = split, classes: list[int] = classes
        ) -> Iterator[Example]:
            for row, (place, image) in enumerate(_images(data, listing, split)):
                if row >= start:
                    yield Example(place, image, classes[row])

        def labels(split: str = split, classes: list[int] = classes) -> Iterator[tuple[str, Any]]:
            return ((f"row {row} of {split}", number) for row, number in enumerate(classes))

        parts[split] = Part(len(classes), examples, labels)
    return Source(parts, names)


def _images(data: Data, listing: Listing, split: str) -> Iterator[tuple[str, Any]]:
    """Yield for each row its place, for messages, and its image: a file, or bytes."""
    column, files = data.image or dataset.PATH, frozenset(listing.files)
    for file in dataset.caption_files(listing, split):
        for number, cell in enumerate(dataset.caption_column(file, "data.image", column)):
            content, path = cell, cell
            if isinstance(cell, dict):
                content, path = cell.get("bytes"), cell.get("path")
            if isinstance(content, bytes):
                yield f"row {number} of {file}", content
                continue
            if not isinstance(path, str):
                raise UserError(f"data.image: row {number} of {file}: no path and no image")
            image = _image_file(listing.path, path, files, f"row {number} of {file}")
            yield f"row {number} of {file} ({path})", Path(image)


def _image_file(folder: Path, path: str, files: Collection[str], place: str) -> str:
    """Return the file of an image. Raises UserError for one that is not among the `files`, from
    which the fingerprint is made: its content could change without the runs being seen to differ.

    Links are followed, as where files are listed. A path is resolved by its text alone: behind a
    link `..` might lead elsewhere.
    """
    file = os.path.normpath(folder / path)
    if file in files:
        return file
    if not file.startswith(os.path.join(folder, "")):
        problem = f"lies outside of {folder}"
    elif not os.path.exists(file):
        problem = "no such file"
    else:
        problem = (
            "is passed over: names of images end in .png, .jpg or the like, and neither they nor "
            "their folders' begin with a dot; rename it"
        )
    raise UserError(f"data.image: {place}: {path}: {problem}")
