"""Gives seeds to the rows that a look lets go on: a plan that grows as results come. Where
settings are tuned each of these seeds brings a search of its own.

Used by api/training.py, for `ablate sweep`, `ablate plan` and Python. What a look decides is in
`sequential.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ablate.analysis.evidence import Evidence, RunFiles
from ablate.analysis.own import with_own_metrics
from ablate.analysis.sequential import (
    ColumnCourse,
    follow,
    latest_decisions,
    lines,
    look_events,
)
from ablate.planning import (
    FIRST_TUNING_SEED,
    Declared,
    Grower,
    MetricLines,
    MetricsReader,
    Plan,
    ResultReader,
    Search,
    Standing,
    Word,
    with_seeds,
)
from ablate.store import Look, PastLooks, Store, looks


def nobody(_: Any) -> None:
    """Ignore the values: a callback for callers that want no records and no lines."""


class Seeding:
    """Grows a plan that has looks.

    The runs that it requests depend on the results alone, so that a driver that was killed requests
    the same, whatever it had written before. A look goes to `record` before its seeds are
    requested, and as a line to `say`. A column's look is taken once all of its runs so far have
    ended.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        record: Callable[[Look], None] = nobody,
        say: Callable[[str], None] = nobody,
        search: Search | None = None,
    ) -> None:
        """Prepare to grow a plan. `plan`: as expanded, with the seeds of the first look; `search`:
        of its settings."""
        self._plan, self._store, self._record, self._say = plan, store, record, say
        self._search = search
        self._results: dict[str, Mapping[str, Any]] = {}
        # By column: the runs, as (row, seed), whose result is not known.
        self._waiting: dict[str, list[tuple[str, int]]] = {}
        self._announced: set[str] = set()
        self.standing: Standing = {}
        self._await({})

    def grow(self, results: ResultReader, metrics: MetricsReader) -> Plan | None:
        """Return the plan with all seeds that can be requested by now; None where nothing is new
        since the last time."""
        old_plan = self._plan
        self._choose(results, metrics)
        while self._ended(results):
            past = PastLooks(
                looks.parse_events(self._store.read_looks()), looks.look(self._plan, self._results)
            )
            courses = self._courses(metrics, past)
            interim_looks = [*look_events(self._plan, courses, past, self._results)]
            for look in interim_looks:
                self._record(look.event())
            self.standing = latest_decisions(self._plan, interim_looks)
            self._tell(courses)
            old_seeds = self._seeds()
            self._plan = with_seeds(self._plan, _asks(self._plan, courses))
            self._await(old_seeds)
            if self._search is not None:
                self._search.extend(self._plan)
                self._choose(results, metrics)
        return None if self._plan is old_plan else self._plan

    @property
    def prunes(self) -> bool:
        return self._search is not None and self._search.prunes

    def prune(self, run: str, metrics: MetricLines) -> int | None:
        """See Search.prune."""
        return None if self._search is None else self._search.prune(run, metrics)

    def _choose(self, results: ResultReader, metrics: MetricsReader) -> None:
        """Let the searches request trials, and the runs whose settings they have chosen."""
        if self._search is not None:
            self._plan = self._search.grow(results, metrics) or self._plan

    def _seeds(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Return the seeds that each cell has been given so far, by (row, column)."""
        return {(cell.row, cell.column): self._plan.planned(cell) for cell in self._plan.cells}

    def _await(self, previous_seeds: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        """Wait for the runs of all seeds that cells have more than `previous_seeds`."""
        for (row, column), seeds in self._seeds().items():
            old_seeds = previous_seeds.get((row, column), ())
            if new_runs := [(row, seed) for seed in seeds if seed not in old_seeds]:
                self._waiting.setdefault(column, []).extend(new_runs)

    def _ended(self, results: ResultReader) -> bool:
        """Return whether a column has got the last of its results."""
        ids = {(cell.row, cell.column): cell.ids for cell in self._plan.cells}
        ended = []
        for column, waiting in self._waiting.items():
            while waiting:
                row, seed = waiting[-1]
                run = ids[row, column].get(seed)  # None: its settings are not chosen yet
                result = None if run is None else self._results.get(run) or results(run)
                if run is None or result is None:
                    break
                self._results[run] = result
                waiting.pop()
            else:
                ended.append(column)
        for column in ended:
            del self._waiting[column]
        return bool(ended)

    def _courses(self, metrics: MetricsReader, past: PastLooks) -> dict[str, ColumnCourse]:
        results = with_own_metrics(self._plan, self._results, self._store)
        store = self._store
        files = RunFiles(metrics, store.probe, store.predictions)
        return follow(Evidence.collect(self._plan, results, files), past)

    def _tell(self, courses: dict[str, ColumnCourse]) -> None:
        for course in courses.values():
            for line in lines(self._plan, course):
                if line not in self._announced:
                    self._announced.add(line)
                    self._say(line)


def make_grower(
    plan: Plan,
    store: Store,
    search: Search | None,
    record: Callable[[Look], None] = nobody,
    say: Callable[[str], None] = nobody,
) -> Grower | None:
    """Return the grower that adds runs to the plan as results come, None where nothing does."""
    return Seeding(plan, store, record, say, search) if plan.design.grows else search


def _asks(plan: Plan, courses: dict[str, ColumnCourse]) -> dict[tuple[str, str], int]:
    """Return how many seeds the rows that go on, and their baselines, need next, by (row,
    column)."""
    return {
        (row, course.label): course.next_seeds
        for course in courses.values()
        if course.next_seeds is not None
        for row in course.asks(plan)
    }


def seeds_command(plan: Plan, n: int, command: Callable[..., str]) -> str:
    """Return the command of the sweep with n seeds, its present seeds among them; for an import,
    its command unchanged. `command`: see `Store.command`."""
    if not isinstance(plan.declared, Declared):
        return plan.repeat_command(command)
    new_seeds = [seed for seed in range(FIRST_TUNING_SEED) if seed not in plan.seeds]
    seeds = [*plan.seeds, *new_seeds[: n - len(plan.seeds)]]
    value = n if sorted(seeds) == [*range(n)] else seeds
    return command("sweep", *plan.declared.with_words(Word("seeds", (value,))).texts)
