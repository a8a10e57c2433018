"""Estimates how long a sweep still takes: the one estimate of the terminal, of `status --watch` and
of the live page.

A run takes as long as the runs of its cell that have ended. Where none has, the multiply-adds of a
training tell: seconds are a line over them, fitted to the cells that have ended. Its value at 0 is
the time that every run takes to start. The workers share what is left.

A run that diverged says how long runs of its cell take, which may diverge as well, but nothing on
other cells. One that went on from a checkpoint took longer than its last start says.

Used by `ablate sweep` (running/driver.py), `ablate status --watch` (report/status.py) and the live
page of `ablate watch` (report/watch/answers.py).
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from ablate.planning import Plan, PlannedRun
from ablate.run import FINAL_STATUSES
from ablate.running.estimate import known_work
from ablate.running.next_step import closed_runs
from ablate.shared import Notes
from ablate.store import Ledger, RunState, Store, SweepProgress, Worker

READ_EVERY_S = 1.0
REMEMBERED_S = 30.0  # a slot that was busy so lately will be busy again
LEAST_SHARE = 0.2  # of a run that is trained, before its end can be foreseen

CellPlace = tuple[str, str]  # row, column
RunTimes = Mapping[str, tuple[float, float | None]]  # run -> start and end, seconds since 1970


class TimeLeft:
    """Estimates the seconds that a sweep still takes, for a view that asks again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._plan: Plan | None = None
        self._runs: list[PlannedRun] = []
        self._work: Mapping[CellPlace, float] = {}
        # Moments are seconds of a monotonic clock: the one on the wall may be set back.
        self._workers: list[tuple[float, int]] = []  # (moment, how many)
        self._read_at = 0.0
        self._answer: float | None = None

    def seconds(self, plan: Plan, progress: SweepProgress, ledger: Ledger) -> float | None:
        """Return the seconds left; None where nothing is trained or too little is known. The
        estimate is made once a second at most."""
        moment = time.monotonic()
        if plan is not self._plan:
            self._plan, self._runs = plan, list(plan.runs())
            self._work = known_work(plan, self._store)
        elif moment - self._read_at < READ_EVERY_S:
            return self._answer
        self._read_at = moment
        self._workers.append((moment, len(progress.workers)))
        while moment - self._workers[0][0] > REMEMBERED_S:
            del self._workers[0]
        self._answer = None
        if progress.workers:
            self._answer = left_s(
                self._runs,
                progress,
                ledger.run_times(plan.name),
                self._work,
                slots=max(count for _, count in self._workers),
                moment=time.time(),
                to_come=plan.to_come,
            )
        return self._answer


def left_s(
    runs: Sequence[PlannedRun],
    progress: SweepProgress,
    times: RunTimes,
    work: Mapping[CellPlace, float],
    *,
    slots: int,
    moment: float,
    to_come: float = 0,
) -> float | None:
    """Return the seconds left on so many slots; None while no run has ended or is far enough.

    `work`: the multiply-adds of a training of each cell, as far as they are known. `to_come`: runs
    that a search will still ask for.
    """
    workers = {}
    for worker in progress.workers:
        workers[worker.run.id] = worker
    measured, full_runs = _measured(runs, progress.states, times, workers, moment)
    if not measured:
        return None
    typical = full_runs or measured
    by_work = _Line.fitted(
        [(work[cell], seconds) for cell, seconds in typical.items() if cell in work]
    )
    mean = fmean(typical.values())
    closed = closed_runs(progress.states, progress.blocked)
    running, remaining = [], []
    for run in runs:
        cell = _place(run)
        if cell in measured:
            seconds = measured[cell]
        elif by_work and cell in work:
            seconds = by_work.seconds(work[cell])
        else:
            seconds = mean
        if run.id in workers:
            running.append(seconds * (1 - _share_done(workers[run.id].notes)))
        elif run.id not in closed:
            remaining.append(seconds)
    return _makespan(running, remaining + [mean] * round(to_come), slots)


def _makespan(running: Sequence[float], remaining: Iterable[float], slots: int) -> float:
    """Return the seconds until the last run ends, where each run of `remaining`, in this order,
    starts on the slot that is free first. `running`: seconds until each slot in use is free."""
    ends = [*running, *[0.0] * (slots - len(running))]
    heapq.heapify(ends)
    for seconds in remaining:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def _place(run: PlannedRun) -> CellPlace:
    """Return what the run shares with runs that take as long; parents are apart."""
    return run.cell.row + ".from" * run.above, run.cell.column


def _share_done(notes: Notes) -> float:
    """Return the share of a training that is done, 0 to 1."""
    if notes.step is None or not notes.total:
        return 0.0
    return min(1.0, notes.step / notes.total)


def _share_since_start(notes: Notes) -> float:
    """Return the share of a training that its last start has done, 0 to 1."""
    if notes.step is None or not notes.total:
        return 0.0
    return min(1.0, (notes.step - (notes.from_step or 0)) / notes.total)


def _measured(
    runs: Iterable[PlannedRun],
    states: Mapping[str, RunState],
    times: RunTimes,
    workers: Mapping[str, Worker],
    moment: float,
) -> tuple[dict[CellPlace, float], dict[CellPlace, float]]:
    """Return the mean seconds of a run of each cell, and those of its whole trainings, without runs
    that diverged. They are of the runs that have ended; of a cell without one, as its running ones
    foresee it. A run during which the clock was set back tells nothing."""
    ended: dict[CellPlace, list[float]] = defaultdict(list)
    finished: dict[CellPlace, list[float]] = defaultdict(list)
    foreseen: dict[CellPlace, list[float]] = defaultdict(list)
    for run in runs:
        start, end = times.get(run.id, (None, None))
        if start is None:
            continue
        cell, state = _place(run), states.get(run.id, RunState())
        if end is not None and state.status in FINAL_STATUSES:
            if state.step == 0 and end >= start:  # the step: where it started last
                ended[cell].append(end - start)
                if state.status != "diverged":
                    finished[cell].append(end - start)
        elif run.id in workers and moment >= start:
            share = _share_since_start(workers[run.id].notes)
            if share >= LEAST_SHARE:
                foreseen[cell].append((moment - start) / share)
    measured = {cell: fmean(seconds) for cell, seconds in {**foreseen, **ended}.items()}
    full_runs = {cell: fmean(seconds) for cell, seconds in {**foreseen, **finished}.items()}
    return measured, full_runs


class _Line:
    """Seconds as a line over work: `start` for a run of no work, and so many per unit."""

    def __init__(self, start: float, rate: float) -> None:
        self._start, self._rate = start, rate

    def seconds(self, work: float) -> float:
        return self._start + self._rate * work

    @classmethod
    def fitted(cls, points: Sequence[tuple[float, float]]) -> _Line | None:
        """Return the line of least squares, neither start nor rate below 0; through 0 for points of
        one work; None without points."""
        if not points:
            return None
        x, y = fmean(work for work, _ in points), fmean(seconds for _, seconds in points)
        spread = sum((work - x) ** 2 for work, _ in points)
        if spread <= (0.01 * x) ** 2:
            return cls(0.0, y / x) if x else cls(y, 0.0)
        rate = max(0.0, sum((work - x) * (seconds - y) for work, seconds in points) / spread)
        start = y - rate * x
        return cls(start, rate) if start >= 0 else cls(0.0, y / x)
