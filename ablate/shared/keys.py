"""What a key says of itself: a line of help, and where its value may lie.

It stands with the field that it is about: `lr: Annotated[float, Key("peak rate", above=0)]`. The
type says the rest, a `Literal` its choices; what relates several fields stands in `checks`.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ablate.shared.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where a number may lie; None: no bound. A text and a null are not bounded."""

    above: int | None = None
    least: int | None = None
    below: int | None = None
    most: int | None = None

    def check(self, value: Any, place: str) -> None:
        """Raises UserError, `place` first, for a number that lies outside."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if (
            (self.above is not None and not value > self.above)
            or (self.least is not None and not value >= self.least)
            or (self.below is not None and not value < self.below)
            or (self.most is not None and not value <= self.most)
        ):
            raise UserError(f"{place}: must be {self}, got {value!r}")

    def __str__(self) -> str:
        words = (
            ("more than", self.above),
            ("at least", self.least),
            ("less than", self.below),
            ("at most", self.most),
        )
        return " and ".join(f"{word} {bound:,}" for word, bound in words if bound is not None)


@dataclass(frozen=True)
class Key(Bounds):
    """`line`: what the key does, with its unit."""

    line: str


UNBOUNDED = Bounds()


@functools.cache  # evaluating annotations takes longer than all the rest of `build_run`
def hints(cls: Any) -> dict[str, Any]:
    """The types of a dataclass' fields, evaluated."""
    return typing.get_type_hints(cls)


@functools.cache
def keys(cls: Any) -> dict[str, Key]:
    """What the fields of a dataclass say of themselves, those that do."""
    return {
        name: said
        for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        for said in getattr(hint, "__metadata__", ())
        if isinstance(said, Key)
    }


@functools.cache
def added(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass that were added later, and what means "as before"."""
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


# Beside a key that takes an import path (`parts.PARTS`).
Settings = Annotated[Mapping[str, Any] | None, Key("KEY: value of that parameter of module:name")]
Version = Annotated[str | None, Key("of module:name: its code's, or its package's; computed")]
Folder = Annotated[  # not part of the id
    str | None, Key("where module:name lies; null: an installed package; computed")
]
