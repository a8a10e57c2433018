"""A set as it is stored: its splits, their rows and labels, and the splits that `data` names.

Rules make classes of other values in a label column: those of VTAB's structured tasks.

VTAB: Zhai and others 2019, "A Large-scale Study of Representation Learning with the Visual Task
Adaptation Benchmark". Its tasks are defined by their code, google-research/task_adaptation,
data/clevr.py, data/kitti.py and data/dsprites.py; edges of distances belong to the class below.

Used by `data/source.py`, `data/tables.py` and `data/building.py`. A new entry of `RULES` also needs
its name in `run/sections.py` (`rule` of `Data`).
"""

from __future__ import annotations

import bisect
import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ablate.data.picture import BrokenImage, Example, decode_whole, size_of
from ablate.run import (
    Data,
    Slice,
    parse_slice,
    select_splits,
)
from ablate.shared import UserError


@dataclass(frozen=True)
class Part:
    """A split as it is stored: the number of its examples, and functions that read them in their
    fixed order.

    `examples(first)` begins at a row, without reading those before it. `read_labels` and
    `read_sizes` replace `labels` and `sizes` where examples are slow to make.
    """

    rows: int
    examples: Callable[..., Iterator[Example]]
    read_labels: Callable[[], Iterator[tuple[str, Any]]] | None = None
    read_sizes: Callable[[], Iterator[int]] | None = None

    def labels(self) -> Iterator[tuple[str, Any]]:
        """Return for each example its place, for messages, and its class number as stored. Reads no
        image."""
        if self.read_labels is not None:
            return self.read_labels()
        return ((example.place, example.label) for example in self.examples())

    def sizes(self) -> Iterator[int]:
        """Return for each example the size of its files in bytes; 0 where it comes in none."""
        return map(size_of, self.examples()) if self.read_sizes is None else self.read_sizes()


Item = TypeVar("Item")


def part_of(items: Sequence[Item], example: Callable[[Item], Example]) -> Part:
    """Return the split that has `example(item)` for each item, in order."""
    return Part(len(items), lambda start=0: map(example, items[start:]))


@dataclass(frozen=True)
class Source:
    """A set as it is stored: the splits that `data` names, and its class names where it has any.

    label_sets: for a set whose images have several classes, the different sets of them; a label is
    the number of one.
    """

    parts: dict[str, Part]
    class_names: list[str] | None
    by_class: bool = False  # in the order of the classes?
    label_sets: list[tuple[int, ...]] | None = None


def few(names: Sequence[str], limit: int = 10) -> str:
    """Return the first of the names, for a message: "a, b, ..."."""
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def slice_of(data: Data, name: str) -> Slice:
    return parse_slice(name, getattr(data, name))


def path_of(data: Data) -> Path:
    assert data.path is not None
    return Path(data.path).expanduser().absolute()


def wanted_splits(data: Data, present: list[str]) -> list[str]:
    return select_splits(vars(data), present)


_CLEVR = (8.0, 8.5, 9.0, 9.5, 10.0)  # depth in the picture, of 6 classes
_KITTI = (8.0, 20.0, 999.0)  # metres before the car, of 4 classes
_VEHICLES = (0, 1, 2)  # car, van, truck
SPRITES = ("dsprites_position", "dsprites_orientation")  # rules of pictures in black and white


@dataclass(frozen=True)
class Rule:
    """A rule that makes class numbers of stored values.

    `number` returns the number of a value, and raises ValueError, TypeError, KeyError or IndexError
    for a value that it can't use. `takes` describes the values that it can use.
    """

    takes: str
    number: Callable[[Any], int]


def by_rule(data: Data, split: str, place: str, value: Any) -> int:
    """Return the class number that `data.rule` makes of a value of the label column. Raises
    UserError, with the row or file and the value, where it makes none."""
    assert data.rule is not None
    rule = RULES[data.rule]
    try:
        number = rule.number(value)
    except (ValueError, TypeError, KeyError, IndexError):
        number = -1
    if not 0 <= number < data.classes:
        raise UserError(
            f"data.label: {place} (split {split!r}): data.rule={data.rule} makes one of "
            f"{data.classes} classes of {rule.takes}, got {reprlib.repr(value)}"
        )
    return number


def check_sprite(data: Data, example: Example) -> None:
    """Raise UserError for a picture of dSprites whose white is level 1, as in TFDS: VTAB multiplies
    it by 255, and without that it would be black."""
    try:
        levels = np.asarray(decode_whole(example, 1))
    except BrokenImage:  # reported with all others that can't be read
        return
    if levels.max() <= 1:
        raise UserError(
            f"data: {example.place}: has levels 0 and 1 alone, of 255: nearly black; store images "
            f"of data={data.name} with white as 255, and give data.path=FOLDER"
        )


def clevr_count(value: Any) -> int:
    """Return the class of the number of objects in the picture, 3 to 10: their number less 3 (task
    count_all)."""
    return (len(_scene_objects(value)) if isinstance(value, list | dict) else _integer(value)) - 3


def clevr_distance(value: Any) -> int:
    """Return the class of the depth of the nearest object, the last of its three pixel coordinates:
    up to 8, 8.5, 9, 9.5, 10, and more (task closest_object_distance)."""
    return _interval(
        _CLEVR, min(_depth(scene_object, "pixel_coords") for scene_object in _scene_objects(value))
    )


def kitti_distance(value: Any) -> int:
    """Return the class of the depth of the nearest car, van or truck: up to 8, 20 and 999 metres,
    and none within 999 metres (task closest_vehicle_distance)."""
    scene_objects = _scene_objects(value)
    depths = [_depth(t, "location") for t in scene_objects if _integer(t["type"]) in _VEHICLES]
    return _interval(_KITTI, min(depths, default=math.inf))


def dsprites_position(value: Any) -> int:
    """Return the class of one of 32 places: two to a class (task label_x_position)."""
    return _integer(value) // 2


def dsprites_orientation(value: Any) -> int:
    """Return the class of one of 40 angles: three, two, three, ... to a class (task
    label_orientation: 40 / 16 = 2.5)."""
    return _integer(value) * 2 // 5


def _interval(edges: Sequence[float], depth: float) -> int:
    """Return the number of the interval that has `depth`. Each ends with an edge, which belongs to
    it; one more begins behind the last edge."""
    return bisect.bisect_left(edges, depth)


def _scene_objects(value: Any) -> list[Any]:
    """List the objects of a row's scene. `datasets` stores a sequence of structs as a struct of
    sequences."""
    if isinstance(value, dict):
        columns = value.values()
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _depth(scene_object: Any, field: str) -> float:
    """Return the z of an object: a number, [x, y, z], or a struct that has these in `field`."""
    place = scene_object[field] if isinstance(scene_object, dict) else scene_object
    if isinstance(place, list):
        _, _, place = place
    if isinstance(place, bool) or not isinstance(place, int | float) or not math.isfinite(place):
        raise ValueError(place)
    return place


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


_OBJECTS = "objects: a list of depths, of [x, y, z], or of structs that have {}"
RULES = {
    "clevr_count": Rule("3 to 10 objects: their number, or a list of them", clevr_count),
    "clevr_distance": Rule(_OBJECTS.format("pixel_coords [x, y, z]"), clevr_distance),
    "kitti_distance": Rule(
        "objects: a list of structs that have type and location [x, y, z]", kitti_distance
    ),
    "dsprites_position": Rule("a place from 0 to 31", dsprites_position),
    "dsprites_orientation": Rule("an angle's number from 0 to 39", dsprites_orientation),
}
