"""The design of a sweep: which seeds its cells have, and when its gains are judged.

`Fixed` and `Looks` answer the same questions. A plan, its table, its ledger and its messages ask
its design, and none of them needs to know which one it is. `analysis.sequential` judges at the
numbers of seeds of its looks. `ablate_designs/NAME.py` adds a design, a subclass of one of them,
for sweep files with `NAME:`.

Used by `planning/sweep_file.py` (`seeds:`, `until:`), `planning/plan.py` and
`analysis/sequential.py`. A new entry of `DESIGNS` also needs its row in docs/sweep-files.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import FIRST_TUNING_SEED, Cell, Tune
from ablate.run import (
    Key,
    check_keys,
    parts,
    read_field,
    read_value,
)
from ablate.shared import UserError, count_text

if TYPE_CHECKING:  # these have a design
    from ablate.planning.declaration import Sweep
    from ablate.planning.declared import Declared
    from ablate.planning.plan import Plan

FEWEST = 5  # seeds at the first look: fewer hide a noisy baseline or two noisy rows
LEAST_GAP = 2  # least seeds between looks: one has no spread
DEFAULT = (5, 8, 12)
USUAL = (*DEFAULT, 20, 30)  # looks of --until
UNTIL_FORM = "{looks: [5, 8, 12], margin: 0.5}"
# row -> column -> (number of seeds at the newest look, what that look said)
Standing = Mapping[str, Mapping[str, tuple[int, str]]]


@dataclass(frozen=True)
class Fixed:
    """A design in which every cell has the declared seeds.

    Gains are judged when every run has a result.
    """

    seed_counts: ClassVar[tuple[int, ...]] = ()  # the numbers of seeds at its looks
    analysis: ClassVar[Mapping[str, Any]] = {}  # its own margin and spread, if any
    grows = False  # may it add seeds after results?
    judges_other_sets: ClassVar[bool] = True  # as the runs' own test set?
    without_images = "one way"  # how a column is judged where images give no spread
    trains: ClassVar[bool] = True  # can its runs be trained here?

    @property
    def column_noun(self) -> str:
        """The name of columns in a sheet, such as "depth"; "" where none has one."""
        return ""

    def tree(self) -> dict[str, Any]:
        """Return the design's part of a plan's file, under the key of `DESIGNS`."""
        return {}

    @classmethod
    def of_tree(cls, tree: Mapping[str, Any]) -> Self:
        """Return the design that a plan's file holds: the inverse of `tree`."""
        return cls()

    @classmethod
    def parse(cls, raw: Any, place: str) -> Self:
        """Read the design from a sweep file's value of its key. Raises UserError."""
        raise NotImplementedError

    def of_look(self) -> dict[str, Any]:
        """Return the design's part of the analysis that is recorded with a look."""
        return {}

    @property
    def blocks(self) -> bool:
        """True where all runs of a seed share what the seed decides."""
        return True

    def reach(self, seeds: Sequence[int]) -> Sequence[int]:
        """Return the seeds that a sweep with these may come to have."""
        return seeds

    def seeds_text(self, seeds: Sequence[int]) -> str:
        """Return the text for a declaration with these seeds: "8"."""
        return seeds_value(seeds)

    def drive_text(self, seeds: Sequence[int]) -> str:
        """Return the text for a drive with these seeds, as the ledger records it: "seeds=8"."""
        return f"seeds={seeds_value(seeds)}"

    def seeds_suffix(self, seeds: str) -> str:
        """Return the text on seeds that follows a plan's rows and columns: " x 3 seeds"."""
        return f" x {seeds}"

    def declare_seeds(self, line: Declared, seeds: Sequence[int]) -> Declared:
        """Return what a sweep declares, changed to give these seeds."""
        return line.with_seeds(len(seeds) if _is_count(seeds) else seeds)

    def other_seeds(self, word_seeds: Sequence[int], seeds: Sequence[int]) -> bool:
        """Return whether the seeds that words give differ from those that were driven."""
        return {*word_seeds} != {*seeds}

    def planned(self, plan: Plan, cell: Cell) -> tuple[int, ...]:
        """Return the seeds that the cell has, or will have."""
        if not plan.skipped:
            return plan.seeds
        skipped = plan.skipped_seeds(cell)
        return tuple(seed for seed in plan.seeds if seed not in skipped)

    def stored_seeds(self, seeds: tuple[int, ...], tune: Tune | None) -> tuple[int, ...]:
        """Return the seeds that a new cell keeps: none, for they are the plan's."""
        return ()

    def at_most(self, plan: Plan) -> Plan:
        """Return the plan with all seeds that it may come to have."""
        return plan

    def compared(self, plan: Plan) -> Plan:
        """Return the plan with the seeds that are compared over all cells: without those that the
        user has skipped in every cell, of which no cell has a result."""
        if plan.tune is not None and plan.tune.repeats is not None and len(plan.replicates) > 1:
            return plan  # searches are dealt to seeds by their places, so that all must stay
        return replace(plan, seeds=plan.counted_seeds)

    def needed_runs(self, plan: Plan) -> dict[str, str]:
        """Return the runs that can't be skipped: id -> what needs the run, such as "its search"."""
        return {run.id: "its search" for run in plan.tried()}

    def check_plan(self, plan: Plan, place: str) -> None:
        """Raise UserError for a plan that can't have this design."""

    def check_change(self, plan: Plan, place: str, remedy: str) -> None:
        """Raise UserError where a driven plan's analysis must stay. `place`: what the user typed to
        change it; `remedy`: how to drive the sweep with it."""

    def apply_to(self, sweep: Sweep, words: Mapping[str, Any], margin: float | None) -> Sweep:
        """Return the sweep as it begins under this design.

        `words`: the sweep's own, by key. `margin`: that of --margin. Raises UserError for parts of
        the sweep that the design excludes.
        """
        if margin is not None:
            raise UserError("--margin: needs --until N; of a table it is analysis.margin=POINTS")
        return sweep

    def recall(self, sweep: Sweep, last_plan: Plan, words: Mapping[str, Any]) -> tuple[Sweep, str]:
        """Return the declared sweep in this design, that of `last_plan`, by which it was driven.

        Also return what stays as it was, in words: "3 seeds".
        """
        n, seeds = len(last_plan.seeds), last_plan.seeds
        summary = count_text(n, "seed") if _is_count(seeds) else f"seeds {_list(seeds)}"
        return replace(sweep, design=self, seeds=seeds), summary

    def extended(self, last_look: int) -> Looks:
        """Return the design under `--until LAST`."""
        return Looks(looks_to(last_look), place="--until")


