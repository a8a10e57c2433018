"""Answers the requests of the page of `watch`: state, curves, table, the end of a log.

The table has means and gains, and no intervals, so showing it is recorded as a peek. Nothing else
is written. The cost of an answer is bounded: the state is made once a second at most, and a
table has a small share of the time.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.analysis import read_means
from ablate.planning import Plan, PlannedRun
from ablate.report.formats.grid import template
from ablate.report.live import Clock, counts_line, curve, first_metric, metrics_lines, worker_cells
from ablate.report.page import gains_html
from ablate.report.plot.form import inks
from ablate.report.show import tail
from ablate.report.status import SweepView
from ablate.report.text import duration
from ablate.store import FollowedSweep, Ledger, Store, SweepProgress, driven_plan, driver_of

STATE_EVERY_S = 1.0
TABLE_SHARE = 0.0025  # of the time, at most, goes into tables
NEWEST = 24  # runs that are offered
MOST_CURVES = 12  # curves that are drawn at once, at most
POINTS = 400  # of a curve
MOST_NOTES = 50  # lines about looks and failures
TABLE_PARTS = ("accuracy", "gain", "ci", "n")


class UnknownRun(Exception):
    """A run that is none of the sweep's."""


class UnknownSweep(Exception):
    """A number that is none of the list's."""


class SweepAnswers:
    """Answers for one sweep; any number of threads may ask."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._followed = FollowedSweep(store, plan)
        self._take()
        self._clock = Clock()
        self._state: tuple[float, bytes] = (0.0, b"")
        self._runs_done, self._is_over = 0, False  # at the last look
        self._tabling = threading.Lock()
        self._table: tuple[float, int, bytes] = (0.0, 0, b"")

    def _take(self) -> None:
        self._plan = plan = self._followed.plan
        self._runs = list(plan.runs())
        self._by_id = {run.id: run for run in self._runs}
        self._inks = inks(plan)

    @property
    def title(self) -> str:
        return self._plan.title or self._plan.name

    # --- State ---

    def state(self) -> bytes:
        """JSON: title, over, head, driver, done, total, left; variants: {head, rows}; workers:
        {head, rows}; newest: {run, label, colour, status, score}; lines: on looks and failures."""
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
            newest = ledger.newest(10 * NEWEST)
        progress = view.progress
        self._runs_done, self._is_over = progress.ended_count, progress.is_over
        left_s = self._clock.left_s(progress)
        head, rows = view.by_variant()
        workers = worker_cells(progress.workers)
        lines = list(view.details())
        return {
            "title": self.title,
            "over": progress.is_over,
            "head": counts_line(progress),
            "driver": view.driver,
            "left": duration(left_s) if progress.workers and left_s is not None else "",
            "done": progress.ended_count,
            "total": progress.total,
            "variants": {"head": head, "rows": rows},
            "workers": {"head": workers[0], "rows": workers[1]},
            "newest": [self._run_tree(run, progress) for run in self._newest(progress, newest)],
            "lines": [
                *lines[:MOST_NOTES],
                *([f"{len(lines) - MOST_NOTES} more"] * (len(lines) > MOST_NOTES)),
            ],
        }

    def _newest(self, progress: SweepProgress, newest: Sequence[str]) -> list[PlannedRun]:
        """Runs that are trained, then those that something happened to last."""
        ids = [*(worker.run.id for worker in progress.workers), *newest]
        runs = (self._by_id[run] for run in dict.fromkeys(ids) if run in self._by_id)
        begun_runs = [run for run in runs if progress.states[run.id].status != "planned"]
        return begun_runs[:NEWEST]

    def _run_tree(self, run: PlannedRun, progress: SweepProgress) -> dict[str, Any]:
        metric = first_metric(run)
        scores = curve(metrics_lines(self._store.rundir(run.id)), f"val_{metric.key}")
        return {
            "run": run.id,
            "label": run.label,
            "colour": self._colour(run),
            "status": progress.status(run.id),
            "score": metric.printed(scores[-1]) if scores else "",
        }

    def _colour(self, run: PlannedRun) -> str:
        """Return the colour of the run's row, as in figures; "" for a run that others start
        from."""
        return self._inks[run.cell.row].colour if run.cell.row in self._inks else ""

    # --- Curves, a log ---

    def curves(self, ids: Sequence[str], cached_tag: str) -> tuple[str, bytes]:
        """Return (tag, JSON): for each run x (epochs, or steps where there are none), train_loss
        and score, and the names of these; b"" for the JSON where the tag is `cached_tag`. Raises
        UnknownRun."""
        with self._lock:
            runs = [self._run(run) for run in ids[:MOST_CURVES]]
        lines = {run.id: metrics_lines(self._store.rundir(run.id)) for run in runs}
        ends = [(run, len(run_lines), run_lines[-1:]) for run, run_lines in lines.items()]
        tag = hashlib.sha256(_json(ends)).hexdigest()[:16]
        if tag == cached_tag:
            return tag, b""
        return tag, _json([self._curve(run, lines[run.id]) for run in runs])

    def _curve(self, run: PlannedRun, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        metric = first_metric(run)
        clock = "epoch" if lines and "epoch" in lines[-1] else "step"
        stride = -(-len(lines) // POINTS)
        thinned = [*lines[: -1 : stride or 1], *lines[-1:]]
        return {
            "run": run.id,
            "label": run.label,
            "colour": self._colour(run),
            "by": clock,
            "metric": metric.with_unit(metric.validated),
            "x": [_short(line.get(clock)) for line in thinned],
            "train_loss": [_short(line.get("train_loss")) for line in thinned],
            "score": [_short(line.get(f"val_{metric.key}"), metric.scale) for line in thinned],
        }

    def log(self, run: str) -> bytes:
        """Return the end of a run's log. Raises UnknownRun."""
        return tail(self._store.rundir(self._run(run).id)).encode(errors="replace")

    def _run(self, run: str) -> PlannedRun:
        if run not in self._by_id:
            raise UnknownRun(f"{run!r:.40}: no run of {self._plan.name}")
        return self._by_id[run]

    # --- Table ---

    def table(self) -> tuple[int, bytes]:
        """Return how many runs were done, and the table of these as a fragment of HTML, without
        intervals of gains. The table is made again once making the last one has taken a small share
        of the time since, or the sweep is over."""
        with self._tabling:
            due, made_of, body = self._table
            runs_done = self._runs_done
            if runs_done != made_of and (self._is_over or time.monotonic() >= due):
                start = time.thread_time()
                made_of, body = runs_done, self._tabulated().encode()
                wait = (time.thread_time() - start) / TABLE_SHARE
                self._table = time.monotonic() + wait, made_of, body
            return made_of, body

    def _tabulated(self) -> str:
        store, plan = self._store, self._plan
        results, lost = store.results(plan.runs())
        return gains_html(read_means(plan, store, results, withheld=lost), TABLE_PARTS)


