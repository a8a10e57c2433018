"""What a dataset *is*, whatever path it lies at: a hash that plans need and workers check.

Files count by the sha256 of their contents, image folders by sorted names and sizes, hub sets by
name and pinned revision, bundled sets by name and, where they have one, revision: so that planning
reads no image. The same data by another path is the same run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.rundir import read_json, to_json, write_whole
from ablate.spec import UserError

IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
LARGE = 1 << 30  # bytes that take seconds to hash

# What of the `data` section belongs to the data's content: how it is read and split.
_READING = ("source", "image", "label", "size", "channels", "train", "validation", "test")


def fingerprint(data: dict[str, Any], memo: Path | None = None) -> str:
    """16 hex digits for a plain `data` section (without its `fingerprint`).

    `memo`: a JSON file that remembers hashes by path, size and times, so that a plan re-reads no
    gigabytes. Raises UserError where `data.path` does not exist or holds no images.
    """
    name, path = str(data["name"]), data["path"]
    content: Any
    if path is None:
        if data["source"] == "datasets" and data["hub"] is None:
            raise UserError(
                f"data.path: data={name} needs data.path=FOLDER with its parquet files "
                f"or folders of images"
            )
        content = [name, data["hub"], data["revision"]]
    else:
        content = _files(Path(path).expanduser(), name, memo)
    reading = {key: data[key] for key in _READING}
    if data.get("cache_size") is not None:  # added later: without it all is as it was
        reading["cache_size"] = data["cache_size"]
    text = json.dumps([content, reading], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def local_files(path: Path, name: str) -> tuple[str, list[Path]]:
    """("parquet" | "folder", files in name order) of the data that lies at `path`.

    Names that begin with a dot are passed over. Raises UserError where nothing is left.
    """
    hint = f"give data.path=FOLDER with the files of data={name}"
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "no such folder"
        raise UserError(f"data.path: {path}: {what}; {hint}")
    parquet = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    if parquet:
        return "parquet", parquet
    images: list[str] = []
    for folder, folders, files in os.walk(path, followlinks=True):  # subsets are made of links
        folders[:] = [entry for entry in folders if not entry.startswith(".")]
        images += [
            os.path.join(folder, file)
            for file in files
            if os.path.splitext(file)[1].lower() in IMAGES and not file.startswith(".")
        ]
    if images:
        return "folder", [Path(image) for image in sorted(images)]
    raise UserError(f"data.path: {path}: holds neither *.parquet nor images in folders; {hint}")


def local_splits(path: Path, name: str) -> list[str]:
    """The splits that lie at `path`, in name order; UserError where there is no data.

    Of parquet files each file name's leading letters (`train-00000-of-00002.parquet`: train); of
    image folders the folders beside `train`, or "train" alone where there is no such folder.
    """
    kind, files = local_files(path, name)
    if kind == "parquet":
        return sorted({split_of(file) for file in files} - {""})
    return _subfolders(path) if _has_splits(path) else ["train"]


def split_of(file: Path) -> str:
    """The split that a parquet file belongs to, "" where its name begins with no letter."""
    letters = re.match(r"[A-Za-z]*", file.name.removesuffix(".parquet"))
    assert letters
    return letters[0]


@dataclass(frozen=True)
class Slice:
    """A stored split, or the rows of it from one bound to another, as `datasets` writes them.

    A bound is a number of rows, or of per cent; counted from the end where it is negative.
    """

    text: str  # train[:99%]
    split: str  # train
    first: int | None = None
    last: int | None = None
    percent: bool = False

    def rows(self, stored: int) -> range:
        """The numbers of its rows in the stored split, which has `stored`.

        Per cent are rounded to the closest row, as by `datasets` (arrow_reader.py).
        """
        first, last = (
            default if bound is None else round(bound * stored / 100) if self.percent else bound
            for bound, default in ((self.first, 0), (self.last, stored))
        )
        return range(stored)[first:last]


def parse_slice(key: str, text: str) -> Slice:
    """The value of `data.KEY` that names a split. UserError where it is no name and no slice."""
    if "[" not in text and "]" not in text:
        return Slice(text, text)
    parts = re.fullmatch(r"([^\[\]]+)\[(?:(-?\d+)(%?))?:(?:(-?\d+)(%?))?\]", text)
    if parts is None:
        raise UserError(
            f"data.{key}: expected a split, or a slice of one such as train[:99%], train[99%:] or "
            f"train[1000:2000], got {text!r}"
        )
    split, *bounds = parts.groups()
    first, last = (None if bound is None else int(bound) for bound in bounds[::2])
    units = {unit == "%" for unit, bound in ((bounds[1], first), (bounds[3], last)) if bound}
    if len(units) > 1:
        raise UserError(f"data.{key}: {text!r} mixes rows and per cent; give both bounds in one")
    percent = units == {True}
    if percent and max(abs(first or 0), abs(last or 0)) > 100:
        raise UserError(f"data.{key}: {text!r} goes beyond 100 %")
    return Slice(text, split, first, last, percent)


def split_folder(path: Path, split: str) -> Path:
    """The folder that holds a split's class folders."""
    return path / split if _has_splits(path) else path


def class_folders(path: Path) -> list[str]:
    """The class names of an image folder, in name order: of its `train` where it has splits."""
    return _subfolders(split_folder(path, "train"))


def _has_splits(path: Path) -> bool:
    """Is `train` a split? One that holds no folders is a class of its own, as in COCO."""
    train = path / "train"
    return train.is_dir() and bool(_subfolders(train))


def _subfolders(path: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(path) if e.is_dir() and not e.name.startswith("."))


def _files(path: Path, name: str, memo: Path | None) -> Any:
    kind, files = local_files(path, name)
    if kind == "folder":
        return [(str(file.relative_to(path)), file.stat().st_size) for file in files]
    remembered = read_json(memo) if memo else None
    known: dict[str, Any] = remembered if isinstance(remembered, dict) else {}
    stamps = {file: _stamp(file) for file in files}
    keys = {file: str(file.resolve()) for file in files}
    new = [file for file in files if not _remembered(known.get(keys[file]), stamps[file])]
    size = sum(stamps[file][0] for file in new)
    if size > LARGE:
        print(f"data={name}: reading its {size / 1e9:,.1f} GB once, to know them", file=sys.stderr)
    hashes, fresh = [], False
    for file in files:
        key, stamp = keys[file], stamps[file]
        entry: Any = known.get(key)
        if file in new:
            with open(file, "rb") as stream:
                entry = [*stamp, hashlib.file_digest(stream, "sha256").hexdigest()]
            # A file this young may change again within one tick of the file system's clock.
            if time.time_ns() - stamp[2] > 2_000_000_000:
                known[key] = entry
                fresh = True
        hashes.append((file.name, entry[3]))
    if memo and fresh:
        memo.parent.mkdir(parents=True, exist_ok=True)
        write_whole(memo, to_json(known))
    return hashes


def _stamp(file: Path) -> list[int]:
    """What changes when the file does. ctime, too: a copy can set mtime, nobody can set ctime."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _remembered(entry: Any, stamp: list[int]) -> bool:
    return isinstance(entry, list) and len(entry) == 4 and entry[:3] == stamp