@dataclass(frozen=True)
class Looks:
    """A design with looks: every cell has the seeds of the first look.

    Rows that go on after a look get the seeds of the next. `analysis`: what `until:` itself
    says of margin and spread. `place`: the start of errors.
    """

    seed_counts: tuple[int, ...] = DEFAULT
    analysis: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    first_seed: Annotated[int, Key("the first seed of every cell", least=0)] = 0

    grows = True
    judges_other_sets = False  # looks are at the runs' own test set
    without_images = "paired"
    trains = True
    blocks = True
    column_noun = ""

    def tree(self) -> dict[str, Any]:
        start = {"first_seed": self.first_seed} if self.first_seed else {}
        return {"until": self.seed_counts, **start}

    of_look = tree

    @classmethod
    def of_tree(cls, tree: Mapping[str, Any]) -> Self:
        return cls(tuple(tree["until"]), first_seed=tree.get("first_seed", 0))

    @classmethod
    def parse(cls, raw: Any, place: str) -> Self:
        """Read `until:`.

        Its margin and spread are `analysis.margin` and `analysis.spread` of a sweep with looks.
        Raises UserError.
        """
        if not isinstance(raw, dict):
            raise UserError(f"{place}: expected {UNTIL_FORM}, got {raw!r}")
        check_keys(place, raw, ("looks", "first_seed", "margin", "spread"))
        looks = checked_looks(raw["looks"], f"{place}.looks") if "looks" in raw else DEFAULT
        first_seed = read_field(cls, "first_seed", raw.get("first_seed", 0), f"{place}.first_seed")
        analysis = {key: raw[key] for key in ("margin", "spread") if key in raw}
        analysis = {
            key: read_field(Analysis, key, value, f"{place}.{key}")
            for key, value in analysis.items()
        }
        return cls(looks, analysis, first_seed=first_seed)

    def reach(self, seeds: Sequence[int]) -> Sequence[int]:
        return self._seeds(self.seed_counts[-1])

    def _seeds(self, count: int) -> range:
        return range(self.first_seed, self.first_seed + count)

    def seeds_text(self, seeds: Sequence[int] = ()) -> str:
        start = f" from {self.first_seed} on" if self.first_seed else ""
        return f"looks at {_list(self.seed_counts)} seeds{start}"

    drive_text = seeds_text

    def seeds_suffix(self, seeds: str) -> str:
        return f", up to {seeds} so far"

    def declare_seeds(self, line: Declared, seeds: Sequence[int]) -> Declared:
        return line

    def other_seeds(self, word_seeds: Sequence[int], seeds: Sequence[int]) -> bool:
        return False

    def planned(self, plan: Plan, cell: Cell) -> tuple[int, ...]:
        return cell.seeds or tuple(cell.ids)

    def stored_seeds(self, seeds: tuple[int, ...], tune: Tune | None) -> tuple[int, ...]:
        return seeds if tune is not None else ()

    def at_most(self, plan: Plan) -> Plan:
        """Return the plan with the seeds of the last look.

        Only columns that have rows to judge get them.
        """
        columns = {cell.column for cell in plan.cells if cell.row != plan.baseline}
        cells = [cell for cell in plan.cells if cell.column in columns]
        return with_seeds(plan, {(cell.row, cell.column): self.seed_counts[-1] for cell in cells})

    def compared(self, plan: Plan) -> Plan:
        return replace(plan, seeds=plan.shared_seeds)

    def needed_runs(self, plan: Plan) -> dict[str, str]:
        return {run.id: "a look" for run in plan.runs()}

    def check_plan(self, plan: Plan, place: str) -> None:
        if plan.smoke:
            raise UserError(
                f"{place}until: can't be combined with a smoke test, whose gains are not judged; "
                f"give seeds instead"
            )
        if ONE_PARENT in plan.conditions:
            raise UserError(
                f"{place}from.seed: can't be combined with until, because gains over one parent "
                f"have no verdicts; remove from.seed, so that each seed has its own parent"
            )

    def check_change(self, plan: Plan, place: str, remedy: str) -> None:
        if place == "analysis.target":
            return  # which `check_target` refuses
        raise UserError(
            f"{place}: the looks of {plan.name} gave out seeds by another analysis; "
            f"remove {place}, or {remedy}"
        )

    def apply_to(self, sweep: Sweep, words: Mapping[str, Any], margin: float | None) -> Sweep:
        """Return the sweep with the seeds of the first look.

        Raises UserError where `until` and the analysis, the seeds or the searches contradict each
        other.
        """
        place = self.place or f"{sweep.place}: until"
        sweep_analysis, default = sweep.analysis, Analysis()
        for key, value in self.analysis.items():
            if getattr(sweep_analysis, key) not in (getattr(default, key), value):
                raise UserError(f"{place}: {key}: analysis.{key} says another; give one")
        analysis = replace(sweep_analysis, **self.analysis)
        if margin is not None:
            analysis = replace(analysis, margin=read_field(Analysis, "margin", margin, "--margin"))
        if "seeds" in words:
            raise UserError(
                f"seeds: {place} gives out the seeds at its looks; remove one of the two"
            )
        if sweep.tune is not None and sweep.tune.repeats is not None:
            section = "from.tune" if sweep.tune.parents else "tune"
            raise UserError(
                f"{place}: can't be combined with {section}.repeats, because each seed that a look "
                f"adds has a search of its own; remove {section}.repeats, or give "
                f"{section}.repeats=null"
            )
        for key in ("looks", "diverged"):
            if getattr(analysis, key) != getattr(default, key):
                raise UserError(
                    f"{place}: can't be combined with analysis.{key}; remove one of the two"
                )
        if (last_seed := self._seeds(self.seed_counts[-1])[-1]) >= FIRST_TUNING_SEED:
            raise UserError(
                f"{place}: seeds from {FIRST_TUNING_SEED} up are kept for tuning, and the last "
                f"look reaches seed {last_seed}"
            )
        seeds, looks = (
            tuple(self._seeds(self.seed_counts[0])),
            Looks(self.seed_counts, first_seed=self.first_seed),
        )
        return replace(sweep, design=looks, seeds=seeds, analysis=analysis)

    def recall(self, sweep: Sweep, last_plan: Plan, words: Mapping[str, Any]) -> tuple[Sweep, str]:
        analysis = sweep.analysis
        if "analysis.margin" not in words:
            analysis = replace(analysis, margin=last_plan.analysis.margin)
        spread = {k: v for k, v in sweep.design.analysis.items() if k == "spread"}
        looks = replace(self, analysis=spread)
        return looks.apply_to(replace(sweep, analysis=analysis), words, None), self.seeds_text()

    def extended(self, last_look: int) -> Looks:
        return replace(self, seed_counts=looks_to(last_look), place="--until")


