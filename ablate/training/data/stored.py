"""A set as it is stored: its splits, their rows and labels, and which of them `data` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.shared.errors import UserError
from ablate.shared.fingerprint import (
    Slice,
    parse_slice,
)
from ablate.shared.spec import Data
from ablate.training.data.picture import Example


@dataclass(frozen=True)
class Part:
    """A split as it is stored: how many examples, and how to read them in their fixed order.

    `examples(first)` begins at a row, without reading those before it; `labels()` are (where it
    stands, class number as stored) of all, read without the images.
    """

    rows: int
    examples: Callable[..., Iterator[Example]]
    labels: Callable[[], Iterator[tuple[str, Any]]]


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
    """The stored splits that `data` names; UserError for one that is not among those present."""
    wanted: list[str] = []
    for name in ("train", "validation", "test"):
        if not isinstance(getattr(data, name), str):
            continue
        part = slice_of(data, name)
        if part.split not in present:
            raise UserError(
                f"data.{name}: no split {part.split!r} in data={data.name}; "
                f"present: {', '.join(present) or 'none'}"
                + ("" if name == "train" else "; a count or a share is cut from train")
            )
        if name != "train" and part.text == data.train:
            raise UserError(
                f"data.{name}: {part.text!r} is the split to train on; "
                f"give a count or a share to cut from it"
            )
        if part.split not in wanted:
            wanted.append(part.split)
    return wanted
