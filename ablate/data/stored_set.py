"""A set as it is stored: its splits, their rows and labels, and which of them `data` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.data.picture import Example
from ablate.shared.dataset import Slice, parse_slice, wanted
from ablate.shared.sections import Data


@dataclass(frozen=True)
class Part:
    """A split as it is stored: how many examples, and how to read them in their fixed order.

    `examples(first)` begins at a row, without reading those before it; `labels()` are (where it
    stands, class number as stored) of all, read without the images. `sizes()`: of each image, the
    bytes of its file; of sets that come in no files there are none.
    """

    rows: int
    examples: Callable[..., Iterator[Example]]
    labels: Callable[[], Iterator[tuple[str, Any]]]
    sizes: Callable[[], Iterator[int]] = lambda: iter(())


@dataclass(frozen=True)
class Source:
    """A set as it is stored: the splits that `data` names, and its class names where it has any."""

    parts: dict[str, Part]
    class_names: list[str] | None
    by_class: bool = False  # in the order of the classes?


def slice_of(data: Data, name: str) -> Slice:
    return parse_slice(name, getattr(data, name))


def path_of(data: Data) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def wanted_splits(data: Data, present: list[str]) -> list[str]:
    return wanted(vars(data), present)
