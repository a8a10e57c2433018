"""A whole cache of decoded images: what is in it, and whether it is whole."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ablate.shared import decoded
from ablate.shared.errors import UserError
from ablate.shared.files import read_json
from ablate.shared.sections import Data
from ablate.training.data import source

FORMAT = 1  # raised when the same data would be decoded to other pixels: old caches are rebuilt


@dataclass(frozen=True)
class Split:
    """images: uint8 (N, H, W, C); labels: int64 (N,); aspects: float32 (N,), the width over the
    height that each image had before it was squeezed into a square."""

    images: torch.Tensor
    labels: torch.Tensor
    aspects: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Split:
        return self._each(lambda part: part.to(device, non_blocking=True))

    def take(self, rows: torch.Tensor | slice) -> Split:
        """Some of its rows, in the order given."""
        if isinstance(rows, slice):
            return self._each(lambda part: part[rows])
        return self._each(lambda part: part.index_select(0, rows))

    def pinned(self) -> Split:
        """In memory that a GPU, if there is one, fetches from by itself."""
        return self._each(torch.Tensor.pin_memory) if torch.cuda.is_available() else self

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Split:
        return Split(change(self.images), change(self.labels), change(self.aspects))


@dataclass(frozen=True)
class Cached:
    """A whole cache."""

    folder: Path
    counts: dict[str, int]  # by split: train, validation, test
    class_names: list[str] | None
    bytes: int
    squeezed: bool  # are there aspects?
    sha256: str  # of all that `split` reads, as it was when it was decoded

    def split(self, name: str) -> Split:
        """train, validation or test, mapped: its pages are shared by all processes that read it."""
        images, labels = (mapped(self.folder / array_file(name, w)) for w in ("images", "labels"))
        if self.squeezed:
            return Split(images, labels, mapped(self.folder / array_file(name, "aspects")))
        return Split(images, labels, torch.ones(len(labels)))


def mapped(path: Path) -> torch.Tensor:
    """A .npy file, mapped copy-on-write, since torch warns of arrays that it can't write to.

    Not by np.load: without MAP_NORESERVE the kernel refuses a file that is larger than its memory.
    """
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)  # 0x4000: before 3.12
        content = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        return torch.from_numpy(np.ndarray(shape, kind, content, file.tell()))


def array_file(split: str, what: str) -> str:
    return f"{split}.{what}.npy"


def open_cached(data: Data, folder: Path) -> Cached | None:
    """The cache of `data` in `folder`, or None where there is no whole one.

    Sizes and meta.json are looked at here, the bytes once a drive (see `decoded`). Raises
    UserError where it holds another number of classes than `data.classes`.
    """
    home = folder / data.fingerprint
    meta = read_json(home / decoded.META)
    if not decoded.is_sealed(meta) or meta.get("format") != FORMAT:
        return None
    if meta.get("cache_size") != data.cache_size:
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
    size, squeezed = sum(meta["bytes"].values()), data.cache_size is not None
    names = meta["class_names"]
    return Cached(home, meta["counts"], names, size, squeezed, decoded.digest(meta))
