"""Describes the runs of a sweep before they train, their sizes, and what they cost: `plan`.

Used by api/training.py, for `ablate plan` and Python's `Sweep.plan`. `trees.py` writes its JSON.
Other lines also need `python tests/test_screens.py`, which writes tests/golden/screens.
"""

from __future__ import annotations

import io
import math
import shlex
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis import short_number
from ablate.planning import Cell, Plan, Row, launcher_line
from ablate.report.status import PARENTS, grid, show_grid, told_counts
from ablate.report.text import device_time, duration, make_console
from ablate.run import FINAL_STATUSES
from ablate.running import UNKNOWN_COST, Costs, Rehearsals
from ablate.shared import count_text
from ablate.store import RunState

WIDTH = 200  # characters of a grid that no terminal bounds
MOST_CELLS = 16  # of a design, that have a line each
ALIKE = 1.05  # the largest of a column over its smallest: up to here rows hardly differ in size
UNKNOWN = "?"  # a size or a time


@dataclass(frozen=True)
class PlanForecast:
    """A plan with what its runs will cost. `launcher`: the launcher group; `amiss`: warnings on the
    devices."""

    plan: Plan
    states: Mapping[str, RunState]
    costs: Costs
    rehearsals: Rehearsals
    launcher: Mapping[str, Any]
    amiss: Sequence[str]

    def grid(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and texts: sizes, the time of a run and runs by state, each where it is
        known of some line; a line a variant, or a line a column where the variants of each hardly
        differ in size. In a large design the combinations of several changes share a line."""
        plan, costs, states = self.plan, self.costs, self.states
        if self._is_by_column:
            lines = [
                (column.heading, "", [cell for cell in plan.cells if cell.column == column.label])
                for column in plan.columns
            ]
        else:
            lines = [
                (
                    _variant(row),
                    self._steps.get(row.label, ""),
                    [cell for cell in plan.cells if cell.row == row.label],
                )
                for row in self._own_lines
            ]
            labels = {row.label for row in self._own_lines}
            if len(labels) < len(plan.rows):
                combinations = [cell for cell in plan.cells if cell.row not in labels]
                label = count_text(len(plan.rows) - len(labels), "other combination")
                lines.append((label, "", combinations))
        lines += [(PARENTS, "", parents)] if (parents := plan.parents()) else []
        with_steps = bool(self._steps) and not self._is_by_column
        first = "column" if self._is_by_column else "variant"
        sizes = ("parameters", "multiply-adds")
        head = (first, *sizes, *["a step"] * with_steps, "time a run", "runs")
        texts = [
            (
                label,
                *_sizes(cells, costs),
                *[step] * with_steps,
                _run_time(cells, costs),
                _run_states(plan, cells, states),
            )
            for label, step, cells in lines
        ]
        known = [n for n, column in enumerate(zip(*texts, strict=True)) if {*column} != {UNKNOWN}]
        return tuple(head[n] for n in known), [tuple(line[n] for n in known) for line in texts]

    def lines(self) -> Iterator[str]:
        """Yield what stands below the grid: variants, runs by state, the time left, the launcher,
        notes and warnings."""
        plan, states, costs = self.plan, self.states, self.costs
        if self._is_by_column:
            variants = (
                f"{_variant(row)} {self._steps.get(row.label, '')}".rstrip() for row in plan.rows
            )
            yield f"variants{', and a step of each' if self._steps else ''}: {', '.join(variants)}"
            yield ""
        state_counts = _states([run.id for run in plan.runs()], states, plan.to_come)
        yield f"{planned_runs(plan)} ({state_counts})"
        if plan.tune is not None:
            yield _search(plan, states, costs)
        if not plan.design.trains:
            return
        if math.isinf(costs.left_s):
            on = shlex.join(["ablate", "plan", *plan.words, "--on", "h100:8"])
            yield (
                f"left: more than a month on these {costs.hardware}; `{on}` shows the time on GPUs"
            )
        elif costs.basis == UNKNOWN_COST:
            yield f"left: {UNKNOWN_COST}"
        elif costs.left_s:
            yield (
                f"left: about {duration(costs.wall_s)} on {costs.hardware}, "
                f"{device_time(costs.left_s)} ({costs.basis})"
            )
        yield f"launcher: {launcher_line(self.launcher)}"
        if costs.worlds and costs.left_s:
            yield f"devices of a run: {'; '.join(_worlds(plan, costs))}"
        if costs.memory_line:
            yield costs.memory_line
        for note in (*plan.notes, *costs.notes):
            yield f"note: {note}"
        for warning in (*costs.warnings(), *self.rehearsals.warnings, *self.amiss):
            yield f"warning: {warning}"

    def show(self) -> None:
        """Print the grid and the lines below it."""
        show_grid(*self.grid())
        print("", *self.lines(), sep="\n")

    @property
    def text(self) -> str:
        """All that `show_head` and `show` print, for a reader without a terminal."""
        grid_text = io.StringIO()
        console = make_console(file=grid_text, width=WIDTH, force_jupyter=False)
        console.print(grid(*self.grid()))
        return "\n".join([*_head(self.plan), grid_text.getvalue(), *self.lines()])

    @property
    def _own_lines(self) -> list[Row]:
        """The rows that have a line each: all, but of a large design only those with no change, one
        or every one."""
        plan = self.plan
        if plan.changes is None or len(plan.rows) <= MOST_CELLS:
            return [*plan.rows]
        counts = {label: len(changes) for label, changes in plan.changes.rows.items()}
        line_counts = (0, 1, len(plan.changes.names))
        return [row for row in plan.rows if counts[row.label] in line_counts]

    @property
    def _is_by_column(self) -> bool:
        return len(self.plan.columns) > 1 and _rows_alike(self.plan, self.costs)

    @property
    def _steps(self) -> dict[str, str]:
        """The cost of a step of each row, in steps of the baseline: "1.3x"."""
        return {row: f"{ratio:.1f}x" for (row, _), ratio in self.rehearsals.steps.items()}


def show_head(plan: Plan) -> None:
    """Print name and title at once: a forecast waits until every model was built."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = [textwrap.fill(line, width) if width else line for line in _head(plan)]
    print(*lines, sep="\n", flush=True)  # a table begins with an empty line


def _head(plan: Plan) -> list[str]:
    """Return the lines with the name of a sweep, and with a title that is another text."""
    lines = [f"sweep: {plan.name}", plan.title]
    return lines[:1] if plan.title == plan.name else lines


def _variant(row: Row) -> str:
    """Return a row's label, and behind it the labels of rows that are the same: "a (= b, c)"."""
    return row.label + (f" (= {', '.join(row.aliases)})" if row.aliases else "")


def _worlds(plan: Plan, costs: Costs) -> Iterator[str]:
    """Say of each column, and of what its runs start from, how many devices share a run: "L/16: 8,
    for 8.4 days"."""
    headings = {column.label: column.heading for column in plan.columns}
    for (column, above), world in costs.worlds.items():
        if world > 1:
            cells = plan.parents() if above else plan.cells
            times = [costs.seconds[c.row, c.column] for c in cells if c.column == column]
            label = " ".join(filter(None, (headings[column], PARENTS * above))) or "each"
            yield f"{label}: {world}, for {_range(times, duration)}"
    if 1 in costs.worlds.values():
        yield "others: one" if max(costs.worlds.values()) > 1 else "one"


def _rows_alike(plan: Plan, costs: Costs) -> bool:
    """Return whether the variants of every column hardly differ in size."""
    for column in plan.columns:
        cells = [cell for cell in plan.cells if cell.column == column.label]
        for key in ("parameters", "multiply_adds"):
            sizes = [costs.described[cell.row, cell.column][key] for cell in cells]
            if None in sizes or max(sizes) > ALIKE * min(sizes):
                return False
    return True


def _sizes(cells: Sequence[Cell], costs: Costs) -> tuple[str, str]:
    sizes = [costs.described[cell.row, cell.column] for cell in cells]
    return (
        _range([size["parameters"] for size in sizes], "{:,.0f}".format),
        _range([size["multiply_adds"] for size in sizes], short_number),
    )


def _run_time(cells: Sequence[Cell], costs: Costs) -> str:
    """Return the time that a run of these cells takes."""
    return _range([costs.seconds[cell.row, cell.column] for cell in cells], duration)


def _run_states(plan: Plan, cells: Sequence[Cell], states: Mapping[str, RunState]) -> str:
    """Count the runs of these cells by state."""
    rows = {row.label for row in plan.rows}  # parents, which are in none, are all known
    to_come = sum(len(plan.planned(cell)) - len(cell.ids) for cell in cells if cell.row in rows)
    return _states([run for cell in cells for run in cell.ids.values()], states, to_come)


def planned_runs(plan: Plan) -> str:
    """Count the runs of a plan: "4 variants x 5 seeds = 20 runs, after 16 tuning trials, from 20
    parents"; of changes, say the design: "factorial design of 2 changes: 4 combinations ..."."""
    rows, columns = len(plan.rows), len(plan.columns)
    design, noun = "", "variant"
    if plan.changes is not None:
        kind = plan.changes.design.replace("_", " ")
        design = f"{kind} design of {count_text(len(plan.changes.names), 'change')}: "
        noun = "combination"
    grid = count_text(rows, noun)
    if columns > 1:
        grid += f" x {count_text(columns, 'column')}"
    if len(plan.cells) < rows * columns:
        grid = f"{len(plan.cells):,} cells of {grid}"
    runs = sum(len(plan.planned(cell)) for cell in plan.cells)
    text = f"{design}{grid}{plan.design.seeds_suffix(plan.seeds_said)} = {count_text(runs, 'run')}"
    trials = plan.expected_trials
    text += f", after {count_text(trials, 'tuning trial')}" if trials else ""
    parents = sum(len(cell.ids) for cell in plan.parents())
    return text + (f", from {count_text(parents, 'parent')}" if parents else "")


def _states(runs: Sequence[str], states: Mapping[str, RunState], to_come: int) -> str:
    """Count the runs by state: "4 finished, 8 planned, 12 to come"."""
    return told_counts(Counter(str(states.get(run, RunState()).status) for run in runs), to_come)


def _search(plan: Plan, states: Mapping[str, RunState], costs: Costs) -> str:
    """Describe the search, equal for every variant, and its progress."""
    assert plan.tune is not None
    trials_done = sum(
        states.get(run, RunState()).status in FINAL_STATUSES
        for trial in plan.trials
        for run in trial.cell.ids.values()
    )
    searches_done = sum(len(cell.chosen) for cell in plan.cells)
    searches = sum(len(plan.searches(cell)) for cell in plan.cells)
    cells = sum(map(plan.is_tuned, plan.cells))
    keys = ", ".join(dict.fromkeys(key for stage in plan.tune.stages for key in stage.space))
    cost_text = f", {_range(costs.searches, short_number)} multiply-adds" if costs.searches else ""
    return (
        f"tuning {keys}: {plan.searches_said} of {plan.tune.trials_each} trials "
        f"(sampler {plan.tune.sampler}){cost_text} for each of {count_text(cells, 'cell')}; "
        f"{trials_done} of {plan.expected_trials} trials and {searches_done} of {searches} "
        f"searches are done"
    )


def _range(values: Sequence[Any], form: Callable[[Any], str]) -> str:
    if None in values:
        return UNKNOWN
    low, high = min(values), max(values)
    return str(form(low)) if form(low) == form(high) else f"{form(low)} - {form(high)}"
