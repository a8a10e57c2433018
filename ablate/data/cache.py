"""Decoded once, shared by all runs: memory-mapped uint8 images under the data's fingerprint.

    <folder>/<fingerprint>/            appears whole, by one rename
        train.images.npy               uint8 (N, size, size, channels)
        train.labels.npy               int64 (N,)      and so for validation and test
        meta.json                      written last: counts, class names, sizes of the files
    <folder>/<fingerprint>.lock        held by whoever builds it
    <folder>/.<fingerprint>.building/  what a builder has so far; a dead one's is removed

Nothing here imports `datasets` or `sklearn` once the cache is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate.data import source
from ablate.fingerprint import fingerprint
from ablate.rundir import Lock, read_json, sync_folder, to_json, write_whole
from ablate.spec import Data, UserError

FORMAT = 1  # raised when the same data would be decoded to other pixels: old caches are rebuilt
SPLITS = ("train", "validation", "test")
_REPORT = 128  # rows between two calls of `progress`

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Split:
    """images: uint8 (N, H, W, C); labels: int64 (N,)."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Cached:
    """A whole cache."""

    folder: Path
    counts: dict[str, int]  # by split: train, validation, test
    class_names: list[str] | None

    def split(self, name: str) -> Split:
        """train, validation or test, mapped: its pages are shared by all processes that read it.

        Mapped copy-on-write, since torch warns of arrays that it can't write to.
        """
        images, labels = (
            torch.from_numpy(np.load(self.folder / _file(name, what), mmap_mode="c"))
            for what in ("images", "labels")
        )
        return Split(images, labels)


def _file(split: str, what: str) -> str:
    return f"{split}.{what}.npy"


def open_cached(data: Data, folder: Path) -> Cached | None:
    """The cache of `data` in `folder`, or None where there is no whole one.

    Raises UserError where it holds another number of classes than `data.classes`.
    """
    home = folder / data.fingerprint
    meta = read_json(home / "meta.json")
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        return None
    try:
        whole = all((home / name).stat().st_size == size for name, size in meta["bytes"].items())
    except FileNotFoundError:
        return None
    if not whole:
        return None
    source.check_class_names(data, meta["class_names"])
    if meta["top_label"] >= data.classes:
        raise UserError(
            f"data.classes: {data.classes}, but data={data.name} has labels up to "
            f"{meta['top_label']}"
        )
    return Cached(home, meta["counts"], meta["class_names"])


def prepare(data: Data, folder: Path, progress: Progress | None = None) -> Cached:
    """The cache of `data`, built if need be: once, however many processes ask at the same moment.

    `progress(done, total)` is called, in images, while it is built here or by somebody else whom
    we wait for; what it raises ends the call and leaves nothing behind. Raises UserError for bad
    data (see `source`) and for data that changed since `data.fingerprint` was taken, OSError
    where the disk is full.
    """
    if cached := open_cached(data, folder):
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder, data.fingerprint)
    while not lock.acquire(wait_s=0.5):
        notes = lock.notes()
        if progress and "total" in notes:
            progress(notes["done"], notes["total"])
    try:
        cached = open_cached(data, folder)  # somebody may have built it while we waited
        if cached is None:
            _remove_leftovers(folder)

            def report(done: int, total: int) -> None:
                lock.note(done=done, total=total)
                if progress:
                    progress(done, total)

            _build(data, folder, report)
            cached = open_cached(data, folder)
            assert cached is not None
        return cached
    finally:
        lock.release()


def count(data: Data, folder: Path) -> dict[str, int] | None:
    """Examples of train, validation and test, without decoding one; None: not known before the
    set is fetched from the hub. Raises UserError as `prepare` does, where it can tell so early.
    """
    if cached := open_cached(data, folder):
        return cached.counts
    rows = source.rows(data)
    if rows is None:
        return None
    return {split: len(chosen) for split, (_, chosen) in source.cut(data, rows).items()}


def _lock(folder: Path, name: str) -> Lock:
    return Lock(folder / f"{name}.lock")


def _building(folder: Path, name: str) -> Path:
    return folder / f".{name}.building"


