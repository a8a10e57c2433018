"""Looks: records that gains of a sweep were read, with intervals or verdicts.

Adding seeds after a look is optional stopping, and choosing rows or an analysis after one is a
choice among results. So a table must know the looks before it, whatever their sweeps are called: a
look keeps the ids of the runs that it counted. Reading means while runs are missing is a peek.

This module also finds which earlier looks counted runs of a table's rows, and what follows for the
table. Looks are related by the runs that they counted, never by the names of their sweeps. A look
belongs to the family of a column if it counted a run of one of the column's variants, or of a
variant of another look of the family. Looks that share only the baseline's runs belong to separate
families.

Used by `analysis/reading.py` (`ablate table`) and `analysis/seeding.py` (`sweep --until`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ablate.planning import Analysis, Cell, Plan
from ablate.run import fits_type, read_section
from ablate.store.same_runs import Results, result_marks, with_first_ids

LOOK = "look"  # of no run: its run is ""
CODE = "code"  # of an analysis: the version of the user's function that is its metric
UNTIL = "until"  # of an analysis: the looks that give out seeds
TUNE = "tune"  # of an analysis: a hash of the searches that choose settings
SKIPPED = "skipped"  # of an analysis: runs that the user left out, whose seed others have
CONTRASTS = "contrasts"  # of an analysis: differences of rows or of columns, by name
SPREAD = "spread"  # of an analysis: what judges gains
TARGET = "target"  # of an analysis: the number that means were judged against
EFFECTS = "changes"  # of an analysis: the changes of a crossed design, whose main effects are read
EMPTY: Results = {}


@dataclass(frozen=True)
class ReadRow:
    """A row as a look read it.

    `spec`: a hash of its configuration without the seed. `runs`: seed -> id of each run that was
    counted, in a peek also of runs still to come; {} for a row of which nothing was read. `marks`:
    seed -> mark of the run's result, see `same_runs`.
    """

    spec: str
    runs: Mapping[int, str]
    marks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadColumn:
    """A column as a look read it.

    `n`: the number of seeds that all rows had. `contrasts`: the size of the family over which the
    intervals are simultaneous; 0 for a peek. `decided`: for a look that gave out seeds, its
    decision on each row. `rows`: by label, the baseline first.
    """

    n: int
    contrasts: int
    decided: Mapping[str, str]
    rows: Mapping[str, ReadRow]

    @property
    def baseline(self) -> ReadRow:
        return next(iter(self.rows.values()))


@dataclass(frozen=True)
class InterimLook:
    """A look: the gains that were read, in a peek the means, and the runs of each row.

    `planned`: for a peek, the numbers of seeds at which verdicts were planned; () for other looks.
    """

    sweep: str
    metric: str
    planned: tuple[int, ...]
    columns: Mapping[str, ReadColumn]  # those that have gains, or are judged against a target
    analysis: Mapping[str, Any]

    @property
    def n(self) -> int:
        return max((column.n for column in self.columns.values()), default=0)

    @property
    def compared(self) -> Analysis:
        """The part of its analysis that says what was compared: contrasts, or a target."""
        return Analysis(
            contrasts=self.analysis.get(CONTRASTS, {}), target=self.analysis.get(TARGET)
        )

    @property
    def row_differences(self) -> set[frozenset[str]]:
        """The rows that its contrasts compare, whatever these are named, and either way round."""
        contrasts = self.compared.row_contrasts
        return {frozenset((contrast.row, contrast.base)) for contrast in contrasts}

    @property
    def column_differences(self) -> set[tuple[str, ...]]:
        """The columns that its contrasts compare, whatever these are named, and either way round: a
        key of the columns with two of its values, as JSON."""
        return {
            (tree["across"], *sorted((json.dumps(tree["from"]), json.dumps(tree["to"]))))
            for tree in self.compared.column_contrasts.values()
        }

    @property
    def has_target(self) -> bool:
        """True if means were judged against a target, and no gains over a baseline."""
        return TARGET in self.analysis

    def variants(self, column: ReadColumn) -> list[ReadRow]:
        """Return the rows of a column that were judged: all but the baseline, by a target all."""
        rows = list(column.rows.values())
        return rows if self.has_target else rows[1:]

    def baseline_runs(self, column: ReadColumn) -> set[str]:
        """Return the ids of the baseline's runs; none where means were judged against a target."""
        return set() if self.has_target else set(column.baseline.runs.values())

    def comparisons(self, column: ReadColumn, include_unread: bool = False) -> set[str]:
        """Return names of all comparisons that were read in one of the look's columns: its gains,
        and its contrasts between rows, whose names are both specs in either order."""
        comparisons = self.gains(column, include_unread)
        for contrast in self.compared.row_contrasts:
            row, base = column.rows.get(contrast.row), column.rows.get(contrast.base)
            if row and base and (include_unread or (row.runs and base.runs)):
                comparisons.add(" ".join(sorted((row.spec, base.spec))))
        return comparisons

    def gains(self, column: ReadColumn, include_unread: bool = False) -> set[str]:
        """Return names of the gains that were read over the baseline of one of the look's columns.

        The names are the specs of the variants; variants of which nothing was read are included
        only if `include_unread`. In a crossed design they are the names of the main effects, with a
        hash of the rows' specs; under a target, which is a comparison of its own, they name it.
        """
        effects = self.analysis.get(EFFECTS)
        if effects:
            cells = _hash([row.spec for row in column.rows.values()])
            return {f"{name} {cells}" for name in effects}
        suffix = f" {self.analysis[TARGET]!r}" if self.has_target else ""
        rows = self.variants(column)
        return {f"{row.spec}{suffix}" for row in rows if row.runs or include_unread}

    @property
    def specs(self) -> dict[str, Any]:
        """The columns and the specs of their rows, in the form of `trained_identity`."""
        rows: dict[str, dict[str, str]] = {}
        for label, column in self.columns.items():
            for row, read_row in column.rows.items():
                rows.setdefault(row, {})[label] = read_row.spec
        return {"columns": list(self.columns), "rows": rows}

    def is_of(self, other_look: InterimLook) -> bool:
        """Return whether both looks are at the same rows, columns, metric and analysis. A contrast
        may have another name, or its sides the other way round."""
        return self._identity() == other_look._identity()

    def _identity(self) -> tuple[Any, ...]:
        """Return all that looks at the same have in common."""
        analysis = {key: value for key, value in self.analysis.items() if key != CONTRASTS}
        differences = self.row_differences, self.column_differences
        return self.metric, analysis, differences, self.specs

    def event(self) -> dict[str, Any]:
        """Return the look as the ledger stores it: a tree of JSON values."""
        event: dict[str, Any] = _plain(self)
        return event


