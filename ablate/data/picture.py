"""Pictures, decoded from their stored form to pixels: one, or many into arrays, each row at its
place, by threads. Pillow and numpy only.

Pillow, numpy and the kernel let other threads run while they decode, hash and write. Only about 0.3
ms of an image need the interpreter's lock, so up to MOST_THREADS are of use for photographs.

Used by all files of data/ that read images: `building.py`, `storage.py`, `splits.py`, `mask.py`. A
change of the pixels also needs `FORMAT` in `data/splits.py` raised; a new entry of `FORMATS` also
its suffix in `run/dataset.py` (`IMAGES`).
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ablate.shared import Failure, UserError

# Pillow tries no other decoder on what a stranger sent; the most frequent come first. AVIF is read
# by versions from 11.3 on.
FORMATS: tuple[str, ...] = ("PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF")
if importlib.util.find_spec("PIL.AvifImagePlugin"):
    FORMATS += ("AVIF",)


class BrokenImage(UserError):
    """An error for bytes that are no image, or only part of one: `data.broken=skip` leaves it out.
    A fault of the machine (a disk that can't be read, too little memory) raises other errors."""


@dataclass(frozen=True)
class Example:
    """An image, still encoded (or a file, or an 8-bit image made here), and its class number.

    `place` names it in error messages. The image is None for a row of a table that has none.
    """

    place: str
    image: bytes | Path | Image.Image | None
    label: Any  # as stored; `source.class_number` says whether it is one


def decode(example: Example, size: int, channels: int) -> np.ndarray:
    """Decode an image to pixels: uint8 (size, size, channels), channels 1 or 3.

    Grey is repeated over RGB, RGB is weighted to grey (ITU-R 601), an alpha channel is dropped,
    grey of 12 or 16 bits is cut to its highest 8 (as Pillow does for 16-bit RGB), and a photo is
    turned upright by its EXIF orientation. An image of another size is cut to its centred square,
    with the shorter side, and resized (bilinear, antialiased). Raises BrokenImage naming the
    example where its bytes are no whole image in one of FORMATS, UserError where its file can't be
    read, Failure where the memory is too small.
    """
    return _with_image(example, lambda image: _square(image, size, channels, squeezed=False))[0]


def squeeze(example: Example, size: int, channels: int) -> tuple[np.ndarray, float]:
    """Decode the whole image into a square, for sets that keep squares (`cache_size`), with pixels
    as in `decode`. Return it and the image's width over height, upright."""
    return _with_image(example, lambda image: _square(image, size, channels, squeezed=True))


def decode_whole(example: Example, channels: int) -> Image.Image:
    """Decode all pixels of an image, upright, in the size of its file: mode L or RGB, levels and
    channels as in `decode`. Raises as `decode` does."""

    def show(image: Image.Image) -> Image.Image:
        image, _ = _upright(image, channels)
        image.load()  # while its file is open
        return image

    return _with_image(example, show)


def encoded(example: Example) -> bytes | None:
    """Return the file's own bytes; None where there are none. Raises UserError where it can't be
    read."""
    content = example.image
    if isinstance(content, str | Path):
        return _content(example.place, content)
    return content if isinstance(content, bytes) else None


def size_of(example: Example) -> int:
    """Return the number of bytes that `encoded` has, with those of the mask; 0 where there are
    none."""
    mask = size_of(example.label) if isinstance(example.label, Example) else 0
    if isinstance(example.image, str | Path):
        try:
            return mask + os.stat(example.image).st_size
        except OSError as error:
            raise UserError(f"data: {example.place}: {error.strerror}") from error
    return mask + (len(example.image) if isinstance(example.image, bytes) else 0)


T = TypeVar("T")


def _with_image(example: Example, show: Callable[[Image.Image], T]) -> T:
    """Open the image and return `show(image)`, which is called while its file is open.

    Raises UserError where the file can't be read, BrokenImage where its bytes are no whole image in
    one of FORMATS, and Failure where the memory is too small.
    """
    try:
        if isinstance(example.image, Image.Image):
            return show(example.image)
        content = encoded(example)
        if content is None:
            raise ValueError("none there")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return show(image)
    except UserError:
        raise
    except MemoryError as error:
        raise Failure(f"data: {example.place}: too little memory to decode it") from error
    except UnidentifiedImageError as error:
        reason = (
            f"no whole {', '.join(FORMATS[:-1])} or {FORMATS[-1]}" if content else "an empty file"
        )
        raise BrokenImage(f"data: {example.place}: not a readable image: {reason}") from error
    except Exception as error:  # Pillow's decoders raise whatever they meet: SyntaxError, struct...
        reason = str(error) or type(error).__name__
        raise BrokenImage(f"data: {example.place}: not a readable image: {reason}") from error


def _content(place: str, path: str | Path) -> bytes:
    """Return a file's bytes. It is opened only once it is known to be a regular file: a fifo would
    block for ever."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"data: {place}: is no regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"data: {place}: {error.strerror}") from error


def _square(
    image: Image.Image, size: int, channels: int, squeezed: bool
) -> tuple[np.ndarray, float]:
    """Return the pixels of the square, and the width over the height that the upright image had."""
    # A JPEG is decoded at 1/2, 1/4 or 1/8 where twice the size is left: 3 times as fast for
    # photographs. With less left, an image's sharpness would depend on its size.
    image, shape = _upright(image, channels, 2 * size if squeezed else None)
    if image.size != (size, size):
        box = None if squeezed else _centre(*image.size)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels), shape


def _upright(
    image: Image.Image, channels: int, min_side: int | None = None
) -> tuple[Image.Image, float]:
    """Return the image, upright, and its width over height in its file, upright, too. `min_side`: a
    JPEG may be decoded smaller than its file, both sides at least as long as this; None: at its
    own size."""
    width, height = image.size
    depth = _depth(image)
    if min_side is not None:
        image.draft(None, (min_side, min_side))
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if orientation != 1:
        image = ImageOps.exif_transpose(image)
        if orientation in _TURNED:
            width, height = height, width
    if depth > 8:  # Pillow would clip it to 255
        high = np.asarray(image).astype(np.int64) >> (depth - 8)
        image = Image.fromarray(high.astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns of the palette's alpha
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    return image, width / height


def _depth(image: Image.Image) -> int:
    """Return the bits of a pixel's channel: 8, or for grey the 12 or 16 that its file states.

    Raises ValueError where the file does not state the range of its numbers.
    """
    tiff = image.format == "TIFF"
    if image.mode == "F" or (image.mode == "I" and tiff):
        kind = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise ValueError(f"{kind} pixels have no known range; store 8 or 16 bits")
    if not image.mode.startswith("I"):
        return 8
    if tiff:
        tags: Any = image
        return int(tags.tag_v2[_BITS_PER_SAMPLE][0])
    return 16  # of PGM, too, which Pillow scales to 16 bits; older ones call it "I"


_BITS_PER_SAMPLE = 258
_TURNED = (5, 6, 7, 8)  # EXIF orientations in which width and height change places


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the box of the centred square with the shorter side: (left, top, right, bottom)."""
    side = min(width, height)
    left_edge, top = (width - side) / 2, (height - side) / 2
    return left_edge, top, left_edge + side, top + side


MOST_THREADS = 16  # that decode
_IMAGES, _BYTES = 64, 8 << 20  # of a chunk, whichever comes first
_SMALL = 8 << 10  # bytes of an image; CIFAR-10's 2 kB take two threads 1.2 times as long as one


class Array:
    """A .npy file whose rows are written at their places, in any order, by any thread.

    It is allocated before the first row. So a full disk is reported at once, not after an hour of
    decoding, and no page of the file can be missing when it is mapped (that would be a SIGBUS).
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
        """Write row `row`, or several from there on."""
        content = np.asarray(values, dtype=self._kind).tobytes()
        self._write(len(self._header) + row * self._row, content)

    def get(self, row: int, rows: int) -> np.ndarray:
        """Read `rows` rows, from `row` on."""
        content = self._read_bytes(len(self._header) + row * self._row, rows * self._row)
        return np.frombuffer(content, self._kind).reshape(rows, *self.shape[1:])

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Remove spans of rows, (first, one behind the last), in ascending order. The rows behind
        them move up, in place.

        If this is interrupted, nobody knows which rows are where.
        """
        base, removed = len(self._header), sum(stop - begin for begin, stop in spans)
        rows = self.shape[0]
        self._shape((rows - removed, *self.shape[1:]))
        target = len(self._header)  # of fewer rows no longer than it was
        for (_, dropped), (end, _) in itertools.pairwise([(0, 0), *spans, (rows, rows)]):
            span_start = base + dropped * self._row
            for start in range(span_start, base + end * self._row, _BYTES):
                part = min(_BYTES, base + end * self._row - start)
                if target != start:
                    self._write(target, self._read_bytes(start, part))
                target += part
        self._write(0, self._header)
        os.ftruncate(self.open(), self.bytes)

    def parts(self, first_byte: int, rows: int) -> Iterator[bytes]:
        """Yield the file's bytes, from `first_byte` to the end of the first `rows` rows, a few
        megabytes at a time."""
        end = len(self._header) + rows * self._row
        for start in range(first_byte, end, _BYTES):
            yield self._read_bytes(start, min(_BYTES, end - start))

    def sync(self) -> None:
        """Flush everything that any thread wrote to the disk."""
        os.fsync(self.open())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> int:
        """Return the file's descriptor, opening it if need be. Call it before threads share the
        array."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self._file

    def _write(self, offset: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            byte_count = os.pwrite(self.open(), view, offset)
            view, offset = view[byte_count:], offset + byte_count

    def _read_bytes(self, offset: int, size: int) -> bytes:
        parts = []
        while size and (part := os.pread(self.open(), size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)


@dataclass
class Chunk:
    """Some images and their places: (number of the split, row), one or more for each image."""

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
    """A writer of decoded images into the arrays of one split or more."""

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Write an image to its places: (number of the split, row). Raises as `picture.decode`
        does."""


Unreadable = tuple[str, list[tuple[int, int]]]  # an image that can't be read: why, its places
ChunkOutcome = tuple[int, list[Unreadable]]  # number of images of a chunk, and its unreadable ones


def decode_rows(
    chunks: Iterable[Chunk], target: Target, threads: int | None = None
) -> Generator[ChunkOutcome, None, None]:
    """Decode all chunks; yields the outcome of each once it is written, in order.

    `threads`: None for as many as there are cores, MOST_THREADS at most, and for one where images
    are so small that threads only wait for each other. Chunks are read one ahead of the threads.
    After an error no more are read, and the earlier ones are waited for: so the error that is
    raised is the first in order, however fast each thread was.
    """
    waiting = iter(chunks)
    ahead = _read_chunk(waiting)
    small = isinstance(ahead, Chunk) and ahead.bytes < _SMALL * len(ahead.examples)
    threads = threads or (1 if small else min(MOST_THREADS, len(os.sched_getaffinity(0))))
    pool = ThreadPoolExecutor(threads, "decode")
    coming: deque[Future[ChunkOutcome]] = deque()
    try:
        while ahead is not None or coming:
            if ahead is not None:
                coming.append(pool.submit(_write_chunk, ahead, target))
                ahead = _read_chunk(waiting) if isinstance(ahead, Chunk) else None
            if ahead is None or len(coming) > threads:
                yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_chunk(chunks: Iterator[Chunk]) -> Chunk | Exception | None:
    """Return the next chunk, None after the last, or the error that reading it raised."""
    try:
        return next(chunks, None)
    except Exception as error:
        return error


def _write_chunk(chunk: Chunk | Exception, target: Target) -> ChunkOutcome:
    """Decode and write each image of a chunk. Raises the error that reading the chunk raised."""
    if isinstance(chunk, Exception):
        raise chunk
    lines: list[Unreadable] = []
    for example, places in zip(chunk.examples, chunk.places, strict=True):
        try:
            target.write(example, places)
        except BrokenImage as error:
            lines.append((str(error), places))
    return len(chunk.examples), lines
