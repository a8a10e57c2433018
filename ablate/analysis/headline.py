"""Writes the result of a table as one sentence, with its intervals or brief, and a sentence on each
variant."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ablate.analysis import stats
from ablate.analysis.footnotes import seed_names
from ablate.analysis.table import Entry, Table
from ablate.analysis.trained_on import listed
from ablate.shared.metrics import Metric

NAMED = 3  # rows of a verdict; of more their number is said, and which is the foremost
# A verdict's first words: of one row, of several. {} is the margin with its unit.
PREDICATES = {
    "helps": ("helps", "help"),
    "hurts": ("hurts", "hurt"),
    "higher": ("is higher", "are higher"),
    "lower": ("is lower", "are lower"),
    "same within": ("is the same within {}", "are the same within {}"),
    "no worse than": ("is less than {} worse, if at all", "are less than {} worse, if at all"),
    "can't tell": ("is undecided", "are undecided"),
    "unstable": ("is unstable", "are unstable"),
}
BOUNDED = ("same within", "no worse than")  # by the margin
HELPS_NOT = ("hurts", "same within", "did nothing")
TOLD = ("helps", "hurts", "higher", "lower")
NUMBERS = (
    *("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)


def headline(table: Table) -> str:
    """ "On cifar10, against plain, over 5 seeds: post helps (+1.20 points [+0.70, +1.70])." Several
    columns are counted, with the number of false verdicts to expect. "" for an incomplete table and
    for a table without verdicts."""
    contrasts, found = table.contrasts, _by_verdict(table)
    if not found:
        return ""
    caution = f" {false}" if (false := false_words(table)) else ""
    if len(table.judged) > 1:
        clauses = _counted(table, found, contrasts)
    else:
        clauses = [_clause(table, verdict, entries, len(contrasts)) for verdict, entries in found]
    seeds = {entry.n for entry in contrasts if entry.verdict}
    over = f", over {seeds.pop()} {table.repeats}" if len(seeds) == 1 else ""
    on = f"On {table.data}, against" if table.data else "Against"
    return f"{on} {table.baseline}{over}: {'; '.join(clauses)}.{caution}"


def brief(table: Table) -> str:
    """ "On mnist5k, of four changes to plain one helps: 4x4 patches, +7.8 points; Dual PatchNorm
    hurts, -1.2; RMSNorm is the same within 2 points." Rounded, without intervals; "" as
    `headline`."""
    found = _by_verdict(table)
    if not found:
        return ""
    text = _brief(table, found)
    return f"On {table.data}, {text}" if table.data else text[0].upper() + text[1:]


def _brief(table: Table, found: list[tuple[str, list[Entry]]]) -> str:
    contrasts = table.contrasts
    rows = list(dict.fromkeys(entry.row for entry in contrasts))
    changes = f"{_number(len(rows))} change{'s'[: len(rows) > 1]} to {table.baseline}"
    better = "higher" if table.of().neutral else "helps"
    if len(table.judged) > 1:
        none = better == "helps" and found[0][0] != better
        start = f" {_none(found)} in any column; " if none else ": "
        return f"of {changes}{start}{'; '.join(_counted(table, found, contrasts))}."
    if len(rows) == 1:
        [(verdict, [only])] = found
        gain = f": {_rounded(table.of(), only)} {table.of().points}" if verdict in TOLD else ""
        return f"{only.row} {_predicate(table, verdict, False)}{gain.rstrip()}."
    clauses = []
    if found[0][0] == better:
        entries = found.pop(0)[1]
        count = len(entries)
        several = "both" if len(rows) == 2 else "all"
        number = several if count == len(rows) else _number(count)
        first = f"{number} {PREDICATES[better][count > 1]}"
        clauses.append(f"{first}: {listed(_largest(table, entries))}")
    elif better == "helps":
        clauses.append(_none(found))
    for verdict, entries in found:
        predicate = _predicate(table, verdict, len(entries) > 1)
        if verdict in TOLD and len(entries) == 1:
            clauses.append(f"{entries[0].row} {predicate}, {_rounded(table.of(), entries[0])}")
        elif len(entries) > NAMED:
            clauses.append(f"{_number(len(entries))} {predicate}")
        else:
            clauses.append(f"{listed([entry.row for entry in entries])} {predicate}")
    return f"of {changes} {'; '.join(clauses)}."


def _none(found: Sequence[tuple[str, list[Entry]]]) -> str:
    """Say that no row has "helps": of others than these verdicts one may help all the same."""
    known = all(verdict.startswith(HELPS_NOT) for verdict, _ in found)
    return "none helps" if known else "none is shown to help"


def _largest(table: Table, entries: Sequence[Entry]) -> list[str]:
    """The rows that gain most, each with its gain, the unit with the first."""
    ordered = sorted(entries, key=lambda entry: -entry.gain.mean if entry.gain else 0.0)
    shown = [f"{entry.row}, {_rounded(table.of(), entry)}" for entry in ordered[:NAMED]]
    shown[0] = f"{shown[0]} {table.of().points}".rstrip()
    more = len(ordered) - NAMED
    return shown + ([f"{_number(more)} more"] if more > 0 else [])


def _rounded(metric: Metric, entry: Entry) -> str:
    """A gain with a digit less than tables have, unless nothing would be left of it."""
    mean = entry.gain.mean if entry.gain is not None else 0.0
    coarse = dataclasses.replace(metric, decimals=max(min(1, metric.decimals), metric.decimals - 1))
    text = coarse.text(mean, sign=True)
    return text if float(text) else metric.text(mean, sign=True)


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def _by_verdict(table: Table) -> list[tuple[str, list[Entry]]]:
    """The entries of each verdict, in the order of PREDICATES; [] for a table that has none, or is
    incomplete."""
    contrasts = table.contrasts
    if not table.complete or not any(entry.verdict for entry in contrasts):
        return []
    found: dict[str, list[Entry]] = {}
    for entry in contrasts:
        found.setdefault(entry.verdict or "", []).append(entry)
    return sorted(found.items(), key=lambda item: (_place(item[0]), not item[0]))


def _place(verdict: str) -> int:
    """Return the place of a verdict in the sentence; unknown verdicts and none come last."""
    kinds = (*PREDICATES, "")
    return next(i for i, kind in enumerate(kinds) if verdict.startswith(kind))


def _predicate(table: Table, verdict: str, several: bool) -> str:
    for kind, forms in PREDICATES.items():
        if verdict.startswith(kind):
            margin = verdict.removeprefix(kind).strip()
            points = table.of().points
            unit = points.removesuffix("s") if margin == "1" else points
            return forms[several].format(f"{margin} {unit}".rstrip())
    return verdict or ("have no verdict" if several else "has no verdict")


def _clause(table: Table, verdict: str, entries: Sequence[Entry], of: int) -> str:
    """Name the rows of a verdict, for a table of one column."""
    predicate = _predicate(table, verdict, len(entries) > 1)
    told = verdict in TOLD
    if len(entries) > NAMED:
        most = max(entries, key=lambda entry: abs(entry.gain.mean) if entry.gain else 0.0)
        foremost = f", most of all {most.row}{_bracketed(table, most)}" if told else ""
        return f"{len(entries)} of {of} {predicate}{foremost}"
    if told and len(entries) == 1:
        return f"{entries[0].row} {predicate}{_bracketed(table, entries[0])}"
    names = [entry.row + (_bracketed(table, entry) if told else "") for entry in entries]
    return f"{listed(names)} {predicate}"


def _counted(
    table: Table, found: Sequence[tuple[str, list[Entry]]], contrasts: Sequence[Entry]
) -> list[str]:
    """Count the columns where a row helps or hurts, and the comparisons with each other verdict."""
    columns = Counter(entry.row for entry in contrasts)
    clauses, others = [], []
    for verdict, entries in found:
        if verdict not in TOLD:
            others.append(f"{len(entries)} {verdict or 'no verdict'}")
            continue
        rows = Counter(entry.row for entry in entries).most_common()
        names = [f"{row} in {count} of {columns[row]}" for row, count in rows[:NAMED]]
        first, count = rows[0]
        names[0] = f"{first} {PREDICATES[verdict][0]} in {count} of {columns[first]} columns"
        more = [f"{len(rows) - NAMED} more in some"] if len(rows) > NAMED else []
        clauses.append(listed(names + more))
    if others:
        clauses.append(f"of {len(contrasts)} comparisons {listed(others)}")
    return clauses


def wins(table: Table, entries: Sequence[Entry]) -> str:
    """ "helps in 5 of 7 (hurts in 1)", of a row's entries in some columns. Of a table without
    verdicts "above in 5 of 7": so many of its means are above the baseline's. "" for none."""
    if any(entry.verdict for entry in table.entries):
        beside = {column.label for column in table.columns if column.beside}
        entries = [entry for entry in entries if entry.column not in beside]
    if not any(entry.gain for entry in entries):
        return ""
    void = {column.label for column in table.columns if column.void}
    judged = [entry for entry in entries if entry.column not in void]
    if any(entry.verdict for entry in table.entries):
        verdicts = Counter(entry.verdict or "" for entry in entries)
        bounded = {word: verdicts[word] for word in verdicts if word.startswith(BOUNDED)}
        better, worse = ("higher", "lower") if table.of().neutral else ("helps", "hurts")
        first = verdicts[better]
        others = {worse: verdicts[worse], **bounded, "no verdict": verdicts[""]}
    else:
        better = "below" if table.of().sign < 0 else "above"
        gains = [entry.gain.mean for entry in judged if entry.gain]
        first = sum(gain > 0 for gain in gains)
        others = {
            "no gain": len(judged) - len(gains),
            "unstable baseline": len(entries) - len(judged),
        }
    more = ", ".join(f"{what} in {count}" for what, count in others.items() if count)
    return f"{better} in {first} of {len(entries)}" + (f" ({more})" if more else "")


