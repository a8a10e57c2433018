"""The parts of a plan: rows, columns, their cells, and the searches that choose settings.

Used by `store/`, `running/`, `analysis/`, `report/` and `audit/`. Plans keep these parts in their
files: a new field without a default also needs `FORMAT` in `version.py` raised and
`tests/golden/write_store.py` run. A new `sampler` of `Tune` also needs `planning/tuning.py`
(`make_sampler`).
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from ablate.planning.settings import value_text
from ablate.run import (
    Key,
    Run,
    RunSpec,
    build_run,
)
from ablate.shared import UserError


@dataclass(frozen=True)
class Row:
    """A variant: the keys that it sets.

    `confounds`: the keys among them that it should not set, since they blur the comparison with the
    baseline.
    """

    label: str
    settings: Mapping[str, Any]
    family: str | None = None
    confounds: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # labels of rows with the same specs


JOINT = " · "  # between the values in the label of a product


@dataclass(frozen=True)
class Column:
    """A value of `across`; gains are taken within a column.

    `paper`: the published column that it stands for. `tuned`: do its cells get the searches of
    `tune:`, where the sweep has it?
    """

    label: str
    settings: Mapping[str, Any]
    paper: str | None = None
    tuned: bool = True

    @property
    def heading(self) -> str:
        """The label; with its key, "model.depth=2", where it is only a number, true or false."""
        (key, value), *rest = self.settings.items() or [("", "")]
        bare = not rest and not isinstance(value, str) and self.label == value_text(value)
        return f"{key}={self.label}" if bare else self.label

    @property
    def number(self) -> float | None:
        """The number that its one setting has, such as of steps; None for any other column."""
        return self.number_of(next(iter(self.settings))) if len(self.settings) == 1 else None

    def number_of(self, key: str) -> float | None:
        """Return the number that it sets for a key, also where that is a text, as of a sheet; None
        for any other value, and without one."""
        value: Any = self.settings.get(key)
        if isinstance(value, bool):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None


@dataclass(frozen=True)
class ColumnGroup:
    """A group of columns that a wide table shows together: a part of `groups:`."""

    name: str
    headings: Mapping[str, str]  # WidePlace.heading -> the heading as shown


@dataclass(frozen=True)
class WidePlace:
    """The place of a column in a wide table: an architecture's lines, and a heading."""

    arch: str  # "" where columns set no architecture
    heading: str  # the rest of the label; "" where the architecture is all of it


ARCH = "model.arch"


def wide_places(columns: Sequence[Column]) -> dict[str, WidePlace]:
    """Return the place of every column in a wide table, by label.

    Columns that would share a place keep their whole headings.
    """
    places = {column.label: _wide_place(column) for column in columns}
    often = Counter(places.values())
    return {
        column.label: place if often[place] == 1 else replace(place, heading=column.heading)
        for column, place in zip(columns, places.values(), strict=True)
    }


def _wide_place(column: Column) -> WidePlace:
    if ARCH not in column.settings:
        return WidePlace("", column.heading)
    arch, rest = value_text(column.settings[ARCH]), {**column.settings}
    del rest[ARCH]
    for between in (", ", JOINT):
        parts = column.label.split(between)
        if arch in parts:
            parts.remove(arch)
            return WidePlace(arch, Column(between.join(parts), rest).heading)
    return WidePlace(arch, column.heading)


FIRST_TUNING_SEED = 1000  # seeds from here on choose settings and are never reported
PRUNED_SEEDS = 1_000_000  # multiples of it set the seeds of searches with a pruner apart


