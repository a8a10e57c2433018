"""What a dataset *is*, whatever path it lies at: a hash that plans need and workers check.

Files count by the sha256 of their contents, those of image folders by their names in it, too, as
class and split are names; hub sets by name and pinned revision, bundled sets by name and, where
they have one, revision. What was hashed once is remembered, so that planning again reads no image.
The same data by another path is the same run.

Older versions knew image folders by names and sizes alone. A store whose set was decoded then keeps
its fingerprint, and so its runs, if nothing in the folder changed since: what is there is what was
decoded. From then on that fingerprint stands for those contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.shared.errors import UserError
from ablate.shared.files import read_json, write_whole

IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
LARGE, MANY = 1 << 30, 50_000  # bytes and files that take seconds to hash
_SAID_S = 10.0  # between two lines of progress
_OLDER = "older"  # in the memo: what fingerprints of older versions stand for

# What of the `data` section belongs to the data's content: how it is read and split.
_READING = ("source", "image", "label", "size", "channels", "train", "validation", "test")


def fingerprint(data: dict[str, Any], memo: Path | None = None) -> str:
    """16 hex digits for a plain `data` section (without its `fingerprint`).

    `memo`: a JSON file that remembers hashes by path, size and times, so that a plan re-reads no
    gigabytes. Raises UserError where `data.path` does not exist or holds no images.
    """
    name, path = str(data["name"]), data["path"]
    if path is None:
        if data["source"] == "datasets" and data["hub"] is None:
            raise UserError(
                f"data.path: data={name} needs data.path=FOLDER with its parquet files "
                f"or folders of images"
            )
        return _digest([name, data["hub"], data["revision"]], data)
    folder = Path(path).expanduser()
    kind, files = _local(folder, name)
    known = _Memo(memo)
    hashes = known.hashes(files, name)
    if kind == "parquet":
        return _digest([(os.path.basename(file), hashes[file]) for file in files], data)
    prefix = os.path.join(folder, "")
    names = {file: file.removeprefix(prefix) for file in files}
    found = _digest([(names[file], hashes[file]) for file in files], data)
    older = _digest([(names[file], known.stamps[file][0]) for file in files], data)
    return older if known.stands_for(older, found, folder, name) else found


def _digest(content: Any, data: dict[str, Any]) -> str:
    reading = {key: data[key] for key in _READING}
    if data.get("cache_size") is not None:  # added later: without it all is as it was
        reading["cache_size"] = data["cache_size"]
    text = json.dumps([content, reading], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def local_files(path: Path, name: str) -> tuple[str, list[Path]]:
    """("parquet" | "folder", files in name order) of the data that lies at `path`.

    Names that begin with a dot are passed over. Raises UserError where nothing is left.
    """
    kind, files = _local(path, name)
    return kind, [Path(file) for file in files]


def _local(path: Path, name: str) -> tuple[str, list[str]]:
    """`local_files` as texts: of a hundred thousand, paths take longer than the disk."""
    hint = f"give data.path=FOLDER with the files of data={name}"
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "no such folder"
        raise UserError(f"data.path: {path}: {what}; {hint}")
    parquet = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    if parquet:
        return "parquet", [str(file) for file in parquet]
    images: list[str] = []
    for folder, files in _walk(path):
        images += [
            os.path.join(folder, file)
            for file in files
            if os.path.splitext(file)[1].lower() in IMAGES and not file.startswith(".")
        ]
    if images:
        return "folder", sorted(images)
    raise UserError(f"data.path: {path}: holds neither *.parquet nor images in folders; {hint}")


def _walk(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) below `path`, links followed: subsets are made of them. One that leads
    back to a folder that it lies in is passed over. UserError for a folder that can't be read."""

    def refuse(error: OSError) -> None:
        raise UserError(f"data.path: {error.filename}: {error.strerror}")

    above = {str(path): {_identity(path)}}
    for folder, folders, files in os.walk(path, onerror=refuse, followlinks=True):
        ancestors = above.pop(folder)
        inside = {
            entry: _identity(os.path.join(folder, entry))
            for entry in folders
            if not entry.startswith(".")
        }
        folders[:] = [entry for entry, identity in inside.items() if identity not in ancestors]
        for entry in folders:
            above[os.path.join(folder, entry)] = ancestors | {inside[entry]}
        yield folder, files


def _identity(folder: Path | str) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


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