def parse_events(
    events: Iterable[Mapping[str, Any]], sweep: str | None = None
) -> list[InterimLook]:
    """Read the looks of all sweeps, or of one, from the trees that a ledger or a bundle has."""
    ours = [event for event in events if sweep in (None, event["sweep"])]
    return [read_section(InterimLook, event, LOOK) for event in ours]


def is_look(tree: Any) -> bool:
    """Return whether a tree is a look in the form of `InterimLook.event`."""
    if not fits_type(tree, InterimLook):
        return False
    return all(column["rows"] for column in tree["columns"].values())


def look(plan: Plan, results: Results = EMPTY) -> InterimLook:
    """Return the look that reading this plan's verdicts makes, with all of its runs counted.
    `results`: the result of each run, by id; without them a row is known by its ids alone."""

    def runs(cell: Cell) -> dict[int, str]:
        return {seed: cell.ids[seed] for seed in plan.planned(cell) if seed in cell.ids}

    return _look(plan, runs, results)


def peek(plan: Plan, results: Results) -> InterimLook:
    """Return the peek that reading this plan's means makes while its runs have these results."""
    full_look = look(plan, results)
    ended = {run for run, result in results.items() if result}
    columns = {}
    for label, column in full_look.columns.items():
        rows = {}
        seeds_of_rows = []  # the seeds that each row has a result of
        for row, read_row in column.rows.items():
            seeds = {seed for seed, run in read_row.runs.items() if run in ended}
            seeds_of_rows.append(seeds)
            rows[row] = read_row if seeds else ReadRow(read_row.spec, {})
        common_seeds = set.intersection(*seeds_of_rows)
        columns[label] = ReadColumn(len(common_seeds), 0, {}, rows)
    planned = plan.design.seed_counts or tuple(sorted({full_look.n, *plan.analysis.looks}))
    return replace(full_look, columns=columns, planned=planned)


