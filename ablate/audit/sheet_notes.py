"""Says what a sheet hides: settings in which its rows differ, outcomes, lines that are copies, runs
that an earlier version of it had.

Used by audit/importing.py, which prints these sentences and keeps them in the plan.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.audit.sheet import Sheet, SheetRun
from ablate.audit.sheet_values import UNNAMED
from ablate.planning import Imported, Plan, SheetKeys, SheetSource
from ablate.run import IMPORT_EVENT
from ablate.shared import count_text
from ablate.store import Ledger, Store

# An undeclared column is taken for an outcome, or for a name of each run, where it varies within
# more than this share of the rows that have several runs; else for a setting.
OUTCOME = 0.5
MOST_NOTES = 3  # on settings in which rows differ
MOST_LISTED = 3  # labels that a sentence names


def undeclared_differences(runs: Sequence[SheetRun], baseline: str) -> list[str]:
    """Return a sentence on the undeclared columns of the sheet in which rows differ from the
    baseline within a column of the table, at most MOST_NOTES, and one on those in which the runs of
    a row differ."""
    settings: dict[tuple[str, ...], list[str]] = {}  # by the labels of the runs that differ
    outcomes = []
    for name in dict.fromkeys(key for run in runs for key in run.undeclared):
        cells = _values_by_cell(runs, name)
        repeated_cells = [counts for counts in cells.values() if counts.total() > 1]
        varying = sum(len(counts) > 1 for counts in repeated_cells)
        unlike_runs = _unlike_baseline(runs, name, cells, baseline)
        # In an outcome, a row's one value that the baseline never has is set, too.
        if varying > OUTCOME * len(repeated_cells):
            unlike_runs = [run for run in unlike_runs if _is_set(cells, run, baseline)]
        if varying and not unlike_runs:
            outcomes.append(name or UNNAMED)
        elif unlike_runs:
            settings.setdefault(tuple(run.label for run in unlike_runs), []).append(name or UNNAMED)
    rows = {run.label: run.row for run in runs}
    lines = []
    named_groups = len(settings) if len(settings) <= MOST_NOTES else MOST_NOTES - 1
    for labels, names in itertools.islice(settings.items(), named_groups):
        rows_unlike = list(dict.fromkeys(rows[label] for label in labels))
        gains = "its gain" if len(rows_unlike) == 1 else "their gains"
        lines.append(
            f"{_listed(names)} {'differs' if len(names) == 1 else 'differ'} in {len(labels):,} of "
            f"{count_text(len(runs), 'run')} ({_listed(rows_unlike)}), which may cause or hide "
            f"{gains}"
        )
    if other_names := [name for names in [*settings.values()][named_groups:] for name in names]:
        lines.append(
            f"rows also differ in {count_text(len(other_names), 'more column')} "
            f"({_listed(other_names)}), which may cause or hide gains"
        )
    if outcomes:
        lines.append(f"runs of one row differ in {_listed(outcomes)}, and count as repeats")
    return lines


def _values_by_cell(runs: Sequence[SheetRun], name: str) -> dict[tuple[str, str], Counter[str]]:
    """Count the values of an undeclared column, by row and column of the table."""
    cells: dict[tuple[str, str], Counter[str]] = {}
    for run in runs:
        cells.setdefault((run.row, run.column), Counter())[repr(run.undeclared.get(name))] += 1
    return cells


def _unlike_baseline(
    runs: Sequence[SheetRun],
    name: str,
    cells: Mapping[tuple[str, str], Counter[str]],
    baseline: str,
) -> list[SheetRun]:
    """Return the runs with another value than most of the baseline's have, of rows that don't have
    as much of each value as the baseline. In a sheet without the baseline, all rows are it."""
    references: dict[str, Counter[str]] = {}  # by column of the table
    for (_, column), counts in cells.items():
        if (baseline, column) in cells:
            references[column] = cells[baseline, column]
        else:
            references.setdefault(column, Counter()).update(counts)
    usual_values = {}  # of the reference, by the cells that are unlike it
    for (row, column), counts in cells.items():
        reference = references[column]
        if _shares(counts) != _shares(reference):
            [(usual_values[row, column], _)] = reference.most_common(1)
    unlike_runs = []
    for run in runs:
        value = repr(run.undeclared.get(name))
        if usual_values.get((run.row, run.column), value) != value:
            unlike_runs.append(run)
    return unlike_runs


def _is_set(cells: Mapping[tuple[str, str], Counter[str]], run: SheetRun, baseline: str) -> bool:
    """Return whether all runs of a run's row have one value, which no run of the baseline has."""
    counts = cells[run.row, run.column]
    reference = cells.get((baseline, run.column), counts)
    return len(counts) == 1 and counts.total() > 1 and not counts & reference


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = counts.total()
    return {value: count / total for value, count in counts.items()}