@dataclass(frozen=True)
class SheetKeys:
    """The columns of a sheet by what they hold, and how its lines are read.

    `metrics`: a metric's name -> its column. `predictions`: the column that names files. `run`: the
    column that tells the runs of a row apart. `result`: the file that each job left in a folder of
    jobs. `files`: the names of the files where a sheet is several files of a folder. `comment`:
    begins lines that are no lines of the sheet. `wide`, `split`, `where`, `epochs`: as typed, see
    audit/sheet_lines.py. `ignore`: undeclared columns, or patterns of them, that no note names.
    """

    row: str
    metrics: Mapping[str, str] = field(default_factory=dict)
    column: str | None = None
    seed: str | None = None
    predictions: str | None = None
    run: str | None = None
    result: str | None = None
    files: tuple[str, ...] = ()
    encoding: str = "utf-8"
    decimal: str = "."
    comment: str | None = None
    wide: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    epochs: str | None = None
    ignore: tuple[str, ...] = ()

    @property
    def used(self) -> list[str]:
        places = (self.row, self.column, self.seed, self.predictions, *self.metrics.values())
        return [name for name in places if name is not None]


@dataclass(frozen=True)
class SheetSource:
    """The file that runs were imported from.

    `file`: its path; only a text where the plan is another store's. `hides`: lines on what makes
    its rows unlike.
    """

    file: str
    sha256: str
    lines: int
    read: SheetKeys
    hides: tuple[str, ...] = ()

    def placeless(self) -> SheetSource:
        """Return the source without folders."""
        names = tuple(Path(name).name for name in self.read.files)
        file = f"{len(names)} files" if names else Path(self.file).name
        return replace(self, file=file, read=replace(self.read, files=names))


