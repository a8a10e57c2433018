"""Writes the table as it prints, a line each number that it shows, for spreadsheets and scripts.

Used by `__init__.py` here, for `ablate table --format csv` and table.csv of a bundle. Other lines
also need `python tests/test_formats.py`, which writes tests/golden/table.csv.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.report.formats.tidy import csv_text

if TYPE_CHECKING:
    from ablate.analysis import Entry, Estimate, Summary, SummaryLine, Table


@dataclass
class Line:
    """A line of the file; the fields are its columns. Means are in the unit of the metric, gains in
    its points; None is an empty cell. A table with a target has differences in the place of
    gains."""

    row: str
    column: str
    metric: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    n: int = 0
    verdict: str | None = None

    def set_mean(self, mean: Estimate) -> None:
        self.mean, self.low, self.high = mean.mean, mean.low, mean.high

    def set_gain(self, gain: Estimate) -> None:
        self.gain, self.gain_low, self.gain_high = gain.mean, gain.low, gain.high


def csv(table: Table) -> str:
    """Write one line for each row, column and metric of the table, with numbers in full.

    What the table prints no number or verdict for is empty. Averages and effects, which the table
    prints in blocks of their own, follow: their `column` is the heading above them, and they have
    no mean. Notes are left out.
    """
    headings = [field.name for field in dataclasses.fields(Line)]
    if table.target is not None:
        headings = [heading.replace("gain", "difference") for heading in headings]
    return csv_text([headings, *map(dataclasses.astuple, _lines(table))])


def _lines(table: Table) -> Iterator[Line]:
    for column in table.columns:
        for entry in column.entries:
            yield _entry(table, entry)
            for metric, measurement in entry.others.items():
                yield _extra_metric(entry, metric, measurement.estimate)
    for block in table.blocks:
        for effect in block.lines:
            yield _effect(table, block, effect)


def _entry(table: Table, entry: Entry) -> Line:
    line = Line(entry.row, entry.column, table.metric, n=entry.n)
    if entry.accuracy:
        line.set_mean(entry.accuracy)
    # A table of changes prints no gains of single cells.
    if entry.contrast and table.is_judged(entry.row) and not table.is_of_changes:
        line.set_gain(entry.contrast)
        line.verdict = entry.verdict
    return line


def _extra_metric(entry: Entry, metric: str, mean: Estimate | None) -> Line:
    """Make the line of a metric that is not the one by which rows are judged."""
    line = Line(entry.row, entry.column, metric)
    if mean:
        line.set_mean(mean)
        line.n = mean.n
    return line


def _effect(table: Table, block: Summary, effect: SummaryLine) -> Line:
    heading = effect.part or block.title
    if effect.column:
        heading = f"{heading}: {effect.column}"
    line = Line(effect.label, heading, table.metric, n=effect.gain.n, verdict=effect.verdict)
    line.set_gain(effect.gain)
    return line
