"""The fingerprint of a dataset: a hash of its content, whatever its path. Plans need it and workers
check it.

Local files count by the sha256 of their contents and by their names in the folder, which give class
and split; hub sets by name and pinned revision; bundled sets by name and, where they have one,
revision. Hashes are remembered, so that planning again reads no image. The same data at another
path gives the same run.

Used by plans (planning/data_section.py) and before decoding (data/building.py). A change of the
hash changes the ids of all runs on such data; tests/test_fingerprint.py has the golden ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ablate.run.dataset import Listing, list_local
from ablate.run.schema import added_fields
from ablate.run.sections import Data
from ablate.shared import (
    DISK_FULL_ERRORS,
    UserError,
    make_folder,
    read_sealed,
    write_sealed,
)

LARGE, MANY = 1 << 30, 50_000  # bytes and files that take seconds to hash
_SAID_S = 10.0  # between two lines of progress

# The keys of the `data` section that say how the content is read and split.
_READING = ("source", "image", "label", "size", "channels", "train", "validation", "test")
# More such keys, which count only where they differ from their defaults.
_ADDED = ("cache_size", "cache", "broken", "labels", "text", "order", "rule")

WITHIN_CLASSES = "within classes"  # how `data.order=keyed` cuts class folders
CORRUPTED = "corrupted"  # the classes are folders in CORRUPTION/SEVERITY
LABEL_SETS = "label sets"  # an image has the classes of a table


def data_fingerprint(
    data: dict[str, Any],
    memo: Path | None = None,
    listing: Listing | None = None,
    is_absent: bool = False,
) -> str:
    """Return the hash of a dataset's content, 16 hex digits, given its plain `data` section without
    `fingerprint`.

    `memo`: a JSON file that remembers hashes by path, size and times, so that planning again does
    not read gigabytes. `listing`: the files at `data.path`, where they have just been listed.
    `is_absent`: whether the set is not here, so that it is planned without its files. Raise
    UserError where `data.path` does not exist or holds no images.
    """
    name, path = str(data["name"]), data["path"]
    if is_absent:
        return _digest([name, "unseen"], data)
    if path is None:
        if data["source"] == "datasets" and data["hub"] is None:
            files = "parquet files or folders of images"
            if data.get("text") is not None:
                files = "tables of images and texts, train*.csv or train*.parquet"
            raise UserError(f"data.path: data={name} needs a folder with its {files}")
        return _digest([name, data["hub"], data["revision"]], data)
    if listing is None:
        has_texts = data.get("text") is not None
        corruptions = data.get("corruptions")
        listing = list_local(Path(path).expanduser(), name, has_texts, corruptions)
    file_hashes = FileHashes(memo)
    paths = [*listing.files, *listing.tables()]
    hashes = file_hashes.hashes(paths, name)
    prefix = os.path.join(listing.path, "")
    names = [file.removeprefix(prefix) for file in paths]
    content = [*zip(names, hashes, strict=True)]
    if listing.has_corruptions:
        return _digest([CORRUPTED, content], data)
    is_by_class = listing.kind == "folder" and data.get("labels", "classes") == "classes"
    if is_by_class and listing.label_table is not None:
        return _digest([LABEL_SETS, content], data)
    if is_by_class and data.get("order", "stored") == "keyed":
        return _digest([WITHIN_CLASSES, content], data)
    return _digest(content, data)


def _digest(content: Any, data: dict[str, Any]) -> str:
    reading = {key: data[key] for key in _READING}
    defaults = added_fields(Data)
    reading |= {key: data[key] for key in _ADDED if data.get(key, defaults[key]) != defaults[key]}
    if "cache" in reading:  # one file serves all sizes
        del reading["size"]
    if "labels" in reading:  # pixels are counted by class
        reading |= {key: data.get(key) for key in ("ignore", "classes")}
    text = json.dumps([content, reading], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


FINGERPRINTS_FILE = Path("cache", "fingerprints.json")  # in a store


class FileHashes:
    """The hashes of files, remembered in a JSON file by path and by what changes when a file does.

    stamps: the stamp of each file last asked about, in that order (see `_stamp`).
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # {} where it is not as it was written: a hash that rotted there would make other runs.
        self._entries: dict[str, Any] = (read_sealed(path) if path else None) or {}
        self.stamps: list[list[int]] = []

    def hashes(self, files: list[str], name: str) -> list[str]:
        """Return the sha256 of each file's content. Raise UserError for a file that can't be
        read."""
        self.stamps = [_stamp(file) for file in files]
        keys = _keys(files)
        remembered = map(self._entries.get, keys)
        digests = [*map(_remembered, remembered, self.stamps)]
        new = [n for n, digest in enumerate(digests) if digest == ""]
        fresh = False
        try:
            for n, digest in zip(new, self._new_hashes(files, new, name), strict=True):
                digests[n], stamp = digest, self.stamps[n]
                # A file this young may change again within one tick of the file system's clock.
                if time.time_ns() - stamp[2] > 2_000_000_000:
                    self._entries[keys[n]] = [*stamp, digest]
                    fresh = True
        finally:  # what was read is known, whatever ends the reading
            if fresh:
                self._write()
        return digests

    def _new_hashes(self, files: list[str], new: list[int], name: str) -> Iterator[str]:
        """Yield the hash of each new file, read as fast as they can be; print progress where that
        takes a while."""
        files, sizes = [files[n] for n in new], [self.stamps[n][0] for n in new]
        size, bytes_read = sum(sizes), 0
        slow = size > LARGE or len(files) > MANY
        amount = f"{len(files):,} files, {size / 1e9:,.1f} GB"
        if slow:
            print(f"data={name}: reading its {amount} once, to know them", file=sys.stderr)
        reported_at = time.monotonic()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                for file_size, digest in zip(sizes, pool.map(_sha256, files), strict=True):
                    yield digest
                    bytes_read += file_size
                    if slow and time.monotonic() - reported_at > _SAID_S:
                        reported_at = time.monotonic()
                        print(
                            f"data={name}: read {bytes_read / 1e9:,.1f} GB of {amount}",
                            file=sys.stderr,
                        )
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _write(self) -> None:
        if self._path is not None:
            try:
                make_folder(self._path.parent)
                write_sealed(self._path, self._entries)
            except OSError as error:  # on a full disk it is read again
                if error.errno not in DISK_FULL_ERRORS:
                    raise


