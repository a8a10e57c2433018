"""The sentences on looks, the readings of results at which a sweep may stop a row: what was read
before, what a look decided, what is to come.

Used by `write` in `registry.py`, for sentences that captions.py, sequential.py and reading.py of
analysis/ choose. A new writer also needs `python tests/json_page.py`, which lists its key in
docs/json.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis.english.registry import writes
from ablate.analysis.english.words import first_few, prefixed
from ablate.shared import count_text

Values = Mapping[str, Any]

LONG = 120  # characters of a list of changes that is only in the full notes
NAMED_CHANGES = 3  # of such a list


def _of_columns(columns: Sequence[str], text: str) -> str:
    return prefixed(first_few(columns), text)


# --- What was read before -----------------------------------------------------------------------


@writes("looks.among")
def looks_among(
    columns: Sequence[str], sweeps: Sequence[str], noun: str, compared: int, contrasts: int
) -> str:
    """`sweeps`: where these runs were read, "" for earlier tables of this one; `noun`: "variant",
    or "comparison" where some are no gains; `compared`: their number, with those here;
    `contrasts`: the comparisons that share the error now."""
    places = [sweep for sweep in sweeps if sweep]
    if "" in sweeps:
        places.append("earlier tables of this sweep")
    return _of_columns(
        columns,
        f"Results of these runs were also read in {first_few(places)}, among "
        f"{count_text(compared, noun)}, so intervals here allow for "
        f"{count_text(contrasts, 'comparison')}.",
    )


@writes("looks.other-readings")
def looks_other_readings(
    columns: Sequence[str],
    verdicts: Sequence[Values],
    means: Sequence[Values],
    subject: str,
    error: float,
    of_column: bool,
) -> str:
    """`verdicts`, `means`: the numbers `n` of seeds at which these were read, and in which
    `sweeps`; `subject`: see `subject_word`; `error`: the chance of a false verdict on some variant,
    of a single column if `of_column`."""
    scope = " of a column" if of_column else ""
    return _of_columns(
        columns,
        f"{_other_readings(verdicts, means, subject)}, so the chance of a false verdict on some "
        f"variant{scope} is about {100 * error:.0f} %. Looks that are declared beforehand "
        f"(analysis.looks) don't raise it.",
    )


def _other_readings(verdicts: Sequence[Values], means: Sequence[Values], subject: str) -> str:
    """Write where else runs were read: "Verdicts on these runs were also read in sweep corr (n =
    3)"."""
    if not verdicts:
        return f"Means of these runs were also seen in {_sweeps(means)}, before all had a result"
    means_words = f", and means in {_sweeps(means)}" if means else ""
    on = "on" if subject == "verdicts" else "of"
    return (
        f"{subject.capitalize()} {on} these runs were also read in {_sweeps(verdicts)}{means_words}"
    )


def _sweeps(readings: Sequence[Values]) -> str:
    """List the sweeps, each with its numbers of seeds: "sweep corr (n = 3, 5)"."""
    numbers: dict[str, list[int]] = {}
    for reading in readings:
        for name in reading["sweeps"]:
            numbers.setdefault(name, []).append(reading["n"])
    parts = [f"{name} (n = {', '.join(map(str, counts))})" for name, counts in numbers.items()]
    return f"{'sweeps' if len(parts) > 1 else 'sweep'} {first_few(parts)}"


@writes("looks.read-elsewhere", exact=True)
def looks_read_elsewhere(
    columns: Sequence[str], verdicts: Sequence[Values], means: Sequence[Values], subject: str
) -> str:
    """Say what `looks.other-readings` says, of a table whose error is unknown anyway."""
    return _of_columns(columns, f"{_other_readings(verdicts, means, subject)}.")


@writes("looks.changed")
def looks_changed(
    subject: str, sweep: str, n: int, changes: Sequence[str], known_error: str
) -> str:
    """`subject`: "means", "intervals" or "verdicts"; `sweep`: where they were read, "" for this
    one; `changes`: each "WHAT: HOW", of which many are only named; `known_error`: whose
    error rate is known, that of the "table", of each "column", or "" of nothing."""
    place = f" in {sweep}" if sweep else ""
    compares_rows = any(change.startswith("contrasts: ") for change in changes)
    noun = "comparisons" if compares_rows else "variants"
    consequence = {
        "table": f"; all {noun} that were read are counted",
        "column": ". Each column keeps its error rate; that of averages over columns is unknown",
        "": ". So this table is exploratory: how often its intervals miss is unknown",
    }[known_error]
    text = "; ".join(changes)
    if only_named(changes):
        text = first_few([change.partition(": ")[0] for change in changes], NAMED_CHANGES)
    return f"Changed after {subject} had been read{place}, at n = {n}: {text}{consequence}."


