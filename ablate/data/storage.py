"""The files in which a set's images are kept, one set of files for each split: squares, decoded
once and for all, or the files' own bytes.

    squares   images   uint8 (N, side, side, channels)
              aspects  float32 (N,), width over height, where whole images are squeezed
    encoded   encoded  uint8 (bytes,), one file after the other
              offsets  int64 (N + 1,), where each begins in `encoded`, and where the last ends
              shapes   int32 (N, 2), height and width of each image, upright
    masked    the same, each image with the file of its mask behind it in `encoded`, and
              lengths  int64 (N,), how long the image's own file is
              labels   int32 (N, classes), pixels of each class

Used by `data/building.py`, which writes them, and `data/splits.py`, which reads them. A change of
the arrays needs both, and `FORMAT` in `data/splits.py` raised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from ablate.data.mask import classes
from ablate.data.picture import Array, BrokenImage, Example, decode, decode_whole, encoded, squeeze
from ablate.run import NO_CLASS, SPLITS, Data
from ablate.shared import UserError

DIGEST = 16  # bytes that stand for an image's pixels


def array_file(split: str, content: str) -> str:
    return f"{split}.{content}.npy"


def arrays(
    folder: Path, content: str, rows: Mapping[str, int], shape: tuple[int, ...], kind: Any
) -> list[Array]:
    """Return an Array for each split in `rows`, in the order of SPLITS: as many rows as `rows` has
    for the split, each of `shape`. `content`: what they hold, see `array_file`."""
    split_arrays = []
    for split in _splits(rows):
        file = folder / array_file(split, content)
        split_arrays.append(Array(file, (rows[split], *shape), kind))
    return split_arrays


def _splits(rows: Mapping[str, Any]) -> list[str]:
    """Return the splits that `rows` has, in the order of SPLITS."""
    return [split for split in SPLITS if split in rows]


def drop_rows(array_groups: Iterable[Sequence[Array]], split: int, rows: Sequence[int]) -> None:
    """Remove these rows of a split from arrays that have one row for each image."""
    spans = [(row, row + 1) for row in rows]
    for arrays in array_groups:
        if arrays:
            arrays[split].drop(spans)


class Squares:
    """The images of a set as squares: by `decode`, or by `squeeze` where the set has a
    `cache_size`."""

    def __init__(self, folder: Path, data: Data, counts: Mapping[str, int]) -> None:
        self._size, self._channels = data.cache_size or data.size, data.channels
        shape = (self._size, self._size, self._channels)
        self._images = arrays(folder, "images", counts, shape, np.uint8)
        self._aspects: list[Array] = []
        if data.cache_size is not None:
            self._aspects = arrays(folder, "aspects", counts, (), np.float32)
        self.arrays = [*self._images, *self._aspects]
        self.kept_arrays = self.arrays

    def begin(self) -> None:
        """Write what must precede the first image: nothing for squares."""

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Decode an image and write it to its places: (number of the split, row). Raises as
        `decode` does."""
        if self._aspects:
            pixels, aspect = squeeze(example, self._size, self._channels)
        else:
            pixels, aspect = decode(example, self._size, self._channels), 1.0
        for split, row in places:
            self._images[split].put(row, pixels)
            if self._aspects:
                self._aspects[split].put(row, aspect)

    def finished(self, images: list[int]) -> list[int]:
        """Return how many rows of each array are done when this many images of each split are."""
        return images * (len(self.arrays) // len(images))

    def drop(self, split: int, rows: Sequence[int]) -> None:
        """Remove the images at these rows, in ascending order."""
        drop_rows((self._images, self._aspects), split, rows)

    def pixels(self, split: int) -> Iterator[bytes]:
        """Yield a hash of each image's pixels, DIGEST bytes; different pixels have different
        hashes."""
        images = self._images[split]
        for row in range(images.shape[0]):
            yield hashlib.blake2b(images.get(row, 1).data, digest_size=DIGEST).digest()


class Encoded:
    """The images of a set as their files have them. Each is decoded once, to check it and to find
    its shape.

    sizes: by split, the size of each image's file in bytes, int64 (N,).
    """

    def __init__(
        self, folder: Path, data: Data, counts: Mapping[str, int], sizes: Mapping[str, np.ndarray]
    ) -> None:
        self._channels = data.channels
        splits = _splits(counts)
        self._begins = [np.concatenate([[0], np.cumsum(sizes[split])]) for split in splits]
        total = {s: int(begins[-1]) for s, begins in zip(splits, self._begins, strict=True)}
        offset_counts = {split: count + 1 for split, count in counts.items()}
        self._encoded = arrays(folder, "encoded", total, (), np.uint8)
        self._offsets = arrays(folder, "offsets", offset_counts, (), np.int64)
        self._shapes = arrays(folder, "shapes", counts, (2,), np.int32)
        self._pixels = arrays(folder, "pixels", counts, (DIGEST,), np.uint8)
        self.kept_arrays = [*self._encoded, *self._offsets, *self._shapes]
        self.arrays = [*self.kept_arrays, *self._pixels]

    def begin(self) -> None:
        for offsets, begins in zip(self._offsets, self._begins, strict=True):
            offsets.put(0, begins)

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Check an image and write its file's bytes to its places. Raises as `decode` does."""
        content = encoded(example)
        image = decode_whole(Example(example.place, content, example.label), self._channels)
        assert content is not None
        self._keep(example, content, image, places)

    def _keep(
        self, example: Example, content: bytes, image: Image, places: list[tuple[int, int]]
    ) -> None:
        """Write the bytes `content` of an image that could be decoded. Raises UserError where the
        file has changed its size."""
        shape = (image.height, image.width)
        pixels = hashlib.blake2b(image.tobytes(), digest_size=DIGEST, salt=b"%dx%d" % shape)
        for split, row in places:
            begin, end = self._offsets[split].get(row, 2)
            if end - begin != len(content):
                raise UserError(
                    f"data: {example.place}: changed while it was read; run the command again"
                )
            self._encoded[split].put(begin, np.frombuffer(content, np.uint8))
            self._shapes[split].put(row, shape)
            self._pixels[split].put(row, np.frombuffer(pixels.digest(), np.uint8))

    def finished(self, images: list[int]) -> list[int]:
        ends = [int(begins[n]) for begins, n in zip(self._begins, images, strict=True)]
        offset_counts = [len(begins) for begins in self._begins]
        return [*ends, *offset_counts, *images, *images]

    def drop(self, split: int, rows: Sequence[int]) -> None:
        begins = self._begins[split]
        self._encoded[split].drop([(int(begins[row]), int(begins[row + 1])) for row in rows])
        drop_rows((self._shapes, self._pixels), split, rows)
        kept_sizes = np.delete(np.diff(begins), rows)
        self._begins[split] = np.concatenate([[0], np.cumsum(kept_sizes)])
        self._offsets[split].drop([(len(kept_sizes) + 1, len(begins))])
        self._offsets[split].put(0, self._begins[split])

    def pixels(self, split: int) -> Iterator[bytes]:
        pixels = self._pixels[split]
        for row in range(pixels.shape[0]):
            yield pixels.get(row, 1).tobytes()


class Masked(Encoded):
    """The images of a set and their masks as their files have them. The label of an example is the
    Example of its mask."""

    def __init__(
        self, folder: Path, data: Data, counts: Mapping[str, int], sizes: Mapping[str, np.ndarray]
    ) -> None:
        super().__init__(folder, data, counts, sizes)
        self._data = data
        self._lengths = arrays(folder, "lengths", counts, (), np.int64)
        self._labels = arrays(folder, "labels", counts, (data.classes,), np.int32)
        self.kept_arrays = [*self.kept_arrays, *self._lengths, *self._labels]
        self.arrays = [*self.arrays, *self._lengths, *self._labels]

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Check an image and its mask, and write their files' bytes. Raises as `decode` and
        `mask.classes` do, and BrokenImage where the two differ in shape.

        An image is turned upright by its EXIF orientation, a mask is used as it is stored, as
        mmsegmentation does by OpenCV's IMREAD_COLOR and IMREAD_UNCHANGED.
        """
        image_bytes, its_mask = encoded(example), encoded(example.label)
        image = decode_whole(Example(example.place, image_bytes, None), self._channels)
        mask = Example(example.label.place, its_mask, None)
        pixel_classes = classes(mask, self._data)
        if pixel_classes.shape != (image.height, image.width):
            tall, wide = pixel_classes.shape
            raise BrokenImage(
                f"data: {mask.place}: has {wide}x{tall} pixels, its image "
                f"{image.width}x{image.height} (upright, if its EXIF data turns it)"
            )
        assert image_bytes is not None
        assert its_mask is not None
        self._keep(example, image_bytes + its_mask, image, places)
        pixels = np.bincount(pixel_classes.reshape(-1), minlength=NO_CLASS)[: self._data.classes]
        for split, row in places:
            self._lengths[split].put(row, len(image_bytes))
            self._labels[split].put(row, pixels)

    def finished(self, images: list[int]) -> list[int]:
        return [*super().finished(images), *images, *images]

    def drop(self, split: int, rows: Sequence[int]) -> None:
        super().drop(split, rows)
        drop_rows((self._lengths, self._labels), split, rows)

    def check(self) -> None:
        """Raise UserError for a split in which no pixel has a class."""
        for labels in self._labels:
            if not labels.get(0, labels.shape[0]).any():
                split = labels.path.name.partition(".")[0]
                raise UserError(
                    f"data.label: no pixel of the {split} images of data={self._data.name} has a "
                    f"class"
                )


Form = Squares | Encoded
