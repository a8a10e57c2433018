"""Prints `status`: runs by state, errors, workers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from ablate.analysis import captions
from ablate.analysis.course import standing, told_by
from ablate.planning.cell import PlannedRun
from ablate.planning.design import Standing
from ablate.planning.plan import Plan
from ablate.planning.sweep_file import edit_notes
from ablate.report.gate import console
from ablate.report.text import counted, duration
from ablate.report.workers import rate, standing_cell
from ablate.shared.result import FINAL
from ablate.store import looks
from ablate.store.events import HELD, Status
from ablate.store.ledger import Ledger
from ablate.store.looks import InterimLook
from ablate.store.progress import BLOCKED, GIVEN_UP, SweepProgress, observe
from ablate.store.store import Sound, Store

if TYPE_CHECKING:
    from rich.table import Table

PARENTS = "(their parents)"  # the row of all runs that others start from


def told_counts(counts: Mapping[str, int], to_come: int) -> str:
    words = [f"{count:,} {status}" for status, count in counts.items()]
    return ", ".join(words + ([f"{to_come:,} to come"] if to_come else []))


def show_status(plan: Plan, store: Store, ledger: Ledger) -> None:
    """Print runs by state for each variant, the work of each worker, and the errors of runs."""
    runs = list(plan.runs())
    now = observe(plan, runs, store, ledger)
    told = looks.read(store.read_looks(), now.sweep)
    again = store.command("sweep", *plan.words)
    print(head_lines(now))
    show_grid(*by_variant(plan, runs, now, standing(plan, told)))
    for line in (
        *_running(now),
        *details(plan, runs, now, store, told),
        *_lost(runs, now, store.results(runs)),
        *(() if now.driven or now.over else (f"to go on: `{again}`",)),
        *edit_notes(plan, store.command),
    ):
        print(line)


def _lost(runs: Sequence[PlannedRun], now: SweepProgress, sound: Sound) -> Iterator[str]:
    """Name runs whose files are not what they left, or are gone."""
    yield from captions.withheld(sound.withheld)
    gone = [
        run.label
        for run in runs
        if now.states[run.id].status in FINAL
        and sound.results[run.id] is None
        and run.id not in sound.withheld
    ]
    if gone:
        yield (
            f"missing: the ledger has a result of {captions.names(gone)}, but the run's folder has "
            f"none; the same `ablate sweep` trains it again, or put the folder back"
        )


def head_lines(now: SweepProgress) -> str:
    """Who drives the sweep, and its runs by state."""
    what = told_counts(now.counts, now.total - len(now.states))
    return f"sweep: {now.sweep} ({driver_words(now)})\n{counted(now.total, 'run')}: {what}\n"


def driver_words(now: SweepProgress) -> str:
    """ "driven by process 12", or who else drives the store."""
    if now.driver is None:
        return "not driven"
    text = f"driven by process {'?' if now.driver.pid is None else now.driver.pid}"
    return text if now.driven else f"not driven; {now.driver.sweep} is {text}"


def by_variant(
    plan: Plan, runs: Iterable[PlannedRun], now: SweepProgress, decided: Standing
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Count the runs of each variant by status, beside what looks have decided: header and rows of
    a grid."""
    counts: dict[str, Counter[str]] = {row.label: Counter() for row in plan.rows}
    for run in runs:
        label = PARENTS if run.above else run.cell.row
        counts.setdefault(label, Counter())[now.status(run.id)] += 1
    statuses = [each for each in (*get_args(Status), BLOCKED) if each in now.counts]
    rows = [
        (
            label,
            *(str(count[status] or "") for status in statuses),
            *([standing_cell(decided.get(label, {}))] if decided else []),
        )
        for label, count in counts.items()
    ]
    return ("variant", *statuses, *["last look"] * bool(decided)), rows


def _running(now: SweepProgress) -> Iterator[str]:
    for worker in now.workers:
        what = f"{worker.notes.get('phase')}{speed(worker.notes)}"
        yield f"running: {worker.run.label} on {worker.slot}: {what}"


def details(
    plan: Plan,
    runs: Sequence[PlannedRun],
    now: SweepProgress,
    store: Store,
    told: Sequence[InterimLook],
) -> Iterator[str]:
    """Yield a line on how the last driver ended, for every look that gave out seeds, and for every
    failed run its error."""
    if now.ended:
        yield now.ended
    yield from told_by(plan, told)
    trained = {worker.run.id for worker in now.workers}
    for run in runs:
        status = now.states[run.id].status
        if status in GIVEN_UP and run.id not in trained:
            folder = store.rundir(run.id)
            why = store.liveness.notes(folder).get(
                "error", "its worker died without an error message"
            )
            yield f"{status}: {run.label}: {why} (log: {folder.log})"
        elif status in HELD:
            undo = store.command("run", run.label, "--undo")
            yield f"{status}: {run.label}: `{undo}` lets it train"
    labels = {run.id: run.label for run in runs}
    for child, parent in now.blocked.items():
        ended = now.states[parent].status
        what = ended if ended in ("failed", "diverged") else f"was {ended}"
        yield f"{BLOCKED}: {labels[child]}: {labels[parent]}, which it starts from, {what}"


def speed(notes: Mapping[str, Any]) -> str:
    """ " 12/40, 8.5 steps/s, 3 s left" of a worker's notes, as far as they tell."""
    match notes:
        case {"step": int(step), "total": int(total)}:
            text = f" {step}/{total}"
        case _:
            return ""
    if per_s := rate(notes):
        text += f", {per_s:.3g} steps/s, {duration((total - step) / per_s)} left"
    return text


def show_grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print texts in aligned columns: the first to the left, the others to the right."""
    terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says; a file has no width to fit
    screen = console(force_terminal=terminal, width=None if terminal else 200)
    screen.print(grid(header, rows))


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """As `show_grid` prints it."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, title in enumerate(header):
        grid.add_column(title, justify="right" if place else "left", no_wrap=not place)
    for row in rows:
        grid.add_row(*map(_plain, row))
    return grid


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)  # labels hold brackets, which are no markup
