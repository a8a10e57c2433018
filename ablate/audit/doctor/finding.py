"""One finding of `ablate doctor`, and the texts that its checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ablate.report.text import counted

Level = Literal["ok", "warning", "problem", "..."]  # ...: a check has begun


@dataclass(frozen=True)
class Finding:
    """One line of the report. `what`: the name of the check; `text`: the fact, and the remedy of a
    warning or a problem."""

    level: Level
    what: str
    text: str


Findings = Iterator[Finding]


def size(number: float) -> str:
    """A number of bytes as text: "1.5 GB"."""
    from rich.filesize import decimal

    return decimal(int(number))


def some(names: Sequence[str], noun: str, shown: int = 3) -> str:
    """ "5 runs (a, b, c, ...)"."""
    more = ", ..." if len(names) > shown else ""
    return f"{counted(len(names), noun)} ({', '.join(names[:shown])}{more})"
