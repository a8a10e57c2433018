"""The splits of a whole cache of images, decoded or as their files have them, and the check that
the cache is whole. Which image goes to which split is decided in `source.cut`.

Used by `data/cache.py`, which opens them, `data/batches.py`, and most of `training/`. The files are
named and written by `data/storage.py` and `data/building.py`.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ablate.data import source
from ablate.data.mask import classes
from ablate.data.picture import Example, decode_whole
from ablate.data.picture_crop import Cut, MaskedCrops
from ablate.data.storage import array_file
from ablate.run import META_FILE, NO_CLASS, Data, decoded
from ablate.shared import UserError, read_json

FORMAT = 1  # raised when the same data would be decoded to other pixels: it is decoded again


@dataclass(frozen=True)
class Split:
    """The decoded images and labels of a split.

    images: uint8 (N, H, W, C); labels: int64 (N,), or (N, K) where an image has up to K classes;
    aspects: float32 (N,), the width over the height that each image had before it was squeezed into
    a square.
    """

    images: Tensor
    labels: Tensor
    aspects: Tensor
    names: tuple[str, ...] | None = None  # the texts that labels stand for

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.images.device

    def empty(self, rows: int, cut: Cut | None, pinned: bool = False) -> Split:
        """Return room for `rows` images; `pinned` for a GPU that copies from it by itself."""
        return room(rows, self.images.shape[1:], self.labels.shape[1:], pinned)

    def gather(self, rows: Tensor, cut: Cut | None, out: Split, map_calls: MapCalls) -> None:
        """Copy some rows into `out`, in the given order, part by part. `map_calls`: a `map`, by
        threads or not."""

        at_once = max(1, PART * len(self) // max(self.images.nbytes, 1))

        def part(start: int) -> None:
            span = slice(start, start + at_once)
            part_rows = rows[span].numpy()
            for values, batch_values in (
                (self.images, out.images),
                (self.labels, out.labels),
                (self.aspects, out.aspects),
            ):
                # torch.index_select would start an OpenMP team in each thread that calls it. The
                # mode decides how numpy copies, since no row lies outside: straight into `out`.
                batch_part = batch_values[span].numpy()
                np.take(values.numpy(), part_rows, 0, out=batch_part, mode="clip")

        for _ in map_calls(part, range(0, len(rows), at_once)):
            pass

    def marks(self) -> Iterator[bytes]:
        """Yield a mark of each image, the bytes of its middle row of pixels: images with different
        marks are different images."""
        middle = self.images[:, self.images.shape[1] // 2]
        for part in middle.split(MARKED):
            for row in part.numpy():
                yield row.tobytes()

    def image_bytes(self, row: int) -> bytes:
        """Return all bytes of an image."""
        return self.images[row].numpy().tobytes()

    def to(self, device: torch.device | str) -> Split:
        return self._mapped(lambda part: part.to(device, non_blocking=True))

    def take(self, rows: Tensor | slice) -> Split:
        """Return some of its rows, in the given order."""
        if isinstance(rows, slice):
            return self._mapped(lambda part: part[rows])
        return self._mapped(lambda part: part.index_select(0, rows))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Split:
        return Split(change(self.images), change(self.labels), change(self.aspects), self.names)


def room(rows: int, shape: tuple[int, ...], label_shape: tuple[int, ...], pinned: bool) -> Split:
    """Return an empty Split for `rows` images of `shape`, each with a label of `label_shape`."""
    return Split(
        torch.empty(rows, *shape, dtype=torch.uint8, pin_memory=pinned),
        torch.empty(rows, *label_shape, dtype=torch.int64, pin_memory=pinned),
        torch.empty(rows, pin_memory=pinned),
    )


class Bytes:
    """The content of a .npy file, read by pread. Unlike the pages of a mapped file, what was read
    does not stay in the process's memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            self._begin = file.tell()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def read_range(self, first: int, last: int) -> bytes:
        """Return the bytes from `first` up to, but not including, `last`, counted from the end of
        the header."""
        return os.pread(self._file, last - first, self._begin + first)


