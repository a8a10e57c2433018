"""Shows a running sweep: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ablate.report.gate import console
from ablate.report.text import duration
from ablate.report.workers import standing_line, workers_table
from ablate.store.events import HELD
from ablate.store.progress import SweepProgress

PLAIN_EVERY_S = 30.0
DRAWN_EVERY_S = 0.5


class Clock:
    """Estimates the time left from the progress and the time of this drive."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: float | None = None

    def left_s(self, progress: SweepProgress) -> float | None:
        """Estimate the seconds left; None while too little is done."""
        done, total = parts_done(progress), progress.total
        if self._first is None:
            self._first = done
        seconds, parts = time.monotonic() - self._start, done - self._first
        if parts < 0.02 * max(total - self._first, 1) or seconds < 2:
            return None
        return seconds / parts * (total - done)


def parts_done(progress: SweepProgress) -> float:
    """Count the runs that are done, running ones in part."""
    done: float = progress.done
    for worker in progress.workers:
        step, total = worker.notes.get("step"), worker.notes.get("total")
        if step is not None and total:
            done += step / total
    return done


def counts_line(progress: SweepProgress) -> str:
    """ "12 of 30 done, 2 running, 1 failed"."""
    counts = progress.counts
    words = [f"{progress.done} of {progress.total} done"]
    words += [f"{len(progress.workers)} running"] if progress.workers else []
    named = ("diverged", "failed", "oom", "hung", *HELD)
    return ", ".join([*words, *(f"{counts[s]} {s}" for s in named if counts.get(s))])


class PlainView:
    """Prints a line for each event, and the progress now and then: for files, pipes and CI."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._clock = Clock()
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, progress: SweepProgress) -> None:
        left = self._clock.left_s(progress)
        if time.monotonic() - self._last >= PLAIN_EVERY_S:
            self._last = time.monotonic()
            self.say(f"{counts_line(progress)}; time left: {duration(left)}")

    def reading(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._last >= PLAIN_EVERY_S / 3 or done == total:
            self._last = time.monotonic()
            self.say(f"decoding data={name}: {done:,} of {total:,} images")


class RichView:
    """Draws a bar for the sweep, and a line for each worker. Events scroll above them."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._clock = Clock()
        self._next = 0.0

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)

    def show(self, progress: SweepProgress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + DRAWN_EVERY_S
            self._live.update(self._render(progress), refresh=True)

    def reading(self, name: str, done: int, total: int) -> None:
        line = _bar_line(Text(f"decoding data={name}"), done, total, f"{done:,}/{total:,} images")
        self._live.update(line, refresh=True)  # twice a second at most, and the last one counts

    def _render(self, progress: SweepProgress) -> Group:
        done, total = parts_done(progress), progress.total
        left = progress.waiting or f"time left: {duration(self._clock.left_s(progress))}"
        head = _bar_line(counts_line(progress), done, total, Text(left))
        table = workers_table(progress.workers, self._live.console)
        decided = standing_line(progress.standing)
        return Group(head, *([Text(decided)] if decided else []), *([table] if table else []))


def _bar_line(before: str | Text, done: float, total: int, behind: str | Text) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(before, ProgressBar(total=total, completed=done, width=30), behind)
    return line


@contextmanager
def view() -> Iterator[PlainView | RichView]:
    """Choose the view: bars if standard output is a terminal, whatever FORCE_COLOR says."""
    if not sys.stdout.isatty():
        yield PlainView(sys.stdout)
        return
    with Live(console=console(), auto_refresh=False, transient=True) as live:
        yield RichView(live)
