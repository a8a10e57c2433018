"""A part of a sweep of a file: some of its rows, along with the baseline, and some of its columns.

`figure1 columns=Ti/16` is a sweep of its own, with a name of its own: its family of comparisons is
what it has. Its runs have the ids that they have in the whole sweep, so either trains them for
both.

Used by `planning/expand.py`, and `read_labels` by report/selection.py and cli/looking.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import ColumnGroup, wide_places
from ablate.planning.declaration import Sweep
from ablate.planning.declared import PART_KEYS, Declared
from ablate.planning.plan import Plan
from ablate.planning.settings import Word, value_text
from ablate.shared import UserError, unknown_value


def with_labels(line: Declared, sweep: Sweep) -> Declared:
    """Return the declaration with `rows=` and `columns=` as labels of the file, in its order and
    without the baseline, so that a part has one name however it was typed. A word that chooses all
    is left out.

    `sweep`: the file, as it is declared. Raises UserError for a label that the file lacks, for
    `rows=` in a design of changes and of the baseline alone, and for columns that have no name.
    """
    words = []
    for word in line.words:
        if word.key not in PART_KEYS:
            words.append(word)
            continue
        labels = _row_labels(word, sweep) if word.key == "rows" else _column_labels(word, sweep)
        if labels:
            words.append(Word(word.key, labels, swept=len(labels) > 1))
    return replace(line, words=tuple(words))


def _row_labels(word: Word, sweep: Sweep) -> tuple[str, ...]:
    """Return the rows that a word chooses, () for all of them."""
    if sweep.changes is not None:
        raise UserError("rows: a design needs all of its cells; leave rows= out")
    labels = [row.label for row in sweep.rows]
    baseline = labels[0] if sweep.baseline is None else sweep.baseline
    variants = [label for label in labels if label != baseline]
    selection = _labels(word, labels, {})
    chosen_variants = tuple(label for label in variants if label in selection)
    if not chosen_variants:
        raise UserError(f"rows: {baseline} is the baseline, which every part has; name a variant")
    return () if len(chosen_variants) == len(variants) else chosen_variants


def _column_labels(word: Word, sweep: Sweep) -> tuple[str, ...]:
    """Return the columns that a word chooses, () for all of them."""
    labels = [column.label for column in sweep.columns if column.label]
    if not labels:
        raise UserError(f"columns: {sweep.place} has one column, without a name; leave it out")
    headings = {item.column.heading: item.label for item in sweep.columns}
    selection = _labels(word, labels, headings)
    return () if len(selection) == len(labels) else selection


def _labels(word: Word, labels: Sequence[str], also: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels that a word names, in the order of `labels`. `also`: other names."""
    selection = set[str]()
    for value in word.values:
        text = value_text(value)
        selection |= {text} if text in labels else {*read_labels(word.key, text, labels, also)}
    return tuple(label for label in labels if label in selection)


def part_of(plan: Plan, line: Declared) -> Plan:
    """Return the part of a plan that `rows=` and `columns=` of `with_labels` choose; the plan
    itself without them."""
    chosen = {key: line.sweep[key].values for key in PART_KEYS if key in line.sweep}
    if not chosen:
        return plan
    rows, columns = plan.rows, plan.columns
    if "rows" in chosen:
        rows = tuple(
            row
            for row in rows
            if row.label == plan.baseline or {row.label, *row.aliases} & {*chosen["rows"]}
        )
    if "columns" in chosen:
        columns = tuple(column for column in columns if column.label in chosen["columns"])
    places = {(row.label, column.label) for row in rows for column in columns}
    cells = tuple(cell for cell in plan.cells if (cell.row, cell.column) in places)
    filled = {cell.row for cell in cells}
    rows = tuple(row for row in rows if row.label in filled)
    counts = []
    if len(rows) < len(plan.rows):
        counts.append(f"{len(rows)} of {len(plan.rows)} rows")
    if len(columns) < len(plan.columns):
        counts.append(f"{len(columns)} of {len(plan.columns)} columns")
    notes = plan.notes
    if counts:  # rows that are chosen may be all, under other names
        notes = (*notes, f"a part of {line.file}: {', '.join(counts)}")
    # Columns without a search leave none: a part of them alone is no tuned sweep.
    tune = plan.tune if any(column.tuned for column in columns) else None
    part = replace(plan, rows=rows, columns=columns, cells=cells, notes=notes, tune=tune)
    return replace(part, groups=_groups(part), analysis=_analysis(part))


def _groups(part: Plan) -> tuple[ColumnGroup, ...]:
    """Return the groups with the columns that the part has; none of a single column, and none where
    a column is in no group, since fewer columns may have shorter headings."""
    if len(part.columns) == 1:
        return ()
    headings = {place.heading for place in wide_places(part.columns).values()}
    groups = [
        replace(group, headings={h: text for h, text in group.headings.items() if h in headings})
        for group in part.groups
    ]
    if headings - {heading for group in groups for heading in group.headings}:
        return ()
    return tuple(group for group in groups if group.headings)


def _analysis(part: Plan) -> Analysis:
    """Return the analysis with the contrasts whose two ends, rows or columns, the part has."""
    rows = [row.label for row in part.rows]
    names = {contrast.name for contrast in part.contrasts_in(rows)}
    for name, contrast in part.analysis.column_contrasts.items():
        values = [column.settings.get(contrast["across"]) for column in part.columns]
        if contrast["from"] in values and contrast["to"] in values:
            names.add(name)
    contrasts = {k: contrast for k, contrast in part.analysis.contrasts.items() if k in names}
    return replace(part.analysis, contrasts=contrasts)


def read_labels(
    place: str, text: str, labels: Collection[str], also: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Split "A,B" into labels, in the order of `labels`. A label may have commas itself, so the
    longest that fits is taken. `also`: other names of labels. Raises UserError for what is none."""
    words, selection = [word.strip() for word in text.split(",")], set()
    names = {**(also or {}), **{label: label for label in labels}}
    labels_by_words = {
        tuple(word.strip() for word in name.split(",")): names[name] for name in names
    }
    position = 0
    while position < len(words):
        fitting = (
            n
            for n in range(len(words), position, -1)
            if tuple(words[position:n]) in labels_by_words
        )
        if (end := next(fitting, None)) is None:
            raise unknown_value(place, words[position], labels)
        selection.add(labels_by_words[tuple(words[position:end])])
        position = end
    return tuple(label for label in labels if label in selection)
