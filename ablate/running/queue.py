"""The runs of a drive that wait: for a slot, or for the run that they start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ablate.planning.cell import PlannedRun
from ablate.store.events import RunState
from ablate.store.progress import parents_of, turn_of_child


class RunQueue:
    """`pending`: those that may start, in their order; `first`: those that the user wants before
    others, see `assign`; `parents`: run -> the one that it starts from."""

    def __init__(self, states: Mapping[str, RunState], first: Iterable[str]) -> None:
        self.pending: list[str] = []
        self.first = list(first)
        self.parents: dict[str, str] = {}
        self._states = states
        self._waiting: dict[str, list[str]] = {}  # parent -> runs that start once it has finished

    def add(self, runs: Iterable[PlannedRun]) -> None:
        """New runs of the plan; none of them waits yet."""
        self.parents |= parents_of(runs)

    def put(self, run: str) -> None:
        """It is started when there is room, and not before its parent has finished."""
        parent = self.parents.get(run)
        turn = "now" if parent is None else turn_of_child(self._states[parent])
        if turn == "now":
            self.pending.append(run)
        elif turn == "later" and parent is not None:
            self._waiting.setdefault(parent, []).append(run)

    def drop(self, run: str) -> None:
        """It waits no longer, if it did."""
        for runs in (self.pending, *self._waiting.values()):
            if run in runs:
                runs.remove(run)

    def freed_by(self, parent: str) -> list[str]:
        """The runs that waited for this one, once it is known whether they may start."""
        later = turn_of_child(self._states[parent]) == "later"
        return [] if later else self._waiting.pop(parent, [])

    def children(self, parent: str) -> list[str]:
        """The runs that start from this one."""
        return [run for run, its in self.parents.items() if its == parent]

    def want(self, run: str) -> None:
        """Before all others, and with it what it starts from."""
        above: str | None = run
        while above is not None:
            self.first = [above, *(other for other in self.first if other != above)]
            above = self.parents.get(above)
