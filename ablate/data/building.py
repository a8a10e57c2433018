"""Building a cache: decodes every image into arrays, and resumes a build that was killed.

A journal records how far a build is, for the process that resumes it.

    journal.json, sealed
        of       the identity of the build: another one can't use this journal
        done     {stored split: row}: all rows before it are decoded and on the disk
        broken   which of them could not be read
        sha256   by array, of its bytes as far as they are done

Rows are decoded in the order in which each array has them, so the finished part of an array is its
beginning. Its hash grows with it, and is compared before a build is resumed and once more at its
end: otherwise bytes that were damaged in between would be sealed as if they had been decoded so.

Used by `data/cache.py`, for `ablate prepare` and `ablate sweep`. A change of the decoded pixels
also needs `FORMAT` in `data/splits.py` raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from ablate.data import source
from ablate.data.picture import Array, Chunk, Unreadable, decode_rows
from ablate.data.splits import FORMAT, mapped
from ablate.data.storage import Encoded, Form, Masked, Squares, array_file, arrays
from ablate.data.stored_set import SPRITES, Source, check_sprite
from ablate.run import (
    META_FILE,
    SPLITS,
    Data,
    data_fingerprint,
    decoded,
    first_of_lines,
)
from ablate.shared import (
    DISK_FULL_ERRORS,
    Failure,
    UserError,
    read_sealed,
    sync_folder,
    to_json,
    write_sealed,
    write_whole,
)

JOURNAL = "journal.json"
_JOURNAL_S = 10.0  # what a killed build loses at most

RowsDone = dict[str, int]  # by stored split, the row before which all is decoded


def noted(path: Path, rows: dict[str, int]) -> dict[str, Any] | None:
    """Return the journal at `path`, if it is of so many rows of each stored split and the arrays
    next to it have the sizes that it states; else None."""
    content = read_sealed(path)
    if content is None or content["of"] != _journal_header(rows, content["of"]["bytes"]):
        return None
    arrays = {path.parent / name: size for name, size in content["of"]["bytes"].items()}
    if not all(array.exists() and array.stat().st_size == size for array, size in arrays.items()):
        return None
    return content


def _journal_header(rows: dict[str, int], sizes: dict[str, int]) -> dict[str, Any]:
    return {"format": FORMAT, "pillow": PIL.__version__, "rows": rows, "bytes": sizes}


class BuildJournal:
    """The journal of a build, written by a thread of its own, since the disk may take seconds to
    write everything.

    rows: of each stored split. finished: returns how many rows of each array are done.
    """

    def __init__(
        self,
        path: Path,
        arrays: list[Array],
        rows: dict[str, int],
        finished: Callable[[RowsDone], list[int]],
    ) -> None:
        self.path = path
        self._arrays, self._finished = arrays, finished
        self._header = _journal_header(rows, {array.path.name: array.bytes for array in arrays})
        self._hashed = _Hashed(arrays)
        self._noted_at = time.monotonic()
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def resume_point(self) -> tuple[RowsDone, list[Unreadable]]:
        """Return (rows done, broken images); ({}, []) where there is nothing to resume. Does not
        read the arrays."""
        content = noted(self.path, self._header["rows"])
        if content is None or content["of"] != self._header:
            return {}, []
        rows_done: RowsDone = content["done"]
        broken: list[Unreadable] = []
        for line, places in content["broken"]:
            broken.append((line, [(split, row) for split, row in places]))
        return rows_done, broken

    def damage(self) -> list[str]:
        """List the arrays whose finished part is not as it was written. Reads all of it."""
        content = read_sealed(self.path)
        if content is None:
            return []
        self._hashed = _Hashed(self._arrays)
        digests = self._hashed.until(self._finished(content["done"]))
        noted_digests = content["sha256"]
        return [name for name, digest in digests.items() if digest != noted_digests[name]]

    def note(self, rows_done: RowsDone, broken: list[Unreadable]) -> None:
        """Write down how far the build is, if the last note is old enough and on the disk; else do
        nothing."""
        if time.monotonic() - self._noted_at < _JOURNAL_S:
            return
        if self._writing is not None:
            if not self._writing.done():
                return
            self._writing.result()  # raises what writing it did
        self._noted_at = time.monotonic()
        self._writing = self._writer.submit(self._write, dict(rows_done), list(broken))

    def close(self) -> None:
        self._writer.shutdown()

    def begin(self) -> None:
        """Start from nothing: an earlier build's journal describes arrays that are about to be
        replaced."""
        self._hashed = _Hashed(self._arrays)
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def remove(self) -> None:
        """Remove the journal for good: the arrays are about to change into ones that it doesn't
        describe."""
        self.close()
        self.begin()

    def _write(self, rows_done: RowsDone, broken: list[Unreadable]) -> None:
        for array in self._arrays:
            array.sync()
        hashes = self._hashed.until(self._finished(rows_done))
        content = {"of": self._header, "done": rows_done, "broken": broken, "sha256": hashes}
        with contextlib.suppress(OSError):  # the arrays have their room, even on a full disk
            write_sealed(self.path, content)


class _Hashed:
    """The hashes of the beginnings of arrays. A longer beginning is hashed on from the last one."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays
        self._digests = [hashlib.sha256() for _ in arrays]
        self._ends = [0] * len(arrays)

    def until(self, rows: list[int]) -> dict[str, str]:
        """Return, by the array's file name, the SHA-256 of its header and its first rows.

        `rows`: how many of each array, at least as many as in the last call.
        """
        digests = {}
        for n, (array, digest) in enumerate(zip(self._arrays, self._digests, strict=True)):
            for part in array.parts(self._ends[n], rows[n]):
                digest.update(part)
                self._ends[n] += len(part)
            digests[array.path.name] = digest.hexdigest()
        return digests