def until_look(
    plan: Plan,
    column_label: str,
    seeds: int,
    decided: Mapping[str, str],
    contrasts: int,
    results: Results = EMPTY,
) -> InterimLook:
    """Return a look at the column `column_label` that gave out seeds, with its decision on each
    row.

    Other rows and columns were not read. `seeds`: how many seeds it counted. `contrasts`: the
    number that its intervals are simultaneous over. `results`: as in `look`.
    """
    row_labels = {plan.baseline, *decided}
    if plan.changes is not None:  # each of which all cells tell of
        row_labels |= {row.label for row in plan.rows}

    def runs(cell: Cell) -> dict[int, str]:
        if cell.column != column_label or cell.row not in row_labels:
            return {}
        return {seed: cell.ids[seed] for seed in plan.seeds[:seeds]}

    whole_look = _look(plan, runs, results)
    columns = {label: ReadColumn(0, 0, {}, c.rows) for label, c in whole_look.columns.items()}
    if column_label in columns:
        rows = columns[column_label].rows
        columns[column_label] = ReadColumn(seeds, contrasts, decided, rows)
    return replace(whole_look, columns=columns)


def _look(plan: Plan, runs: Callable[[Cell], Mapping[int, str]], results: Results) -> InterimLook:
    analysis = plan.analysis.plain | {SPREAD: plan.spread}
    del analysis["metric"]
    if plan.metric.own:
        analysis[CODE] = plan.metric.own
    analysis |= plan.design.of_look()
    if plan.changes is not None and plan.changes.crossed:
        analysis[EFFECTS] = list(plan.changes.names)
    if plan.tune is not None:
        analysis[TUNE] = _hash(asdict(plan.tune))
    skipped = plan.unevenly_skipped
    if skipped:
        analysis[SKIPPED] = skipped
    specs = trained_identity(plan)["rows"]
    cells_by_column: dict[str, list[Cell]] = {column.label: [] for column in plan.columns}
    for cell in sorted(plan.cells, key=lambda cell: cell.row != plan.baseline):
        cells_by_column[cell.column].append(cell)
    columns = {}
    for label, cells in cells_by_column.items():
        judged_rows = sum(plan.is_judged(cell.row) for cell in cells)
        if not judged_rows or (plan.analysis.target is None and cells[0].row != plan.baseline):
            continue  # nothing is judged in it
        rows = {}
        for cell in cells:
            counted_runs = runs(cell)
            marks = result_marks(plan, cell, counted_runs, results)
            rows[cell.row] = ReadRow(specs[cell.row][label], counted_runs, marks)
        contrasts = judged_rows + len(plan.contrasts_in(rows))
        columns[label] = ReadColumn(len(plan.counted_seeds), contrasts, {}, rows)
    return InterimLook(plan.name, plan.metric.key, (), columns, _plain(analysis))


def trained_identity(plan: Plan) -> dict[str, Any]:
    """Return {"columns": labels, "rows": {row: {column: hash of what is trained}}} of a plan.

    For tuned rows the hash leaves out the settings that searches choose, which may change with the
    seeds of the searches.
    """
    rows: dict[str, dict[str, str]] = {row.label: {} for row in plan.rows}
    for cell in plan.cells:
        rows[cell.row][cell.column] = _hash(cell.spec.identity)
    return {"columns": [column.label for column in plan.columns], "rows": rows}


def _plain(value: Any) -> Any:
    """Return a value as it comes back from JSON: tuples as lists, objects as dicts."""
    return json.loads(json.dumps(value, default=vars))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


FEWEST_FOR_SPREAD = 2  # seeds that tell anything of a spread


class ReadAt(NamedTuple):
    """A column of a look, with the look."""

    look: InterimLook
    column: ReadColumn

    @property
    def gains(self) -> set[str]:
        return self.look.gains(self.column)

    @property
    def comparisons(self) -> set[str]:
        return self.look.comparisons(self.column)

    def is_verdict_on(self, metric: str) -> bool:
        return self.look.metric == metric and not self.look.planned


