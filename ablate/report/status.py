"""Prints `status`: runs by state, errors, workers; with `--watch` every second.

Used by cli/looking.py (`ablate status`) and watch/answers.py (`ablate watch`); `trees.py` writes
its JSON. Another screen of `--watch` also needs `python tests/test_screens.py`, which writes
tests/golden/screens.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ablate.analysis import first_few, latest_decisions, recorded_decisions, withheld_notes
from ablate.planning import Plan, PlannedRun, edit_notes
from ablate.report.live import (
    LEAST_LABEL,
    counts_line,
    drawing_in_place,
    draws_in_place,
    standing_cell,
    workers_table,
)
from ablate.report.text import activity, duration, make_console
from ablate.run import FINAL_STATUSES, NO_WORD
from ablate.running import TimeLeft, gpus
from ablate.shared import count_text
from ablate.store import (
    BLOCKED,
    GIVEN_UP,
    FollowedSweep,
    InterimLook,
    Ledger,
    Status,
    Store,
    SweepProgress,
    Worker,
    looks,
    observe_progress,
)

PARENTS = "(their parents)"  # the row of all runs that others start from
ENDINGS = {"oom": "ran out of memory", "skipped": "was skipped", "pruned": "was pruned"}


LIFE = (*get_args(Status), BLOCKED)  # in the order of a run's life


def told_counts(counts: Mapping[str, int], to_come: int) -> str:
    words = [f"{counts[status]:,} {status}" for status in LIFE if counts.get(status)]
    return ", ".join(words + ([f"{to_come:,} to come"] if to_come else []))


Goal = Literal["finished", "look"]  # what `status --wait` waits for
WaitEnd = Literal["reached", "left", "timeout"]
LEFT_S = 3.0  # without a driver, after which nobody is about to begin


@dataclass(frozen=True)
class SweepView:
    """A sweep at one moment; `status`, its page and JSON show parts of it. `looks`: at the
    sweep."""

    plan: Plan
    runs: Sequence[PlannedRun]
    progress: SweepProgress
    store: Store
    looks: Sequence[InterimLook]

    @classmethod
    def observe(
        cls, plan: Plan, runs: Sequence[PlannedRun], store: Store, ledger: Ledger
    ) -> SweepView:
        progress = observe_progress(plan, runs, store, ledger)
        return cls(
            plan, runs, progress, store, looks.parse_events(store.read_looks(), progress.sweep)
        )

    @property
    def driver(self) -> str:
        """ "driven by process 12", who else drives the store, which job is to drive the sweep, or
        that it ended."""
        driver = self.progress.driver
        if self.progress.is_over:
            return "ended"
        if submitted := self.progress.submitted:
            return (
                f"job {submitted.job}, its driver, has not begun (`{self.store.command('stop')}` "
                f"forgets a job that is gone)"
            )
        if driver is None:
            return "not driven"
        text = f"driven by process {'?' if driver.pid is None else driver.pid}"
        return text if self.progress.is_driven else f"not driven; {driver.sweep} is {text}"

    @property
    def head(self) -> str:
        """The first two lines: the sweep with its driver, and its runs by state."""
        progress = self.progress
        counts = told_counts(progress.counts, progress.total - len(progress.states))
        total = count_text(progress.total, "run")
        return f"sweep: {progress.sweep} ({self.driver})\n{total}: {counts}"

    def by_variant(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Count the runs of each variant by status, and add the decisions of looks: header and rows
        of a grid."""
        counts: dict[str, Counter[str]] = {row.label: Counter() for row in self.plan.rows}
        for run in self.runs:
            label = PARENTS if run.above else run.cell.row
            counts.setdefault(label, Counter())[self.progress.status(run.id)] += 1
        decided = latest_decisions(self.plan, self.looks)
        statuses = [status for status in LIFE if status in self.progress.counts]
        rows = [
            (
                label,
                *(str(count[status] or "") for status in statuses),
                *([standing_cell(decided.get(label, {}))] if decided else []),
            )
            for label, count in counts.items()
        ]
        return ("variant", *statuses, *["last look"] * bool(decided)), rows

    def details(self) -> Iterator[str]:
        """Yield a line on how the last driver ended, for every look that gave out seeds, and for
        every failed run its error."""
        progress, store = self.progress, self.store
        if progress.ended:
            yield progress.ended
        yield from recorded_decisions(self.plan, self.looks)
        trained = {worker.run.id for worker in progress.workers}
        for run in self.runs:
            status = progress.states[run.id].status
            if status in GIVEN_UP and run.id not in trained:
                folder = store.rundir(run.id)
                error = store.liveness.notes(folder).error or NO_WORD
                yield f"{status}: {run.label}: {error} (log: {folder.log})"
            elif status == "skipped":
                undo = store.command("run", "--undo", label=run.label)
                yield f"{status}: {run.label}: `{undo}` lets it train"
        labels = {run.id: run.label for run in self.runs}
        for child, parent in progress.blocked.items():
            ended = progress.states[parent].status
            outcome = ENDINGS.get(ended, ended)
            yield f"{BLOCKED}: {labels[child]}: {labels[parent]}, which it starts from, {outcome}"

    def lost(self) -> Iterator[str]:
        """Name runs whose files have changed since the runs left them, or are gone."""
        results, withheld = self.store.results(self.runs)
        yield from (note.text for note in withheld_notes(self.plan, withheld))
        missing_runs = [
            run.label
            for run in self.runs
            if self.progress.states[run.id].status in FINAL_STATUSES
            and results[run.id] is None
            and run.id not in withheld
        ]
        if missing_runs:
            yield (
                f"missing: the ledger has a result of {first_few(missing_runs)}, but the run's "
                f"folder has none; the same `ablate sweep` trains it again, or put the folder back"
            )

    @classmethod
    def watch(cls, plan: Plan, store: Store, ledger: Ledger) -> None:
        """Show the status every second until the sweep is over: in place on a terminal, elsewhere a
        line for each change of the counts."""
        views = _views(plan, store, ledger)
        if draws_in_place():
            time_left = TimeLeft(store)
            _watch_in_place(
                (view, time_left.seconds(view.plan, view.progress, ledger)) for view in views
            )
        else:
            _watch_plain(views)

    @classmethod
    def await_goal(
        cls, plan: Plan, store: Store, ledger: Ledger, goal: Goal, timeout_s: float
    ) -> tuple[SweepView, WaitEnd]:
        """Wait until a sweep is over or, for the goal "look", until another look has decided.
        Return what stands then, and how the wait ended: "reached", "left" where runs are left that
        nobody drives, "timeout" after `timeout_s`."""
        begun_at = driven_at = time.monotonic()
        first_decisions = None
        for view in _views(plan, store, ledger):
            time_s = time.monotonic()
            decisions = sum(1 for _ in recorded_decisions(view.plan, view.looks))
            first_decisions = decisions if first_decisions is None else first_decisions
            if view.progress.is_over or (goal == "look" and decisions > first_decisions):
                return view, "reached"
            if view.progress.driver is not None or view.progress.submitted is not None:
                driven_at = time_s
            elif time_s - driven_at >= LEFT_S:
                return view, "left"
            if time_s - begun_at >= timeout_s:
                return view, "timeout"
        raise AssertionError("views end with one that is over")

    def show(self) -> None:
        """Print runs by state for each variant, the work of each worker, and the errors of runs."""
        plan, store = self.plan, self.store
        progress, command = self.progress, plan.repeat_command(store.command)
        print(self.head)
        show_grid(*self.by_variant())
        for worker in progress.workers:
            place = f" on {worker.notes.slot}" if worker.notes.slot else ""
            print(f"running: {worker.run.label}{place}: {activity(worker.notes)}")
        for line in (
            *self.details(),
            *self.lost(),
            *(
                ()
                if progress.is_driven or progress.is_over or progress.submitted
                else (f"to go on: `{command}`",)
            ),
            *edit_notes(plan, store.command),
        ):
            print(line)


def show_grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print texts in aligned columns: the first to the left, the others to the right."""
    terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says; a file has no width to fit
    screen = make_console(force_terminal=terminal, width=None if terminal else 200)
    table = grid(header, rows)
    wide_options = screen.options.update(max_width=1_000)
    if screen.measure(table, options=wide_options).maximum > screen.width:
        table.padding = 0  # before a heading or a cell is cut
    screen.print(table)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return texts as the table that `show_grid` prints; labels are text, not markup."""
    rows = list(rows)
    longest = max(map(cell_len, [header[0], *(row[0] for row in rows)]))
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, title in enumerate(header):
        if place:
            grid.add_column(title, justify="right", no_wrap=True)
        else:  # a long label goes on in the next line, before a number is cut
            grid.add_column(title, min_width=min(LEAST_LABEL, longest), overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))  # labels hold brackets, which are no markup
    return grid


LINE_EVERY_S = 5.0
METERS_EVERY_S = 5.0


def _views(plan: Plan, store: Store, ledger: Ledger) -> Iterator[SweepView]:
    """Yield what stands every second; the last one is over."""
    followed = FollowedSweep(store, plan)
    runs = list(plan.runs())
    while True:
        view = SweepView.observe(followed.plan, runs, store, ledger)
        yield view
        if view.progress.is_over:
            return
        time.sleep(1)
        if followed.grew(ledger):
            runs = list(followed.plan.runs())


def _watch_in_place(views: Iterable[tuple[SweepView, float | None]]) -> None:
    """Draw each view with the seconds left."""
    meters = Meters()
    with drawing_in_place(transient=False) as drawing:
        for view, left_s in views:
            progress = view.progress
            lines = [f"time left: {duration(left_s)}"] if progress.workers else []
            table = workers_table(progress.workers, drawing.console)
            # First: a low window cuts below.
            head = [view.head, *lines, *meters.lines(progress.workers)]
            parts: list[Any] = [Text("\n".join(head)), *[table] * bool(table)]
            parts += [grid(*view.by_variant()), *map(Text, view.details())]
            drawing.update(Group(*parts), refresh=True)


class Meters:
    """Figures of the GPUs that workers use, queried now and then; none once a query fails."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._due = 0.0

    def lines(self, workers: Iterable[Worker]) -> list[str]:
        """Return a line for each GPU that workers use."""
        slots = (re.match(r"gpu:(\d+)", worker.slot) for worker in workers)
        indices = {match[1] for match in slots if match}
        if not indices:
            return []
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + METERS_EVERY_S
            try:
                self._lines = gpus.figures(indices)
            except gpus.NoAnswer:
                self._lines, self._due = [], math.inf
        return self._lines


def _watch_plain(views: Iterable[SweepView]) -> None:
    last_line, printed_at, meters = "", -LINE_EVERY_S, Meters()
    for progress in (view.progress for view in views):
        line = f"{progress.sweep}: {counts_line(progress)}" + (
            "" if progress.is_driven or progress.is_over else "; not driven"
        )
        if line != last_line and (
            progress.is_over or time.monotonic() - printed_at >= LINE_EVERY_S
        ):
            print("\n  ".join([line, *meters.lines(progress.workers)]), flush=True)
            last_line, printed_at = line, time.monotonic()
