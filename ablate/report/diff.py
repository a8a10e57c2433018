"""What differs between two sweeps, or between a sweep and its file as it is now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ablate.analysis.captions import names
from ablate.planning.cell import Cell, Column, Row
from ablate.planning.overrides import show
from ablate.planning.plan import Plan
from ablate.report.show import CODE, ENVIRONMENT, flat, provenance
from ablate.store.looks import renamed, trained
from ablate.store.record import RunRecord

Pair = tuple[Any, Any]  # of the one, of the other; None: it has none


@dataclass(frozen=True)
class Labels:
    """Of rows or columns: those of one alone, and those that both have under other labels."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: Mapping[str, str]


@dataclass(frozen=True)
class SweepDiff:
    """`configuration`: key -> the pairs of values that cells of both differ in, each with the
    cells, none for all of them. `declared`: title, baseline, seeds and the like. `shared`: runs
    that both have."""

    sweeps: tuple[str, str]
    rows: Labels
    columns: Labels
    declared: Mapping[str, Pair]
    analysis: Mapping[str, Pair]
    configuration: Mapping[str, Sequence[tuple[Pair, tuple[str, ...]]]]
    data: Mapping[str, Sequence[tuple[Pair, tuple[str, ...]]]]
    runs: tuple[int, int]
    shared: int
    code: Mapping[str, Pair] = field(default_factory=dict)
    environment: Mapping[str, Pair] = field(default_factory=dict)

    def tree(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """As text: a section for each part that differs."""
        yield " against ".join(self.sweeps)
        yield f"runs: {self.runs[0]:,} against {self.runs[1]:,}; {self.shared:,} are the same"
        sections = {
            "rows": list(_changes(self.rows)),
            "columns": list(_changes(self.columns)),
            "declared": list(_pairs(self.declared)),
            "analysis": list(_pairs(self.analysis)),
            "configuration": list(_of_cells(self.configuration)),
            "data": list(_of_cells(self.data)),
            "code": list(_pairs(self.code)),
            "environment": list(_pairs(self.environment)),
        }
        found = {title: lines for title, lines in sections.items() if lines}
        for title, lines in found.items():
            yield f"\n{title}"
            yield from (f"  {line}" for line in lines)
        if not found:
            yield "\nno difference"


def compare_sweeps(
    one: Plan, other: Plan, called: str, records: Sequence[Sequence[RunRecord]] = ()
) -> SweepDiff:
    """Compare two plans, and their runs where both have been driven. `called`: the other, to a
    reader; `records`: of each."""
    rows, columns = renamed(trained(one), trained(other))
    ids = [{run.id for run in plan.runs()} for plan in (one, other)]
    keys = _cells(one, other, rows, columns)
    ran = [provenance([r for r in side if r.attempts or r.result]) for side in records]
    told = ran if len(ran) == 2 and all(ran) else []  # where both have begun
    return SweepDiff(
        sweeps=(one.name, called),
        rows=_labels(one.rows, other.rows, rows),
        columns=_labels(one.columns, other.columns, columns),
        declared=_differ(_declared(one), _declared(other)),
        analysis=_differ(flat(_plain(one.analysis)), flat(_plain(other.analysis))),
        configuration={key: found for key, found in keys.items() if not _is_data(key)},
        data={key: found for key, found in keys.items() if _is_data(key)},
        runs=(len(ids[0]), len(ids[1])),
        shared=len(ids[0] & ids[1]),
        code=_differ(*(_facts(side, CODE) for side in told)) if told else {},
        environment=_differ(*(_facts(side, ENVIRONMENT) for side in told)) if told else {},
    )


def _declared(plan: Plan) -> dict[str, Any]:
    tune = flat(_plain(plan.tune)) if plan.tune else {}
    return {
        "title": plan.title,
        "baseline": plan.baseline,
        "seeds": list(plan.seeds),
        "until": list(plan.design.at) or None,
        **{f"tune.{key}": value for key, value in tune.items()},
    }


def _plain(part: Any) -> dict[str, Any]:
    """Of a dataclass, as JSON has it."""
    tree: dict[str, Any] = json.loads(json.dumps(asdict(part)))
    return tree


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Pair]:
    pairs = {key: (one.get(key), other.get(key)) for key in {**one, **other}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _labels(
    one: Sequence[Row | Column], other: Sequence[Row | Column], now: Mapping[str, str]
) -> Labels:
    was, is_ = ([part.label for part in parts] for parts in (one, other))
    return Labels(
        added=tuple(label for label in is_ if label not in {*was, *now.values()}),
        removed=tuple(label for label in was if label not in {*is_, *now}),
        renamed=dict(now),
    )


def _cells(
    one: Plan, other: Plan, rows: Mapping[str, str], columns: Mapping[str, str]
) -> dict[str, list[tuple[Pair, tuple[str, ...]]]]:
    """By key: how the configurations of cells that both have differ, under the other's labels."""
    theirs = {(cell.row, cell.column): cell for cell in other.cells}
    both: dict[str, tuple[Cell, Cell]] = {}
    for cell in one.cells:
        place = rows.get(cell.row, cell.row), columns.get(cell.column, cell.column)
        if place in theirs:
            both["@".join(filter(None, place))] = cell, theirs[place]
    found: dict[str, dict[str, tuple[Pair, list[str]]]] = {}
    for label, (mine, their) in both.items():
        for key, pair in _differ(flat(mine.spec), flat(their.spec)).items():
            found.setdefault(key, {}).setdefault(repr(pair), (pair, []))[1].append(label)
    return {
        key: [
            (pair, () if len(cells) == len(both) else tuple(cells)) for pair, cells in of.values()
        ]
        for key, of in found.items()
    }


def _is_data(key: str) -> bool:
    return key.rpartition(".")[2] == "fingerprint"


def _facts(told: Mapping[str, Mapping[str, int]], sections: Sequence[str]) -> dict[str, str]:
    """Of all runs of a sweep: several values are joined."""
    return {
        key: " + ".join(sorted(texts))
        for key, texts in told.items()
        if key.partition(".")[0] in sections
    }


def _changes(labels: Labels) -> Iterator[str]:
    yield from (f"+ {label}" for label in labels.added)
    yield from (f"- {label}" for label in labels.removed)
    yield from (f"{label} -> {now} (the same runs)" for label, now in labels.renamed.items())


def _pairs(differing: Mapping[str, Pair]) -> Iterator[str]:
    for key, (one, other) in differing.items():
        yield f"{key}: {_text(one)} -> {_text(other)}"


def _of_cells(
    differing: Mapping[str, Sequence[tuple[Pair, tuple[str, ...]]]],
) -> Iterator[str]:
    for key, found in differing.items():
        for (one, other), cells in found:
            where = f" ({names(cells)})" if cells else ""
            yield f"{key}: {_text(one)} -> {_text(other)}{where}"


def _text(value: Any) -> str:
    return "-" if value is None else show(value)
