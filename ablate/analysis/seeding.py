"""Gives seeds to the rows that a look leaves undecided: a plan that grows as results come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ablate.analysis.course import ColumnCourse, courses_of, lines, look_events, standing
from ablate.analysis.own import with_own
from ablate.planning.cell import Cell
from ablate.planning.cell_search import Lines, Metrics, Results
from ablate.planning.plan import Plan
from ablate.planning.until import Standing, with_seeds
from ablate.store.events import Look
from ablate.store.store import Store


def nobody(_: Any) -> None:
    """Whom nothing is told."""


class Seeding:
    """Grows a plan that has looks. What it asks for hangs on the results alone, so that a driver
    that was killed asks for the same, whatever it had written before.

    A look goes to `record` before its seeds are asked for, and as a line to `say`. A column's look
    is taken once all of its runs so far have ended.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        record: Callable[[Look], None] = nobody,
        say: Callable[[str], None] = nobody,
    ) -> None:
        """`plan`: as expanded, with the seeds of the first look."""
        self._plan, self._store, self._record, self._say = plan, store, record, say
        self._known: dict[str, Mapping[str, Any]] = {}
        self._waiting: dict[str, list[str]] = {}  # by column: runs whose result is not known
        self._said: set[str] = set()
        self.standing: Standing = {}
        self._await(plan, before=())

    def grow(self, results: Results, metrics: Metrics) -> Plan | None:
        """The plan with all seeds that can be asked for by now; None where nothing is new since the
        last time."""
        before = self._plan
        while self._ended(results):
            courses = self._courses(metrics)
            seen = [*look_events(self._plan, courses)]
            for look in seen:
                self._record(look.event(self._plan.name))
            self.standing = standing(self._plan, seen)
            self._tell(courses)
            more = with_seeds(self._plan, _asks(self._plan, courses))
            self._await(more, before=self._plan.cells)
            self._plan = more
        return None if self._plan is before else self._plan

    prunes = False

    def prune(self, run: str, metrics: Lines) -> int | None:
        """No run is a trial."""

    def _await(self, plan: Plan, before: Sequence[Cell]) -> None:
        """Wait for the runs that the plan has more than those cells."""
        for cell, old in zip_longest(plan.cells, before):
            more = [run for seed, run in cell.ids.items() if old is None or seed not in old.ids]
            if more:
                self._waiting.setdefault(cell.column, []).extend(more)

    def _ended(self, results: Results) -> bool:
        """Has a column got the last of its results?"""
        ended = []
        for column, runs in self._waiting.items():
            while runs and (result := self._known.get(runs[-1]) or results(runs[-1])) is not None:
                self._known[runs.pop()] = result
            if not runs:
                ended.append(column)
        for column in ended:
            del self._waiting[column]
        return bool(ended)

    def _courses(self, metrics: Metrics) -> dict[str, ColumnCourse]:
        known = with_own(self._plan, self._known, self._store)
        return courses_of(self._plan, known, metrics, self._store.probe)

    def _tell(self, courses: dict[str, ColumnCourse]) -> None:
        for course in courses.values():
            for line in lines(self._plan, course):
                if line not in self._said:
                    self._said.add(line)
                    self._say(line)


def _asks(plan: Plan, courses: dict[str, ColumnCourse]) -> dict[tuple[str, str], int]:
    """(row, column) -> seeds, of the rows that go on and of their baselines."""
    return {
        (row, course.label): course.next
        for course in courses.values()
        if course.next is not None
        for row in (plan.baseline, *course.active)
    }
