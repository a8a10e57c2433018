"""`status --watch`: the status every second until the sweep is over."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ablate.analysis.course import standing
from ablate.planning.cell import PlannedRun
from ablate.planning.plan import Plan
from ablate.report.gate import console
from ablate.report.growing import GrowingMetrics
from ablate.report.live import Clock, counts_line, parts_done
from ablate.report.status import by_variant, details, grid, head_lines
from ablate.report.text import duration
from ablate.report.workers import workers_table
from ablate.running import gpus
from ablate.store import looks
from ablate.store.find import Followed
from ablate.store.ledger import Ledger
from ablate.store.progress import SweepProgress, Worker, observe
from ablate.store.store import Store

LINE_EVERY_S = 5.0
METERS_EVERY_S = 5.0
Moment = tuple[Plan, Sequence[PlannedRun], SweepProgress]  # a plan, its runs, and how far they are


def watch(plan: Plan, store: Store, ledger: Ledger) -> None:
    """Show the status every second until the sweep is over: in place on a terminal, elsewhere a
    line for each change of the counts."""
    followed = Followed(store, plan)

    def moments() -> Iterator[Moment]:
        runs = list(plan.runs())
        while True:
            now = observe(followed.plan, runs, store, ledger)
            yield followed.plan, runs, now
            if now.over:
                return
            time.sleep(1)
            if followed.grew(ledger):
                runs = list(followed.plan.runs())

    if sys.stdout.isatty():
        _watch_in_place(moments(), store)
    else:
        _watch_plain(moments())


def _watch_in_place(seen: Iterable[Moment], store: Store) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    clock, meters, metrics, screen = Clock(), Meters(), GrowingMetrics(), console()
    with Live(console=screen, auto_refresh=False) as live:
        for plan, runs, now in seen:
            left = clock.left_s(parts_done(now), now.total)
            told = looks.read(store.read_looks(), now.sweep)
            lines = [*details(plan, runs, now, store, told), *meters.lines(now.workers)]
            lines += [f"time left: {duration(left)}"] if now.workers else []
            states = grid(*by_variant(plan, runs, now, standing(plan, told)))
            table = workers_table(now.workers, metrics, screen)
            parts: list[Any] = [Text(head_lines(now)), states, *([table] if table else [])]
            live.update(Group(*parts, Text("\n".join(lines))), refresh=True)


class Meters:
    """Figures of the GPUs that workers are on, asked for now and then; none once that fails."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._next = 0.0

    def lines(self, workers: Iterable[Worker]) -> list[str]:
        """A line a GPU."""
        slots = (re.match(r"gpu:(\d+)", worker.slot) for worker in workers)
        indices = {found[1] for found in slots if found}
        if not indices:
            return []
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + METERS_EVERY_S
            try:
                self._lines = gpus.figures(indices)
            except gpus.NoAnswer:
                self._lines, self._next = [], math.inf
        return self._lines


def _watch_plain(seen: Iterable[Moment]) -> None:
    said, at, meters = "", -LINE_EVERY_S, Meters()
    for _, _, now in seen:
        line = f"{now.sweep}: {counts_line(now)}" + ("" if now.driven else "; not driven")
        if line != said and (now.over or time.monotonic() - at >= LINE_EVERY_S):
            print("\n  ".join([line, *meters.lines(now.workers)]), flush=True)
            said, at = line, time.monotonic()
