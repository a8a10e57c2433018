"""Differences between two looks: rows, columns, seeds, metric and analysis, in words, and labels
that were renamed.

Used by analysis/captions.py (`ablate table`), through `look_changes`, and by api/training.py and
audit/merge.py, through `renamed_labels`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ablate.store.looks import CODE, CONTRASTS, SKIPPED, SPREAD, TUNE, UNTIL, InterimLook

MOST_SHOWN = 8  # values of a list in a note


def renamed_labels(was: Mapping[str, Any], is_: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """Return the changed labels of rows and those of columns, each as {old label: new label}.
    `was`, `is_`: the `trained_identity` before and now."""
    renamed = []
    for axis in ("rows", "columns"):
        pairs = _matched(_specs_of(was, axis), _specs_of(is_, axis))
        renamed.append(
            {label: new_label for label, new_label in pairs.items() if label != new_label}
        )
    return tuple(renamed)


def _specs_of(identity: Mapping[str, Any], axis: str) -> dict[str, set[str]]:
    """Map each row, or each column, to the hashes of what is trained in it. `identity`: a
    `trained_identity`; `axis`: "rows" or "columns"."""
    if axis == "rows":
        return {row: set(cells.values()) for row, cells in identity["rows"].items()}
    rows = identity["rows"].values()
    return {c: {cells[c] for cells in rows if c in cells} for c in identity["columns"]}


def _matched(was: Mapping[str, set[str]], is_: Mapping[str, set[str]]) -> dict[str, str]:
    """Map old labels to new labels, pairing those that share most of what is trained."""
    labels: dict[str, list[str]] = {}
    for label, specs in is_.items():
        for row_spec in specs:
            labels.setdefault(row_spec, []).append(label)
    overlaps: Counter[tuple[str, str]] = Counter()  # of (old label, new label)
    for old_label, specs in was.items():
        for row_spec in sorted(specs):
            for new_label in labels.get(row_spec, ()):
                overlaps[old_label, new_label] += 1
    matches: dict[str, str] = {}
    new_labels: set[str] = set()
    for old_label, new_label in sorted(
        overlaps, key=lambda pair: (-overlaps[pair], pair[0] != pair[1])
    ):
        if old_label not in matches and new_label not in new_labels:
            matches[old_label] = new_label
            new_labels.add(new_label)
    return matches


def _new_labels(was: Mapping[str, Any], is_: Mapping[str, Any], axis: str) -> dict[str, str]:
    """Map every old label to the new one. One that has no match, and that now belongs to something
    else, gets " (before)"."""
    matches = _matched(_specs_of(was, axis), _specs_of(is_, axis))
    labels = {}
    for label in was[axis]:
        unmatched_label = f"{label} (before)" if label in matches.values() else label
        labels[label] = matches.get(label, unmatched_label)
    return labels


def _relabelled(was: Mapping[str, Any], is_: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old `trained_identity` under the new labels."""
    row_labels, column_labels = (_new_labels(was, is_, axis) for axis in ("rows", "columns"))
    rows = {}
    for row, cells in was["rows"].items():
        rows[row_labels[row]] = {column_labels[column]: cell for column, cell in cells.items()}
    return {"columns": [column_labels[label] for label in was["columns"]], "rows": rows}


class LookChanges(NamedTuple):
    """The differences between two looks.

    `lines`: "rows: +x", "metric: top1 -> loss", "analysis.margin: none -> 0.3"; [] without a
    difference. `known_error`: whose error rate is known all the same. It is that of the "table",
    where all variants that were read are counted; that of each "column", where columns were added
    and each has an error rate of its own; or "", of nothing.

    The runs of a new column had not been read, so its intervals miss as often as those of any first
    look. Statements over columns, such as an average, are of columns that were chosen after a look.
    """

    lines: list[str]
    known_error: str


def look_changes(old_look: InterimLook, new_look: InterimLook) -> LookChanges:
    """Return the differences between two looks, except in labels and in seeds that were only added
    or only removed."""
    is_ = new_look.specs
    was = _relabelled(old_look.specs, is_)
    parts = []
    for axis in ("rows", "columns"):
        new = [f"+{label}" for label in is_[axis] if label not in was[axis]]
        removals = [f"-{label}" for label in was[axis] if label not in is_[axis]]
        if new or removals:
            parts.append(f"{axis}: {', '.join(new + removals)}")
    parts += _baselines(old_look, new_look)
    parts += _cells(was, is_)
    old_seeds, seeds = _seeds(old_look), _seeds(new_look)
    if not (old_seeds <= seeds or old_seeds >= seeds):
        signs = [f"+{seed}" for seed in sorted(seeds - old_seeds)]
        signs += [f"-{seed}" for seed in sorted(old_seeds - seeds)]
        parts.append(f"seeds: {', '.join(signs)}")
    if old_look.metric != new_look.metric:
        parts.append(f"metric: {old_look.metric} -> {new_look.metric}")
    for key in {**new_look.analysis, **old_look.analysis}:
        earlier, value = old_look.analysis.get(key), new_look.analysis.get(key)
        if earlier == value or (key == CODE and old_look.metric != new_look.metric):
            continue
        if key == SPREAD and old_look.has_target != new_look.has_target:
            continue  # a target has one spread alone
        if key == CONTRASTS:
            parts += _contrast_changes(old_look, new_look)
        elif key == TUNE and None not in (earlier, value):
            parts.append("tune: other searches")
        else:
            name = key if key in (UNTIL, TUNE, SKIPPED) else f"analysis.{key}"
            parts.append(f"{name}: {_value_text(earlier)} -> {_value_text(value)}")
    hides_columns = not set(was["columns"]) <= set(is_["columns"])
    return LookChanges(parts, _known_error(new_look, parts, hides_columns))


