"""What is kept of a set's images, in files of a split each: squares, decoded once and for all, or
the files' own bytes.

    squares   images   uint8 (N, side, side, channels)
              aspects  float32 (N,), width over height, where whole images are squeezed
    encoded   encoded  uint8 (bytes,), one file after the other
              offsets  int64 (N + 1,), where each begins in `encoded`, and where the last ends
              shapes   int32 (N, 2), height and width of each image, upright
    masked    the same, each image with the file of its mask behind it in `encoded`, and
              lengths  int64 (N,), how long the image's own file is
              labels   int32 (N, classes), pixels of each class
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
from ablate.shared import NO_CLASS, SPLITS, Data, UserError

DIGEST = 16  # bytes that stand for an image's pixels


def array_file(split: str, what: str) -> str:
    return f"{split}.{what}.npy"


def arrays(
    folder: Path, what: str, rows: Mapping[str, int], shape: tuple[int, ...], kind: Any
) -> list[Array]:
    """One of each split, of so many rows."""
    return [Array(folder / array_file(s, what), (rows[s], *shape), kind) for s in _splits(rows)]


def _splits(rows: Mapping[str, Any]) -> list[str]:
    """Those that there are, in their order."""
    return [split for split in SPLITS if split in rows]


def drop_rows(each: Iterable[Sequence[Array]], split: int, rows: Sequence[int]) -> None:
    """Leave out these rows of a split, of arrays that have a row an image."""
    for arrays in filter(None, each):
        arrays[split].drop([(row, row + 1) for row in rows])


class Squares:
    """Images as squares: `decode`d, or `squeeze`d where the set has a `cache_size`."""

    def __init__(self, folder: Path, data: Data, counts: Mapping[str, int]) -> None:
        self._size, self._channels = data.cache_size or data.size, data.channels
        shape = (self._size, self._size, self._channels)
        self._images = arrays(folder, "images", counts, shape, np.uint8)
        self._aspects = (
            [] if data.cache_size is None else arrays(folder, "aspects", counts, (), np.float32)
        )
        self.arrays = [*self._images, *self._aspects]
        self.kept = self.arrays

    def begin(self) -> None:
        """What is written before the first image."""

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Raises as `decode` does."""
        if not self._aspects:
            pixels, aspect = decode(example, self._size, self._channels), 1.0
        else:
            pixels, aspect = squeeze(example, self._size, self._channels)
        for split, row in places:
            self._images[split].put(row, pixels)
            if self._aspects:
                self._aspects[split].put(row, aspect)

    def finished(self, images: list[int]) -> list[int]:
        """How many rows of each array are done where so many images of each split are."""
        return images * (len(self.arrays) // len(images))

    def drop(self, split: int, rows: Sequence[int]) -> None:
        """Leave out these images, in ascending order."""
        drop_rows((self._images, self._aspects), split, rows)

    def pixels(self, split: int) -> Iterator[bytes]:
        """Of each image, `DIGEST` bytes that those of other pixels have not."""
        images = self._images[split]
        for row in range(images.shape[0]):
            yield hashlib.blake2b(images.get(row, 1).data, digest_size=DIGEST).digest()


class Encoded:
    """Images as their files have them. Each is decoded once, to know that it can be, and its shape.

    sizes: by split, int64 (N,), how many bytes each image's file has.
    """

    def __init__(
        self, folder: Path, data: Data, counts: Mapping[str, int], sizes: Mapping[str, np.ndarray]
    ) -> None:
        self._channels = data.channels
        splits = _splits(counts)
        self._begins = [np.concatenate([[0], np.cumsum(sizes[split])]) for split in splits]
        total = {s: int(begins[-1]) for s, begins in zip(splits, self._begins, strict=True)}
        more = {split: count + 1 for split, count in counts.items()}
        self._encoded = arrays(folder, "encoded", total, (), np.uint8)
        self._offsets = arrays(folder, "offsets", more, (), np.int64)
        self._shapes = arrays(folder, "shapes", counts, (2,), np.int32)
        self._pixels = arrays(folder, "pixels", counts, (DIGEST,), np.uint8)
        self.kept = [*self._encoded, *self._offsets, *self._shapes]
        self.arrays = [*self.kept, *self._pixels]

    def begin(self) -> None:
        for offsets, begins in zip(self._offsets, self._begins, strict=True):
            offsets.put(0, begins)

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Raises as `decode` does."""
        content = encoded(example)
        image = decode_whole(Example(example.where, content, example.label), self._channels)
        assert content is not None
        self._keep(example, content, image, places)

    def _keep(
        self, example: Example, content: bytes, image: Image, places: list[tuple[int, int]]
    ) -> None:
        """`content`: what is kept of an image that could be decoded."""
        shape = (image.height, image.width)
        pixels = hashlib.blake2b(image.tobytes(), digest_size=DIGEST, salt=b"%dx%d" % shape)
        for split, row in places:
            begin, end = self._offsets[split].get(row, 2)
            if end - begin != len(content):
                raise UserError(
                    f"data: {example.where}: changed while it was read; run the command again"
                )
            self._encoded[split].put(begin, np.frombuffer(content, np.uint8))
            self._shapes[split].put(row, shape)
            self._pixels[split].put(row, np.frombuffer(pixels.digest(), np.uint8))

    def finished(self, images: list[int]) -> list[int]:
        ends = [int(begins[n]) for begins, n in zip(self._begins, images, strict=True)]
        return [*ends, *(len(begins) for begins in self._begins), *images, *images]

    def drop(self, split: int, rows: Sequence[int]) -> None:
        begins = self._begins[split]
        self._encoded[split].drop([(int(begins[row]), int(begins[row + 1])) for row in rows])
        drop_rows((self._shapes, self._pixels), split, rows)
        kept = np.delete(np.diff(begins), rows)
        self._begins[split] = np.concatenate([[0], np.cumsum(kept)])
        self._offsets[split].drop([(len(kept) + 1, len(begins))])
        self._offsets[split].put(0, self._begins[split])

    def pixels(self, split: int) -> Iterator[bytes]:
        pixels = self._pixels[split]
        for row in range(pixels.shape[0]):
            yield pixels.get(row, 1).tobytes()


class Masked(Encoded):
    """Images and their masks as their files have them: the label of an example is another one."""

    def __init__(
        self, folder: Path, data: Data, counts: Mapping[str, int], sizes: Mapping[str, np.ndarray]
    ) -> None:
        super().__init__(folder, data, counts, sizes)
        self._data = data
        self._lengths = arrays(folder, "lengths", counts, (), np.int64)
        self._labels = arrays(folder, "labels", counts, (data.classes,), np.int32)
        self.kept = [*self.kept, *self._lengths, *self._labels]
        self.arrays = [*self.arrays, *self._lengths, *self._labels]

    def write(self, example: Example, places: list[tuple[int, int]]) -> None:
        """Raises as `decode` and `mask.classes` do, and Broken where the two differ in shape.

        An image is turned upright by its EXIF orientation, a mask stands as it is stored: so has
        mmsegmentation them, by OpenCV's IMREAD_COLOR and IMREAD_UNCHANGED.
        """
        own, its_mask = encoded(example), encoded(example.label)
        image = decode_whole(Example(example.where, own, None), self._channels)
        mask = Example(example.label.where, its_mask, None)
        found = classes(mask, self._data)
        if found.shape != (image.height, image.width):
            tall, wide = found.shape
            raise BrokenImage(
                f"data: {mask.where}: has {wide}x{tall} pixels, its image "
                f"{image.width}x{image.height} (upright, if its EXIF data turns it)"
            )
        assert own is not None
        assert its_mask is not None
        self._keep(example, own + its_mask, image, places)
        pixels = np.bincount(found.reshape(-1), minlength=NO_CLASS)[: self._data.classes]
        for split, row in places:
            self._lengths[split].put(row, len(own))
            self._labels[split].put(row, pixels)

    def finished(self, images: list[int]) -> list[int]:
        return [*super().finished(images), *images, *images]

    def drop(self, split: int, rows: Sequence[int]) -> None:
        super().drop(split, rows)
        drop_rows((self._lengths, self._labels), split, rows)

    def check(self) -> None:
        """Raises UserError for a split without a pixel of a class."""
        for labels in self._labels:
            if not labels.get(0, labels.shape[0]).any():
                split = labels.path.name.partition(".")[0]
                raise UserError(
                    f"data.label: no pixel of the {split} images of data={self._data.name} has a "
                    f"class"
                )


Form = Squares | Encoded
