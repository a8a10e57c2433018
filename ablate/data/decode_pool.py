"""Pictures into arrays, each row at its place: decoded by threads.

Pillow, numpy and the kernel let others go on while they decode, hash and write. What one thread
at a time has to itself is about 0.3 ms an image, so MOST of them are of use for photographs.
"""

from __future__ import annotations

import io
import itertools
import math
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ablate.data.picture import Broken, Example

MOST = 16  # threads
_IMAGES, _BYTES = 64, 8 << 20  # of a chunk, whichever comes first
_SMALL = 8 << 10  # bytes of an image; CIFAR-10's 2 kB take two threads 1.2 times as long as one


class Array:
    """A .npy file whose rows are written at their places, in any order, by any thread.

    Allocated before the first row, so that a full disk says so now, not after an hour of decoding,
    and so that no page of the file can be missing when it is mapped (that would be a SIGBUS).
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.path = path
        self._kind = np.dtype(dtype)
        self._row = math.prod(shape[1:]) * self._kind.itemsize
        self._file: int | None = None
        self._shape(shape)

    def _shape(self, shape: tuple[int, ...]) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": self._kind.str, "fortran_order": False, "shape": shape}
        )
        self.shape, self._header = shape, header.getvalue()
        self.bytes = len(self._header) + shape[0] * self._row

    def allocate(self) -> None:
        self._write(0, self._header)
        os.posix_fallocate(self.open(), 0, self.bytes)

    def put(self, row: int, values: Any) -> None:
        """Row `row`, or several from there on."""
        content = np.asarray(values, dtype=self._kind).tobytes()
        self._write(len(self._header) + row * self._row, content)

    def get(self, row: int, rows: int) -> np.ndarray:
        """So many rows, from `row` on."""
        content = self._read(len(self._header) + row * self._row, rows * self._row)
        return np.frombuffer(content, self._kind).reshape(rows, *self.shape[1:])

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Leave out these rows, from one to before another, in ascending order: those behind them
        move up, in place. Of a file where that was cut off nobody knows which rows are where."""
        at, gone = len(self._header), sum(end - first for first, end in spans)
        rows = self.shape[0]
        self._shape((rows - gone, *self.shape[1:]))
        to = len(self._header)  # of fewer rows no longer than it was
        for (_, dropped), (end, _) in itertools.pairwise([(0, 0), *spans, (rows, rows)]):
            first = at + dropped * self._row
            for start in range(first, at + end * self._row, _BYTES):
                part = min(_BYTES, at + end * self._row - start)
                if to != start:
                    self._write(to, self._read(start, part))
                to += part
        self._write(0, self._header)
        os.ftruncate(self.open(), self.bytes)

    def parts(self, first: int, rows: int) -> Iterator[bytes]:
        """The file's bytes from `first` to the end of so many rows, a few megabytes at a time."""
        end = len(self._header) + rows * self._row
        for start in range(first, end, _BYTES):
            yield self._read(start, min(_BYTES, end - start))

    def sync(self) -> None:
        """On the disk, all that any thread wrote."""
        os.fsync(self.open())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> int:
        """The descriptor. Before threads share it."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._file

    def _write(self, offset: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            written = os.pwrite(self.open(), view, offset)
            view, offset = view[written:], offset + written

    def _read(self, offset: int, size: int) -> bytes:
        parts = []
        while size and (part := os.pread(self.open(), size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)


@dataclass
class Chunk:
    """Some images and where each belongs: (number of the target, row), of one target or more."""

    examples: list[Example] = field(default_factory=list)
    places: list[list[tuple[int, int]]] = field(default_factory=list)
    bytes: int = 0

    def add(self, example: Example, places: list[tuple[int, int]]) -> None:
        self.examples.append(example)
        self.places.append(places)
        image = example.image
        self.bytes += len(image) if isinstance(image, bytes) else _SMALL * isinstance(image, Path)

    @property
    def full(self) -> bool:
        return len(self.examples) >= _IMAGES or self.bytes >= _BYTES


class Target(Protocol):
    """What images become, in the arrays of one split or more."""

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Raises as `picture.decode` does."""


Line = tuple[str, list[tuple[int, int]]]  # of an image that can't be read: why, its places
Written = tuple[int, list[Line]]  # images of a chunk, those of them that can't be read


def write(
    chunks: Iterable[Chunk], target: Target, threads: int | None = None
) -> Generator[Written, None, None]:
    """Decode all chunks; yields what came of each when it is written, in order.

    `threads`: None for as many as there are cores, MOST at most, and for one where images are so
    small that threads only wait for each other. A chunk more is read than they are at. After an
    error no more are, and those before it are waited for: so the error is the first, whichever
    thread was the faster.
    """
    waiting = iter(chunks)
    ahead = _read(waiting)
    small = isinstance(ahead, Chunk) and ahead.bytes < _SMALL * len(ahead.examples)
    threads = threads or (1 if small else min(MOST, len(os.sched_getaffinity(0))))
    pool = ThreadPoolExecutor(threads, "decode")
    coming: deque[Future[Written]] = deque()
    try:
        while ahead is not None or coming:
            if ahead is not None:
                coming.append(pool.submit(_written, ahead, target))
                ahead = _read(waiting) if isinstance(ahead, Chunk) else None
            if ahead is None or len(coming) > threads:
                yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(chunks: Iterator[Chunk]) -> Chunk | Exception | None:
    """The next chunk, None after the last, or what reading it raised."""
    try:
        return next(chunks, None)
    except Exception as error:
        return error


def _written(chunk: Chunk | Exception, target: Target) -> Written:
    """Decode and write each image of a chunk. Raises what reading it did."""
    if isinstance(chunk, Exception):
        raise chunk
    lines: list[Line] = []
    for example, places in zip(chunk.examples, chunk.places, strict=True):
        try:
            target.write(example, places)
        except Broken as error:
            lines.append((str(error), places))
    return len(chunk.examples), lines
