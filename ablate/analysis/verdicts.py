"""Writes a sentence on each variant of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.analysis.across import SummaryLine
from ablate.analysis.table import Entry, Table

if TYPE_CHECKING:  # numpy and scipy
    from ablate.analysis.stats import Estimate

NO_VERDICT = "no verdict"
FEW = 3  # columns that have their numbers said beside the average's


@dataclass(frozen=True)
class Said:
    """`kind`: the verdict where all columns agree, else "mixed"; "baseline" for the baseline."""

    label: str
    kind: str
    sentence: str  # without the label


def said(table: Table) -> list[Said]:
    """Write a sentence for every variant, the baseline first."""
    averages = {
        line.label: line
        for block in table.blocks
        if block.kind == "average"
        for line in block.lines
    }
    found = []
    for row in table.rows:
        entries = [entry for entry in table.entries if entry.row == row.label]
        baseline = row.label == table.baseline
        kinds = dict.fromkeys(entry.verdict or NO_VERDICT for entry in entries)
        kind = "baseline" if baseline else next(iter(kinds)) if len(kinds) == 1 else "mixed"
        clause = _level if baseline else _gain
        average = averages.get(row.label)
        if average and len(entries) > FEW:
            clauses = _grouped(table, entries)
        else:
            clauses = [clause(table, entry) for entry in entries]
        if average:
            clauses.insert(0, _average(table, average))
        found.append(Said(row.label, kind, f"{'; '.join(clauses)}."))
    return sorted(found, key=lambda one: one.kind != "baseline")


def summary(table: Table) -> str:
    """ "8 comparisons: 5 help, 3 can't tell." """
    contrasts = table.contrasts
    counts = Counter(entry.verdict or NO_VERDICT for entry in contrasts)
    what = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    counted = f"{len(contrasts)} comparison{'s'[: len(contrasts) != 1]}: {what}."
    return " ".join(filter(None, (counted, false_words(table))))


def false_words(table: Table) -> str:
    """State the expected number of columns with a false verdict, if each column is a family of its
    own; else ""."""
    columns = sum(not column.void for column in table.judged)
    if columns < 2 or table.family == "table" or not table.has_verdicts:
        return ""
    alpha = f"{100 * table.gain_alpha:.3g} %"
    return (
        f"A column has a false verdict in up to {alpha} of sweeps, so of {columns} columns up to "
        f"{columns * table.gain_alpha:.2g} are expected to have one; with analysis.family=table a "
        f"whole table has one in up to {alpha} of sweeps."
    )


def _level(table: Table, entry: Entry) -> str:
    metric = table.of()
    what = f"the baseline{_on(table, entry)}"
    if entry.accuracy is None:
        return f"{what} ({'; '.join(_fates(entry))})"
    value = metric.text(entry.accuracy.mean)
    unit = f" {metric.unit}" if metric.unit else ""
    told = f"{value}{unit}{_interval(table, entry.accuracy)}, n = {entry.n}"
    return f"{what} ({'; '.join([told, *_fates(entry)])})"


def _gain(table: Table, entry: Entry) -> str:
    verdict = f"{entry.verdict or NO_VERDICT}{_on(table, entry)}"
    if entry.gain is None:
        return f"{verdict} ({'; '.join(_fates(entry)) or 'no gain to compare'})"
    return f"{verdict} ({'; '.join([_told(table, entry.gain), *_fates(entry)])})"


def told_gain(table: Table, entry: Entry) -> str:
    """ "+1.20 points [+0.70, +1.70], n = 5: helps", of an entry with a gain."""
    assert entry.gain is not None
    return _told(table, entry.gain) + (f": {entry.verdict}" if entry.verdict else "")


def _average(table: Table, line: SummaryLine) -> str:
    verdict = f"{line.verdict or NO_VERDICT} on average over {len(line.columns)} columns"
    return f"{verdict} ({_told(table, line.gain)})"


def _grouped(table: Table, entries: Sequence[Entry]) -> list[str]:
    """List the columns of each verdict, with the runs that have no plain result."""
    columns: dict[str, list[str]] = {}
    for entry in entries:
        fates = f" ({'; '.join(_fates(entry))})" if _fates(entry) else ""
        found = columns.setdefault(entry.verdict or NO_VERDICT, [])
        found.append(_headings(table)[entry.column] + fates)
    return [f"{verdict} on {', '.join(found)}" for verdict, found in columns.items()]


def _told(table: Table, gain: Estimate) -> str:
    points = table.of().points
    mean = table.of().text(gain.mean, sign=True)
    return f"{mean} {points}{_interval(table, gain, sign=True)}, n = {gain.n}"


def _on(table: Table, entry: Entry) -> str:
    return f" on {_headings(table)[entry.column]}" if len(table.columns) > 1 else ""


def _headings(table: Table) -> dict[str, str]:
    return {column.label: column.heading for column in table.columns}


def _interval(table: Table, estimate: Estimate, sign: bool = False) -> str:
    if estimate.low is None or estimate.high is None:
        return ", no interval"
    low, high = (table.of().text(end, sign) for end in (estimate.low, estimate.high))
    return f" [{low}, {high}]"


def _fates(entry: Entry) -> list[str]:
    """Count the runs that diverged, collapsed, never reached the threshold, or are missing."""
    return [
        f"{len(seeds)} of {entry.planned} runs {what}: {_seeds(seeds)}"
        for seeds, what in (
            (entry.diverged, "diverged"),
            (entry.never, "never reached the threshold"),
            (entry.collapsed, "collapsed"),
            (entry.missing, "missing"),
        )
        if seeds
    ]


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}"
