"""The time left of a sweep, on simulated courses whose end is known."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from ablate.planning.cell import Cell, PlannedRun
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running import time_left
from ablate.running.time_left import TimeLeft, left_s
from ablate.shared.notes import Notes
from ablate.store.events import RunState
from ablate.store.progress import SweepProgress, Worker

ROWS, SEEDS = ("pre", "post", "dpn"), 4
START_S = 2.0  # of every run, before its first step
STEPS = 1000


@dataclass
class Course:
    """A simulated sweep: the start and the end of each of its runs."""

    runs: list[PlannedRun]
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return max(end for _, end in self.spans.values())

    def progress(self, now: float) -> SweepProgress:
        """What an observer sees at this moment."""
        states, workers = {}, []
        for run in self.runs:
            start, end = self.spans[run.id]
            status = "planned" if now < start else "started" if now < end else "finished"
            states[run.id] = RunState(status)
            if status == "started":
                step = round(STEPS * (now - start) / (end - start))
                notes = Notes(step=step, total=STEPS, from_step=0)
                workers.append(Worker(run, "cpu:0", notes, RunDir(f"/runs/{run.id}")))
        done = sum(state.status == "finished" for state in states.values())
        return SweepProgress("s", len(self.runs), {"finished": done}, workers, states=states)

    def times(self, now: float) -> dict[str, tuple[float, float | None]]:
        begun = {run: span for run, span in self.spans.items() if span[0] <= now}
        return {run: (a, b if b <= now else None) for run, (a, b) in begun.items()}


def simulate(depths: tuple[int, ...], slots: int, seed: int) -> tuple[Course, dict]:
    """A sweep of columns that differ in depth, and so in what a run takes; seed after seed, as a
    driver trains it. Runs of a cell differ by 10 %. Returns the course and the work of cells."""
    draw = random.Random(seed)
    runs = [
        PlannedRun(f"{row}{d}{n}", Cell(row, f"{d}", RunSpec.of({"task": "classify"}), {}), n)
        for n in range(SEEDS)
        for d in depths
        for row in ROWS
    ]
    course, free = Course(runs), [0.0] * slots
    for run in runs:
        seconds = START_S + 4.0 * int(run.cell.column) * draw.lognormvariate(0, 0.1)
        start = heapq.heappop(free)
        course.spans[run.id] = start, start + seconds
        heapq.heappush(free, start + seconds)
    return course, {(row, f"{d}"): 1e9 * d for row in ROWS for d in depths}


def ratios(course: Course, work: dict, slots: int) -> list[float]:
    """Estimated by real time left, from a tenth of the runs to nine tenths."""
    ends = sorted(end for _, end in course.spans.values())
    first, last = ends[len(ends) // 10], ends[len(ends) * 9 // 10]
    moments = [first + (last - first) * n / 40 for n in range(41)]
    return [
        left_s(course.runs, course.progress(now), course.times(now), work, slots=slots, moment=now)
        / (course.end - now)
        for now in moments
    ]


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("depths", [(4,), (1, 2, 4, 8), (12, 2), tuple(range(1, 11))])
def test_after_a_tenth_of_the_runs_the_time_left_is_right_within_half(depths, slots):
    for seed in range(10):
        course, work = simulate(depths, slots, seed)
        found = ratios(course, work, slots)
        assert max(found) <= 1.5
        assert min(found) >= 1 / 1.5


def test_without_the_work_of_cells_it_is_right_once_each_has_ended():
    course, _ = simulate((1, 8), 2, seed=0)
    each_once = max(course.spans[run.id][1] for run in course.runs[: 2 * len(ROWS)])
    for now in (each_once, (each_once + course.end) / 2):
        seconds = left_s(
            course.runs, course.progress(now), course.times(now), {}, slots=2, moment=now
        )
        assert 1 / 1.5 <= seconds / (course.end - now) <= 1.5


def test_nothing_is_foreseen_from_nothing():
    course, work = simulate((4,), 2, seed=0)
    start, _ = course.spans[course.runs[0].id]
    seen = course.progress(start + 1), course.times(start + 1)
    assert left_s(course.runs, *seen, work, slots=2, moment=start + 1) is None


def test_runs_that_nobody_will_train_take_no_time():
    course, work = simulate((4,), 1, seed=0)
    now = course.spans[course.runs[3].id][1]
    progress, times = course.progress(now), course.times(now)
    whole = left_s(course.runs, progress, times, work, slots=1, moment=now)
    closed = (RunState("skipped"), RunState("failed"), RunState("oom", oom=2))
    for run, state in zip(course.runs[-3:], closed, strict=True):
        progress.states[run.id] = state
    progress.states[course.runs[-4].id] = RunState("oom", oom=1)  # starts once more
    rest = left_s(course.runs, progress, times, work, slots=1, moment=now)
    open_runs = len(course.runs) - 4
    assert rest / whole == pytest.approx((open_runs - 3) / open_runs, rel=0.05)


def test_a_row_that_diverges_at_once_shortens_no_other():
    """Its two runs end after a second each; those of the other rows take about 18."""
    course, work = simulate((4,), 1, seed=0)
    spans, now = {}, 0.0
    for run in course.runs:
        seconds = 1.0 if run.cell.row == "pre" else 18.0
        spans[run.id] = now, now + seconds
        now += seconds
    course.spans = spans
    for known in (work, {}):
        moment = spans[course.runs[1].id][0] + 6.0  # one has diverged, the next is a third through
        progress = course.progress(moment)
        progress.states[course.runs[0].id] = RunState("diverged")
        times = course.times(moment)
        seconds = left_s(course.runs, progress, times, known, slots=1, moment=moment)
        assert seconds == pytest.approx(course.end - moment, rel=0.05)


def test_a_run_that_went_on_from_a_checkpoint_took_longer_than_since_its_last_start():
    course, work = simulate((4,), 1, seed=0)
    now = course.spans[course.runs[2].id][1]
    progress, times = course.progress(now), course.times(now)
    whole = left_s(course.runs, progress, times, work, slots=1, moment=now)
    resumed = course.runs[0].id  # its last tenth took a tenth of its time
    start, end = times[resumed]
    times[resumed] = end - (end - start) / 10, end
    progress.states[resumed] = RunState("finished", step=900)
    seconds = left_s(course.runs, progress, times, work, slots=1, moment=now)
    assert seconds == pytest.approx(whole, rel=0.15)


def test_a_run_that_went_on_foresees_its_end_by_what_it_did_since():
    course, work = simulate((4,), 1, seed=0)
    run = course.runs[0]
    notes = Notes(step=900, total=STEPS, from_step=600)
    worker = Worker(run, "cpu:0", notes, RunDir(f"/runs/{run.id}"))
    progress = SweepProgress(
        "s", len(course.runs), {}, [worker], states={run.id: RunState("started")}
    )
    seconds = left_s([run], progress, {run.id: (0.0, None)}, work, slots=1, moment=30.0)
    assert seconds == pytest.approx(10.0)  # 300 steps took 30 s, and 100 are left


def test_a_run_during_which_the_clock_was_set_back_tells_nothing():
    course, work = simulate((4,), 1, seed=0)
    ended, running = (run.id for run in course.runs[:2])
    end = course.spans[ended][1]
    progress = course.progress(end + 10)

    def estimate(start: float, moment: float) -> float | None:
        times = {ended: (start, end), running: (end, None)}
        return left_s(course.runs, progress, times, work, slots=1, moment=moment)

    whole = estimate(0.0, end + 10)
    assert estimate(end + 3600, end + 10) == pytest.approx(whole, rel=0.2)  # by the one at work
    assert estimate(0.0, end - 3600) == pytest.approx(whole, rel=0.2)  # by the one that ended
    assert estimate(end + 3600, end - 3600) is None


def test_the_estimate_follows_the_runs_after_the_clock_was_set_back(monkeypatch):
    course, work = simulate((4,), 1, seed=0)
    start, end = course.spans[course.runs[1].id]
    clock = SimpleNamespace(wall=start, steady=50.0)
    stand_in = SimpleNamespace(time=lambda: clock.wall, monotonic=lambda: clock.steady)
    monkeypatch.setattr(time_left, "time", stand_in)
    monkeypatch.setattr(time_left, "known_work", lambda plan, store: work)
    plan = SimpleNamespace(name="s", runs=lambda: course.runs, to_come=0)
    ledger = SimpleNamespace(run_times=lambda sweep: course.times(start))
    estimate, answers = TimeLeft(None), []
    for share in (0.25, 0.5, 0.75):  # of the second run
        now = start + share * (end - start)
        clock.wall, clock.steady = now - 3600, 50.0 + now
        answers.append(estimate.seconds(plan, course.progress(now), ledger))
    assert answers[0] - answers[2] == pytest.approx((end - start) / 2, rel=0.15)