@dataclass(frozen=True)
class Imported(Fixed):
    """A design for runs that were trained elsewhere: every cell has the seeds that sheets have.

    Where the runs are not `seeded`, their seeds are numbers of lines, which link no rows.
    """

    seeded: bool
    sources: tuple[SheetSource, ...]

    trains = False

    @property
    def column_noun(self) -> str:
        return self.sources[0].read.column or ""

    @property
    def blocks(self) -> bool:
        return self.seeded

    def tree(self) -> dict[str, Any]:
        return {"imported": {"seeded": self.seeded, "sources": self.sources}}

    @classmethod
    def of_tree(cls, tree: Mapping[str, Any]) -> Self:
        section = tree["imported"]
        sources = tuple(read_value(source, SheetSource, "") for source in section["sources"])
        if not sources:
            raise ValueError("an imported plan without a sheet")
        return cls(bool(section["seeded"]), sources)

    def seeds_suffix(self, seeds: str) -> str:
        return ", with the runs of the sheet"

    def declare_seeds(self, line: Declared, seeds: Sequence[int]) -> Declared:
        return line

    def planned(self, plan: Plan, cell: Cell) -> tuple[int, ...]:
        return tuple(cell.ids)


Design = Fixed | Looks
DESIGNS: dict[str, type[Design]] = {"until": Looks}  # by the key in a sweep file and in plans


