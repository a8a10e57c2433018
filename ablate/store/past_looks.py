"""The looks before a table: which of them counted runs of its rows, and what follows for it.

Looks are related by the runs that they counted, never by the names of their sweeps: a look is of
the family of a column if it counted a run of one of its variants, or of a variant of another look
of the family. Looks that share the baseline's runs alone are families of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ablate.store.looks import UNTIL, InterimLook, ReadColumn, ReadRow

FEWEST = 2  # seeds that tell anything of a spread


class ReadAt(NamedTuple):
    """A column of a look."""

    look: InterimLook
    column: ReadColumn

    @property
    def gains(self) -> set[str]:
        return self.look.gains(self.column)

    def is_verdict_on(self, metric: str) -> bool:
        return self.look.metric == metric and not self.look.planned


@dataclass(frozen=True)
class SeedCounts:
    """At which numbers of seeds else the runs of a column were read, each with the sweeps: with
    verdicts, or as means of an unfinished table. `every`: these and the number now. `declared`:
    were all of them declared beforehand?"""

    verdicts: Mapping[int, list[str]]
    means: Mapping[int, list[str]]
    every: tuple[int, ...]
    declared: bool

    @property
    def has_more(self) -> bool:
        """Were these runs read with more seeds than there are now?"""
        return any(n == self.every[-1] for n in (*self.verdicts, *self.means))


class PastLooks:
    """The looks of a store, as far as they bear upon a table. `now`: what it is to read it."""

    def __init__(self, looks: Sequence[InterimLook], now: InterimLook) -> None:
        self.now = now
        self._read = [ReadAt(look, column) for look in looks for column in look.columns.values()]
        self._by_run: dict[str, list[int]] = {}  # the first read first
        for index, read in enumerate(self._read):
            for run in _runs(read.column.rows.values()):
                self._by_run.setdefault(run, []).append(index)
        self._families: dict[str, list[int]] = {}

    def contrasts(self, column: str) -> int:
        """The distinct variants of the column and of its family. Of a sweep whose looks give out
        seeds what its first look was judged as."""
        if column not in self.now.columns:
            return 0
        family = self._family(column)
        if UNTIL in self.now.analysis:
            for read in family:
                if read.column.decided and read.look.is_of(self.now):
                    return read.column.contrasts
        return len(self.ours(column).union(*(read.gains for read in family)))

    def others(self, column: str) -> list[str]:
        """The sweeps in which variants of the family were read that the column has not."""
        ours = self.ours(column)
        return _sweeps(read for read in self._family(column) if not read.gains <= ours)

    def counts(self, column: str) -> SeedCounts:
        """At which numbers of seeds the family was read. Means count only where the seeds or the
        rows are others than was planned when they were seen."""
        now = self.now.columns[column]
        rows = {row.spec for row in now.rows.values()}
        until = set(self.now.analysis.get(UNTIL, ()))
        at, declared = (set(), until) if until else ({now.n}, {*self.now.analysis["looks"]})
        verdicts: dict[int, list[str]] = {}
        means: dict[int, list[str]] = {}
        for look, read in self._family(column):
            planned = {*look.planned}
            as_planned = (at or until) <= planned and rows == {r.spec for r in read.rows.values()}
            if read.n >= FEWEST and read.n not in at and not as_planned:
                sweeps = (means if planned else verdicts).setdefault(read.n, [])
                sweeps += [look.sweep] * (look.sweep not in sweeps)
        every = {n for n in (*at, *verdicts, *means) if n >= FEWEST}
        return SeedCounts(verdicts, means, tuple(sorted(every)), every <= declared)

    def beside(self, column: str) -> tuple[int, list[str]]:
        """How many variants were read against the baseline's runs, the column's and its family's
        among them; and in which sweeps beside those of the family."""
        baseline = {*self.now.columns[column].baseline.runs.values()}
        family = self._indices(column)
        others = [
            self._read[index]
            for index in self._reading(baseline)
            if index not in family
            and self._read[index].is_verdict_on(self.now.metric)
            and baseline & {*self._read[index].column.baseline.runs.values()}
        ]
        gains = (read.gains for read in (*self._family(column), *others))
        return len(self.ours(column).union(*gains)), _sweeps(others)

    def read_over_baselines(self) -> int:
        """The most variants that were read over a baseline of the table, 0 where there are no more
        than the table has."""
        counts = [
            count
            for label in self.now.columns
            if (count := self.beside(label)[0]) > len(self.ours(label))
        ]
        return max(counts, default=0)

    def first(self) -> InterimLook | None:
        """The first look, of any metric, that counted a run of a variant of the table."""
        runs = (run for c in self.now.columns.values() for run in _runs(c.variants))
        looks = (self._read[index].look for index in self._reading(runs))
        return next((look for look in looks if not look.planned), None)

    def judged(self) -> InterimLook:
        """What it is to read the table, with the contrasts that its intervals count."""
        columns = {
            label: replace(column, contrasts=self.contrasts(label))
            for label, column in self.now.columns.items()
        }
        return replace(self.now, columns=columns)

    def related(self) -> list[InterimLook]:
        """All looks that share a run with the table, or with a look that does: whoever has these
        makes the same table."""
        runs = [run for c in self.now.columns.values() for run in _runs(c.rows.values())]
        found = self._transitively(runs, any_metric=True)
        return list(
            {id(self._read[index].look): self._read[index].look for index in found}.values()
        )

    def ours(self, column: str) -> set[str]:
        """What the table tells over the baseline of a column."""
        return self.now.gains(self.now.columns[column], every=True)

    def _family(self, column: str) -> list[ReadAt]:
        return [self._read[index] for index in self._indices(column)]

    def _indices(self, column: str) -> list[int]:
        if column not in self._families:
            runs = _runs(self.now.columns[column].variants)
            self._families[column] = self._transitively(runs)
        return self._families[column]

    def _transitively(self, runs: Iterable[str], any_metric: bool = False) -> list[int]:
        """What counted one of the runs, or one of a variant of what did; the first read first."""
        found: set[int] = set()
        known = {*runs}
        wanted = [*known]
        while wanted:
            for index in self._by_run.get(wanted.pop(), ()):
                look, column = self._read[index]
                if index not in found and (any_metric or look.metric == self.now.metric):
                    found.add(index)
                    new = {*_runs(column.variants)} - known
                    known |= new
                    wanted += new
        return sorted(found)

    def _reading(self, runs: Iterable[str]) -> list[int]:
        """What counted one of the runs, the first read first."""
        return sorted({index for run in runs for index in self._by_run.get(run, ())})


def _runs(rows: Iterable[ReadRow]) -> Iterator[str]:
    return (run for row in rows for run in row.runs.values())


def _sweeps(read: Iterable[ReadAt]) -> list[str]:
    return list(dict.fromkeys(one.look.sweep for one in read))
