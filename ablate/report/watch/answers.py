"""Answers the requests of the live page: state, runs, curves, table, the end of a log.

While a sweep trains its table has means and gains without intervals, and showing it is recorded as
a peek. The table of a complete sweep has verdicts, and showing it is recorded as a look. Nothing
else is written. The cost of an answer is bounded: the state is made once a second at most, and a
table has a small share of the time.

Used by `server.py`, for `ablate watch` (cli/looking.py). A new key of an answer also needs the
script that draws it: watch.js, runs.js, charts.js or heatmap.js.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ablate.analysis import latest_decisions, read_means, read_verdicts
from ablate.planning import Plan, PlannedRun
from ablate.report.formats.grid import template
from ablate.report.formats.parts import DEFAULT_SHOW
from ablate.report.live import (
    counts_line,
    curve,
    first_metric,
    metrics_lines,
    standing_cell,
    worker_cells,
)
from ablate.report.page import gains_html
from ablate.report.plot.form import inks
from ablate.report.show import tail
from ablate.report.status import LIFE, SweepView
from ablate.report.text import duration
from ablate.report.watch.curves import CurveReader, on_dark
from ablate.run import FINAL_STATUSES
from ablate.running import TimeLeft
from ablate.store import (
    GIVEN_UP,
    FollowedSweep,
    Ledger,
    Store,
    driven_plan,
    driver_of,
)

STATE_EVERY_S = 1.0
TABLE_SHARE = 0.0025  # of the time, at most, goes into tables
MOST_CURVES = 12  # lines that are drawn at once, at most
MOST_NOTES = 50  # lines about looks and failures
MEANS_PARTS = ("accuracy", "gain", "ci", "n")


class UnknownRun(Exception):
    """A run or a cell that is none of the sweep's."""


class UnknownSweep(Exception):
    """A number that is none of the list's."""