def design_of(tree: Mapping[str, Any]) -> Design:
    """Return the design that a plan's file has."""
    for key, kind in (("imported", Imported), *DESIGNS.items()):
        if key in tree:
            return kind.of_tree(tree)
    return Fixed()


# --- What is declared ---------------------------------------------------------------------------


def checked_looks(raw: Any, place: str) -> tuple[int, ...]:
    """Read the numbers of seeds of looks: two or more, increasing. Raises UserError."""
    form = "two or more increasing numbers of seeds such as [5, 8, 12]"
    are_integers = isinstance(raw, list) and all(type(n) is int for n in raw)
    if not are_integers or len(raw) < 2 or sorted(raw) != raw:
        raise UserError(f"{place}: expected {form}, got {raw!r}")
    if raw[0] < FEWEST:
        raise UserError(
            f"{place}: the first look expects at least {FEWEST} seeds, got {raw[0]}: with fewer, a "
            f"noisy baseline goes unseen"
        )
    if any(later - n < LEAST_GAP for n, later in itertools.pairwise(raw)):
        raise UserError(f"{place}: expected looks at least {LEAST_GAP} seeds apart, got {raw!r}")
    return tuple(raw)


def looks_to(last_look: int) -> tuple[int, ...]:
    """Return the looks of `--until LAST`: the usual ones that are far enough below it, and LAST.

    Raises UserError where LAST is too small for two looks.
    """
    if last_look < FEWEST + LEAST_GAP:
        raise UserError(
            f"--until: expected at least {FEWEST + LEAST_GAP} seeds, got {last_look}: the first "
            f"look is at {FEWEST}, and looks are {LEAST_GAP} seeds apart; a fixed number is "
            f"seeds={max(1, last_look)}"
        )
    return checked_looks([*(n for n in USUAL if n + LEAST_GAP <= last_look), last_look], "--until")


def seeds_value(seeds: Sequence[int]) -> str:
    """Return seeds as `seeds=` takes them: "8", "[3,5,7]"."""
    return str(len(seeds)) if _is_count(seeds) else f"[{','.join(map(str, seeds))}]"


def _is_count(seeds: Sequence[int]) -> bool:
    return [*seeds] == [*range(len(seeds))]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# --- What a plan has ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A thing that all seeds of a row share, so that its gains have intervals and no verdicts."""

    factor: str
    note: str


ONE_SEARCH = Condition(
    "search",
    "One search a row: intervals are conditional on the chosen settings and don't compare "
    "methods, so there are no verdicts; tune.repeats=3 compares methods.",
)
ONE_PARENT = Condition(
    "parent",
    "One parent a row: intervals are conditional on its weights and leave out how much "
    "parents differ, so there are no verdicts; without from.seed each seed has its own.",
)


def with_seeds(plan: Plan, counts: Mapping[tuple[str, str], int]) -> Plan:
    """Return the plan with at least so many seeds of each (row, column).

    Where settings are tuned, the new runs have ids only once a search has chosen their settings.
    """
    cells, first_seed = [], plan.seeds[0]
    for cell in plan.cells:
        count = counts.get((cell.row, cell.column), 0)
        if count > len(plan.planned(cell)):
            seeds = tuple(range(first_seed, first_seed + count))
            if plan.is_tuned(cell):
                cell = replace(cell, seeds=seeds)
            else:
                cell = replace(cell, ids=cell.spec.ids(seeds))
        cells.append(cell)
    if tuple(cells) == plan.cells:
        return plan
    seed_count = max(len(plan.planned(cell)) for cell in cells)
    return replace(
        plan, cells=tuple(cells), seeds=tuple(range(first_seed, first_seed + seed_count))
    )


parts.extend(DESIGNS, "ablate_designs", type)
