"""Writes the result of a table as one sentence, and gains and verdicts in a few words.

Used by report/formats/layout.py (`ablate table`), cli/driving.py (the end of `ablate sweep`) and
report/page.py (`ablate report`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from ablate.analysis import stats
from ablate.analysis.english.words import join_words
from ablate.analysis.summary import SummaryLine
from ablate.analysis.table import Entry, Table
from ablate.shared import amount_text

CERTAIN = 0.5  # a chance from which the expected number says more than the bound on it
NAMED_COLUMNS = 3  # of a table; of more their number is said
NAMED_ROWS = 3  # rows of a verdict; of more their number is said, and which is the foremost
# What a verdict says of one row, of several. {margin} has its unit.
STATEMENTS = {
    "helps": ("{rows} helps", "{rows} help"),
    "hurts": ("{rows} hurts", "{rows} hurt"),
    "better": ("{rows} is better", "{rows} are better"),
    "worse": ("{rows} is worse", "{rows} are worse"),
    "higher": ("{rows} is higher", "{rows} are higher"),
    "lower": ("{rows} is lower", "{rows} are lower"),
    "same within": ("{rows} is the same within {margin}", "{rows} are the same within {margin}"),
    "no worse than": (
        "{rows} is less than {margin} worse, if at all",
        "{rows} are less than {margin} worse, if at all",
    ),
    "above the target": ("{rows} is above it", "{rows} are above it"),
    "below the target": ("{rows} is below it", "{rows} are below it"),
    "can't tell": ("can't tell for {rows}", "can't tell for {rows}"),
    "unstable": ("{rows} is unstable", "{rows} are unstable"),
}
TARGET_VERDICTS = ("above the target", "below the target")
BOUNDED = ("same within", "no worse than")  # by the margin
EFFECT_VERDICTS = ("helps", "hurts", "better", "worse", "higher", "lower", *TARGET_VERDICTS)


def table_headline(table: Table) -> str:
    """Write the verdicts of a table in one sentence: "On cifar10, against plain, over 5 seeds: post
    helps (+1.20 points [+0.70, +1.70]).".

    Several columns are counted, with the number of false verdicts to expect. "" for an incomplete
    table and for a table without verdicts. A smoke test has none, and its sentence says so.
    """
    if smoke := table.texts("smoke"):
        return smoke[0]
    contrasts, groups = table.contrasts, _by_verdict(table)
    if not groups:
        return ""
    caution = f" {false}" if (false := false_words(table)) else ""
    if len(table.judged_columns) > 1:
        clauses = _column_clauses(table, groups, contrasts)
    else:
        clauses = [_clause(table, verdict, entries, len(contrasts)) for verdict, entries in groups]
    seeds = {entry.n for entry in contrasts if entry.verdict}
    repeat_words = f", over {seeds.pop()} {table.repeats}" if len(seeds) == 1 else ""
    on = f"On {table.data}, against" if table.data else "Against"
    reference = table.baseline_words
    if table.target is not None:
        reference = f"the target {table.target:.10g}"
        if sequence_clauses := _sequence_clauses(table):
            clauses, caution = sequence_clauses, ""
    return f"{on} {reference}{repeat_words}: {'; '.join(clauses)}.{caution}"


def _sequence_clauses(table: Table) -> list[str]:
    """Say from which column on each row is on the better side of the target; [] for a table whose
    columns have no order."""
    lines = [line for block in table.blocks if block.kind == "sequence" for line in block.lines]
    judged = [row.label for row in table.rows if table.is_judged(row.label)]
    groups: dict[tuple[str, str], list[SummaryLine]] = {}
    for line in lines:
        groups.setdefault((line.verdict or "", line.column), []).append(line)
    clauses = []
    for (verdict, column), alike in groups.items():
        several = len(alike) > 1
        rows = _rows_text([line.label for line in alike], len(judged))
        if alike[0].is_good_from:
            clauses.append(f"{rows} {'are' if several else 'is'} {verdict}")
        else:
            clauses.append(f"{_statement(table, verdict, rows, several)} at {column}, the last")
    unjudged = [row for row in judged if row not in {line.label for line in lines}]
    if clauses and unjudged:
        verb = "have" if len(unjudged) > 1 else "has"
        clauses.append(f"{_rows_text(unjudged, len(judged))} {verb} no mean in the last column")
    return clauses


def _rows_text(rows: Sequence[str], total: int) -> str:
    """Name these rows of `total`, or say how many they are."""
    return join_words(rows) if len(rows) <= NAMED_ROWS else f"{len(rows)} of {total}"


def _by_verdict(table: Table) -> list[tuple[str, list[Entry]]]:
    """Return the entries of each verdict, in the order of STATEMENTS; [] for a table that has none,
    or is incomplete."""
    contrasts = table.contrasts
    if not table.complete or not any(entry.verdict for entry in contrasts):
        return []
    groups: dict[str, list[Entry]] = {}
    for entry in contrasts:
        groups.setdefault(entry.verdict or "", []).append(entry)
    return sorted(groups.items(), key=lambda item: (_place(item[0]), not item[0]))


def _place(verdict: str) -> int:
    """Return the place of a verdict in the sentence; unknown verdicts and none come last."""
    kinds = (*STATEMENTS, "")
    return next(i for i, kind in enumerate(kinds) if verdict.startswith(kind))


def _statement(table: Table, verdict: str, rows: str, several: bool) -> str:
    """Say a verdict of rows, which are named or counted."""
    for kind, forms in STATEMENTS.items():
        if verdict.startswith(kind):
            margin = verdict.removeprefix(kind).strip()
            unit = table.metric_of().points
            return forms[several].format(rows=rows, margin=amount_text(margin, unit))
    return f"{rows} {verdict or ('have no verdict' if several else 'has no verdict')}"


def _clause(table: Table, verdict: str, entries: Sequence[Entry], total: int) -> str:
    """Name the rows of a verdict, for a table of one column."""
    several = len(entries) > 1
    is_effect = verdict in EFFECT_VERDICTS
    if len(entries) > NAMED_ROWS:
        largest = max(
            entries, key=lambda entry: abs(entry.contrast.mean) if entry.contrast else 0.0
        )
        foremost = f", most of all {largest.row}{_bracketed(table, largest)}" if is_effect else ""
        return _statement(table, verdict, f"{len(entries)} of {total}", several) + foremost
    if is_effect and not several:
        return _statement(table, verdict, entries[0].row, several) + _bracketed(table, entries[0])
    names = [entry.row + (_bracketed(table, entry) if is_effect else "") for entry in entries]
    return _statement(table, verdict, join_words(names), several)


def _column_clauses(
    table: Table, groups: Sequence[tuple[str, list[Entry]]], contrasts: Sequence[Entry]
) -> list[str]:
    """Name the columns where a row helps or hurts, or count them where they are many; count the
    comparisons with each other verdict."""
    columns = Counter(entry.row for entry in contrasts)
    clauses, other_clauses = [], []
    for verdict, entries in groups:
        if verdict not in EFFECT_VERDICTS:
            other_clauses.append(f"{verdict or 'no verdict'} in {len(entries)}")
            continue
        rows = _foremost_first(entries)
        rows_by_columns: dict[tuple[str, ...], list[str]] = {}
        for row in [*rows][:NAMED_ROWS]:
            headings = tuple(entry.column for entry in entries if entry.row == row)
            rows_by_columns.setdefault(headings, []).append(row)
        parts = list[str]()
        for labels, names in rows_by_columns.items():
            subject = join_words(names)
            if not parts:
                subject = _statement(table, verdict, subject, len(names) > 1)
            parts.append(f"{subject} in {_places(table, labels, columns[names[0]])}")
        others = Counter(rows[row] == columns[row] for row in [*rows][NAMED_ROWS:])
        for is_in_all, count in sorted(others.items(), reverse=True):
            parts.append(f"{count} more in {'all' if is_in_all else 'some'}")
        clauses.append(", ".join(parts))
    if other_clauses:
        other_clauses[-1] += f" of {len(contrasts)} comparisons"
        clauses.append(join_words(other_clauses))
    return clauses


def _foremost_first(entries: Sequence[Entry]) -> dict[str, int]:
    """Count the entries of each row. The row with the most comes first; of rows with equally many,
    that with the largest mean gain."""
    gains: dict[str, list[float]] = {}
    for entry in entries:
        gains.setdefault(entry.row, []).append(abs(entry.contrast.mean) if entry.contrast else 0.0)
    order = sorted(gains, key=lambda row: (len(gains[row]), fmean(gains[row])), reverse=True)
    return {row: len(gains[row]) for row in order}


def _places(table: Table, labels: Sequence[str], total: int) -> str:
    """Name these columns of the `total` of a row, or say how many they are."""
    if total > NAMED_COLUMNS:
        return f"{len(labels)} of {total} columns"
    headings = {column.label: column.heading for column in table.columns}
    return join_words([headings[label] for label in labels])


def wins(table: Table, entries: Sequence[Entry]) -> str:
    """Count the verdicts on a row's entries in some columns: "helps in 5 of 7 (hurts in 1)". In a
    table without verdicts, count the means above the baseline's: "above in 5 of 7". "" for none."""
    if any(entry.verdict for entry in table.entries):
        side_columns = {column.label for column in table.columns if column.beside}
        entries = [entry for entry in entries if entry.column not in side_columns]
    if not any(entry.gain for entry in entries):
        return ""
    void = {column.label for column in table.columns if column.void}
    judged_entries = [entry for entry in entries if entry.column not in void]
    if any(entry.verdict for entry in table.entries):
        verdicts = Counter(entry.verdict or "" for entry in entries)
        bounded = {word: verdicts[word] for word in verdicts if word.startswith(BOUNDED)}
        better, worse = _effect_words(table)
        win_count = verdicts[better]
        other_counts = {worse: verdicts[worse], **bounded, "no verdict": verdicts[""]}
    else:
        better = "below" if table.metric_of().sign < 0 else "above"
        gains = [entry.gain.mean for entry in judged_entries if entry.gain]
        win_count = sum(gain > 0 for gain in gains)
        other_counts = {
            "no gain": len(judged_entries) - len(gains),
            "unstable baseline": len(entries) - len(judged_entries),
        }
    details = ", ".join(f"{outcome} in {count}" for outcome, count in other_counts.items() if count)
    return f"{better} in {win_count} of {len(entries)}" + (f" ({details})" if details else "")


