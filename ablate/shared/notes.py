"""The notes that the holder of a lock keeps in its file: every word that they may hold.

Writers and readers share this one class, so readers know every word that a writer may use.

Used by shared/files.py (`Lock`), by workers, which note (training/attempt.py), and by readers such
as the driver (running/board.py) and `ablate status` (report/text.py). A new word is a field of
`Notes`.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The notes that the holder of a lock keeps of itself; a field is None where nothing is noted.

    A worker's notes are its signs of life: a worker whose notes stay the same for `launcher.hang_s`
    seconds counts as hung. Raise TypeError for a value of another type, and for a word that is not
    declared here.
    """

    # Who holds the lock
    pid: int | None = None
    host: str | None = None
    # A worker: where it is
    slot: str | None = None
    phase: str | None = None
    ranks: str | None = None  # process ids of the ranks from 1 on, between blanks
    step: int | None = None
    total: int | None = None  # steps; of decoding: images
    images: int | None = None  # that it has decoded
    batches: int | None = None  # that it has evaluated
    beat: int | None = None  # counts signs of life of which nothing else changes
    from_step: int | None = None  # the step at which it began
    from_at: float | None = None  # when, in seconds since 1970
    # A worker: how it left
    exit: str | None = None
    error: str | None = None
    # Whoever decodes a dataset
    done: int | None = None  # images, of `total`
    # A driver
    sweep: str | None = None
    ended: str | None = None  # how the drive ended

    def __post_init__(self) -> None:
        for name, value in self.tree().items():
            if not _holds(name, value):
                raise TypeError(f"{name}: {value!r} is no {_TYPES[name].__name__} of a note")

    def __bool__(self) -> bool:
        """Return whether anything is noted."""
        return bool(self.tree())

    def tree(self) -> dict[str, Any]:
        """Return what is noted, in the form of JSON."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_tree(cls, tree: object) -> Notes:
        """Read notes from JSON. What no note can be is left out."""
        if not isinstance(tree, Mapping):
            return cls()
        return cls(**{name: value for name, value in tree.items() if _holds(name, value)})


_TYPES: dict[str, type] = {
    name: typing.get_args(hint)[0] for name, hint in typing.get_type_hints(Notes).items()
}


def _holds(name: str, value: object) -> bool:
    """Return whether `name` is a word of notes and `value` one of its type that JSON can hold."""
    kind = _TYPES.get(name)
    if kind is float:
        return type(value) in (int, float) and math.isfinite(typing.cast(float, value))
    if kind is int:
        return type(value) is int and -(2**63) <= value < 2**63
    return kind is not None and type(value) is kind
