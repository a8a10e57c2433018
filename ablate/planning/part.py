"""A part of a sweep of a file: some of its rows, along with the baseline, and some of its columns.

`figure1 columns=Ti/16` is a sweep of its own, with a name of its own: its family of comparisons is
what it has. Its runs have the ids that they have in the whole sweep, so either trains them for
both.

Used by `planning/expand.py`, and `read_labels` by report/selection.py and cli/looking.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import ColumnGroup, wide_places
from ablate.planning.declared import PART_KEYS, Declared
from ablate.planning.plan import Plan
from ablate.planning.settings import value_text
from ablate.shared import UserError, unknown_value


def part_of(plan: Plan, line: Declared) -> Plan:
    """Return the part of a plan that `rows=` and `columns=` choose; the plan itself without them.

    Raises UserError for a label that the plan lacks, for columns that have no name, and for `rows=`
    in a design of changes.
    """
    texts = {
        key: ",".join(map(value_text, line.sweep[key].values))
        for key in PART_KEYS
        if key in line.sweep
    }
    if not texts:
        return plan
    rows, columns = plan.rows, plan.columns
    if "rows" in texts:
        if plan.changes is not None:
            raise UserError("rows: a design needs all of its cells; leave rows= out")
        aliases = {alias: row.label for row in rows for alias in row.aliases}
        row_labels = read_labels("rows", texts["rows"], [row.label for row in rows], aliases)
        rows = tuple(row for row in rows if row.label in (*row_labels, plan.baseline))
    if "columns" in texts:
        labels = [column.label for column in columns if column.label]
        if not labels:
            raise UserError(f"columns: {line.file} has one column, without a name; leave it out")
        column_labels = read_labels("columns", texts["columns"], labels)
        columns = tuple(column for column in columns if column.label in column_labels)
    places = {(row.label, column.label) for row in rows for column in columns}
    cells = tuple(cell for cell in plan.cells if (cell.row, cell.column) in places)
    filled = {cell.row for cell in cells}
    rows = tuple(row for row in rows if row.label in filled)
    note = (
        f"a part of {line.file}: {len(rows)} of {len(plan.rows)} rows, "
        f"{len(columns)} of {len(plan.columns)} columns"
    )
    part = replace(plan, rows=rows, columns=columns, cells=cells, notes=(*plan.notes, note))
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