@dataclass(frozen=True)
class Cell:
    """A row in a column: the spec of its runs, without the seed, and their ids by seed.

    Where settings are tuned, `spec` lacks them; `at_seed(seed)` has the spec of the run with that
    seed.
    """

    row: str
    column: str
    spec: RunSpec
    ids: Mapping[int, str]  # without the seeds whose settings are still being tuned
    overrides: tuple[str, ...] = ()  # recipe keys set by the sweep's `overrides`, for the footnote
    chosen: tuple[TuningWinner, ...] = ()  # the winner of each finished search
    specs: tuple[RunSpec, ...] = ()  # the spec with each winner's settings
    seeds: tuple[int, ...] = ()  # given by looks, where settings are tuned

    @property
    def label(self) -> str:
        """The cell as the command line names it: LABEL@COLUMN.

        It is LABEL where the column has no label.
        """
        return f"{self.row}@{self.column}" if self.column else self.row

    def at_seed(self, seed: int) -> Cell:
        """Return the cell with the spec of the run that has this seed."""
        for choice, spec in zip(self.chosen, self.specs, strict=True):
            if seed in choice.seeds:
                return replace(self, spec=spec)
        return self

    def check_ids(self) -> None:
        """Raise ValueError where an id isn't that of the cell's configuration.

        No id covers the configuration from which settings are tuned: it must have the keys that
        the winners' have.
        """
        try:
            for choice, spec in zip(self.chosen, self.specs, strict=True):
                tuned_sections = {"from", *(key.partition(".")[0] for key in choice.params)}
                sections = {
                    name: section
                    for name, section in spec.tree.items()
                    if isinstance(section, Mapping) and name not in tuned_sections
                }
                if any(self.spec.tree[name].keys() != sections[name].keys() for name in sections):
                    raise ValueError
            ids = {} if self.chosen else self.spec.ids(self.ids)
            for seed, run in self.ids.items():
                if run != (ids or self.at_seed(seed).spec.ids([seed]))[seed]:
                    raise ValueError
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            message = f"was edited: the configuration of {self.label} is another run's"
            raise ValueError(message) from error


@dataclass(frozen=True)
class TuningWinner:
    """The winner of one search: its settings, its trial, and that trial's validation score."""

    params: Mapping[str, Any]
    trial: int
    trials: int
    value: float
    edges: tuple[str, ...] = ()  # keys whose value lies at an edge of their range
    spent: float = 0.0  # on the search, in whole trials; a pruned one counts in part
    multiply_adds: float = 0.0  # of these trainings: three times the forward passes'
    search: int = 0
    seed: int = FIRST_TUNING_SEED  # the trial's
    seeds: tuple[int, ...] = ()  # of the reports that take the winner
    explored: Mapping[str, float] = field(default_factory=dict)  # the share of each range
    noise: tuple[str, ...] = ()  # keys whose best two trials differ by less than their error

    @property
    def name(self) -> str:
        """The suffix that names the winning trial, as `show` takes it after the row: "#1000.3"."""
        return f"#{self.seed}.{self.trial}"


@dataclass(frozen=True)
class Trial:
    """A training of a search. `cell` holds its spec, and its id under its only seed.

    Trials of one search with equal settings are one run.
    """

    number: int  # counted over all stages of its search
    stage: int
    params: Mapping[str, Any]
    cell: Cell
    score: float | None = None  # on validation, as the search got it; None before its end
    search: int = 0
    error: float | None = None  # binomial standard error of the score; None for a loss
    state: str | None = None  # "finished", "pruned" or "diverged"; None before its end


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan. `cell` holds its spec without the seed.

    `trial`: the trial that it is in its search; None outside searches. `above`: 0 for a run of the
    table, 1 for its parent, 2 for the parent of that one.
    """

    id: str
    cell: Cell
    seed: int
    trial: Trial | None = None
    above: int = 0

    @property
    def number(self) -> str:
        """The seed; for a trial also its number, since the trials of a search share their seed.

        A parent's number ends in ".from", once for each generation above the table's run.
        """
        number = f"{self.seed}" if self.trial is None else f"{self.seed}.{self.trial.number}"
        return number + ".from" * self.above

    @property
    def label(self) -> str:
        """The run as the command line names it: LABEL@COLUMN#SEED.

        It is LABEL@COLUMN#SEED.TRIAL for a trial, and LABEL@COLUMN#SEED.from for the run that one
        starts from.
        """
        return f"{self.cell.label}#{self.number}"

    def parent(self) -> PlannedRun | None:
        """Return the run that this one starts from; None where there is none."""
        parent = self.cell.spec.parent
        if parent is None:
            return None
        seed = parent.tree.get("seed", self.seed)
        spec = parent.without_seed(parent)
        cell = Cell(self.cell.row, self.cell.column, spec, spec.ids([seed]))
        return PlannedRun(cell.ids[seed], cell, seed, above=self.above + 1)

    @property
    def spec(self) -> RunSpec:
        """The spec of the run, as `run.json` holds it."""
        return self.cell.spec.with_seed(self.seed)

    def run(self) -> Run:
        return build_run(self.spec.tree)

    @property
    def has_own_spec(self) -> bool:
        """True if the id is the hash of the spec, as in every plan that nobody edited."""
        return _hash_of(self.spec.tree) == self.id

    def is_recorded_in(self, content: object) -> bool:
        """Return whether the content of a `run.json` is the record of this run.

        It has the run's id, and a spec that hashes to it.
        """
        if not isinstance(content, dict) or content.get("id") != self.id:
            return False
        tree = content.get("spec")
        return tree == self.spec.tree or _hash_of(tree) == self.id


def _hash_of(tree: Any) -> str | None:
    """Return the id of the run in a plain tree; None if it has no valid run."""
    try:
        return RunSpec.of(tree).id
    except (UserError, LookupError, TypeError, AttributeError, ValueError):
        return None


def recipe_caveats(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the caveats of the recipes of the cells, and of the runs that they start from.

    The keys are "inferred" (settings that a recipe's source does not state) and "not followed"
    (departures from the source). A value joins the distinct lines by "; "; a key without lines is
    absent.
    """
    specs = [spec for cell in cells for spec in (cell.spec, *cell.spec.ancestors())]
    caveats = {}
    for key in ("inferred", "not_followed"):
        lines = dict.fromkeys(line for spec in specs for line in spec.tree.get(key, ()))
        if lines:
            caveats[key.replace("_", " ")] = "; ".join(lines)
    return caveats