class SweepAnswers:
    """Answers for one sweep; any number of threads may ask."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._followed = FollowedSweep(store, plan)
        self._curves = CurveReader(store)
        self._final_scores: dict[str, float | None] = {}  # of runs that have ended
        self._take()
        self._time_left = TimeLeft(store)
        self._state: tuple[float, bytes] = (0.0, b"")
        self._runs_answer: tuple[str, bytes] = ("", b"")
        self._runs_done, self._is_complete = 0, False  # when the state was made
        self._tabling = threading.Lock()
        self._table: tuple[float, tuple[int, bool], bytes] = (0.0, (0, False), b"")

    def _take(self) -> None:
        self._plan = plan = self._followed.plan
        self._runs = list(plan.runs())
        self._by_id = {run.id: run for run in self._runs}
        self._rows = [row.label for row in plan.rows]
        self._columns = [column.label for column in plan.columns]
        self._by_cell: dict[tuple[int, int], list[PlannedRun]] = {}
        for run in self._runs:
            if (cell := self._cell_of(run)) is not None:
                self._by_cell.setdefault(cell, []).append(run)

    def _cell_of(self, run: PlannedRun) -> tuple[int, int] | None:
        """Return the places of the run's row and column; None for a trial of a search, and for a
        run that others start from."""
        if run.above or run.trial is not None:
            return None
        return self._rows.index(run.cell.row), self._columns.index(run.cell.column)

    # --- State ---

    def state(self) -> bytes:
        """JSON: title, over, complete, head, driver, done, total, counts, left; workers: {head,
        rows}; lines: on looks and failures; runs: the tag of `runs`."""
        with self._lock:
            made_at, body = self._state
            if not body or time.monotonic() - made_at >= STATE_EVERY_S:
                body = _json(self._look())
                self._state = time.monotonic(), body
            return body

    def _look(self) -> dict[str, Any]:
        with Ledger.reading(self._store) as ledger:
            if self._followed.grew(ledger):
                self._take()
            view = SweepView.observe(self._plan, self._runs, self._store, ledger)
            times = ledger.run_times(self._plan.name)
            left_s = self._time_left.seconds(self._plan, view.progress, ledger)
        progress = view.progress
        self._runs_done = progress.ended_count
        self._is_complete = progress.is_over and progress.ended_count == progress.total
        runs = _json(self._runs_tree(view, times))
        self._runs_answer = hashlib.sha256(runs).hexdigest()[:16], runs
        workers = worker_cells(progress.workers)
        lines = list(view.details())
        return {
            "title": self._plan.title or self._plan.name,
            "over": progress.is_over,
            "complete": self._is_complete,
            "head": counts_line(progress),
            "driver": view.driver,
            "left": duration(left_s) if left_s is not None else "",
            "done": progress.ended_count,
            "running": len(progress.workers),
            "failed": sum(progress.counts.get(status, 0) for status in GIVEN_UP),
            "total": progress.total,
            "workers": {"head": workers[0], "rows": workers[1]},
            "lines": [
                *lines[:MOST_NOTES],
                *([f"{len(lines) - MOST_NOTES} more"] * (len(lines) > MOST_NOTES)),
            ],
            "runs": self._runs_answer[0],
        }

    # --- Runs ---

    def runs(self) -> tuple[str, bytes]:
        """Return (tag, JSON) as of the last state: rows: {label, light, dark, decided}; columns:
        headings; metric: its name with its unit; sign: -1 where less is better; runs: {run, label,
        row, column, seed, status, score, seconds, at}."""
        self.state()
        with self._lock:
            return self._runs_answer

    def _runs_tree(
        self, view: SweepView, times: dict[str, tuple[float, float | None]]
    ) -> dict[str, Any]:
        plan, progress = self._plan, view.progress
        metric = plan.task.metrics[0]
        colours = {row: ink.colour for row, ink in inks(plan).items()}
        decided = latest_decisions(plan, view.looks)
        trained = {worker.run.id for worker in progress.workers}
        rows = [
            {
                "label": row,
                "light": colours[row],
                "dark": on_dark(colours[row]),
                "decided": standing_cell(decided[row]) if row in decided else "",
            }
            for row in self._rows
        ]
        runs = []
        for run in self._runs:
            row, column = self._cell_of(run) or (None, None)
            status = "running" if run.id in trained else progress.status(run.id)
            start, end = times.get(run.id, (None, None))
            runs.append(
                {
                    "run": run.id,
                    "label": run.label,
                    "row": row,
                    "column": column,
                    "seed": run.seed,
                    "status": status,
                    "score": self._score(run, status),
                    "seconds": round(end - start, 1) if start is not None and end else None,
                    "at": end or start,
                }
            )
        return {
            "rows": rows,
            "columns": [column.heading for column in plan.columns],
            "metric": metric.with_unit(metric.validated),
            "sign": metric.sign,
            "statuses": ["running", *(status for status in LIFE if status != "started")],
            "runs": runs,
        }

    def _score(self, run: PlannedRun, status: str) -> float | None:
        """Return the newest score in validation, in the unit of the table."""
        if status == "planned":
            return None
        if run.id in self._final_scores:
            return self._final_scores[run.id]
        metric = first_metric(run)
        scores = curve(metrics_lines(self._store.rundir(run.id)), f"val_{metric.key}")
        score = float(f"{metric.scale * scores[-1]:.5g}") if scores else None
        if status in FINAL_STATUSES:
            self._final_scores[run.id] = score
        return score

    # --- Curves, a log ---

    def cell_curves(self, cells: Sequence[str], cached_tag: str) -> tuple[str, bytes]:
        """Return (tag, JSON) of the mean curves of cells, each "ROW.COLUMN" by places; b"" for the
        JSON where the tag is `cached_tag`. Raises UnknownRun."""
        with self._lock:
            groups = [self._cell(cell) for cell in cells[:MOST_CURVES]]
        return self._read_curves(groups, cached_tag)

    def run_curves(self, ids: Sequence[str], cached_tag: str) -> tuple[str, bytes]:
        """Return (tag, JSON) of the curves of runs, as `cell_curves` does. Raises UnknownRun."""
        with self._lock:
            groups = [[self._run(run)] for run in ids[:MOST_CURVES]]
        return self._read_curves(groups, cached_tag)

    def _read_curves(
        self, groups: Sequence[Sequence[PlannedRun]], cached_tag: str
    ) -> tuple[str, bytes]:
        tag, curves = self._curves.curves_of(groups, cached_tag)
        return tag, b"" if curves is None else _json(curves)

    def log(self, run: str) -> bytes:
        """Return the end of a run's log. Raises UnknownRun."""
        with self._lock:
            planned_run = self._run(run)
        return tail(self._store.rundir(planned_run.id)).encode(errors="replace")

    def _run(self, run: str) -> PlannedRun:
        if run not in self._by_id:
            raise UnknownRun(f"{run!r:.40}: no run of {self._plan.name}")
        return self._by_id[run]

    def _cell(self, cell: str) -> list[PlannedRun]:
        for (row, column), runs in self._by_cell.items():
            if cell == f"{row}.{column}":
                return runs
        raise UnknownRun(f"{cell!r:.40}: no cell of {self._plan.name}")

    # --- Table ---

    def table(self) -> tuple[int, bool, bytes]:
        """Return how many runs were done, whether there are verdicts, and the table as a fragment
        of HTML. It is made again once making the last one has taken a small share of the time
        since, or the sweep is complete, and only a complete sweep has verdicts."""
        with self._tabling:
            due, made_of, body = self._table
            content = self._runs_done, self._is_complete
            if content != made_of and (self._is_complete or time.monotonic() >= due):
                start = time.thread_time()
                made_of, body = content, self._tabulated(with_verdicts=content[1]).encode()
                wait = (time.thread_time() - start) / TABLE_SHARE
                self._table = time.monotonic() + wait, made_of, body
            return *made_of, body

    def _tabulated(self, with_verdicts: bool) -> str:
        """Make the table; both ways of reading it record that it was read."""
        store, plan = self._store, self._plan
        results, lost = store.results(plan.runs())
        if with_verdicts:
            table = read_verdicts(plan, store, results, withheld=lost).table
            return gains_html(table, DEFAULT_SHOW)
        table = read_means(plan, store, results, withheld=lost)
        return gains_html(table, MEANS_PARTS, no_interval="no interval yet")