def _known_error(new_look: InterimLook, lines: Sequence[str], hides_columns: bool) -> str:
    """Return the `LookChanges.known_error` of these lines. `hides_columns`: whether the new look
    lacks a column of the old one."""
    kinds = {line.partition(":")[0] for line in lines} - {"rows", CONTRASTS}
    if not kinds:
        return "table"
    is_by_column = new_look.analysis["family"] == "column" and not new_look.has_target
    return "column" if kinds == {"columns"} and is_by_column and not hides_columns else ""


def _contrast_changes(old_look: InterimLook, new_look: InterimLook) -> list[str]:
    """Return a line on the contrasts between rows that were added or removed, and one on contrasts
    between columns that changed; none of the names, nor of the order of two rows."""
    labels = _new_labels(old_look.specs, new_look.specs, "rows")
    was, is_ = _differences(old_look, labels), _differences(new_look, {})
    signs = [f"+({is_[rows]})" for rows in is_ if rows not in was]
    signs += [f"-({was[rows]})" for rows in was if rows not in is_]
    parts = []
    if signs:
        parts.append(f"{CONTRASTS}: {', '.join(signs)}")
    if old_look.column_differences != new_look.column_differences:
        old = _value_text(old_look.compared.column_contrasts)
        new = _value_text(new_look.compared.column_contrasts)
        parts.append(f"analysis.{CONTRASTS}: {old} -> {new}")
    return parts


def _differences(look: InterimLook, labels: Mapping[str, str]) -> dict[frozenset[str], str]:
    """Return the contrasts of a look between rows, each as "A - B", by these two. `labels`: the new
    labels of its rows."""
    differences = {}
    for contrast in look.compared.row_contrasts:
        row, base = (labels.get(label, label) for label in (contrast.row, contrast.base))
        differences[frozenset((row, base))] = contrast._replace(row=row, base=base).difference
    return dict(sorted(differences.items(), key=lambda item: item[1]))


def _baselines(old_look: InterimLook, new_look: InterimLook) -> list[str]:
    """Return a line if gains are now over another baseline, [] otherwise. It is the same if the
    looks share the spec of a baseline, or if the labels are the same. A target has none."""
    if old_look.has_target or new_look.has_target:
        return []
    ours = {column.baseline.spec: next(iter(column.rows)) for column in new_look.columns.values()}
    theirs = {column.baseline.spec: next(iter(column.rows)) for column in old_look.columns.values()}
    if ours.keys() & theirs.keys():
        return []
    old_label, label = next(iter(theirs.values())), next(iter(ours.values()))
    return [f"baseline: {old_label} -> {label}"] if old_label != label else []


def _seeds(look: InterimLook) -> set[int]:
    """Return the seeds of all runs that a look counted."""
    rows = [row for column in look.columns.values() for row in column.rows.values()]
    return {seed for row in rows for seed in row.runs}


def _cells(old_identity: Mapping[str, Any], new_identity: Mapping[str, Any]) -> list[str]:
    """List the differences in rows and columns that both looks have: a line on the cells that are
    new or gone, and one on the rows that are now trained otherwise."""
    columns = [column for column in new_identity["columns"] if column in old_identity["columns"]]
    cells = []
    changed_rows = []
    for row, trained in new_identity["rows"].items():
        earlier = old_identity["rows"].get(row, trained)
        is_changed = False
        for column in columns:
            if column in trained and column not in earlier:
                cells.append(f"+{row}@{column}")
            elif column in earlier and column not in trained:
                cells.append(f"-{row}@{column}")
            elif earlier.get(column) != trained.get(column):
                is_changed = True
        if is_changed:
            changed_rows.append(row)
    parts = {"cells": cells, "what is trained": changed_rows}
    return [f"{heading}: {', '.join(labels)}" for heading, labels in parts.items() if labels]


def _value_text(value: Any) -> str:
    if value and isinstance(value, list) and all(isinstance(element, str) for element in value):
        text = ", ".join(value[:MOST_SHOWN])
        surplus = len(value) - MOST_SHOWN
        return f"{text} and {surplus} more" if surplus > 0 else text
    return "none" if value in (None, [], {}) else json.dumps(value).strip('"')