def lineage(run: PlannedRun) -> list[PlannedRun]:
    """Return the runs that a run starts from, the farthest first."""
    parent = run.parent()
    return [] if parent is None else [*lineage(parent), parent]


@dataclass(frozen=True)
class TuningStage:
    """A search over some keys; the keys of the stages before are fixed at their winners.

    `space`: key -> {"log" | "uniform" | "int": (low, high)} or {"choices": (value, ...)}. `at`:
    settings with which trials are trained instead of the cell's own.
    """

    space: Mapping[str, Mapping[str, tuple[Any, ...]]]
    trials: Annotated[int, Key("trainings of a search, or of all that share them", least=1)]
    at: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tune:
    """The searches that every cell gets: `tune:` of a sweep file, or `from.tune`.

    Whole searches are replicated: each of the `repeats` searches of a cell goes through all stages
    by itself. None: one search for every seed that is reported.
    """

    stages: tuple[TuningStage, ...]
    sampler: Annotated[
        Literal["tpe", "random", "cmaes", "grid"], Key("Optuna's sampler, which asks the trials")
    ] = "tpe"
    pruner: Annotated[
        Literal["none", "median", "hyperband"], Key("Optuna's pruner, which ends trials early")
    ] = "none"
    seed: Annotated[int, Key("of the sampler, and of the trials' trainings", least=0)] = 0
    round: Annotated[
        int,
        Key(
            "trials proposed at a time; the sampler gets their results in order",
            least=1,
            most=10_000,
        ),
    ] = 4
    repeats: Annotated[int | None, Key("searches a cell; null: one for every seed", least=1)] = None
    # With this, the keys of `space` are named as the child names them: from.KEY.
    parents: Annotated[bool, Key("trials are parents, judged as they are: by `from.tune`")] = False

    @property
    def trials_each(self) -> int:
        """The number of trials of one search, over all stages."""
        return sum(stage.trials for stage in self.stages)

    def searches(self, seeds: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the number of every search -> the seeds of the reports that take its winner.

        Seed s takes the winner of search s; with `repeats`, searches are dealt to the seeds in
        turn.
        """
        dealt: dict[int, tuple[int, ...]] = {}
        for place, seed in enumerate(seeds):
            search = seed if self.repeats is None else place % self.repeats
            dealt[search] = (*dealt.get(search, ()), seed)
        return dealt

    def trial_seed(self, search: int) -> int:
        """Return the seed with which all trials of a search are trained, in every cell.

        Whether a trial is pruned depends on the trials before it, and so on the whole search: with
        a pruner, searches that ask other trials share none, so a search never finds a run that
        another one ended early.
        """
        seed = FIRST_TUNING_SEED * (1 + self.seed) + search
        if self.pruner == "none":
            return seed
        spaces = [(stage.space, stage.at) for stage in self.stages]
        content = json.dumps([self.pruner, self.sampler, self.round, spaces])
        return seed + PRUNED_SEEDS * (1 + zlib.crc32(content.encode()) % 1000)
