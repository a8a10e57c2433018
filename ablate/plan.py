"""What a sweep planned: its rows, columns, cells and the ids of their runs. Plain data.

`sweep` makes a plan, `ledger` keeps it, `drive` trains it, `report` tabulates it. A plan says all
that a table needs to know of a sweep, so that an edited sweep file leaves old tables as they were.
"""

from __future__ import annotations

import hashlib
import math
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ablate.spec import Run, build, unknown


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

    @property
    def heading(self) -> str:
        """The label; where it is a bare number, of what: "model.depth=2"."""
        (key, value), *more = self.settings.items() or [("", "")]
        bare = not more and not isinstance(value, str) and self.label == f"{value}"
        return f"{key}={self.label}" if bare else self.label


@dataclass(frozen=True)
class Cell:
    """A (row, column): the spec of its runs but for the seed, and their ids by seed."""

    row: str
    column: str
    spec: Mapping[str, Any]  # spec.to_tree of a Run, without "seed"
    ids: Mapping[int, str]  # none yet where settings are still being tuned
    overrides: tuple[str, ...] = ()  # recipe keys set by the sweep's `overrides`, for the footnote
    chosen: Choice | None = None  # what tuning chose: it is in `spec`


@dataclass(frozen=True)
class Choice:
    """The winner of a cell's search: its settings, its trial, and that trial's validation score."""

    params: Mapping[str, Any]
    trial: int
    trials: int
    value: float
    edges: tuple[str, ...] = ()  # keys whose value lies at an edge of its range
    spent: float = 0.0  # on the search, in whole trials: pruned ones count for what they used
    multiply_adds: float = 0.0  # of these trainings, three times those of the forwards


@dataclass(frozen=True)
class Trial:
    """One training of a search. `cell` has its spec, and its id by its only seed."""

    number: int  # in its cell's search, through all stages
    stage: int
    params: Mapping[str, Any]
    cell: Cell
    score: float | None = None  # on validation, once it has ended: what the search was told


FIRST_TUNING_SEED = 1000  # seeds from here on are for choosing, never for reporting


@dataclass(frozen=True)
class Stage:
    """A search over some keys, those of the stages before fixed at their winners.

    `space`: key -> {"log" | "uniform" | "int": (low, high)} or {"choices": (value, ...)}; `at`:
    what a trial is trained with instead.
    """

    space: Mapping[str, Mapping[str, tuple[Any, ...]]]
    trials: int
    at: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tune:
    """The search that every cell gets: `tune:` of a sweep file."""

    stages: tuple[Stage, ...]
    sampler: Literal["tpe", "random", "cmaes", "grid"] = "tpe"
    pruner: Literal["none", "median", "hyperband"] = "none"
    seed: int = 0
    round: int = 4  # trials asked at a time; told in their order

    @property
    def trials(self) -> int:
        """Of each cell, over all stages."""
        return sum(stage.trials for stage in self.stages)


METRICS = ("top1", "top5", "loss", "auc", "epochs_to:SHARE")


def threshold(metric: str) -> float | None:
    """The validation top-1 of `epochs_to:0.9`; None of another metric, NaN where it is no share."""
    name, _, share = metric.partition(":")
    if name != "epochs_to":
        return None
    try:
        return float(share) if 0 < float(share) <= 1 else math.nan
    except ValueError:
        return math.nan


def is_metric(name: str) -> bool:
    share = threshold(name)
    return name in METRICS[:-1] if share is None else not math.isnan(share)


def check_metric(name: str, place: str) -> None:
    """Raises UserError for what is no metric."""
    if not is_metric(name):
        raise unknown(place, name, METRICS)


@dataclass(frozen=True)
class Analysis:
    """How the table is computed (STATISTICS in the README); fixed before results exist."""

    metric: str = "top1"  # one that `check_metric` lets pass
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
    tune: Tune | None = None
    trials: tuple[Trial, ...] = ()  # asked so far

    def runs(self) -> Iterator[PlannedRun]:
        """Seed-major: every variant once before any twice, so half a sweep is a fair table.

        Trials come first, and cells only once their settings are chosen.
        """
        for trial in self.trials:
            for seed, run in trial.cell.ids.items():
                yield PlannedRun(run, trial.cell, seed)
        for seed in self.seeds:
            for cell in self.cells:
                if seed in cell.ids:
                    yield PlannedRun(cell.ids[seed], cell, seed)

    @property
    def trials_a_cell(self) -> int:
        """How many trainings the search of each cell has in the end: 0 without `tune`."""
        return self.tune.trials if self.tune is not None else 0

    @property
    def expected_trials(self) -> int:
        """Of all searches, asked or not."""
        return self.trials_a_cell * len(self.cells)

    @property
    def to_come(self) -> int:
        """Runs without an id yet: trials not asked, reports of cells whose settings are not chosen.

        With those of `runs` they are all that there will be, from the first moment on.
        """
        reports = len(self.seeds) * sum(not cell.ids for cell in self.cells)
        return self.expected_trials - len(self.trials) + reports

    def heading(self, column: str) -> str:
        """Of the column that has this label."""
        return next(one.heading for one in self.columns if one.label == column)

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
            "cells": [_cell_tree(cell) for cell in self.cells],
            "analysis": vars(self.analysis),
            "tune": self.tune and asdict(self.tune),
            "trials": [{**vars(trial), "cell": _cell_tree(trial.cell)} for trial in self.trials],
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
            cells=tuple(map(_cell, tree["cells"])),
            baseline=tree["baseline"],
            seeds=tuple(tree["seeds"]),
            analysis=Analysis(**{**tree["analysis"], "looks": tuple(tree["analysis"]["looks"])}),
            paper=tree["paper"],
            notes=tuple(tree["notes"]),
            tune=_tune(tree.get("tune")),
            trials=tuple(
                Trial(**{**trial, "cell": _cell(trial["cell"])}) for trial in tree.get("trials", ())
            ),
        )


def _cell_tree(cell: Cell) -> dict[str, Any]:
    return {**vars(cell), "chosen": cell.chosen and vars(cell.chosen)}


def _cell(tree: Mapping[str, Any]) -> Cell:
    chosen = tree.get("chosen")
    return Cell(
        tree["row"],
        tree["column"],
        tree["spec"],
        {int(seed): run for seed, run in tree["ids"].items()},
        tuple(tree["overrides"]),
        Choice(**{**chosen, "edges": tuple(chosen["edges"])}) if chosen else None,
    )


def _tune(tree: Mapping[str, Any] | None) -> Tune | None:
    if tree is None:
        return None
    stages = tuple(
        Stage(
            {k: {how: tuple(v) for how, v in d.items()} for k, d in stage["space"].items()},
            stage["trials"],
            stage["at"],
        )
        for stage in tree["stages"]
    )
    return Tune(**{**tree, "stages": stages})


def file_name(name: str) -> str:
    """A sweep's name as a file name: it can't leave its folder, nor be too long for one."""
    quoted = urllib.parse.quote(name, safe="+=@, ")
    if quoted in (".", "..", ""):
        quoted = quoted.replace(".", "%2E") or "%"
    if len(quoted) > 200:
        quoted = f"{quoted[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted
