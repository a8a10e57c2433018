"""Where examples come from: scikit-learn's digits, parquet files, folders of images, the hub.

An `Example` still holds its encoded image. We decode it ourselves, so that a bad one is answered
with its file, or with its row and the parquet file it stands in. `datasets`, `sklearn` and
`pyarrow` are imported where a set is read: a worker whose data is cached needs none of them.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from ablate.fingerprint import class_folders, local_files, local_splits, split_folder, split_of
from ablate.keyed import key
from ablate.rundir import FULL
from ablate.spec import Data, UserError, unknown

DIGITS = 1797  # images in sklearn.datasets.load_digits
_ROWS = 256  # read at once from a table: bounds memory, and costs nothing against decoding


@dataclass(frozen=True)
class Example:
    """One image, still encoded (or a file, or an 8-bit image made here), and its class number.

    `where` names it for error messages.
    """

    where: str
    image: bytes | Path | Image.Image
    label: Any  # as stored; `class_number` says whether it is one


@dataclass(frozen=True)
class Part:
    """A split as it is stored: how many examples, and how to read them in their fixed order."""

    rows: int
    examples: Callable[[], Iterator[Example]]


@dataclass(frozen=True)
class Source:
    """A set as it is stored: the splits that `data` names, and its class names where it has any."""

    parts: dict[str, Part]
    class_names: list[str] | None


def open_source(data: Data) -> Source:
    """The set that `data` describes, fetched if need be, not yet read.

    Raises UserError for a set that can't be had, a split or column that isn't there, and a number
    of classes other than `data.classes`.
    """
    if data.source == "sklearn":
        source = _digits(data)
    elif data.path is None:
        source = _hub(data)
    elif local_files(_path(data), data.name)[0] == "parquet":
        source = _parquet(data)
    else:
        source = _folder(data)
    check_class_names(data, source.class_names)
    return source


def rows(data: Data) -> dict[str, int] | None:
    """Rows of each stored split that `data` names, without reading an image.

    None where only fetching the set would tell. Raises UserError as `open_source` does.
    """
    if data.source == "sklearn":
        return dict.fromkeys(_wanted(data, ["train"]), DIGITS)
    if data.path is None:
        return None
    if local_files(_path(data), data.name)[0] == "folder":
        return {split: part.rows for split, part in _folder(data).parts.items()}
    from pyarrow import parquet

    return {
        split: sum(_open_parquet(parquet, file).metadata.num_rows for file in files)
        for split, files in _parquet_files(data).items()
    }


def cut(data: Data, rows: dict[str, int]) -> dict[str, tuple[str, np.ndarray]]:
    """Which stored rows are train, validation and test: {name: (stored split, sorted rows)}.

    What is cut from the training split is the same for every run: the permutation hangs on the
    number of rows alone. Validation is cut first, so that cutting a test set, too, does not move
    it. Raises UserError where nothing is left to train on.
    """
    stored = rows[data.train]
    # RandomState: numpy guarantees its stream for ever, torch and Generator do not.
    random = np.random.RandomState(key("split", stored) % 2**32)
    order = random.permutation(stored)
    taken = 0
    chosen: dict[str, tuple[str, np.ndarray]] = {}
    for name in ("validation", "test"):
        choice = getattr(data, name)
        if isinstance(choice, str):
            chosen[name] = (choice, np.arange(rows[choice]))
        else:
            count = choice if isinstance(choice, int) else max(1, round(choice * stored))
            chosen[name] = (data.train, np.sort(order[taken : taken + count]))
            taken += count
    if taken >= stored:
        raise UserError(
            f"data.validation, data.test: {taken} examples cut from the {stored} of split "
            f"{data.train!r} leave none to train on"
        )
    return {"train": (data.train, np.sort(order[taken:])), **chosen}


def check_class_names(data: Data, names: list[str] | None) -> None:
    """Raises UserError where the set has another number of classes than `data.classes`."""
    if names is not None and len(names) != data.classes:
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise UserError(
            f"data.classes: {data.classes}, but data={data.name} has {len(names)} classes: {shown}"
        )


def class_number(data: Data, split: str, example: Example) -> int:
    """The label; UserError, with the row or file and the value, where it is no class number."""
    label = example.label
    if not isinstance(label, int) or not 0 <= label < data.classes:
        raise UserError(
            f"data.label: {example.where} (split {split!r}): expected a class number from 0 to "
            f"{data.classes - 1} (data.classes={data.classes}), got {label!r}"
        )
    return label


# --- Decoding -----------------------------------------------------------------------------------


def decode(example: Example, size: int, channels: int) -> np.ndarray:
    """The pixels: uint8 (size, size, channels), channels 1 or 3.

    Grey is repeated over RGB, RGB weighted to grey (ITU-R 601), an alpha channel dropped, 16-bit
    grey cut to its high byte (as Pillow does for 16-bit RGB), a photo turned upright by its EXIF
    orientation. Another size: the centred square, its side the shorter one, resized (bilinear,
    antialiased). Raises UserError naming the example where its bytes are no whole image.
    """
    try:
        if isinstance(example.image, Image.Image):
            return _pixels(example.image, size, channels)
        content = example.image
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            return _pixels(image, size, channels)
    except Exception as error:  # Pillow's decoders raise whatever they meet: SyntaxError, struct...
        what = str(error) or type(error).__name__
        raise UserError(f"data: {example.where}: not a readable image: {what}") from error


def _pixels(image: Image.Image, size: int, channels: int) -> np.ndarray:
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels (mode F) have no known range; store 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip to 255; older ones say "I"
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns of the palette's alpha
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (size, size):
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels)


# --- The kinds of source ------------------------------------------------------------------------


def _path(data: Data) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def _wanted(data: Data, present: list[str]) -> list[str]:
    """The stored splits that `data` names; UserError for one that is not among those present."""
    wanted = [data.train]
    for name in ("train", "validation", "test"):
        split = getattr(data, name)
        if not isinstance(split, str):
            continue
        if split not in present:
            raise UserError(
                f"data.{name}: no split {split!r} in data={data.name}; "
                f"present: {', '.join(present) or 'none'}"
                + ("" if name == "train" else "; a count or a share is cut from train")
            )
        if name != "train" and split == data.train:
            raise UserError(
                f"data.{name}: {split!r} is the split to train on; "
                f"give a count or a share to cut from it"
            )
        if split not in wanted:
            wanted.append(split)
    return wanted


def _digits(data: Data) -> Source:
    def examples() -> Iterator[Example]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
        for row, (image, label) in enumerate(zip(pixels, digits.target.tolist(), strict=True)):
            yield Example(f"row {row} of digits", Image.fromarray(image), label)

    names = [str(digit) for digit in range(10)]
    return Source({split: Part(DIGITS, examples) for split in _wanted(data, ["train"])}, names)


def _folder(data: Data) -> Source:
    """Class folders, or splits with class folders in them; the class names are those of train."""
    path = _path(data)
    splits = _wanted(data, local_splits(path, data.name))
    names = class_folders(path)
    numbers = {name: number for number, name in enumerate(names)}
    files = local_files(path, data.name)[1]
    parts = {}
    for split in splits:
        found = []
        prefix = f"{split_folder(path, split)}{os.sep}"
        for file in files:
            if not str(file).startswith(prefix):
                continue
            folder, *rest = str(file).removeprefix(prefix).split(os.sep)
            if not rest:
                raise UserError(f"data.path: {file}: lies in no class folder")
            if folder not in numbers:
                raise UserError(
                    f"data.path: {file}: {folder!r} is no class of the training split "
                    f"({', '.join(names[:10])}{', ...' if len(names) > 10 else ''})"
                )
            found.append((file, numbers[folder]))

        def examples(found: list[tuple[Path, int]] = found) -> Iterator[Example]:
            return (Example(str(file), file, label) for file, label in found)

        parts[split] = Part(len(found), examples)
    return Source(parts, names)


@dataclass(frozen=True)
class _Table:
    """A parquet file, or a split of a hub set: read in Arrow batches of a few rows."""

    name: str
    rows: int
    features: Any  # datasets.Features
    batches: Callable[[list[str]], Iterator[Any]]


def _parquet_files(data: Data) -> dict[str, list[Path]]:
    """The files of each split that `data` names, in name order."""
    path = _path(data)
    files = local_files(path, data.name)[1]
    wanted = _wanted(data, local_splits(path, data.name))
    return {split: [file for file in files if split_of(file) == split] for split in wanted}


def _open_parquet(parquet: Any, file: Path) -> Any:
    """A pyarrow.parquet.ParquetFile; UserError with its name where it is none."""
    try:
        return parquet.ParquetFile(file)
    except Exception as error:  # pyarrow's errors are ValueErrors and OSErrors of its own
        raise UserError(f"data.path: {file}: not a readable parquet file: {error}") from error


def _parquet(data: Data) -> Source:
    from datasets import Features
    from pyarrow import parquet

    def batches(file: Path, columns: list[str]) -> Iterator[Any]:
        try:
            with _open_parquet(parquet, file) as opened:
                yield from opened.iter_batches(_ROWS, columns=columns)
        except OSError as error:  # a page that doesn't decompress: pyarrow names no file
            raise UserError(f"data.path: {file}: damaged: {error}") from error

    tables: dict[str, list[_Table]] = {}
    for split, files in _parquet_files(data).items():
        tables[split] = []
        for file in files:
            with _open_parquet(parquet, file) as opened:
                count = opened.metadata.num_rows
                features = Features.from_arrow_schema(opened.schema_arrow)
            read = functools.partial(batches, file)
            tables[split].append(_Table(str(file), count, features, read))
    return _from_tables(data, tables)


def _hub(data: Data) -> Source:
    import datasets

    try:
        stored = datasets.load_dataset(data.hub, revision=data.revision)
    except Exception as error:  # offline, unknown, refused: what it raises hangs on versions
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        splits = [s for s in (data.train, data.validation, data.test) if isinstance(s, str)]
        names = " and ".join(f"{split}*.parquet" for split in dict.fromkeys(splits))
        raise UserError(
            f"data={data.name}: can't fetch {data.hub} (revision {data.revision}) from the hub: "
            f"{first}; without network give data.path=FOLDER with {names}"
        ) from error

    def batches(split: str, columns: list[str]) -> Iterator[Any]:
        arrow = stored[split].select_columns(columns).with_format("arrow")
        return iter(arrow.iter(_ROWS))

    tables = {}
    for split in _wanted(data, sorted(stored)):
        name = f"split {split!r} of {data.hub}"
        read = functools.partial(batches, split)
        tables[split] = [_Table(name, len(stored[split]), stored[split].features, read)]
    return _from_tables(data, tables)


def _from_tables(data: Data, tables: dict[str, list[_Table]]) -> Source:
    names: list[str] | None = None
    first: _Table | None = None
    parts = {}
    for split, pieces in tables.items():
        columns = [_columns(data, table) for table in pieces]
        for table, (_, label) in zip(pieces, columns, strict=True):
            found = getattr(table.features[label], "names", None)
            if first is None:
                first, names = table, found
            elif found != names:
                raise UserError(
                    f"data.label: the classes of {table.name} ({found}) are not those of "
                    f"{first.name} ({names})"
                )

        def examples(
            pieces: list[_Table] = pieces, columns: list[tuple[str, str]] = columns
        ) -> Iterator[Example]:
            for table, (image, label) in zip(pieces, columns, strict=True):
                row = 0
                for batch in table.batches([image, label]):
                    images = batch.column(image).to_pylist()
                    for cell, number in zip(images, batch.column(label).to_pylist(), strict=True):
                        yield _example(f"row {row} of {table.name}", cell, number)
                        row += 1

        parts[split] = Part(sum(table.rows for table in pieces), examples)
    return Source(parts, names)


def _example(where: str, cell: Any, label: Any) -> Example:
    """From the values of a row: the image's bytes, or a struct of bytes and path."""
    content, path = cell, None
    if isinstance(cell, dict):
        content, path = cell.get("bytes"), cell.get("path")
    if content is not None:
        return Example(where, content, label)
    if path is not None:
        return Example(f"{where} ({path})", Path(path), label)
    raise UserError(f"data.image: {where}: no image")


def _columns(data: Data, table: _Table) -> tuple[str, str]:
    """(image column, label column): those `data` names, else the only ones of their type.

    Raises UserError that lists the columns.
    """
    from datasets import ClassLabel, Image, Value

    features = table.features

    def is_image(kind: Any) -> bool:  # a file without the hub's notes shows the bare struct
        return isinstance(kind, Image) or (isinstance(kind, dict) and "bytes" in kind)

    def is_integer(kind: Any) -> bool:
        return isinstance(kind, Value) and "int" in kind.dtype

    def choose(key: str, named: str | None, what: str, found: list[str]) -> str:
        if named is not None:
            if named not in features:
                raise unknown(f"data.{key}", named, features, f"a column of {table.name}:")
            return named
        if len(found) == 1:
            return found[0]
        shown = ", ".join(f"{name} ({_kind(kind)})" for name, kind in features.items())
        raise UserError(
            f"data.{key}: {table.name} has {len(found) or 'no'} columns of {what}; "
            f"give data.{key}=COLUMN, of: {shown}"
        )

    images = [name for name, kind in features.items() if is_image(kind)]
    labels = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
    labels = labels or [name for name, kind in features.items() if is_integer(kind)]
    return (
        choose("image", data.image, "images", images),
        choose("label", data.label, "class numbers", labels),
    )


def _kind(feature: Any) -> str:
    """A column's type in a word: Image, ClassLabel, int64, ..."""
    name = type(feature).__name__
    return str(feature.dtype) if name == "Value" else name
