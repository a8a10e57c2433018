"""A look: verdicts of a complete sweep, read. Adding seeds after one is optional stopping, changing
the analysis after one is a choice among results; so a table must know the looks before it.

What it was a look at is a hash of rows, columns, metric and analysis, with all that tells later
what has changed. It is recorded once for the same seeds and hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Row
from ablate.planning.plan import Plan
from ablate.shared import spec
from ablate.store import events

Seeds = tuple[int, ...]
CODE = "code"  # of an analysis: the version of the user's function that is its metric
UNTIL = "until"  # of an analysis: the looks that give out seeds
PRECISION = "precision"  # of an analysis: the half-width that seeds are counted for
BASELINE_SEEDS = "baseline_seeds"  # of an analysis: how many, where rows have fewer
TUNE = "tune"  # of an analysis: a hash of the searches that choose settings; older looks lack it
SKIPPED = "skipped"  # of an analysis: runs that the user left out, whose seed others have
SHOWN = 8  # values of a list in a note


@dataclass(frozen=True)
class InterimLook:
    """`at`: columns, rows, metric and analysis as plain values, {} where an older version read.
    `decided`: of a look that gave out seeds, its column and what it decided on each row."""

    seeds: Seeds
    at: Mapping[str, Any] = field(default_factory=dict)
    decided: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return _hash(self.at)

    def event(self, sweep: str) -> events.Look:
        """As the ledger has it."""
        said = {"digest": self.digest, **self.at} if self.at else {}
        decided = {"decided": self.decided} if self.decided else {}
        return {"sweep": sweep, "seeds": list(self.seeds), **said, **decided}


def look(plan: Plan) -> InterimLook:
    """What it is to read this plan's verdicts."""
    analysis = asdict(plan.analysis) | {"spread": plan.spread}
    del analysis["metric"]
    if plan.metric.own:
        analysis[CODE] = plan.metric.own
    if plan.until:
        analysis[UNTIL] = plan.until
    if plan.precision:
        analysis[PRECISION] = plan.precision
    if plan.baseline_seeds:
        analysis[BASELINE_SEEDS] = plan.baseline_seeds
    if plan.tune is not None:
        analysis[TUNE] = _hash(asdict(plan.tune))
    if skipped := plan.unevenly_skipped:
        analysis[SKIPPED] = skipped
    at = {**trained(plan), "metric": plan.metric.key, "analysis": analysis}
    return InterimLook(tuple(sorted(plan.counted_seeds)), _plain(at))


def trained(plan: Plan) -> dict[str, Any]:
    """The labels of columns, and by row a hash of what is trained for it in each column; where
    settings are tuned, of what it declares: what a search chose may change with its seeds. Looks
    that give out seeds are younger than that, and go by all that is not tuned."""
    rows: dict[str, dict[str, str]] = {row.label: {} for row in plan.rows}
    declared: dict[str, Row] = {row.label: row for row in plan.rows}
    columns = {column.label: column.settings for column in plan.columns}
    for cell in plan.cells:
        tuned = [dict(declared[cell.row].settings), dict(columns[cell.column])]
        whole = plan.tune is None or plan.until
        identity = spec.tree_identity(cell.spec) if whole else tuned
        rows[cell.row][cell.column] = _hash(identity)[:8]
    return {"columns": list(columns), "rows": rows}