def _keys(files: list[str]) -> list[str]:
    """Return for each file the path under which its hash is remembered, the same whichever path led
    to it.

    Links are resolved: of parquet files throughout, of others in the path of their folder only.
    """
    if files[0].endswith(".parquet"):
        return [os.path.realpath(file) for file in files]
    folders: dict[str, str] = {}
    keys = []
    for file in files:
        folder, _, name = file.rpartition(os.sep)
        if folder not in folders:
            folders[folder] = os.path.join(os.path.realpath(folder or os.sep), "")
        keys.append(folders[folder] + name)
    return keys


def _sha256(file: str) -> str:
    try:
        with open(file, "rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"data.path: {file}: {error.strerror}") from error


def _stamp(file: str) -> list[int]:
    """Return [size in bytes, mtime in ns, ctime in ns, inode] of a file, which changes when the
    file does.

    It includes ctime since a copy can set mtime, but nobody can set ctime. Raise UserError for
    anything but a regular file, and for a file that is not there.
    """
    try:
        status = os.stat(file)
    except OSError as error:
        raise UserError(f"data.path: {file}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"data.path: {file}: is no regular file")
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _remembered(entry: Any, stamp: list[int]) -> str:
    """Return the hash in an entry of the memo; "" if the entry is not that of this file."""
    if not isinstance(entry, list) or not entry:
        return ""
    *noted, digest = entry
    return digest if noted == stamp and isinstance(digest, str) else ""
