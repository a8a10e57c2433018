"""What a plan is made of: rows, columns, their cells, and the searches that settings come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from ablate.planning.settings import value_text
from ablate.shared import Key, Run, build_run, ids_of, seeded


@dataclass(frozen=True)
class Row:
    """A variant: the keys it sets, and as `confounds` those among them that it should not."""

    label: str
    settings: Mapping[str, Any]
    family: str | None = None
    confounds: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # labels of rows with the same specs


JOINT = " · "  # between the values in the label of a product


@dataclass(frozen=True)
class Column:
    """One value of `across`; gains are taken within a column. `paper` names the published column it
    stands for; `tuned`: do its cells get the searches of `tune:`, where the sweep has it?"""

    label: str
    settings: Mapping[str, Any]
    paper: str | None = None
    tuned: bool = True

    @property
    def heading(self) -> str:
        """The label; where it is a bare number, true or false, of what: "model.depth=2"."""
        (key, value), *more = self.settings.items() or [("", "")]
        bare = not more and not isinstance(value, str) and self.label == value_text(value)
        return f"{key}={self.label}" if bare else self.label


@dataclass(frozen=True)
class ColumnGroup:
    """Columns that a wide table shows together: a part of `groups:`."""

    name: str
    headings: Mapping[str, str]  # see WidePlace -> as shown


@dataclass(frozen=True)
class WidePlace:
    """Where a wide table has a column: in the lines of its architecture, under its heading."""

    arch: str  # "" where columns set none
    heading: str  # what is left of the label; "" of an architecture alone


ARCH = "model.arch"


def wide_places(columns: Sequence[Column]) -> dict[str, WidePlace]:
    """label -> place. Columns that would share a place keep their whole headings."""
    found = {column.label: _wide_place(column) for column in columns}
    often = Counter(found.values())
    return {
        column.label: place if often[place] == 1 else replace(place, heading=column.heading)
        for column, place in zip(columns, found.values(), strict=True)
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


FIRST_TUNING_SEED = 1000  # seeds from here on are for choosing, never for reporting


@dataclass(frozen=True)
class Cell:
    """A (row, column): the spec of its runs but for the seed, and their ids by seed.

    Where settings are tuned `spec` is without them: a run's own is that of `at(seed)`.
    """

    row: str
    column: str
    spec: Mapping[str, Any]  # spec.to_tree of a Run, without "seed"
    ids: Mapping[int, str]  # without the seeds whose settings are still being tuned
    overrides: tuple[str, ...] = ()  # recipe keys set by the sweep's `overrides`, for the footnote
    chosen: tuple[TuningWinner, ...] = ()  # what tuning chose, one a search that is over
    specs: tuple[Mapping[str, Any], ...] = ()  # with the settings of each
    seeds: tuple[int, ...] = ()  # that looks have given it, where settings are tuned

    @property
    def label(self) -> str:
        """LABEL@COLUMN, as the command line takes it."""
        return f"{self.row}@{self.column}" if self.column else self.row

    def at(self, seed: int) -> Cell:
        """The cell, its spec that of the run with this seed."""
        for choice, spec in zip(self.chosen, self.specs, strict=True):
            if seed in choice.seeds:
                return replace(self, spec=spec)
        return self


@dataclass(frozen=True)
class TuningWinner:
    """The winner of one search: its settings, its trial, and that trial's validation score."""

    params: Mapping[str, Any]
    trial: int
    trials: int
    value: float
    edges: tuple[str, ...] = ()  # keys whose value lies at an edge of its range
    spent: float = 0.0  # on the search, in whole trials: pruned ones count for what they used
    multiply_adds: float = 0.0  # of these trainings, three times those of the forwards
    search: int = 0
    seed: int = FIRST_TUNING_SEED  # of the trial
    seeds: tuple[int, ...] = ()  # of the reports that take it
    explored: Mapping[str, float] = field(default_factory=dict)  # share of each range
    noise: tuple[str, ...] = ()  # keys whose best two trials differ by less than their error

    @property
    def name(self) -> str:
        """Of the trial, as `show` takes it behind the row: "#1000.3"."""
        return f"#{self.seed}.{self.trial}"


