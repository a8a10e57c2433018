"""What `plan` and `status` print: runs by state and why, sizes, costs, workers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ablate.ledger import Ledger, RunState, Store
from ablate.plan import Plan
from ablate.report.cost import Costs
from ablate.report.live import duration


def show_plan(plan: Plan, states: Mapping[str, RunState], costs: Costs, slots: int) -> None:
    """Runs by state, a row a variant with its size, the time left, warnings."""
    print(f"sweep: {plan.name}\n{plan.title}\n")
    rows = []
    for row in plan.rows:
        cells = [cell for cell in plan.cells if cell.row == row.label]
        sizes = [costs.described[cell.row, cell.column] for cell in cells]
        state = Counter(
            states.get(run, RunState()).status for cell in cells for run in cell.ids.values()
        )
        also = f" (= {', '.join(row.aliases)})" if row.aliases else ""
        rows.append(
            (
                row.label + also,
                _range([size["parameters"] for size in sizes]),
                _range([size["multiply_adds"] for size in sizes]),
                _range([costs.seconds[cell.row, cell.column] for cell in cells], duration),
                ", ".join(f"{count} {status}" for status, count in state.items()),
            )
        )
    show_grid(("variant", "parameters", "multiply-adds", "time a run", "runs"), rows)
    runs = list(plan.runs())
    total = Counter(states.get(run.id, RunState()).status for run in runs)
    what = ", ".join(f"{count} {status}" for status, count in total.items())
    columns = len(plan.columns)
    print(
        f"\n{_count(len(plan.rows), 'row')} x {_count(columns, 'column')} x "
        f"{_count(len(plan.seeds), 'seed')}: {_count(len(runs), 'run')} ({what})"
    )
    if costs.left_s:
        how = "from finished runs" if costs.measured else "by a short calibration"
        print(
            f"left: about {duration(costs.left_s / slots)} on {_count(slots, 'slot')}, "
            f"{costs.left_s / 3600:.2g} device-hours ({how})"
        )
    for note in plan.notes:
        print(f"note: {note}")
    for warning in costs.warnings():
        print(f"warning: {warning}")


def show_status(plan: Plan, store: Store, ledger: Ledger) -> None:
    """Runs by state a variant, what each worker does now, and why runs failed."""
    runs = list(plan.runs())
    known = ledger.states({run.id for run in runs})
    # A driver writes its plan first: for a moment, or after its death, the ledger lacks new runs.
    states = {run.id: known.get(run.id, RunState()) for run in runs}
    by_status = Counter(states[run.id].status for run in runs)
    alive = {run.id for run in runs if store.rundir(run.id).lock.is_held()}
    driven = store.driver.is_held()
    who = f"driven by process {store.driver.notes().get('pid', '?')}" if driven else "not driven"
    what = ", ".join(f"{count} {status}" for status, count in by_status.items())
    print(f"sweep: {plan.name} ({who})\n{_count(len(runs), 'run')}: {what}\n")
    statuses = sorted(by_status)
    rows = []
    for row in plan.rows:
        count = Counter(states[run.id].status for run in runs if run.cell.row == row.label)
        rows.append((row.label, *(str(count[status] or "") for status in statuses)))
    show_grid(("variant", *statuses), rows)
    for run in runs:
        notes = store.rundir(run.id).lock.notes()
        if run.id in alive:
            step = f" {notes['step']}/{notes['total']}" if "total" in notes else ""
            print(f"running: {run.label} on {notes.get('slot')}: {notes.get('phase')}{step}")
        elif states[run.id].status in ("failed", "oom", "hung"):
            why = notes.get("error", "died without a word")
            status = states[run.id].status
            print(f"{status}: {run.label}: {why} (log: {store.rundir(run.id).log})")


def show_grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of texts, aligned; the first column to the left, the others to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, title in enumerate(header):
        grid.add_column(title, justify="right" if place else "left", no_wrap=not place)
    for row in rows:
        grid.add_row(*map(_plain, row))
    terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says; a file has no width to fit
    Console(force_terminal=terminal, width=None if terminal else 200).print(grid)


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