def _bracketed(table: Table, entry: Entry) -> str:
    """ " (+1.20 points [+0.70, +1.70])"; "" where there is none."""
    return f" ({_told(table, entry.gain, lacking='')})" if entry.gain else ""


NO_VERDICT, LACKING = "no verdict", ", no interval"
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
            over = f"on average over {len(average.columns)} columns"
            told = f"{over} ({_with_n(table, average.gain)})"
            clauses.insert(0, f"{average.verdict or NO_VERDICT} {told}")
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
    interval = metric.interval(entry.accuracy.low, entry.accuracy.high)
    told = f"{value}{unit}{f' {interval}' if interval else LACKING}, n = {entry.n}"
    return f"{what} ({'; '.join([told, *_fates(entry)])})"


def _gain(table: Table, entry: Entry) -> str:
    verdict = f"{entry.verdict or NO_VERDICT}{_on(table, entry)}"
    if entry.gain is None:
        return f"{verdict} ({'; '.join(_fates(entry)) or 'no gain to compare'})"
    return f"{verdict} ({'; '.join([_with_n(table, entry.gain), *_fates(entry)])})"


def told_gain(table: Table, entry: Entry) -> str:
    """ "+1.20 points [+0.70, +1.70], n = 5: helps", of an entry with a gain."""
    assert entry.gain is not None
    return _with_n(table, entry.gain) + (f": {entry.verdict}" if entry.verdict else "")


