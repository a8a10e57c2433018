"""Judges the mean of each row against a target, a fixed number, and finds from which column on the
means of a row are on its better side.

Used by `tabulate.py`, for every table of a sweep with `analysis.target`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablate.analysis import stats
from ablate.analysis.evidence import ColumnEvidence
from ablate.analysis.judging import Detail, is_partial
from ablate.analysis.summary import GOOD_FROM, Summary, SummaryLine
from ablate.analysis.table import Entry, TableColumn, better_side
from ablate.planning import Plan


def target_differences(
    column: ColumnEvidence, target: float, method: stats.Method
) -> stats.ColumnGains:
    """Compute the difference of each row of a column from the target, each with the interval of its
    own runs; None for a row with a run that diverged or never reached a threshold, which has no
    number to average: the mean of the others would be that of the lucky ones."""
    import numpy as np

    plan = column.plan
    differences: list[stats.RowGain | None] = []
    for values, scores in zip(plan.metric.sign * column.means(plan), column.scores, strict=True):
        if is_partial(plan, scores):
            differences.append(None)
        else:
            differences.append(stats.target_difference(np.asarray(values), target, method))
    return stats.ColumnGains(tuple(differences))


def sequence_block(
    plan: Plan, columns: Sequence[TableColumn], detail: Detail
) -> tuple[Summary, ...]:
    """Make the block that says from which column on each row is on the better side of the target.
    () unless the columns are ordered, one side is better, and verdicts are shown.

    The columns are tested in a fixed sequence, from the last one backwards, until one is not on the
    better side: so no column but the first that fails can be a false one, and the error of all is
    that of a single column (Maurer, Hothorn & Lehmacher 1995).
    """
    order = _ordered_labels(plan)
    good = better_side(plan.metric)
    if not order or not good or detail is not Detail.VERDICTS:
        return ()
    by_label = {column.label: column for column in columns if not column.on}
    sequence = [by_label[label] for label in order]
    lines = list(_lines(plan, sequence, good))
    if not any(line.verdict for line in lines):
        return ()
    return (
        Summary(
            kind="sequence",
            name="target",
            title=f"From which {_column_noun(plan)} on?",
            note=f"the first column from which on a row is {good} in every column; tested from the "
            f"last column backwards, so no correction for their number is needed",
            contrasts=max(column.contrasts for column in sequence),
            lines=tuple(lines),
        ),
    )


def _ordered_labels(plan: Plan) -> list[str]:
    """Return the labels of columns in the order of their numbers, such as steps; [] unless there
    are two or more, each with a number of its own, of one key."""
    if len({key for column in plan.columns for key in column.settings}) > 1:
        return []
    numbers = {column.label: column.number for column in plan.columns}
    by_number = {number: label for label, number in numbers.items() if number is not None}
    if len(plan.columns) < 2 or len(by_number) < len(plan.columns):
        return []
    return [by_number[number] for number in sorted(by_number)]


def _column_noun(plan: Plan) -> str:
    """Return what the columns of a plan are: "step", by the sheet's column or by their key."""
    keys = {key.rpartition(".")[2] for column in plan.columns for key in column.settings}
    return plan.design.column_noun or keys.pop()


def _lines(plan: Plan, sequence: Sequence[TableColumn], good: str) -> Iterator[SummaryLine]:
    """Yield a line for each row: the first column that is good with all after it or, where the last
    one is not, that one with its verdict."""
    for row in plan.rows:
        entries = [
            next((entry for entry in column.entries if entry.row == row.label), None)
            for column in sequence
        ]
        start = len(sequence)
        while start > 0 and _verdict(entries[start - 1]) == good:
            start -= 1
        place = min(start, len(sequence) - 1)
        entry, heading = entries[place], sequence[place].heading
        if entry is None or entry.difference is None:
            continue
        verdict = entry.verdict
        if start < len(sequence):
            verdict = f"{GOOD_FROM}{heading} on"
        yield SummaryLine(row.label, heading, entry.difference, verdict, entry.p_values)


def _verdict(entry: Entry | None) -> str | None:
    return entry.verdict if entry is not None else None