_REPORT = 128  # rows between two calls of `progress`

Progress = Callable[[int, int], None]


class Full(OSError):
    """An error for a full disk. `needed`: bytes that a build took, or would have taken."""

    needed: int = 0


def building_folder(folder: Path, name: str) -> Path:
    return folder / f".{name}.building"


class Work:
    """The work of a build: which stored rows go to which rows of which arrays."""

    def __init__(
        self,
        data: Data,
        rows: dict[str, int],
        building: Path,
        sizes: Mapping[str, np.ndarray] | None,
    ) -> None:
        """`sizes`: by stored split, the size of each image's file in bytes, where files are
        kept."""
        self.data, self.rows, self.building = data, rows, building
        self.masks = data.labels == "masks"  # then the form has the labels, of each pixel
        self.stored_rows = source.cut(data, rows)
        self.splits = [split for split in SPLITS if split in self.stored_rows]
        self.counts = {split: len(numbers) for split, (_, numbers) in self.stored_rows.items()}
        self.form: Form
        if sizes is None:
            self.form = Squares(building, data, self.counts)
        else:
            file_sizes = {}
            for split, (stored, numbers) in self.stored_rows.items():
                file_sizes[split] = sizes[stored][numbers]
            encoded_form = Masked if self.masks else Encoded
            self.form = encoded_form(building, data, self.counts, file_sizes)
        self.labels: list[Array] = []
        if not self.masks:
            self.labels = arrays(building, "labels", self.counts, (), np.int64)
        self.arrays = [*self.form.arrays, *self.labels]
        self.kept_arrays = [*self.form.kept_arrays, *self.labels]
        self.bytes = sum(array.bytes for array in self.arrays)
        self.used = {stored: np.zeros(number, dtype=bool) for stored, number in rows.items()}
        for stored, numbers in self.stored_rows.values():
            self.used[stored][numbers] = True
        self.journal = BuildJournal(building / JOURNAL, self.arrays, rows, self._finished)

    def _finished(self, rows_done: dict[str, int]) -> list[int]:
        """Return how many rows of each array are done. All labels are done before the first image
        is."""
        images = []
        for split in self.splits:
            stored, numbers = self.stored_rows[split]
            images.append(int(np.searchsorted(numbers, rows_done.get(stored, 0))))
        labels = [self.counts[split] for split in self.splits[: len(self.labels)]]
        return [*self.form.finished(images), *labels]

    def images(self, rows_done: Mapping[str, int]) -> int:
        """Count the images of this build that lie before these stored rows."""
        return sum(int(self.used[stored][:row].sum()) for stored, row in rows_done.items())

    def resume_point(self) -> tuple[dict[str, int], list[Unreadable]]:
        """Return (rows done, broken images) of a killed build that can be continued, once every
        byte that it wrote is checked; ({}, []) where there is none.

        Where the bytes are damaged, prints a line to standard error and returns ({}, []), too.
        """
        rows_done, broken = self.journal.resume_point()
        damaged = self.journal.damage() if rows_done else []
        if damaged:
            print(
                f"data={self.data.name}: {' and '.join(damaged)}: what was decoded so far is not "
                f"the bytes that were written; decoding from the beginning",
                file=sys.stderr,
            )
            return {}, []
        return rows_done, broken

    def allocate(self) -> None:
        """Reserve room on the disk for all arrays. Raises Full, which states the missing room."""
        folder = self.arrays[0].path.parent
        free = shutil.disk_usage(folder).free
        try:
            for array in self.arrays:
                array.close()  # of what was there
                array.path.unlink(missing_ok=True)
                array.allocate()
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            line = (
                f"{folder.parent}: data={self.data.name} takes {size_text(self.bytes)} "
                f"{self.data.cache}, {size_text(free)} are free"
            )
            raise _full(line, self.bytes) from error

    def write_labels(self, opened: Source) -> int:
        """Write all labels, checked before an image is decoded; returns the largest."""
        if self.masks:
            return self.data.classes - 1
        numbers = {}
        for stored, part in opened.parts.items():
            used = self.used[stored]
            numbers[stored] = np.zeros(part.rows, dtype=np.int64)
            for row, (place, label) in enumerate(part.labels()):
                if used[row] and opened.label_sets is None:
                    label = source.class_number(self.data, stored, place, label)
                if used[row]:
                    numbers[stored][row] = label
        if self.data.rule in SPRITES:
            stored, rows = self.stored_rows[self.splits[0]]
            check_sprite(self.data, next(opened.parts[stored].examples(int(rows[0]))))
        labels = {}
        for split, (stored, rows) in self.stored_rows.items():
            labels[split] = numbers[stored][rows]
        if self.data.train is not None:
            self._check_classes(opened, self.data.train, labels)
        for split, array in zip(self.splits, self.labels, strict=True):
            array.put(0, labels[split])
        return max(int(array.max()) for array in labels.values())

    def _check_classes(
        self, opened: Source, train_slice: str, labels: dict[str, np.ndarray]
    ) -> None:
        """Raise UserError where there is nothing to learn, and for a slice that lacks classes
        because of the order in which folders are read. `train_slice`: `data.train`."""
        train = labels["train"]
        classes = np.unique(train)
        if len(classes) == 1:
            raise UserError(
                f"data.train: all {len(train):,} images of {train_slice!r} of "
                f"data={self.data.name} are of one class ({classes[0]}): nothing can be learnt"
            )
        lacking = np.setdiff1d(np.concatenate([labels["validation"], labels["test"]]), classes)
        in_order = opened.by_class and self.data.order == "stored"
        if in_order and "[" in train_slice and len(lacking):
            raise UserError(
                f"data.train: folders are read class by class, so {train_slice!r} lacks "
                f"{len(lacking)} of the classes to test on; give data.train="
                f"{self.stored_rows['train'][0]} and shares, such as data.validation=0.01, or "
                f"data.order=keyed"
            )

    def chunks(
        self, opened: Source, rows_done: dict[str, int], ends: deque[tuple[str, int]]
    ) -> Iterator[Chunk]:
        """Yield the images that are not done yet, in stored order. The end of each chunk is
        appended to `ends`."""
        for stored, part in opened.parts.items():
            begin = rows_done.get(stored, 0)
            rows = begin + np.flatnonzero(self.used[stored][begin:])
            if not len(rows):
                continue
            places = [self._places(stored, split) for split in self.splits]
            first_row, last_row = int(rows[0]), int(rows[-1])
            chunk = Chunk()
            for row, example in enumerate(part.examples(first_row), first_row):
                targets = []
                for n, place in enumerate(places):
                    if place[row] >= 0:
                        targets.append((n, int(place[row])))
                if targets:
                    chunk.add(example, targets)
                if chunk.full or row == last_row:
                    ends.append((stored, row + 1))
                    yield chunk
                    chunk = Chunk()
                if row == last_row:
                    break

    def leave_out(self, broken: list[Unreadable], names: list[str] | None) -> None:
        """Remove broken images from all arrays. Raises UserError where that leaves a class or a
        split empty.

        A build that is killed here starts again from the beginning.
        """
        for n, split in enumerate(self.splits):
            rows = sorted(row for _, places in broken for m, row in places if m == n)
            if not rows:
                continue
            labels = mapped(self.building / array_file(split, "labels")).numpy()
            kept_labels = np.delete(labels, rows, 0)
            self._check_left(split, labels, kept_labels, names)
            self.journal.remove()
            self.form.drop(n, rows)
            if not self.masks:
                self.labels[n].drop([(row, row + 1) for row in rows])
            self.counts[split] = len(kept_labels)

    def _check_left(
        self, split: str, labels: np.ndarray, kept_labels: np.ndarray, names: list[str] | None
    ) -> None:
        lost = np.setdiff1d(labels, kept_labels) if not self.masks else labels[:0]
        if split == "train" and len(lost):
            images = f"images of class {names[lost[0]] if names else lost[0]}"
        elif not len(kept_labels):
            images = f"{split} images"
        else:
            return
        raise UserError(
            f"data.broken: none of the {images} of data={self.data.name} can be read, so there is "
            f"nothing to skip to; data.broken=error names them"
        )

    def _places(self, stored: str, split: str) -> np.ndarray:
        """Return the row of a split to which each stored row goes, int64; -1 for none."""
        places = np.full(self.rows[stored], -1)
        if self.stored_rows[split][0] == stored:
            places[self.stored_rows[split][1]] = np.arange(self.counts[split])
        return places


def size_text(size: int) -> str:
    """Return a size in bytes as text for people: 1.5 GB."""
    number, units = float(size), iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while number >= 1000 and unit != "TB":
        number, unit = number / 1000, next(units)
    return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"


def build_cache(data: Data, folder: Path, progress: Progress, threads: int | None) -> None:
    """Decode everything into the temporary folder, then rename that to its final name.

    Few images are in memory at a time. The caller holds the lock. After an error, what is decoded
    and noted in the journal stays for the next try, unless the disk is full or it is of no use.
    """
    building = building_folder(folder, data.fingerprint)
    home = folder / data.fingerprint
    try:
        building.mkdir(exist_ok=True)
        hashes = building / "hashes.json"
        with contextlib.suppress(OSError):  # what planning has read is not read again
            shutil.copyfile(folder / "fingerprints.json", hashes)
        _check_unchanged(data, hashes)
        meta = _decode(data, building, progress, threads)
        _check_unchanged(data, hashes)  # nor while we read it
        write_whole(building / META_FILE, to_json(decoded.sealed_meta(meta, building)))
        shutil.rmtree(home, ignore_errors=True)  # not whole, or of another format
        os.rename(building, home)
        sync_folder(folder)
        for file in home.iterdir():  # the journal and what else only a builder needs
            if file.name not in meta["bytes"] and file.name != META_FILE:
                file.unlink()
    except BaseException as error:
        full = isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS
        took = sum(array.stat().st_size for array in building.glob("*.npy"))
        if full or isinstance(error, Unusable) or not (building / JOURNAL).exists():
            shutil.rmtree(building, ignore_errors=True)
        if isinstance(error, OSError) and full and not isinstance(error, Full):
            raise _full(error.filename or str(folder), took) from error
        raise


