"""Prints `plan` and `status`: runs by state, errors, sizes, costs, workers."""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from ablate.analysis import captions
from ablate.analysis.course import standing, told_by
from ablate.analysis.scores import short
from ablate.planning.cell import PlannedRun
from ablate.planning.edited import edited
from ablate.planning.launcher import launcher_line
from ablate.planning.plan import Plan
from ablate.planning.until import Standing
from ablate.report.gate import console
from ablate.report.text import device_time, duration
from ablate.report.workers import rate, standing_cell
from ablate.running.costs import UNKNOWN, Costs
from ablate.running.rehearse import Rehearsals
from ablate.shared.result import FINAL
from ablate.store import looks
from ablate.store.events import HELD, RunState, Status
from ablate.store.ledger import Ledger
from ablate.store.looks import InterimLook
from ablate.store.progress import BLOCKED, GIVEN_UP, SweepProgress, observe
from ablate.store.store import Sound, Store

if TYPE_CHECKING:
    from rich.table import Table

PARENTS = "(their parents)"  # the row of all runs that others start from


def show_head(plan: Plan) -> None:
    """Print name and title at once: `show_plan` waits until every model was built."""
    print(f"sweep: {plan.name}\n{plan.title}\n", flush=True)


def show_plan(
    plan: Plan,
    states: Mapping[str, RunState],
    costs: Costs,
    told: Rehearsals,
    launcher: Mapping[str, Any],
    amiss: Sequence[str],
) -> None:
    """Print a row a variant with its size, cost and runs by state; then the time left, the
    launcher, notes and warnings. `launcher`: the launcher group, `amiss`: more warnings."""
    steps = {row: f"{ratio:.1f}x" for (row, _), ratio in told.steps.items()}
    rows: list[tuple[str, ...]] = []
    for row in plan.rows:
        cells = [cell for cell in plan.cells if cell.row == row.label]
        sizes = [costs.described[cell.row, cell.column] for cell in cells]
        also = f" (= {', '.join(row.aliases)})" if row.aliases else ""
        rows.append(
            (
                row.label + also,
                _range([size["parameters"] for size in sizes]),
                _range([size["multiply_adds"] for size in sizes]),
                *([steps.get(row.label, "")] if steps else []),
                _range([costs.seconds[cell.row, cell.column] for cell in cells], duration),
                _states(
                    [run for cell in cells for run in cell.ids.values()],
                    states,
                    sum(len(plan.planned(cell)) - len(cell.ids) for cell in cells),
                ),
            )
        )
    rows += _parents(plan, states, costs, bool(steps))
    head = ("variant", "parameters", "multiply-adds", *["a step"] * bool(steps), "time a run")
    show_grid((*head, "runs"), rows)
    what = _states([run.id for run in plan.runs()], states, plan.to_come)
    print(f"\n{planned_runs(plan)} ({what})")
    if plan.tune is not None:
        print(_search(plan, states, costs))
    if math.isinf(costs.left_s):
        on = shlex.join(["ablate", "plan", *plan.words, "--on", "h100:8"])
        print(f"left: more than a month on these {costs.where}; `{on}` shows the time on GPUs")
    elif costs.how == UNKNOWN:
        print(f"left: {UNKNOWN}")
    elif costs.left_s:
        print(
            f"left: about {duration(costs.wall_s)} on {costs.where}, "
            f"{device_time(costs.left_s)} ({costs.how})"
        )
    print(f"launcher: {launcher_line(launcher)}")
    for note in (*plan.notes, *costs.notes):
        print(f"note: {note}")
    for warning in (*costs.warnings(), *told.warnings, *amiss):
        print(f"warning: {warning}")


def _parents(
    plan: Plan, states: Mapping[str, RunState], costs: Costs, steps: bool
) -> list[tuple[str, ...]]:
    """A row for all runs that others start from."""
    cells = plan.parents()
    if not cells:
        return []
    keys = [(cell.row, cell.column) for cell in cells]
    return [
        (
            PARENTS,
            _range([costs.described[key]["parameters"] for key in keys]),
            _range([costs.described[key]["multiply_adds"] for key in keys]),
            *[""] * steps,
            _range([costs.seconds[key] for key in keys], duration),
            _states([run for cell in cells for run in cell.ids.values()], states, 0),
        )
    ]


def planned_runs(plan: Plan) -> str:
    """ "4 variants x 5 seeds = 20 runs, after 16 tuning trials, from 20 parents"."""
    rows, columns = len(plan.rows), len(plan.columns)
    grid = _count(rows, "variant") + (f" x {_count(columns, 'column')}" if columns > 1 else "")
    if len(plan.cells) < rows * columns:
        grid = f"{len(plan.cells):,} cells of {grid}"
    runs = sum(len(plan.planned(cell)) for cell in plan.cells)
    each = f", up to {plan.seeds_said} so far" if plan.until else f" x {plan.seeds_said}"
    text = f"{grid}{each} = {_count(runs, 'run')}"
    trials = plan.expected_trials
    text += f", after {_count(trials, 'tuning trial')}" if trials else ""
    parents = sum(len(cell.ids) for cell in plan.parents())
    return text + (f", from {_count(parents, 'parent')}" if parents else "")


def _states(runs: Sequence[str], states: Mapping[str, RunState], to_come: int) -> str:
    """ "4 finished, 8 planned, 12 to come"."""
    return _told(Counter(str(states.get(run, RunState()).status) for run in runs), to_come)


def _told(counts: Mapping[str, int], to_come: int) -> str:
    words = [f"{count:,} {status}" for status, count in counts.items()]
    return ", ".join(words + ([f"{to_come:,} to come"] if to_come else []))


def _search(plan: Plan, states: Mapping[str, RunState], costs: Costs) -> str:
    """Describe the search, equal for every variant, and its progress."""
    assert plan.tune is not None
    done = sum(
        states.get(run, RunState()).status in FINAL
        for trial in plan.trials
        for run in trial.cell.ids.values()
    )
    chosen = sum(len(cell.chosen) for cell in plan.cells)
    searches = sum(len(plan.searches(cell)) for cell in plan.cells)
    keys = ", ".join(dict.fromkeys(key for stage in plan.tune.stages for key in stage.space))
    most = f", {_range(costs.searches, short)} multiply-adds" if costs.searches else ""
    return (
        f"tuning {keys}: {plan.searches_said} of {plan.tune.trials_each} trials "
        f"(sampler {plan.tune.sampler}){most} for each of {_count(len(plan.cells), 'cell')}; "
        f"{done} of {plan.expected_trials} trials and {chosen} of {searches} searches are done"
    )


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
        *edited(plan, store.command),
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
    what = _told(now.counts, now.total - len(now.states))
    return f"sweep: {now.sweep} ({driver_words(now)})\n{_count(now.total, 'run')}: {what}\n"


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


def _range(
    values: Sequence[Any], form: Callable[[Any], str] = lambda value: f"{value:,.0f}"
) -> str:
    if None in values:
        return "?"
    low, high = min(values), max(values)
    return str(form(low)) if form(low) == form(high) else f"{form(low)} - {form(high)}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
