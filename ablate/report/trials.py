"""Lists the trials of searches: settings, validation score and state of each.

Used by cli/looking.py, for `ablate trials`. A new key of its JSON also needs its line in
docs/json.keys, then `python tests/json_page.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis import setting_text, title_line, trained_on_words, winner_doubts
from ablate.planning import Cell, Plan, Trial
from ablate.report.formats import grid
from ablate.report.formats.tidy import csv_text
from ablate.shared import UserError, count_text
from ablate.store import RunState

KEYS = ("row", "column", "search", "trial", "seed", "stage")
RESULTS = ("score", "error", "state", "chosen", "id")


@dataclass(frozen=True)
class Tried:
    """A trial. `score` and `error`, its standard error, are in the unit of tables."""

    row: str
    column: str
    search: int
    trial: int  # its number
    seed: int
    stage: int
    settings: Mapping[str, Any]
    score: float | None
    error: float | None
    state: str  # finished, pruned or diverged; else what the ledger says
    chosen: bool  # its settings are those that the search took, of this stage
    id: str


def list_trials(plan: Plan, states: Mapping[str, RunState]) -> list[Tried]:
    """List the trials by column, row, search and number. Raises UserError without `tune:`."""
    if plan.tune is None:
        raise UserError(f"{plan.name}: nothing is tuned; add `tune:` to the sweep file")
    scale, winners = plan.objective.scale, _winners(plan)
    tried = []
    for run in plan.tried():
        trial = run.trial
        assert trial is not None
        score, error = (None if x is None else scale * x for x in (trial.score, trial.error))
        state = trial.state or states.get(run.id, RunState()).status
        settings, is_chosen = trial.params, _place(trial) in winners
        numbers = trial.search, trial.number, run.seed, trial.stage
        place = trial.cell.row, trial.cell.column
        tried.append(Tried(*place, *numbers, settings, score, error, state, is_chosen, run.id))
    rows, columns = ([part.label for part in parts] for parts in (plan.rows, plan.columns))
    return sorted(
        tried, key=lambda t: (columns.index(t.column), rows.index(t.row), t.search, t.trial)
    )


Place = tuple[str, str, int, int]  # row, column, search, number


def _place(trial: Trial) -> Place:
    return trial.cell.row, trial.cell.column, trial.search, trial.number


def _winners(plan: Plan) -> set[Place]:
    """Find the trials whose settings were chosen: the first of every stage of a search."""
    choices = {(c.row, c.column, choice.search): choice for c in plan.cells for choice in c.chosen}
    winners: dict[tuple[str, str, int, int], Place] = {}
    for trial in plan.trials:
        place = _place(trial)
        choice = choices.get(place[:3])
        if choice and trial.params.items() <= choice.params.items():
            winners.setdefault((*place[:3], trial.stage), place)
    return set(winners.values())


# --- For other programs -------------------------------------------------------------------------


def csv(plan: Plan, trials: Sequence[Tried]) -> str:
    """Write one line for each trial, one column for each searched key."""
    keys = _keys(plan)
    lines: list[Sequence[object]] = [("sweep", *KEYS, *keys, *RESULTS)]
    for trial in trials:
        place, results = ([getattr(trial, key) for key in names] for names in (KEYS, RESULTS))
        lines.append((plan.name, *place, *map(trial.settings.get, keys), *results))
    return csv_text(lines)


def tree(plan: Plan, trials: Sequence[Tried]) -> dict[str, Any]:
    """Return the trials, and for every finished search its choice and the doubts about it."""
    searches = [
        {
            **{"row": cell.row, "column": cell.column, "search": choice.search},
            **{"trial": choice.trial, "settings": choice.params, "seeds": choice.seeds},
            **{"explored": choice.explored, "edge": choice.edges, "noise": choice.noise},
        }
        for cell in plan.cells
        for choice in cell.chosen
    ]
    return {
        **{"sweep": plan.name, "metric": plan.objective.key, "unit": plan.objective.unit},
        "trials": [vars(trial) for trial in trials],
        "searches": searches,
    }


def _keys(plan: Plan) -> list[str]:
    """List the searched keys."""
    stages = plan.tune.stages if plan.tune else ()
    return [*dict.fromkeys(key for stage in stages for key in stage.space)]


# --- For readers --------------------------------------------------------------------------------


def sheet(plan: Plan, trials: Sequence[Tried]) -> grid.PrintedTable:
    """Make a grid for each column of the sweep, and a line on the searches of each cell."""
    assert plan.tune is not None
    often = plan.searches_said
    specs = [trial.cell.spec for trial in plan.trials]
    trained = f"{trained_on_words(plan, specs)}." if specs else ""
    return grid.PrintedTable(
        title=title_line(plan.title or plan.name, trained),
        grids=tuple(_grid(plan, column.label, trials) for column in plan.columns if column.tuned),
        caption=(
            f"{often[0].upper()}{often[1:]} of {count_text(plan.tune.trials_each, 'trial')} a "
            f"variant (sampler {plan.tune.sampler}); all trials of a search have one seed; "
            f"score: {plan.objective.validated}, with its standard error.",
            *(line for cell in plan.cells if plan.is_tuned(cell) for line in _worth(plan, cell)),
        ),
    )


def _grid(plan: Plan, column: str, trials: Sequence[Tried]) -> grid.Grid:
    keys = _keys(plan)
    words = ("trial", *keys, "score", "error", "state", "chosen")
    lines: list[grid.GridLine] = []
    above = ""
    for trial in (trial for trial in trials if trial.column == column):
        search = f"{trial.row}, search {trial.search}"
        if search != above:
            lines.append(grid.GridLine.headed(grid.GridCell(search), len(words)))
            above = search
        settings = [setting_text(trial.settings.get(key)) for key in keys]
        numbers = [_number(plan, value) for value in (trial.score, trial.error)]
        mark = "chosen" if trial.chosen else ""
        texts = [f"#{trial.seed}.{trial.trial}", *settings, *numbers, trial.state, mark]
        lines.append(grid.GridLine(tuple(map(grid.GridCell, texts))))
    return grid.Grid(
        title=plan.heading(column) if column else "",
        headings=tuple(
            grid.GridCell(word, number=word in (*keys, "score", "error")) for word in words
        ),
        lines=tuple(lines),
    )


def _number(plan: Plan, value: float | None) -> str:
    return "-" if value is None else f"{value:.{plan.objective.decimals}f}"


def _worth(plan: Plan, cell: Cell) -> Iterator[str]:
    """Yield the explored share of each range for a cell, and the doubts about its choice."""
    assert plan.tune is not None
    place = f"{cell.row} on {cell.column}" if cell.column else cell.row
    if not cell.chosen:
        yield f"{place}: no search has finished yet."
        return
    shares: dict[str, list[float]] = {}
    for choice in cell.chosen:
        for key, share in choice.explored.items():
            shares.setdefault(key, []).append(100 * share)
    explored = ", ".join(f"{key} {_range(percents)} %" for key, percents in shares.items())
    parts = [f"explored share of the range: {explored}"] if explored else []
    parts += winner_doubts(cell.chosen)
    yield f"{place}: {'; '.join(parts)}." if parts else f"{place}: settings are chosen."


def _range(shares: Sequence[float]) -> str:
    low, high = (f"{share:.0f}" for share in (min(shares), max(shares)))
    return low if low == high else f"{low}-{high}"