class Unusable(UserError):
    """The error for images that changed or can't be read: what has been decoded is of no use."""


def _full(place: str, bytes_needed: int) -> Full:
    error = Full(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
    error.needed = bytes_needed
    return error


def _overlap(splits: list[str], form: Form) -> dict[str, int]:
    """Count, by split, the images that an earlier split has, too, pixel for pixel. Splits without
    one are left out."""
    earlier_pixels: set[bytes] = set()
    counts = {}
    for n, split in enumerate(splits):
        pixels = [*form.pixels(n)]
        counts[split] = sum(row in earlier_pixels for row in pixels)
        earlier_pixels.update(pixels)
    return {split: number for split, number in counts.items() if number}


def _check_readable(broken: list[Unreadable], total: int) -> None:
    """Raise Unusable that names all images that can't be read, so that the user can mend them at
    once."""
    if broken:
        pronoun = "it" if len(broken) == 1 else "them"
        lines = [line.removeprefix("data: ") for line, _ in broken]
        raise Unusable(
            f"data: {len(broken):,} of {total:,} images can't be read; mend or remove {pronoun}, "
            f"or leave {pronoun} out with data.broken=skip: {first_of_lines(lines)}"
        )


def _left_out(data: Data, splits: list[str], broken: list[Unreadable]) -> dict[str, list[str]]:
    """List, by split, the images that could not be read: for each a line with its name within the
    set's folder and the reason."""
    lines_by_split: dict[str, list[str]] = {}
    for line, places in broken:
        text = line.removeprefix("data: ")
        if data.path is not None:
            text = text.replace(f"{Path(data.path).expanduser().absolute()}{os.sep}", "")
        for split in sorted({split for split, _ in places}):
            lines_by_split.setdefault(splits[split], []).append(text)
    return lines_by_split


def _check_unchanged(data: Data, hashes: Path) -> None:
    if data_fingerprint(dataclasses.asdict(data), hashes) != data.fingerprint:
        raise Unusable(
            f"data: data={data.name} ({data.path or data.hub or data.source}) changed since this "
            f"run was planned; plan again to train on what is there now"
        )


def _decode(data: Data, building: Path, progress: Progress, threads: int | None) -> dict[str, Any]:
    """Decode every image and label into arrays; returns the content of meta.json."""
    opened = source.open_source(data)
    rows = {split: part.rows for split, part in opened.parts.items()}
    sizes = None
    if data.cache == "encoded":
        sizes = {split: source.exact(part) for split, part in opened.parts.items()}
    work = Work(data, rows, building, sizes)
    total = sum(int(used.sum()) for used in work.used.values())
    with contextlib.ExitStack() as stack:
        for array in work.arrays:
            stack.callback(array.close)
        stack.callback(work.journal.close)
        rows_done, broken = work.resume_point()
        if not rows_done:
            work.journal.begin()
            work.allocate()
        for array in work.arrays:
            array.open()
        top_label = work.write_labels(opened)
        if not rows_done:
            work.form.begin()
        images = work.images(rows_done)
        progress(images, total)
        ends: deque[tuple[str, int]] = deque()
        chunks = work.chunks(opened, rows_done.copy(), ends)
        chunk_reports = decode_rows(chunks, work.form, threads)
        for number, lines in stack.enter_context(contextlib.closing(chunk_reports)):
            rows_done.update([ends.popleft()])
            broken += lines
            if not broken or data.broken == "skip":  # nobody goes on with what can't be whole
                work.journal.note(rows_done, broken)
            images, previous = images + number, images
            if images // _REPORT > previous // _REPORT and images < total:
                progress(images, total)
        work.journal.close()
        damaged = work.journal.damage()
        if damaged:
            raise Failure(
                f"data={data.name}: {' and '.join(damaged)}: what was decoded a while ago is not "
                f"the bytes that were written; the same command decodes it from the beginning"
            )
        if data.broken == "error":
            _check_readable(broken, total)
        else:
            work.leave_out(broken, opened.class_names)
        if isinstance(work.form, Masked):
            work.form.check()
        for array in work.arrays:
            array.sync()
        overlap = _overlap(work.splits, work.form)
        progress(total, total)
    added: dict[str, Any] = {}
    if data.cache_size is not None:
        added["cache_size"] = data.cache_size
    if data.cache != "decoded":
        added["cache"] = data.cache
    if opened.label_sets is not None:
        added["label_sets"] = opened.label_sets
    if broken:
        added["left_out"] = _left_out(data, work.splits, broken)
    return added | {
        "format": FORMAT,
        "name": data.name,
        "counts": work.counts,
        "class_names": opened.class_names,
        "top_label": top_label,
        "overlap": overlap,
        "bytes": {array.path.name: array.bytes for array in work.kept_arrays},
    }
