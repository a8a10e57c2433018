"""Registers the function that writes each sentence, by its key.

A sentence is plain, for every reader of a table, or exact: how a number was computed, which only
full notes print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SENTENCES: dict[str, Callable[..., str]] = {}
EXACT: set[str] = set()  # the keys of exact sentences


def writes(key: str, exact: bool = False) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Return a decorator that registers the writer of a key, which is given the values by name."""

    def register(writer: Callable[..., str]) -> Callable[..., str]:
        if key in SENTENCES:
            raise ValueError(f"{key}: has two writers")
        SENTENCES[key] = writer
        if exact:
            EXACT.add(key)
        return writer

    return register


def write(key: str, values: Mapping[str, Any]) -> str:
    """Write the sentence of a key. Raises KeyError for a key without a writer, and TypeError for
    values that it doesn't take."""
    return SENTENCES[key](**values)