@dataclass(frozen=True)
class Trial:
    """One training of a search. `cell` has its spec, and its id by its only seed.

    Trials of equal settings in one search are one run.
    """

    number: int  # in its search, through all stages
    stage: int
    params: Mapping[str, Any]
    cell: Cell
    score: float | None = None  # on validation, once it has ended: what the search was told
    search: int = 0
    error: float | None = None  # of the score, binomial; of a loss there is none
    state: str | None = None  # finished, pruned or diverged, as the search was told


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan. `cell` has its spec; `trial`: what it is in its search, if in one.

    `above`: 0 of a run of the table, 1 of its parent, 2 of that one's.
    """

    id: str
    cell: Cell
    seed: int
    trial: Trial | None = None
    above: int = 0

    @property
    def number(self) -> str:
        """The seed; of a trial with its own number, for those of a search share their seed."""
        number = f"{self.seed}" if self.trial is None else f"{self.seed}.{self.trial.number}"
        return number + ".from" * self.above

    @property
    def label(self) -> str:
        """LABEL@COLUMN#SEED, as the command line takes it; LABEL@COLUMN#SEED.TRIAL of a trial,
        LABEL@COLUMN#SEED.from of the run that one starts from."""
        return f"{self.cell.label}#{self.number}"

    def parent(self) -> PlannedRun | None:
        """The run that it starts from."""
        tree = self.cell.spec.get("parent")
        if tree is None:
            return None
        seed = tree.get("seed", self.seed)
        spec = {key: value for key, value in tree.items() if key != "seed"}
        cell = Cell(self.cell.row, self.cell.column, spec, ids_of(spec, [seed]))
        return PlannedRun(cell.ids[seed], cell, seed, above=self.above + 1)

    def spec(self) -> dict[str, Any]:
        """The whole plain tree, as `run.json` holds it."""
        return seeded(self.cell.spec, self.seed)

    def run(self) -> Run:
        return build_run(self.spec())


def recipe_caveats(cells: Iterable[Cell]) -> dict[str, str]:
    """What the recipes of the cells, and of what they start from, say beside their source, each
    line once; by "inferred" and "not followed"."""
    trees = [tree for cell in cells for tree in (cell.spec, *spec_parents(cell.spec))]
    found = {}
    for key in ("inferred", "not_followed"):
        lines = dict.fromkeys(line for tree in trees for line in tree.get(key, ()))
        if lines:
            found[key.replace("_", " ")] = "; ".join(lines)
    return found


def spec_parents(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The trees of what a cell's runs start from, the nearest first."""
    while (parent := spec.get("parent")) is not None:
        yield parent
        spec = parent


def lineage(run: PlannedRun) -> list[PlannedRun]:
    """The runs that it starts from, the eldest first."""
    parent = run.parent()
    return [] if parent is None else [*lineage(parent), parent]


@dataclass(frozen=True)
class TuningStage:
    """A search over some keys, those of the stages before fixed at their winners.

    `space`: key -> {"log" | "uniform" | "int": (low, high)} or {"choices": (value, ...)}; `at`:
    what a trial is trained with instead.
    """

    space: Mapping[str, Mapping[str, tuple[Any, ...]]]
    trials: Annotated[int, Key("trainings of a search, or of all that share them", least=1)]
    at: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tune:
    """The searches that every cell gets: `tune:` of a sweep file, or `from.tune`.

    A search is what is replicated: `repeats` of them, each through all stages by itself; None: one
    for every seed that is reported.
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
        int, Key("trials asked at a time, told in their order", least=1, most=10_000)
    ] = 4
    repeats: Annotated[int | None, Key("searches a cell; null: one for every seed", least=1)] = None
    # The keys of `space` are then the child's words for theirs: from.KEY.
    parents: Annotated[bool, Key("trials are parents, judged as they are: by `from.tune`")] = False

    @property
    def trials_each(self) -> int:
        """Of one search, over all stages."""
        return sum(stage.trials for stage in self.stages)

    def searches(self, seeds: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The number of every search -> the seeds of the reports that take its winner.

        Seed s takes that of search s; where fewer searches are asked for, seeds are dealt in turn.
        """
        dealt: dict[int, tuple[int, ...]] = {}
        for place, seed in enumerate(seeds):
            search = seed if self.repeats is None else place % self.repeats
            dealt[search] = (*dealt.get(search, ()), seed)
        return dealt

    def trial_seed(self, search: int) -> int:
        """With which all trials of a search are trained, in every cell."""
        return FIRST_TUNING_SEED * (1 + self.seed) + search