def _effect_words(table: Table) -> tuple[str, str]:
    """Return the verdicts of the table on a gain above 0 and below 0."""
    if table.metric_of().neutral:
        return stats.NEUTRAL
    is_compared = any(entry.verdict in stats.COMPARED for entry in table.entries)
    return stats.COMPARED if is_compared else stats.BETTER


def _bracketed(table: Table, entry: Entry) -> str:
    """Return " (+1.20 points [+0.70, +1.70])", or "" where there is no gain."""
    return f" ({_gain_text(table, entry.contrast)})" if entry.contrast else ""


def false_words(table: Table) -> str:
    """State how likely a false verdict is in some column, or how many are to be expected, if each
    column is a family of its own; else, and where the error is unknown, "". Readings before, which
    a note counts, raise the error of their columns."""
    judged = [column.heading for column in table.judged_columns if not column.void]
    if len(judged) < 2 or table.family == "table" or not table.has_verdicts:
        return ""
    errors = dict.fromkeys(judged, table.alpha)
    for note in table.notes:
        if note.key == "looks.changed" and note.values["known_error"] == "":
            return ""
        if note.key == "looks.other-readings":
            for heading in note.values["columns"] or judged:
                errors[heading] = note.values["error"]
    is_estimate = any(error != table.alpha for error in errors.values())
    bound = "about" if is_estimate else "up to"
    levels = dict.fromkeys(f"{100 * error:.2g}" for error in sorted(errors.values()))
    level = " to ".join([*levels][:: max(1, len(levels) - 1)])
    total = sum(errors.values())
    if total < CERTAIN:
        consequence = f"a false verdict in some column has a chance of {bound} {100 * total:.2g} %"
    else:
        consequence = f"{bound} {total:.2g} of {len(judged)} columns may have a false verdict"
    return (
        f"Each column has an error rate of {level} %, so {consequence}; "
        f"with analysis.family=table the columns share one."
    )


def gain_label(table: Table, entry: Entry) -> str:
    """Return "+1.20 points [+0.70, +1.70], n = 5: helps" for an entry with a gain."""
    gain = entry.gain
    assert gain is not None
    interval = "" if table.metric_of().interval(gain.low, gain.high) else ", no interval"
    verdict = f": {entry.verdict}" if entry.verdict else ""
    return f"{_gain_text(table, gain)}{interval}, n = {gain.n}{verdict}"


def _gain_text(table: Table, gain: stats.Estimate) -> str:
    """Return "+1.20 points [+0.70, +1.70]", or the mean alone where there is no interval."""
    metric = table.metric_of()
    mean = amount_text(metric.text(gain.mean, sign=True), metric.points)
    interval = metric.interval(gain.low, gain.high, sign=True)
    return f"{mean} {interval}" if interval else mean
