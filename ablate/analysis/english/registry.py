"""Maps the key of each sentence to the function that writes it.

A sentence is plain, for every reader of a table, or exact: how a number was computed, which only
full notes print.

Used by the other files of this folder, which register their functions with `writes`, and by
note.py, which calls `write` for each sentence of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

WRITERS: dict[str, Callable[..., str]] = {}  # by key
EXACT_KEYS: set[str] = set()


def writes(key: str, exact: bool = False) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Return a decorator that registers a function as the writer of `key`. It gets the values of
    the sentence as keyword arguments."""

    def register(writer: Callable[..., str]) -> Callable[..., str]:
        if key in WRITERS:
            raise ValueError(f"{key}: has two writers")
        WRITERS[key] = writer
        if exact:
            EXACT_KEYS.add(key)
        return writer

    return register


def write(key: str, values: Mapping[str, Any]) -> str:
    """Write the sentence of a key. Raises KeyError for a key without a writer, and TypeError for
    values that its writer doesn't take."""
    return WRITERS[key](**values)