@dataclass(frozen=True)
class SeedCounts:
    """The other numbers of seeds at which the runs of a column were read.

    `verdicts`, `means`: each number with the sweeps that read verdicts there, or means of an
    unfinished table. `numbers`: these numbers and the present one, sorted. `are_declared`: whether
    all of them were declared beforehand.
    """

    verdicts: Mapping[int, list[str]]
    means: Mapping[int, list[str]]
    numbers: tuple[int, ...]
    are_declared: bool

    @property
    def has_more(self) -> bool:
        """True if these runs were read with more seeds than there are now."""
        return any(n == self.numbers[-1] for n in (*self.verdicts, *self.means))


class PastLooks:
    """The earlier looks of a store that bear upon a table. `present`: the look that reading the
    table makes. Runs with the same results count as one run, whatever their ids."""

    def __init__(self, looks: Sequence[InterimLook], present: InterimLook) -> None:
        self._plain, self._looks = present, looks
        looks, self.present = with_first_ids(looks, present)
        self._look_of = {
            id(renamed_look): look for renamed_look, look in zip(looks, self._looks, strict=True)
        }
        self._readings = [
            ReadAt(look, column) for look in looks for column in look.columns.values()
        ]
        self._by_run: dict[str, list[int]] = {}  # the first read first
        for index, reading in enumerate(self._readings):
            for run in _runs(reading.column.rows.values()):
                self._by_run.setdefault(run, []).append(index)
        self._families: dict[str, list[int]] = {}

    def contrasts(self, column: str) -> int:
        """Return the number of distinct comparisons of a column and of its family, which are gains
        and contrasts between rows; 0 without gains.

        In a sweep whose looks give out seeds, it is the number with which its first look was
        judged.
        """
        if column not in self.present.columns:
            return 0
        family = self._family(column)
        if UNTIL in self.present.analysis:
            for reading in family:
                if reading.column.decided and reading.look.is_of(self.present):
                    return reading.column.contrasts
        return len(self.ours(column).union(*(reading.comparisons for reading in family)))

    def gains(self, column: str) -> int:
        """Return the number of distinct gains of a column and of its family, over any baseline; 0
        without gains."""
        if column not in self.present.columns:
            return 0
        return len(self._our_gains(column).union(*(r.gains for r in self._family(column))))

    def counts_more_than_gains(self, column: str) -> bool:
        """Return whether some comparisons of a column and of its family are between two rows, or
        with a target."""
        readings = [*self._family(column), ReadAt(self.present, self.present.columns[column])]
        return any(
            reading.look.has_target or reading.comparisons != reading.gains for reading in readings
        )

    def other_sweeps(self, column: str) -> list[str]:
        """List the sweeps in which comparisons of the column's family were read that the column
        lacks."""
        ours = self.ours(column)
        family = self._family(column)
        return _sweeps(reading for reading in family if not reading.comparisons <= ours)

    def counts(self, column: str) -> SeedCounts:
        """Return the numbers of seeds at which the column's family was read.

        Means count only where the seeds or the rows differ from what was planned when they were
        seen.
        """
        table_column = self.present.columns[column]
        rows = {row.spec for row in table_column.rows.values()}
        until = set(self.present.analysis.get(UNTIL, ()))
        if until:
            present_counts, declared_counts = set(), until
        else:
            present_counts = {table_column.n}
            declared_counts = set(self.present.analysis["looks"])
        verdicts: dict[int, list[str]] = {}
        means: dict[int, list[str]] = {}
        for look, read_column in self._family(column):
            if read_column.n < FEWEST_FOR_SPREAD or read_column.n in present_counts:
                continue
            planned = set(look.planned)
            read_rows = {row.spec for row in read_column.rows.values()}
            if read_rows == rows and (present_counts or until) <= planned:
                continue  # as planned
            numbers = means if planned else verdicts
            sweeps = numbers.setdefault(read_column.n, [])
            if look.sweep not in sweeps:
                sweeps.append(look.sweep)
        all_counts = {n for n in (*present_counts, *verdicts, *means) if n >= FEWEST_FOR_SPREAD}
        return SeedCounts(verdicts, means, tuple(sorted(all_counts)), all_counts <= declared_counts)

    def count_over_baseline(self, column: str) -> tuple[int, list[str]]:
        """Return how many variants were read against the baseline's runs, including the variants of
        the column and of its family, and in which sweeps outside the family."""
        baseline = self.present.baseline_runs(self.present.columns[column])
        family = self._indices(column)
        outside_readings = []
        for index in self._reading(baseline):
            reading = self._readings[index]
            if index in family or not reading.is_verdict_on(self.present.metric):
                continue
            if not baseline.isdisjoint(reading.look.baseline_runs(reading.column)):
                outside_readings.append(reading)
        gains = self._our_gains(column)
        for reading in self._family(column) + outside_readings:
            gains |= reading.gains
        return len(gains), _sweeps(outside_readings)

    def read_over_baselines(self) -> int:
        """Return the largest number of variants that were read over a baseline of the table, 0
        where that is no more than the table itself has."""
        largest = 0
        for label in self.present.columns:
            count, _ = self.count_over_baseline(label)
            if count > len(self._our_gains(label)):
                largest = max(largest, count)
        return largest

    def decided_at(self, column: str) -> list[int]:
        """List the numbers of seeds at which looks of this same sweep decided on rows of the
        column."""
        return sorted(
            reading.column.n
            for reading in self._family(column)
            if reading.column.decided and reading.look.is_of(self.present)
        )

    def first_look(self) -> InterimLook | None:
        """Return the first look, at any metric, that counted a run of a variant of the table; None
        where there is none. Peeks don't count."""
        columns = self.present.columns.values()
        runs = [run for column in columns for run in _runs(self.present.variants(column))]
        looks = [self._readings[index].look for index in self._reading(runs)]
        return next((look for look in looks if not look.planned), None)

    def judged_look(self) -> InterimLook:
        """Return the look that reading the table makes, with the contrasts that its intervals
        account for."""
        columns = {
            label: replace(column, contrasts=self.contrasts(label))
            for label, column in self._plain.columns.items()
        }
        return replace(self._plain, columns=columns)

    def related(self) -> list[InterimLook]:
        """List all looks that share a run with the table, directly or through other looks. Whoever
        has these looks makes the same table."""
        runs = [run for c in self.present.columns.values() for run in _runs(c.rows.values())]
        indices = self._transitively(runs, any_metric=True)
        look_ids = dict.fromkeys(id(self._readings[index].look) for index in indices)
        return [self._look_of[look_id] for look_id in look_ids]

    def ours(self, column: str) -> set[str]:
        """Return the names of all comparisons that the table makes in a column."""
        return self.present.comparisons(self.present.columns[column], include_unread=True)

    def _our_gains(self, column: str) -> set[str]:
        """Return the names of the gains that it gives over the baseline."""
        return self.present.gains(self.present.columns[column], include_unread=True)

    def _family(self, column: str) -> list[ReadAt]:
        return [self._readings[index] for index in self._indices(column)]

    def _indices(self, column: str) -> list[int]:
        if column not in self._families:
            runs = _runs(self.present.variants(self.present.columns[column]))
            self._families[column] = self._transitively(runs)
        return self._families[column]

    def _transitively(self, runs: Iterable[str], any_metric: bool = False) -> list[int]:
        """Return sorted indices of the read columns that counted one of the runs, or a run of a
        variant of such a column, and so on: the first read first. Without `any_metric`, only at the
        table's metric."""
        indices: set[int] = set()
        reached_runs = {*runs}
        queue = [*reached_runs]
        while queue:
            for index in self._by_run.get(queue.pop(), ()):
                look, column = self._readings[index]
                if index not in indices and (any_metric or look.metric == self.present.metric):
                    indices.add(index)
                    new = {*_runs(look.variants(column))} - reached_runs
                    reached_runs |= new
                    queue += new
        return sorted(indices)

    def _reading(self, runs: Iterable[str]) -> list[int]:
        """Return indices of the read columns that counted one of the runs, the first read first."""
        return sorted({index for run in runs for index in self._by_run.get(run, ())})


def _runs(rows: Iterable[ReadRow]) -> Iterator[str]:
    return (run for row in rows for run in row.runs.values())


def _sweeps(readings: Iterable[ReadAt]) -> list[str]:
    return list(dict.fromkeys(reading.look.sweep for reading in readings))
