"""Two sweeps over the rows that both have: whose gain is whose. Computes nothing: each table is
read by itself, and no number compares one sweep with the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis.captions import count, names
from ablate.analysis.table import WARNINGS, Table
from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.report.chosen import own_labels, part_of
from ablate.report.show import flat
from ablate.shared.errors import UserError

Change = dict[str, tuple[Any, Any]]  # key -> the value of the baseline, the value of the row


@dataclass(frozen=True)
class SharedRow:
    """A row of both: its label in each; `by`: they are one by their label, by what they change, or
    as baselines. `differs`: the keys in which two rows of one label change the baseline otherwise.
    """

    labels: tuple[str, str]
    by: str
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepPair:
    """Two tables, of the shared rows, their baselines and shared columns alone; whole tables where
    no row or no column is shared. `columns`: pairs of labels; `only_rows`, `only_columns`: labels
    that one alone has; `between`: the keys in which the configurations of both baselines differ,
    in the first column."""

    tables: tuple[Table, Table]
    rows: tuple[SharedRow, ...]
    columns: tuple[tuple[str, str], ...]
    only_rows: tuple[tuple[str, ...], tuple[str, ...]]
    only_columns: tuple[tuple[str, ...], tuple[str, ...]]
    between: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        one, other = self.tables
        return one.sweep, other.sweep


def pair(tables: tuple[Table, Table], plans: tuple[Plan, Plan]) -> SweepPair:
    """Match the rows of two tables: by label (or alias), else by what they change, where a row sets
    the same keys of its baseline's configuration from and to the same values in every column. Two
    baselines stand beside each other.

    Columns are matched by label; two sweeps of one column each have one. Where no row or no column
    is shared, the tables are whole. Raises UserError where the metrics differ.
    """
    one, other = tables
    if one.sweep == other.sweep:
        raise UserError(f"table {one.sweep} {other.sweep}: is one sweep; name another beside it")
    wholes = one.whole or one, other.whole or other
    columns = _columns(*wholes)
    rows = {row.labels[0]: row for row in _rows(wholes, plans, columns) if columns}
    shown = tuple(rows[row.label] for row in one.rows if row.label in rows)
    if all(row.labels == (one.baseline, other.baseline) for row in shown):
        rows, columns = {}, ()
    only = (
        _lacking([[r.label for r in t.rows] for t in wholes], [r.labels for r in rows.values()]),
        _lacking([[c.label for c in t.columns] for t in wholes], columns),
    )
    if not rows:
        return SweepPair(tables, (), (), *only, ())
    of = [f"{t.sweep} is of {t.metric}, in {t.of().points}" for t in tables]
    measures = [(t.metric, t.of().unit, t.of().points, t.of().sign) for t in tables]
    if measures[0] != measures[1]:
        raise UserError(
            f"table {one.sweep} {other.sweep}: {of[0]}; {of[1]}; analysis.metric=NAME reads "
            f"both by one"
        )
    across = {column.label for column in one.columns}
    beside = tuple(both for both in columns if both[0] in across)
    parts = []
    for side, table in enumerate(tables):
        places = {(row.labels[side], both[side]) for row in shown for both in beside}
        parts.append(part_of(table, places))
    return SweepPair(
        (parts[0], parts[1]),
        shown,
        beside,
        *only,
        tuple(_change(*(_base(*of) for of in zip(wholes, plans, columns[0], strict=True)))),
    )


def _base(table: Table, plan: Plan, column: str) -> Cell:
    base = plan.cell(table.baseline, own_labels(table)[column])
    assert base is not None
    return base


def _lacking(
    every: Sequence[Sequence[str]], shared: Sequence[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    one, other = (
        tuple(label for label in labels if label not in {both[side] for both in shared})
        for side, labels in enumerate(every)
    )
    return one, other


def _columns(one: Table, other: Table) -> tuple[tuple[str, str], ...]:
    labels = [column.label for column in one.columns], [column.label for column in other.columns]
    if len(labels[0]) == len(labels[1]) == 1:
        return ((labels[0][0], labels[1][0]),)
    return tuple((label, label) for label in labels[0] if label in labels[1])


def _rows(
    tables: tuple[Table, Table], plans: tuple[Plan, Plan], columns: Sequence[tuple[str, str]]
) -> Iterator[SharedRow]:
    changes = [
        _changes(table, plan, [both[side] for both in columns])
        for side, (table, plan) in enumerate(zip(tables, plans, strict=True))
    ]
    left = {
        name: row.label
        for row in plans[1].rows
        if row.label in changes[1]
        for name in (*row.aliases, row.label)
    }
    aliases = {row.label: row.aliases for row in plans[0].rows}
    by_label: dict[str, str] = {}
    for row in changes[0]:
        found = next((left[name] for name in (row, *aliases[row]) if name in left), None)
        if found is not None and found not in by_label.values():
            by_label[row] = found
    taken = {*by_label.values()}
    for row, change in changes[0].items():
        if row in by_label:
            theirs = changes[1][by_label[row]]
            yield SharedRow((row, by_label[row]), "label", _differing(change, theirs))
            continue
        same = (o for o, theirs in changes[1].items() if o not in taken and theirs == change)
        if (match := next(same, None)) is not None:
            taken.add(match)
            both = row, match
            baselines = tuple(table.baseline for table in tables)
            yield SharedRow(both, "baseline" if both == baselines else "change")


def _changes(table: Table, plan: Plan, columns: Sequence[str]) -> dict[str, list[Change | None]]:
    """By row: what it changes of the baseline's configuration in each of the columns, None where it
    has no cell. Rows that have none of the columns are left out."""
    own = own_labels(table)
    bases = [_base(table, plan, column) for column in columns]
    changes: dict[str, list[Change | None]] = {}
    for row in table.rows:
        cells = [plan.cell(row.label, own[column]) for column in columns]
        if any(cells):
            both = zip(bases, cells, strict=True)
            changes[row.label] = [None if cell is None else _change(b, cell) for b, cell in both]
    return changes


def _change(base: Cell, cell: Cell) -> Change:
    before, after = flat(dict(base.spec)), flat(dict(cell.spec))
    keys = sorted({*before, *after})
    return {k: (before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)}


def _differing(
    one: Sequence[Mapping[str, Any] | None], other: Sequence[Mapping[str, Any] | None]
) -> tuple[str, ...]:
    keys: dict[str, None] = {}
    for ours, theirs in zip(one, other, strict=True):
        if ours is not None and theirs is not None:
            both = sorted({*ours, *theirs})
            keys |= dict.fromkeys(key for key in both if ours.get(key) != theirs.get(key))
    return tuple(keys)


def caption(pair: SweepPair) -> Iterator[str]:
    """State whose numbers these are, and which rows and columns are matched, or in one alone."""
    one, other = pair.tables
    a, b = pair.names
    alike = one.baseline == other.baseline
    over = f"over {one.baseline}" + ("" if alike else f" in {a} and over {other.baseline} in {b}")
    first = (
        f"Two sweeps, each read by itself: {one.of().change}s are {over}, and intervals and "
        f"verdicts are of each sweep's own contrasts. No number here compares {a} with {b}."
    )
    yield " ".join([first, *_both(pair, lambda table: table.texts("caption")[:1])])
    yield from _matched(pair)
    yield from _both(pair, lambda t: (*t.texts("caption")[1:], *t.texts("detail")))


def notes(pair: SweepPair) -> Iterator[str]:
    yield from _both(pair, lambda table: table.texts(*WARNINGS))


def _both(pair: SweepPair, lines: Any) -> Iterator[str]:
    """The lines of both tables: those that are the same once, the others under the sweep's name."""
    every = [tuple(lines(table)) for table in pair.tables]
    yield from (line for line in every[0] if line in every[1])
    for name, ours, theirs in zip(pair.names, every, reversed(every), strict=True):
        yield from (f"{name}: {line}" for line in ours if line not in theirs)