@dataclass(frozen=True)
class EncodedSplit:
    """The images of a split as their files have them, each read and decoded when it is needed.

    content: all of them, one after the other; spans: int64 (N, 2), where each begins there and
    ends; labels: int64 (N,), or (N, K) as of a Split; shapes: int32 (N, 2), height and width.
    """

    content: Bytes
    spans: Tensor
    labels: Tensor
    shapes: Tensor
    channels: int
    names: tuple[str, ...] | None = field(default=None, kw_only=True)  # as of a Split

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def aspects(self) -> Tensor:
        """The width over the height of each image: float32 (N,)."""
        return self.shapes[:, 1] / self.shapes[:, 0]

    def marks(self) -> Iterator[int]:
        """Return a mark of each image, as `Split.marks` does: here the size of its file in
        bytes."""
        return iter((self.spans[:, 1] - self.spans[:, 0]).tolist())

    def image_bytes(self, row: int) -> bytes:
        return self.content.read_range(*self.spans[row].tolist())

    def take(self, rows: Tensor | slice) -> EncodedSplit:
        """Return some of its rows, in the given order. Reads no image."""
        return replace(
            self, spans=self.spans[rows], labels=self.labels[rows], shapes=self.shapes[rows]
        )

    def empty(self, rows: int, cut: Cut | None, pinned: bool = False) -> Split:
        assert cut is not None
        return room(rows, (cut.size, cut.size, self.channels), self.labels.shape[1:], pinned)

    def gather(self, rows: Tensor, cut: Cut | None, out: Split, map_calls: MapCalls) -> None:
        """Decode and cut some images into `out`, in the order of `rows`, as `Split.gather` copies
        them.

        An image that `rows` has several times is decoded once. Raises BrokenImage where the bytes
        are no longer an image.
        """
        assert cut is not None
        assert not isinstance(cut, MaskedCrops)
        places: dict[int, list[int]] = {}
        for place, row in enumerate(rows.tolist()):
            places.setdefault(row, []).append(place)

        def decode_row(row: int) -> None:
            picture = self.picture(row)
            for place in places[row]:
                out.images[place].numpy()[...] = cut.show(place, picture)

        for _ in map_calls(decode_row, places):
            pass
        out.labels.copy_(self.labels[rows])
        out.aspects.fill_(1)

    def picture(self, row: int) -> Image.Image:
        """Decode the whole image. Raises BrokenImage where its bytes are no longer an image."""
        start, end = self.spans[row].tolist()
        return decode_whole(self._example(start, end), self.channels)

    def _example(self, first: int, last: int) -> Example:
        place = f"bytes {first:,} to {last:,} of {self.content.path}"
        return Example(place, self.content.read_range(first, last), None)


@dataclass(frozen=True)
class MaskedSplit(EncodedSplit):
    """The images and masks of a split as their files have them, each mask behind its image in
    `content`.

    labels: int32 (N, classes), pixels of each class; lengths: int64 (N,), the sizes of the images'
    own files. A batch of it has masks in place of labels, uint8 (B, size, size), and in place of
    `aspects`, float32 (B, 2), the number of its rows and columns that are the image's: the rest is
    padding.
    """

    lengths: Tensor
    data: Data

    def take(self, rows: Tensor | slice) -> MaskedSplit:
        some = super().take(rows)
        assert isinstance(some, MaskedSplit)
        return replace(some, lengths=self.lengths[rows])

    def empty(self, rows: int, cut: Cut | None, pinned: bool = False) -> Split:
        assert isinstance(cut, MaskedCrops)
        images = super().empty(rows, cut, pinned).images
        masks = torch.empty(images.shape[:3], dtype=torch.uint8, pin_memory=pinned)
        return Split(images, masks, torch.empty(rows, 2, pin_memory=pinned))

    def gather(self, rows: Tensor, cut: Cut | None, out: Split, map_calls: MapCalls) -> None:
        """Decode each image and its mask, and cut them alike into `out`."""
        assert isinstance(cut, MaskedCrops)
        numbers = rows.tolist()

        def cut_pair(place: int) -> None:
            pixels, mask = cut.show_both(
                place, self.picture(numbers[place]), self.mask(numbers[place])
            )
            tall, wide = mask.shape
            image = out.images[place].numpy()
            image[...] = 0
            image[:tall, :wide] = pixels
            labels = out.labels[place].numpy()
            labels[...] = NO_CLASS
            labels[:tall, :wide] = mask
            out.aspects[place] = torch.tensor([tall, wide])

        for _ in map_calls(cut_pair, range(len(numbers))):
            pass

    def picture(self, row: int) -> Image.Image:
        start, _ = self.spans[row].tolist()
        return decode_whole(self._example(start, start + int(self.lengths[row])), self.channels)

    def mask(self, row: int) -> np.ndarray:
        """Return the class of each pixel of the whole image: uint8 (H, W). Raises as
        `mask.classes`."""
        start, end = self.spans[row].tolist()
        return classes(self._example(start + int(self.lengths[row]), end), self.data)


AnySplit = Split | EncodedSplit
PART = 1 << 20  # bytes of images that one thread copies at a time
MARKED = 4096  # images at once
MapCalls = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]  # map, or by threads


@dataclass(frozen=True)
class Cached:
    """A whole cache of a set."""

    folder: Path
    counts: dict[str, int]  # by split: train, validation, test
    class_names: list[str] | None
    bytes: int
    squeezed: bool  # are there aspects?
    sha256: str  # of all that `split` reads, as it was when it was decoded
    encoded: int | None = None  # channels to decode to, where these are the files' own bytes
    masks: Data | None = None  # what their levels mean, where labels are masks
    captions: bool = False  # class names are captions; else a name may be followed by synonyms
    label_sets: list[list[int]] | None = None  # classes of each label, where it stands for several

    @property
    def names(self) -> tuple[str, ...] | None:
        """The texts that labels stand for: captions, or the first name of each class."""
        if self.class_names is None:
            return None
        if self.captions:
            return tuple(self.class_names)
        return tuple(name.split(",")[0] for name in self.class_names)

    def split(self, name: str) -> AnySplit:
        """Return train, validation or test, mapped: all processes that read it share its pages."""
        if self.encoded is not None:
            return self._encoded(name, self.encoded)
        images = self._array(name, "images")
        labels = self._array(name, "labels")
        aspects = self._array(name, "aspects") if self.squeezed else torch.ones(len(labels))
        return Split(images, labels, aspects, self.names)

    def _array(self, split: str, kind: str) -> Tensor:
        """Return an array of a split, mapped; `kind`: images, labels, ..."""
        return mapped(self.folder / array_file(split, kind))

    def _encoded(self, name: str, channels: int) -> EncodedSplit:
        offsets = self._array(name, "offsets")
        labels = self._array(name, "labels")
        shapes = self._array(name, "shapes")
        content = Bytes(self.folder / array_file(name, "encoded"))
        spans = torch.stack([offsets[:-1], offsets[1:]], 1)
        if self.masks is None:
            return EncodedSplit(content, spans, labels, shapes, channels, names=self.names)
        lengths = self._array(name, "lengths")
        return MaskedSplit(
            content=content,
            spans=spans,
            labels=labels,
            shapes=shapes,
            channels=channels,
            lengths=lengths,
            data=self.masks,
        )


def mapped(path: Path) -> Tensor:
    """Map a .npy file copy-on-write, since torch warns of arrays that it can't write to.

    np.load would not do: without MAP_NORESERVE the kernel refuses a file that is larger than its
    memory.
    """
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)  # 0x4000: before 3.12
        content = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        return torch.from_numpy(np.ndarray(shape, kind, content, file.tell()))


def open_cached(data: Data, folder: Path) -> Cached | None:
    """Return the cache of `data` in `folder`, or None where there is no whole one.

    Sizes and meta.json are checked here, the bytes once a drive (see `decoded`). Raises UserError
    where it holds another number of classes than `data.classes`.
    """
    home = folder / data.fingerprint
    meta = read_json(home / META_FILE)
    if not decoded.is_sealed(meta) or meta.get("format") != FORMAT:
        return None
    cache_form = meta.get("cache", "decoded")
    if meta.get("cache_size") != data.cache_size or cache_form != data.cache:
        return None
    try:
        is_complete = all(
            (home / name).stat().st_size == size for name, size in meta["bytes"].items()
        )
    except FileNotFoundError:
        return None
    if not is_complete:
        return None
    source.check_class_names(data, meta["class_names"])
    if "label_sets" not in meta and meta["top_label"] >= data.classes:
        raise UserError(
            f"data.classes: {data.classes}, but data={data.name} has labels up to "
            f"{meta['top_label']}"
        )
    return Cached(
        folder=home,
        counts=meta["counts"],
        class_names=meta["class_names"],
        bytes=sum(meta["bytes"].values()),
        squeezed=data.cache_size is not None,
        sha256=decoded.digest(meta),
        encoded=data.channels if cache_form == "encoded" else None,
        masks=data if data.labels == "masks" else None,
        captions=data.text is not None,
        label_sets=meta.get("label_sets"),
    )