def _grouped(table: Table, entries: Sequence[Entry]) -> list[str]:
    """List the columns of each verdict, with the runs that have no plain result."""
    columns: dict[str, list[str]] = {}
    for entry in entries:
        fates = f" ({'; '.join(_fates(entry))})" if _fates(entry) else ""
        found = columns.setdefault(entry.verdict or NO_VERDICT, [])
        found.append(_headings(table)[entry.column] + fates)
    return [f"{verdict} on {', '.join(found)}" for verdict, found in columns.items()]


def _with_n(table: Table, gain: stats.Estimate) -> str:
    return f"{_told(table, gain)}, n = {gain.n}"


def _told(table: Table, gain: stats.Estimate, lacking: str = LACKING) -> str:
    """ "+1.20 points [+0.70, +1.70]"; `lacking` in place of an interval that it lacks."""
    metric = table.of()
    interval = metric.interval(gain.low, gain.high, sign=True)
    mean = f"{metric.text(gain.mean, sign=True)} {metric.points}"
    return f"{mean} {interval}" if interval else mean + lacking


def _on(table: Table, entry: Entry) -> str:
    return f" on {_headings(table)[entry.column]}" if len(table.columns) > 1 else ""


def _headings(table: Table) -> dict[str, str]:
    return {column.label: column.heading for column in table.columns}


def _fates(entry: Entry) -> list[str]:
    """Count the runs that diverged, collapsed, never reached the threshold, or are missing."""
    return [
        f"{len(seeds)} of {entry.planned} runs {what}: {seed_names(seeds)}"
        for seeds, what in (
            (entry.diverged, "diverged"),
            (entry.never, "never reached the threshold"),
            (entry.collapsed, "collapsed"),
            (entry.missing, "missing"),
        )
        if seeds
    ]