def renamed(was: Mapping[str, Any], is_: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """Of what was `trained`, before and now: (rows, columns) that have another label now, as
    {label: new label}. They are known by their runs, which no other of them has."""

    def of_columns(at: Mapping[str, Any]) -> dict[str, list[str]]:
        rows = at["rows"].values()
        return {c: sorted(cells[c] for cells in rows if c in cells) for c in at["columns"]}

    columns = _pairs(of_columns(was), of_columns(is_))
    rows = {
        row: {columns.get(column, column): found for column, found in cells.items()}
        for row, cells in was["rows"].items()
    }
    return _pairs(rows, is_["rows"]), columns


def _pairs(was: Mapping[str, Any], is_: Mapping[str, Any]) -> dict[str, str]:
    """Labels whose value is another now -> the label that has the value now, where there is one of
    each."""
    gone = {label: value for label, value in was.items() if is_.get(label) != value}
    new = {label: value for label, value in is_.items() if was.get(label) != value}
    found = {}
    for label, value in gone.items():
        same = [other for other in new if new[other] == value]
        if len(same) == 1 and sum(other == value for other in gone.values()) == 1:
            found[label] = same[0]
    return found


def _relabelled(was: Mapping[str, Any], is_: Mapping[str, Any]) -> dict[str, Any]:
    """What was looked at, under the labels of now."""
    rows, columns = renamed(was, is_)

    def now(labels: Mapping[str, str], label: str) -> str:
        return labels.get(label, f"{label} (before)" if label in labels.values() else label)

    return {
        **was,
        "columns": [now(columns, label) for label in was["columns"]],
        "rows": {
            now(rows, row): {now(columns, c): found for c, found in cells.items()}
            for row, cells in was["rows"].items()
        },
    }


def read(events: Iterable[events.Look]) -> list[InterimLook]:
    """Of what the ledger, or a bundle, has of one sweep."""
    return [
        InterimLook(
            tuple(sorted(event["seeds"])),
            {key: event[key] for key in ("columns", "rows", "metric", "analysis") if key in event},
            event.get("decided", {}),
        )
        for event in events
    ]


def before(looks: Sequence[InterimLook], now: InterimLook) -> list[InterimLook]:
    """The looks that came before this one did first; all of them where it is new."""
    return list(looks[: looks.index(now)] if now in looks else looks)


def changes(first: InterimLook, now: InterimLook) -> list[str]:
    """In what they differ, but for seeds and labels: "rows: +x", "metric: top1 -> loss",
    "analysis.margin: none -> 0.3"."""
    is_ = now.at
    was = _relabelled(first.at, is_)
    parts = []
    for what in ("rows", "columns"):
        new = [f"+{label}" for label in is_[what] if label not in was[what]]
        gone = [f"-{label}" for label in was[what] if label not in is_[what]]
        if new or gone:
            parts.append(f"{what}: {', '.join(new + gone)}")
    parts += _cells(was, is_)
    if was["metric"] != is_["metric"]:
        parts.append(f"metric: {was['metric']} -> {is_['metric']}")
    since = _plain(asdict(Analysis())) | was["analysis"]  # a key that came later: as by default
    for key in {**is_["analysis"], **was["analysis"]}:
        before, value = since.get(key), is_["analysis"].get(key)
        if key == TUNE:
            if None not in (before, value) and before != value:
                parts.append("tune: other searches")
            continue
        if before != value and (key != CODE or was["metric"] == is_["metric"]):
            name = key if key in (UNTIL, PRECISION, BASELINE_SEEDS, SKIPPED) else f"analysis.{key}"
            parts.append(f"{name}: {_shown(before)} -> {_shown(value)}")
    return parts


def _cells(first: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Of rows and columns that both have: cells that are new or gone, rows trained otherwise."""
    columns = [column for column in now["columns"] if column in first["columns"]]
    cells, other = [], []
    for row, trained in now["rows"].items():
        were = first["rows"].get(row, trained)
        for column in columns:
            sign = "+" * (column in trained) + "-" * (column in were)
            if len(sign) == 1:
                cells.append(f"{sign}{row}@{column}")
        if any(were.get(c) != trained.get(c) for c in columns if c in were and c in trained):
            other.append(row)
    parts = {"cells": cells, "what is trained": other}
    return [f"{what}: {', '.join(found)}" for what, found in parts.items() if found]


def _shown(value: Any) -> str:
    if value and isinstance(value, list) and all(isinstance(one, str) for one in value):
        more = f" and {len(value) - SHOWN} more" if len(value) > SHOWN else ""
        return ", ".join(value[:SHOWN]) + more
    return "none" if value in (None, [], {}) else json.dumps(value).strip('"')


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