def _matched(pair: SweepPair) -> Iterator[str]:
    a, b = pair.names
    of = f"{count(len(pair.rows), 'row')} of both"
    changed = [row.labels for row in pair.rows if row.by == "change"]
    same = "; ".join(f"{one} of {a} is {other} of {b}" for one, other in changed)
    by_change = f", or by what they change of their baselines: {same}" if changed else ""
    yield f"{of}, matched by label{by_change}."
    if differing := [row for row in pair.rows if row.by == "label" and row.differs]:
        keys = "; ".join(f"{row.labels[0]} ({names(row.differs)})" for row in differing)
        yield f"Of one label, but of another change of the baseline: {keys}."
    if any(one != other for one, other in pair.columns):
        [(one, other)] = pair.columns
        shown = " beside ".join(f"{c or 'the only one'} of {n}" for c, n in ((one, a), (other, b)))
        yield f"Columns: {shown}."
    if pair.between:
        yield f"The configurations of the baselines differ in {names(pair.between)}."
    for what, only in (("row", pair.only_rows), ("column", pair.only_columns)):
        for name, labels in zip(pair.names, only, strict=True):
            if labels:
                yield f"Only in {name}: the {what}{'s'[: len(labels) > 1]} {', '.join(labels)}."


def tree(pair: SweepPair, trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The pair as a plain tree. `trees`: of the tables."""
    facts = {key: value for key, value in vars(pair).items() if key != "tables"}
    rows = [dataclasses.asdict(row) for row in pair.rows]
    return {**facts, "sweeps": list(trees), "rows": rows}