def only_named(changes: Sequence[str]) -> bool:
    """Return whether `looks.changed` only names these changes, for they would fill lines."""
    return len("; ".join(changes)) > LONG


@writes("looks.changes", exact=True)
def looks_changes(sweep: str, n: int, changes: Sequence[str]) -> str:
    """List what `looks.changed` only names."""
    place = f" in {sweep}" if sweep else ""
    return f"Changed since the look{place} at n = {n}: {'; '.join(changes)}."


@writes("looks.skipped-in-view")
def looks_skipped_in_view(begun_runs: int, seen_runs: int) -> str:
    """`begun_runs`: skipped runs that had begun; `seen_runs`: those whose seed had begun in another
    row."""
    parts = [f"{begun_runs} had begun"] if begun_runs else []
    if seen_runs:
        parts.append(f"{seen_runs} had a seed that had begun in another row")
    return (
        f"Of the skipped runs, {', and '.join(parts)}: seeds were left out with curves in view, so "
        f"the error of the verdicts is unknown."
    )


@writes("looks.shared-baseline")
def looks_shared_baseline(
    columns: Sequence[str], variants: int, families: int, alpha: float
) -> str:
    alpha_text = f"{alpha:g}".removeprefix("0")
    return _of_columns(
        columns,
        f"{count_text(variants, 'variant')} in {count_text(families, 'sweep')} were compared "
        f"with these baseline runs; each sweep has an error rate of {alpha_text} of its own.",
    )


@writes("looks.strict")
def looks_strict() -> str:
    return "--strict: verdicts are withheld."


# --- What looks decide --------------------------------------------------------------------------


@writes("look.goes-on")
def look_goes_on(seeds: int) -> str:
    return f"No verdict at the look at {seeds} seeds, so the row goes on: it gets more seeds."


@writes("look.stopped")
def look_stopped(seeds: int, margin: float, share: float, judged_by: str) -> str:
    """`margin`: a gain of it was unlikely, with an error of `share`; `judged_by`: see
    `look_ended`."""
    return f"Stopped {stop_words(seeds, margin, share)}{_judged_by(judged_by)}."


def stop_words(seeds: int, margin: float, share: float) -> str:
    """Say why a row that stopped for futility got no more seeds."""
    bound = f"one-sided {100 * share:g} % bound"
    return f"at {seeds} seeds: a gain of {margin:g} was ruled out ({bound})"


@writes("look.ended")
def look_ended(seeds: int, outcome: str, judged_by: str) -> str:
    """`outcome`: "decided", "stopped" without a verdict or, where verdicts are withheld, "judged";
    `judged_by`: "rows", or the row's "own" spread, or its pairs since it was "alone"."""
    return f"{outcome.capitalize()} at {seeds} seeds{_judged_by(judged_by)}."


def _judged_by(judged_by: str) -> str:
    return {
        "rows": "",
        "own": "; the row is judged by its own noise",
        "alone": ", the last row of its column: its interval is a paired t of its own",
    }[judged_by]


@writes("look.line")
def look_line(seeds: int, column: str, decisions: Sequence[Values]) -> str:
    """Write the line of a look, such as "look at 5 seeds: helps: dpn; goes on: post, pre+post".
    `decisions`: each `word` with its `rows`."""
    parts = "; ".join(
        f"{decision['word']}: {', '.join(decision['rows'])}" for decision in decisions
    )
    column_words = f" of {column}" if column else ""
    return f"look at {seeds} seeds{column_words}: {parts}"


def _until_the_end(more_runs: int | None) -> str:
    """Say how many runs are left at most, None after the last look."""
    return (
        "" if more_runs is None else f"; until the end: at most {count_text(more_runs, 'more run')}"
    )


@writes("looks.lost-result")
def looks_lost_result(column: str, seeds: Sequence[int]) -> str:
    counts = first_few([*map(str, seeds)])
    return prefixed(
        column,
        f"looks were taken at {counts} seeds, but a run that they counted has no result now.",
    )


@writes("looks.none-yet")
def looks_none_yet(column: str, first_seeds: int) -> str:
    return prefixed(column, f"no look yet; the first is at {first_seeds} seeds.")


@writes("looks.next")
def looks_next(column: str, noun: str, going_on: int, seeds: int, more_runs: int) -> str:
    """`noun`: "row" or "change", of which `going_on` have no verdict yet."""
    verb = "goes" if going_on == 1 else "go"
    return prefixed(
        column,
        f"{count_text(going_on, noun)} {verb} on to the next look, at {seeds} seeds: run the same "
        f"`ablate sweep`{_until_the_end(more_runs)}.",
    )


@writes("looks.below")
def looks_below(seeds: int) -> str:
    return (
        f"Averages and contrasts are of the {seeds} seeds that all cells share, and have no "
        f"verdicts: looks judge only rows of a column."
    )