def _listed(names: Sequence[str]) -> str:
    """List names, of many the first MOST_LISTED."""
    if len(names) > MOST_LISTED + 1:
        names = [*names[:MOST_LISTED], f"{len(names) - MOST_LISTED} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def equal_lines(sheet: Sheet) -> list[str]:
    """Return a line on lines that are equal in every column; without seeds they may be copies."""
    places: dict[str, list[str]] = {}
    for place, values in sheet.lines:
        places.setdefault(repr(values), []).append(place)
    copies = [", ".join(some) for some in places.values() if len(some) > 1]
    return [f"the same in every column: {'; '.join(copies[:MOST_LISTED])}"] if copies else []


def errors_as_shares(
    runs: Sequence[SheetRun], metrics: Sequence[Mapping[str, Any]], options: Sequence[str]
) -> list[str]:
    """Return a sentence on each error in % whose values are read as shares: errors of less than a
    percent look the same. options: the text of `--metric` for each of the metrics."""
    lines = []
    for metric, text in zip(metrics, options, strict=True):
        key = metric["key"]
        largest = 0.0
        for run in runs:
            if not run.diverged:
                largest = max(largest, abs(run.values[key]))
        is_error = metric["direction"] == "less" and metric["unit"] == "%"
        if is_error and metric["scale"] != 1 and largest:
            lines.append(
                f"all values of {key} lie within 1, so they are read as shares: {largest:g} is "
                f"{100 * largest:g} %; for percents, give --metric {text.removesuffix('%')}percent"
            )
    return lines


def is_same_sheet(source: SheetSource, path: str, keys: SheetKeys) -> bool:
    """Return whether a sheet is that of a source, perhaps with other lines: it is the same file or
    folder, read in the same layout, or has the files of the source among others of their folder."""

    def layout(keys: SheetKeys) -> SheetKeys:
        return replace(keys, files=(), ignore=(), metrics={})

    is_same_place = (
        source.file == path
        and bool(source.read.files) == bool(keys.files)
        and {*source.read.files} <= {*keys.files}
    )
    return is_same_place and layout(source.read) == layout(keys)


def is_same_but_where(source: SheetSource, path: str, keys: SheetKeys) -> bool:
    """Return whether a sheet is that of a source, of which `where` may choose other lines."""
    return is_same_sheet(source, path, replace(keys, where=source.read.where))


def removed_runs(
    sheet: Sheet, runs: Sequence[SheetRun], old: Plan, ledger: Ledger, store: Store
) -> list[str]:
    """Return a line on the runs that an earlier version of this sheet had and that it lacks, or
    that a narrower `where` leaves out, [] for none. They stay in the sweep: a result that was
    recorded is never taken back in silence."""
    assert isinstance(old.design, Imported)
    sources = old.design.sources
    places = {(run.row, run.column, run.seed) for run in runs}
    is_part = places < {(run.cell.row, run.cell.column, run.seed) for run in old.runs()}
    is_same = is_same_but_where if is_part else is_same_sheet
    if sheet.is_frame or not any(is_same(s, sheet.path, sheet.keys) for s in sources):
        return []
    name = os.path.basename(sheet.path)
    has_twin = len({s.file for s in sources if os.path.basename(s.file) == name}) > 1

    def is_of_sheet(file: str) -> bool:
        """Return whether a run's file, typed in the folder of that time, is this sheet."""
        return os.path.abspath(file) == sheet.path if has_twin else os.path.basename(file) == name

    labels = []
    for run in old.runs():
        if (run.cell.row, run.cell.column, run.seed) not in places:
            details = [detail for _, _, detail in ledger.events(run.id)]
            files = [detail[IMPORT_EVENT]["file"] for detail in details if IMPORT_EVENT in detail]
            if files and is_of_sheet(files[-1]):
                labels.append(run.label)
    if not labels:
        return []
    verbs = ("is", "counts") if len(labels) == 1 else ("are", "count")
    command = store.command("gc", old.name)
    return [
        f"{count_text(len(labels), 'run')} that it had earlier ({_listed(labels)}) {verbs[0]} "
        f"missing, and still {verbs[1]}; `{command}` forgets all numbers of the sweep"
    ]