def _remove_leftovers(folder: Path) -> None:
    """Remove what dead builders of other sets left; they are dead if nobody holds their lock."""
    for leftover in folder.glob(".*.building"):
        lock = _lock(folder, leftover.name[1:].removesuffix(".building"))
        if lock.acquire():
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()


class _Array:
    """A .npy file that is written row after row.

    Allocated before the first row, so that a full disk says so now, not after an hour of decoding,
    and so that no page of the file can be missing when it is mapped (that would be a SIGBUS).
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.name = path.name
        self.kind = np.dtype(dtype)
        self.bytes = 0
        self._file = open(path, "wb", buffering=1 << 20)  # noqa: SIM115
        try:
            header = {"descr": self.kind.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)
            self.bytes = self._file.tell() + math.prod(shape) * self.kind.itemsize
            os.posix_fallocate(self._file.fileno(), 0, self.bytes)
        except BaseException:
            self.close()
            raise

    def append(self, row: Any) -> None:
        self._file.write(np.asarray(row, dtype=self.kind).tobytes())

    def finish(self) -> None:
        """On the disk, all of it."""
        assert self._file.tell() == self.bytes
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what it could not flush is being thrown away
            self._file.close()


def _build(data: Data, folder: Path, progress: Progress) -> None:
    """Decode everything into the temporary folder, then give that its name.

    One image is in memory at a time. The caller holds the lock.
    """
    building = _building(folder, data.fingerprint)
    home = folder / data.fingerprint
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        hashes = building / "hashes.json"
        _check_unchanged(data, hashes)
        meta = _decode(data, building, progress)
        _check_unchanged(data, hashes)  # nor while we read it
        hashes.unlink(missing_ok=True)
        write_whole(building / "meta.json", to_json(meta))
        shutil.rmtree(home, ignore_errors=True)  # not whole, or of an older format
        os.rename(building, home)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _check_unchanged(data: Data, hashes: Path) -> None:
    if fingerprint(dataclasses.asdict(data), hashes) != data.fingerprint:
        raise UserError(
            f"data: data={data.name} ({data.path or data.hub or data.source}) changed since this "
            f"run was planned; plan again to train on what is there now"
        )


def _decode(data: Data, building: Path, progress: Progress) -> dict[str, Any]:
    """Every image and label, in stored order, into arrays; returns what meta.json says."""
    opened = source.open_source(data)
    rows = {split: part.rows for split, part in opened.parts.items()}
    chosen = source.cut(data, rows)
    total, done, top_label = sum(rows.values()), 0, 0
    shape = (data.size, data.size, data.channels)
    with contextlib.ExitStack() as stack:
        arrays: dict[str, tuple[_Array, _Array]] = {}
        for split in SPLITS:
            number = len(chosen[split][1])
            arrays[split] = (
                _Array(building / _file(split, "images"), (number, *shape), np.uint8),
                _Array(building / _file(split, "labels"), (number,), np.int64),
            )
            for array in arrays[split]:
                stack.callback(array.close)
        progress(0, total)
        for stored, part in opened.parts.items():
            takers = []  # (is row i ours?, images, labels) of the splits cut from this stored one
            for split in SPLITS:
                origin, numbers = chosen[split]
                if origin == stored:
                    ours = np.zeros(part.rows, dtype=bool)
                    ours[numbers] = True
                    takers.append((ours, *arrays[split]))
            for row, example in enumerate(part.examples()):
                label = source.class_number(data, stored, example)
                pixels = source.decode(example, data.size, data.channels)
                for ours, images, labels in takers:
                    if ours[row]:
                        images.append(pixels)
                        labels.append(label)
                top_label = max(top_label, label)
                done += 1
                if done % _REPORT == 0:
                    progress(done, total)
        every = [array for pair in arrays.values() for array in pair]
        for array in every:
            array.finish()
        progress(done, total)
    return {
        "format": FORMAT,
        "name": data.name,
        "counts": {split: len(numbers) for split, (_, numbers) in chosen.items()},
        "class_names": opened.class_names,
        "top_label": top_label,
        "bytes": {array.name: array.bytes for array in every},
    }