class _Memo:
    """The hashes of files, remembered in a JSON file by path and by what changes when a file does.

    stamps: of each file that was asked for (see `_stamp`).
    """

    def __init__(self, path: Path | None) -> None:
        remembered = read_json(path) if path else None
        self._path = path
        self._known: dict[str, Any] = remembered if isinstance(remembered, dict) else {}
        self.stamps: dict[str, list[int]] = {}

    def hashes(self, files: list[str], name: str) -> dict[str, str]:
        """The sha256 of each file's content. UserError for one that can't be read."""
        self.stamps = {file: _stamp(file) for file in files}
        keys = _keys(files)
        found, new = {}, []
        for file in files:
            digest = _remembered(self._known.get(keys[file]), self.stamps[file])
            if digest is None:
                new.append(file)
            else:
                found[file] = digest
        fresh = False
        try:
            for file, digest in self._read(new, name):
                found[file], stamp = digest, self.stamps[file]
                # A file this young may change again within one tick of the file system's clock.
                if time.time_ns() - stamp[2] > 2_000_000_000:
                    self._known[keys[file]] = [*stamp, digest]
                    fresh = True
        finally:  # what was read is known, whatever ends the reading
            if fresh:
                self._write()
        return found

    def _read(self, files: list[str], name: str) -> Iterator[tuple[str, str]]:
        """Hash them, as fast as they can be read, and say so where that takes a while."""
        size, done = sum(self.stamps[file][0] for file in files), 0
        slow = size > LARGE or len(files) > MANY
        what = f"{len(files):,} files, {size / 1e9:,.1f} GB"
        if slow:
            print(f"data={name}: reading its {what} once, to know them", file=sys.stderr)
        said = time.monotonic()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                for file, digest in zip(files, pool.map(_sha256, files), strict=True):
                    yield file, digest
                    done += self.stamps[file][0]
                    if slow and time.monotonic() - said > _SAID_S:
                        said = time.monotonic()
                        print(f"data={name}: read {done / 1e9:,.1f} GB of {what}", file=sys.stderr)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def stands_for(self, older: str, found: str, folder: Path, name: str) -> bool:
        """Does a fingerprint of names and sizes stand for these contents? Decided once a store,
        where a set was decoded by it: if nothing has changed since, it does."""
        if self._path is None:
            return False
        decided = self._known.get(_OLDER)
        if not isinstance(decided, dict):
            decided = self._known[_OLDER] = {}
        if older not in decided:
            home = self._path.parent / older
            try:  # written before the first image is decoded
                decoded_at = (home / "train.labels.npy").stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                return False
            same = _changed_at(folder, self.stamps) < decoded_at
            decided[older] = found if same else None
            self._write()
            if not same:
                print(
                    f"data={name}: {folder}: changed since it was decoded, when names and sizes "
                    f"were all that was noted: nobody knows whether these are the same images, so "
                    f"its runs are planned anew",
                    file=sys.stderr,
                )
        return bool(decided[older] == found)

    def _write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self._known).encode())


def _keys(files: list[str]) -> dict[str, str]:
    """What a file is remembered by: its path, by which other path it was asked for."""
    if files[0].endswith(".parquet"):
        return {file: os.path.realpath(file) for file in files}
    folders: dict[str, str] = {}
    keys = {}
    for file in files:
        folder, name = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.join(os.path.realpath(folder), "")
        keys[file] = folders[folder] + name
    return keys


def _sha256(file: str) -> str:
    try:
        with open(file, "rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"data.path: {file}: {error.strerror}") from error


def _stamp(file: str) -> list[int]:
    """What changes when the file does. ctime, too: a copy can set mtime, nobody can set ctime."""
    try:
        found = os.stat(file)
    except OSError as error:
        raise UserError(f"data.path: {file}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"data.path: {file}: is no regular file")
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _remembered(entry: Any, stamp: list[int]) -> str | None:
    """The hash in an entry of the memo, if it is this file's. Older versions noted no inode."""
    if not isinstance(entry, list) or not entry or entry[:-1] not in (stamp, stamp[:3]):
        return None
    return entry[-1] if isinstance(entry[-1], str) else None


def _changed_at(folder: Path, stamps: dict[str, list[int]]) -> int:
    """When anything was last written, renamed or linked in the folder: ns since the epoch."""
    times = [max(stamp[1:3]) for stamp in stamps.values()]
    entries = {*stamps, *(inside for inside, _ in _walk(folder))}
    return max(*times, *(os.lstat(entry).st_ctime_ns for entry in entries))
