"""A set as it is stored: its splits, their rows and labels, and which of them `data` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ablate.data.picture import Example, size_of
from ablate.shared.dataset import Slice, parse_slice, wanted
from ablate.shared.sections import Data


@dataclass(frozen=True)
class Part:
    """A split as it is stored: how many examples, and how to read them in their fixed order.

    `examples(first)` begins at a row, without reading those before it. `read_labels` and
    `read_sizes` take the place of `labels` and `sizes` where examples are slow to make.
    """

    rows: int
    examples: Callable[..., Iterator[Example]]
    read_labels: Callable[[], Iterator[tuple[str, Any]]] | None = None
    read_sizes: Callable[[], Iterator[int]] | None = None

    def labels(self) -> Iterator[tuple[str, Any]]:
        """Of each example, where it stands and its class number as stored. No image is read."""
        if self.read_labels is not None:
            return self.read_labels()
        return ((example.where, example.label) for example in self.examples())

    def sizes(self) -> Iterator[int]:
        """Of each example, the bytes of its files; 0 where it comes in none."""
        return map(size_of, self.examples()) if self.read_sizes is None else self.read_sizes()


Item = TypeVar("Item")


def part_of(items: Sequence[Item], example: Callable[[Item], Example]) -> Part:
    """The split that has `example(item)` for each item, in order."""
    return Part(len(items), lambda first=0: map(example, items[first:]))


@dataclass(frozen=True)
class Source:
    """A set as it is stored: the splits that `data` names, and its class names where it has any."""

    parts: dict[str, Part]
    class_names: list[str] | None
    by_class: bool = False  # in the order of the classes?


def few(names: Sequence[str], most: int = 10) -> str:
    """The first of the names, for a message: "a, b, ..."."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def slice_of(data: Data, name: str) -> Slice:
    return parse_slice(name, getattr(data, name))


def path_of(data: Data) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def wanted_splits(data: Data, present: list[str]) -> list[str]:
    return wanted(vars(data), present)