class StoreAnswers:
    """A list of the sweeps of a store, and the answers for each by its number, which stays; any
    number of threads may ask."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._names: list[str] = []  # by number
        self._answers: dict[str, SweepAnswers] = {}

    def open(self, plan: Plan) -> int:
        """Return the number of the sweep that has this plan, from now on."""
        with self._lock:
            self._number(plan.name)
            self._answers[plan.name] = SweepAnswers(plan, self._store)
            return self._names.index(plan.name)

    def _number(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def page(self) -> bytes:
        """HTML, the sweep that was driven last first."""
        with Ledger.reading(self._store) as ledger:
            states = ledger.states()
            counts = {
                name: Counter(
                    str(states[run].status) for _, run in ledger.planned(name) if run in states
                )
                for name in ledger.sweeps()
            }
            drive_times = ledger.drive_times()
        driver = driver_of(self._store)
        with self._lock:
            numbers = {name: self._number(name) for name in counts}
        sweeps = [
            {
                "number": numbers[name],
                "name": name,
                "total": count.total(),
                "done": sum(count[status] for status in FINAL_STATUSES),
                "failed": sum(count[status] for status in GIVEN_UP),
                "driven": bool(driver and driver.sweep == name),
                "since": _since(drive_times.get(name, 0.0)),
            }
            for name, count in counts.items()
        ]
        text = template("watch/sweeps.html").render(store=str(self._store.root), sweeps=sweeps)
        return str(text).encode(errors="replace")

    def sweep_answers(self, number: str) -> SweepAnswers:
        """Return the answers for the sweep of this number. Raises UnknownSweep."""
        with self._lock:
            name = {str(place): name for place, name in enumerate(self._names)}.get(number)
            if name is None:
                raise UnknownSweep("no such sweep; the list of sweeps has the addresses of all")
            if name not in self._answers:
                with Ledger.reading(self._store) as ledger:
                    plan = driven_plan(self._store, ledger, ledger.sweeps(), name).with_own()
                self._answers[name] = SweepAnswers(plan, self._store)
            return self._answers[name]


def _since(moment: float) -> str:
    """Write how long ago a sweep was driven: "3 min 5 s ago"; "" where nobody knows."""
    return f"{duration(max(0.0, time.time() - moment))} ago" if moment else ""


def _json(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":")).encode()
