"""Which places of a drive are given up, and when the sweep stops because runs fail there alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ablate.planning.cell import PlannedRun
from ablate.running.assign import Lost, blame, gives_up
from ablate.running.streak import Ending, Endings, way
from ablate.running.told import variant
from ablate.running.working import Working
from ablate.shared.result import FINAL
from ablate.shared.rundir import FAILED, LOST, OOM, ROTTEN
from ablate.store.events import RunState


class PlaceHistory:
    """What happened on each place of a drive, so far. `runs`: of the sweep, which may grow."""

    def __init__(self, say: Callable[[str], None], runs: Mapping[str, PlannedRun]) -> None:
        self.lost: Lost = {}  # place -> runs that lost their device there
        self.retired: dict[str, None] = {}  # given up
        self.stopped: str | None = None  # why the sweep shall stop
        self._endings = Endings()
        self._say, self._runs = say, runs

    def works(self, place: str) -> None:
        self.lost = {**self.lost, place: frozenset()}

    def blame(self, run: str, place: str) -> None:
        """`run` lost its device there."""
        self.lost = blame(self.lost, run, place)
        lost = self.lost.get(place, frozenset())
        if gives_up(lost, {id: variant(planned) for id, planned in self._runs.items()}):
            self.give_up(place, f"{len(lost)} runs lost their device there")

    def give_up(self, place: str, why: str) -> None:
        if place not in self.retired:
            self.retired[place] = None
            self._say(f"{place} is given up: {why}")

    def ended(
        self,
        worker: Working,
        exit: str | None,
        died: bool,
        more: bool,
        states: Mapping[str, RunState],
        working: Iterable[Working],
    ) -> None:
        """A worker ended; stop where runs fail alike, one after another. `died`: and that counted
        as an attempt; `more`: its run has further ones. `working`: those that go on."""
        if worker.slot is None:
            return
        place, how, error = worker.slot.place, "", ""
        if not worker.folder.has_result():
            if exit not in (FAILED, OOM) and (not died or exit in (LOST, ROTTEN)):
                return
            error = worker.error
            how = way(exit or "died", error, time.monotonic() - worker.since, worker.stepped)
        spared = more and exit is None and (worker.code or 0) < 0
        row = self._endings.add(
            place,
            Ending(worker.run.id, variant(worker.run), how, spared),
            (variant(run) for run in self._runs.values()),
            (variant(r) for r in self._runs.values() if states[r.id].status in FINAL),
            any(w.stepped for w in working if w.slot is not None and w.slot.place == place),
        )
        if row:
            self.stopped = f"{row} runs in a row failed at once on {place}, all alike ({error})"
