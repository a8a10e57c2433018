"""Pictures into arrays, each row at its place: decoded in this process, or by a pool of others.

A process of the pool is a new interpreter that loads this file, Pillow and numpy: a tenth of a
second, no torch, nothing inherited but its end of a pipe. It ends when the other end closes, which
the kernel sees to if its parent is killed. Pixels don't travel: it writes them itself.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ablate.data.picture import Broken, Example
from ablate.shared.errors import Failure

SOLO_S = 5.0  # what this process decodes within that needs no others
_TRIED_S = 0.5  # long enough to tell
_IMAGES, _BYTES = 64, 8 << 20  # of a chunk, whichever comes first


class Array:
    """A .npy file whose rows are written at their places, in any order, by any process.

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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}  # each process opens it itself

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
        """On the disk, all that any process wrote."""
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
        self.bytes += len(example.image) if isinstance(example.image, bytes) else 0

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
    chunks: Iterable[Chunk], target: Target, total: int, processes: int | None = None
) -> Generator[Written, None, None]:
    """Decode all chunks, `total` images; yields what came of each when it is written, in order.

    `processes`: 0 for none but this one; None for as many as there are cores, if what is left after
    half a second would take this one long.
    """
    waiting = iter(chunks)
    if processes is None:
        begun, done = time.monotonic(), 0
        for chunk in waiting:
            yield len(chunk.examples), _write(chunk, target)
            done += len(chunk.examples)
            gone = time.monotonic() - begun
            if gone > _TRIED_S:
                processes = len(os.sched_getaffinity(0))
                if processes == 1 or gone / done * (total - done) < SOLO_S:
                    processes = 0
                break
    if processes:
        yield from _pooled(waiting, target, processes)
    else:
        for chunk in waiting:
            yield len(chunk.examples), _write(chunk, target)


def _write(chunk: Chunk, target: Target) -> list[Line]:
    return [line for line in _each(chunk, target) if line is not None]


def _each(chunk: Chunk, target: Target) -> Iterator[Line | None]:
    """Decode and write each image; why not, where it can't be read."""
    for example, places in zip(chunk.examples, chunk.places, strict=True):
        try:
            target.write(example, places)
            yield None
        except Broken as error:
            yield str(error), places


def _pooled(waiting: Iterator[Chunk], target: Target, processes: int) -> Iterator[Written]:
    """`write`, by a pool. A chunk is read ahead while all are busy: so many and one are in memory.

    After an error no more chunks are given out, and those before it are waited for: so the error is
    the first, whichever process was the faster.
    """
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(_Process(target)) for _ in range(processes)]
        busy: dict[Connection, tuple[_Process, int, int]] = {}  # number of the chunk, images
        answers: dict[int, Written | Exception] = {}
        numbers = itertools.count()
        ahead = _read(waiting)
        due = 0  # the chunk to be yielded next
        while True:
            while due in answers:
                answer = answers.pop(due)
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                due += 1
            if idle and ahead is not None:
                number = next(numbers)
                if isinstance(ahead, Exception):
                    answers[number], ahead = ahead, None
                else:
                    process = idle.pop()
                    process.give(ahead)
                    busy[process.pipe] = (process, number, len(ahead.examples))
                    ahead = _read(waiting)
            elif not busy:
                return
            else:
                for pipe in wait(list(busy)):
                    process, number, images = busy.pop(pipe)  # type: ignore[call-overload]
                    answer = process.answer()
                    idle.append(process)
                    if isinstance(answer, Exception):
                        answers[number], ahead = answer, None
                    else:
                        answers[number] = (images, answer)


def _read(chunks: Iterator[Chunk]) -> Chunk | Exception | None:
    """The next chunk, None after the last, or what reading it raised."""
    try:
        return next(chunks, None)
    except Exception as error:
        return error


class _Process:
    """One of the pool, as its parent has it."""

    def __init__(self, target: Target) -> None:
        self.pipe, theirs = Pipe()
        with theirs:
            serve = f"serve({theirs.fileno()}, {os.getpid()})"
            code = f"from ablate.data.decode_pool import serve; {serve}"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the parent, which ends it
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self.give(target)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.close()
        if error[0] is not None:
            self._process.kill()
        self._process.wait()

    def give(self, what: Target | Chunk) -> None:
        try:
            self.pipe.send(what)
        except OSError:
            raise self._death() from None

    def answer(self) -> list[Line] | Exception:
        """What of its chunk could not be read, or what it raised."""
        try:
            answer: list[Line] | Exception = self.pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        return answer

    def _death(self) -> Failure:
        code = self._process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return Failure(f"a process that decodes images died ({how}); the same command goes on")


def serve(descriptor: int, parent: int) -> None:
    """A process of the pool: writes the chunks that come, says what of each could not be read or
    what it raised, until the pipe closes or its parent is gone."""
    with Connection(descriptor) as pipe, contextlib.suppress(EOFError, ConnectionError):
        target: Target = pipe.recv()
        while True:
            chunk: Chunk = pipe.recv()
            answer: list[Line] | Exception
            try:
                answer = []
                for line in _each(chunk, target):
                    if os.getppid() != parent:
                        return
                    answer += [] if line is None else [line]
            except Exception as error:
                answer = error
            pipe.send(answer)
