"""One line of `ablate doctor`, and the words its checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem", "..."]  # ...: what is being tried


@dataclass(frozen=True)
class Finding:
    """What was found, of what, and where it is amiss what helps."""

    level: Level
    what: str
    text: str


Findings = Iterator[Finding]


def size(number: float) -> str:
    """Bytes for people: 1.5 GB."""
    from rich.filesize import decimal

    return decimal(int(number))


def counted(number: int, noun: str) -> str:
    """ "5 runs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def some(names: Sequence[str], noun: str, shown: int = 3) -> str:
    """ "5 runs (a, b, c, ...)"."""
    more = ", ..." if len(names) > shown else ""
    return f"{counted(len(names), noun)} ({', '.join(names[:shown])}{more})"