class StoreAnswers:
    """A list of the sweeps of a store, and the answers for each by its number, which stays; any
    number of threads may ask."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._names: list[str] = []  # by number
        self._answers: dict[str, SweepAnswers] = {}

    def page(self) -> bytes:
        """HTML, the sweep that was driven last first."""
        with Ledger.reading(self._store) as ledger:
            sweeps, ended = ledger.sweeps(), ledger.ended()
        driver = driver_of(self._store)
        with self._lock:
            self._names += [name for name in sweeps if name not in self._names]
            numbers = {name: number for number, name in enumerate(self._names)}
        rows = [
            (numbers[name], name, *ended.get(name, (0, 0)), bool(driver and driver.sweep == name))
            for name in sweeps
        ]
        text = template("watch/sweeps.html").render(store=str(self._store.root), rows=rows)
        return str(text).encode(errors="replace")

    def sweep_answers(self, number: str) -> SweepAnswers:
        """Return the answers for the sweep of this number. Raises UnknownSweep."""
        with self._lock:
            name = {str(place): name for place, name in enumerate(self._names)}.get(number)
            if name is None:
                raise UnknownSweep("nothing is here")
            if name not in self._answers:
                with Ledger.reading(self._store) as ledger:
                    plan = driven_plan(self._store, ledger, ledger.sweeps(), name).with_own()
                self._answers[name] = SweepAnswers(plan, self._store)
            return self._answers[name]


def _short(value: Any, scale: float = 1.0) -> float | None:
    return float(f"{scale * value:.5g}") if isinstance(value, int | float) else None


def _json(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":")).encode()
