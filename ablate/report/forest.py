"""Lays out the gains of a table as a forest for a page: a line a row, in any width.

Places are shares of the width in per cent, so a page needs no letters in a drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ablate.analysis.headline import told_gain
from ablate.analysis.table import Entry, Table
from ablate.planning.plan import Plan

TICKS = 5  # about so many


@dataclass(frozen=True)
class ForestLine:
    """A row. `interval`: where its bar begins and how long it is; `cut`: the ends that lie outside,
    of "left" and "right"."""

    label: str
    words: str
    kind: str  # its verdict
    mean: float
    interval: tuple[float, float] | None
    cut: tuple[str, ...]
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class Forest:
    """The rows of a column. `margin`: where its band begins and how wide it is."""

    heading: str
    zero: float
    margin: tuple[float, float] | None
    ticks: tuple[tuple[float, str], ...]
    lines: tuple[ForestLine, ...]


def forests(plan: Plan, table: Table) -> list[Forest]:
    """One for each column with gains, all over the same range."""
    from ablate.report.plot.gains import limits

    entries = [entry for entry in table.entries if entry.gain is not None]
    if not entries:
        return []
    scale = _Scale(*limits(table, entries))
    margin = plan.analysis.margin
    found = []
    for column in table.columns:
        lines = tuple(_line(table, e, scale) for e in entries if e.column == column.label)
        band = scale.band(-margin, margin) if margin is not None else None
        if lines:
            heading = column.heading if len(table.columns) > 1 else ""
            found.append(Forest(heading, scale.place(0.0), band, tuple(scale.ticks()), lines))
    return found


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float

    def place(self, value: float) -> float:
        """In per cent; outside, at the edge."""
        inside = min(max(value, self.low), self.high)
        return round(100 * (inside - self.low) / (self.high - self.low), 3)

    def band(self, low: float, high: float) -> tuple[float, float]:
        return self.place(low), round(self.place(high) - self.place(low), 3)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Round numbers: 1, 2 or 5 times a power of ten apart."""
        raw = (self.high - self.low) / TICKS
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(n * size for n in (1, 2, 5, 10) if n * size >= raw)
        for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            yield self.place(n * step), f"{n * step:.6g}"


def _line(table: Table, entry: Entry, scale: _Scale) -> ForestLine:
    from ablate.report.plot.gains import by_seed

    gain = entry.gain
    assert gain is not None
    interval, cut = None, []
    if gain.low is not None and gain.high is not None:
        interval = scale.band(gain.low, gain.high)
        cut += ["left"] * (gain.low < scale.low) + ["right"] * (gain.high > scale.high)
    return ForestLine(
        label=entry.row,
        words=told_gain(table, entry),
        kind=entry.verdict or "",
        mean=scale.place(gain.mean),
        interval=interval,
        cut=tuple(cut),
        seeds=tuple(map(scale.place, by_seed(table, entry).values())),
    )
