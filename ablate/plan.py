"""What a sweep planned: its rows, columns, cells and the ids of their runs. Plain data.

`sweep` makes a plan, `ledger` keeps it, `drive` trains it, `report` tabulates it. A plan says all
that a table needs to know of a sweep, so that an edited sweep file leaves old tables as they were.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ablate.spec import Run, build


@dataclass(frozen=True)
class Row:
    """A variant: the keys it sets, and as `confounds` those among them that it should not."""

    label: str
    settings: Mapping[str, Any]
    family: str | None = None
    confounds: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # labels of rows with the same specs


@dataclass(frozen=True)
class Column:
    """One value of `across`; `paper` names the published column it stands for."""

    label: str
    settings: Mapping[str, Any]
    paper: str | None = None


@dataclass(frozen=True)
class Cell:
    """A (row, column): the spec of its runs but for the seed, and their ids by seed."""

    row: str
    column: str
    spec: Mapping[str, Any]  # spec.to_tree of a Run, without "seed"
    ids: Mapping[int, str]
    overrides: tuple[str, ...] = ()  # recipe keys set by the sweep's `overrides`, for the footnote


@dataclass(frozen=True)
class Analysis:
    """How the table is computed (STATISTICS in the README); fixed before results exist."""

    metric: Literal["top1", "top5", "loss"] = "top1"
    spread: Literal["pooled", "paired", "welch"] = "pooled"
    screen: bool = True
    family: Literal["column", "table"] = "column"
    margin: float | None = None  # points
    alpha: float = 0.05
    looks: tuple[int, ...] = ()  # declared numbers of seeds at which a verdict is read
    diverged: Literal["omit", "chance"] = "omit"
    contrasts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan. `cell` has its spec."""

    id: str
    cell: Cell
    seed: int

    @property
    def label(self) -> str:
        """LABEL@COLUMN#SEED, as the command line takes it."""
        column = f"@{self.cell.column}" if self.cell.column else ""
        return f"{self.cell.row}{column}#{self.seed}"

    def spec(self) -> dict[str, Any]:
        """The whole plain tree, as `run.json` holds it."""
        return {**self.cell.spec, "seed": self.seed}

    def run(self) -> Run:
        return build(self.spec())


@dataclass(frozen=True)
class Plan:
    """A sweep, expanded. A sweep without `across` has one column, labelled ""."""

    name: str
    title: str
    words: tuple[str, ...]  # the command line that makes it again
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]
    baseline: str
    seeds: tuple[int, ...]
    analysis: Analysis = Analysis()
    paper: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what `plan` says beside the table: aliases, ignored excludes

    def runs(self) -> Iterator[PlannedRun]:
        """Seed-major: every variant once before any twice, so half a sweep is a fair table."""
        for seed in self.seeds:
            for cell in self.cells:
                yield PlannedRun(cell.ids[seed], cell, seed)

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell, or None where it is excluded."""
        for cell in self.cells:
            if cell.row == row and cell.column == column:
                return cell
        return None

    def to_tree(self) -> dict[str, Any]:
        """As plain values. Not dataclasses.asdict, which copies every spec to its leaves."""
        return {
            **vars(self),
            "rows": [vars(row) for row in self.rows],
            "columns": [vars(column) for column in self.columns],
            "cells": [vars(cell) for cell in self.cells],
            "analysis": vars(self.analysis),
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Plan:
        """The plan that `to_tree` wrote, by way of JSON (whose keys are texts, lists no tuples)."""
        return cls(
            name=tree["name"],
            title=tree["title"],
            words=tuple(tree["words"]),
            rows=tuple(
                Row(
                    r["label"],
                    r["settings"],
                    r["family"],
                    tuple(r["confounds"]),
                    tuple(r["aliases"]),
                )
                for r in tree["rows"]
            ),
            columns=tuple(Column(**column) for column in tree["columns"]),
            cells=tuple(
                Cell(
                    c["row"],
                    c["column"],
                    c["spec"],
                    {int(seed): run for seed, run in c["ids"].items()},
                    tuple(c["overrides"]),
                )
                for c in tree["cells"]
            ),
            baseline=tree["baseline"],
            seeds=tuple(tree["seeds"]),
            analysis=Analysis(**{**tree["analysis"], "looks": tuple(tree["analysis"]["looks"])}),
            paper=tree["paper"],
            notes=tuple(tree["notes"]),
        )


def file_name(name: str) -> str:
    """A sweep's name as a file name: it can't leave its folder, nor be too long for one."""
    quoted = urllib.parse.quote(name, safe="+=@, ")
    if quoted in (".", "..", ""):
        quoted = quoted.replace(".", "%2E") or "%"
    if len(quoted) > 200:
        quoted = f"{quoted[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted
