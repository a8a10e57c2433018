"""Lists the trials of searches: settings, validation score and state of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis import captions, footnotes
from ablate.analysis.table import headed
from ablate.analysis.trained_on import training
from ablate.planning.cell import Cell, Trial
from ablate.planning.plan import Plan
from ablate.report.formats import grid
from ablate.report.formats.tidy import csv_text
from ablate.shared.errors import UserError
from ablate.store.events import RunState

FIELDS = ("score", "error", "state", "chosen", "id")
PLACE = ("row", "column", "search", "trial", "seed", "stage")


@dataclass(frozen=True)
class Tried:
    """A trial. `score` and `error`, its standard error, are in the unit of tables."""

    trial: Trial
    id: str
    seed: int
    score: float | None
    error: float | None
    state: str  # finished, pruned or diverged; else what the ledger says
    chosen: bool  # its settings are those that the search took, of this stage

    def fields(self) -> dict[str, Any]:
        trial = self.trial
        place = (
            *(trial.cell.row, trial.cell.column, trial.search),
            *(trial.number, self.seed, trial.stage),
        )
        return {
            **dict(zip(PLACE, place, strict=True)),
            "settings": trial.params,
            **{name: getattr(self, name) for name in FIELDS},
        }


def list_trials(plan: Plan, states: Mapping[str, RunState]) -> list[Tried]:
    """List the trials by column, row, search and number. Raises UserError without `tune:`."""
    if plan.tune is None:
        raise UserError(f"{plan.name}: nothing is tuned; add `tune:` to the sweep file")
    scale = plan.judged.scale
    won = _won(plan)
    found = []
    for run in plan.tried():
        trial = run.trial
        assert trial is not None
        found.append(
            Tried(
                trial=trial,
                id=run.id,
                seed=run.seed,
                score=None if trial.score is None else scale * trial.score,
                error=None if trial.error is None else scale * trial.error,
                state=trial.state or states.get(run.id, RunState()).status,
                chosen=_place(trial) in won,
            )
        )
    rows, columns = ([part.label for part in parts] for parts in (plan.rows, plan.columns))
    return sorted(
        found,
        key=lambda one: (
            columns.index(one.trial.cell.column),
            rows.index(one.trial.cell.row),
            one.trial.search,
            one.trial.number,
        ),
    )


Place = tuple[str, str, int, int]  # row, column, search, number


def _place(trial: Trial) -> Place:
    return trial.cell.row, trial.cell.column, trial.search, trial.number


def _won(plan: Plan) -> set[Place]:
    """Find the trials whose settings were chosen: the first of every stage of a search."""
    chosen = {(c.row, c.column, choice.search): choice for c in plan.cells for choice in c.chosen}
    first: dict[tuple[str, str, int, int], Place] = {}
    for trial in plan.trials:
        place = _place(trial)
        choice = chosen.get(place[:3])
        if choice and trial.params.items() <= choice.params.items():
            first.setdefault((*place[:3], trial.stage), place)
    return set(first.values())


# --- For other programs -------------------------------------------------------------------------


def csv(plan: Plan, found: Sequence[Tried]) -> str:
    """Write one line for each trial, one column for each searched key."""
    keys = _keys(plan)
    lines: list[Sequence[object]] = [("sweep", *PLACE, *keys, *FIELDS)]
    for one in found:
        fields = one.fields()
        settings = [fields["settings"].get(key) for key in keys]
        place, told = ([fields[name] for name in names] for names in (PLACE, FIELDS))
        lines.append((plan.name, *place, *settings, *told))
    return csv_text(lines)


def tree(plan: Plan, found: Sequence[Tried]) -> dict[str, Any]:
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
    of = plan.judged
    return {
        "sweep": plan.name,
        "metric": of.key,
        "unit": of.unit,
        "trials": [one.fields() for one in found],
        "searches": searches,
    }


def _keys(plan: Plan) -> list[str]:
    """List the searched keys."""
    stages = plan.tune.stages if plan.tune else ()
    return [*dict.fromkeys(key for stage in stages for key in stage.space)]


# --- For readers --------------------------------------------------------------------------------


def sheet(plan: Plan, found: Sequence[Tried]) -> grid.PrintedTable:
    """Make a grid for each column of the sweep, and a line on the searches of each cell."""
    assert plan.tune is not None
    name = plan.judged.validated
    often = plan.searches_said
    specs = [one.trial.cell.spec for one in found]
    trained = f"{training(plan, specs)}." if specs else ""
    return grid.PrintedTable(
        title=headed(plan.title or plan.name, trained),
        grids=tuple(_grid(plan, column.label, found) for column in plan.columns if column.tuned),
        caption=(
            f"{often[0].upper()}{often[1:]} of {captions.count(plan.tune.trials_each, 'trial')} a "
            f"variant (sampler {plan.tune.sampler}); all trials of a search have one seed; "
            f"score: {name}, with its standard error.",
            *(line for cell in plan.cells if plan.is_tuned(cell) for line in _worth(plan, cell)),
        ),
    )


def _grid(plan: Plan, column: str, found: Sequence[Tried]) -> grid.Grid:
    keys = _keys(plan)
    words = ("trial", *keys, "score", "error", "state", "chosen")
    lines = []
    above = ""
    for one in found:
        if one.trial.cell.column != column:
            continue
        search = f"{one.trial.cell.row}, search {one.trial.search}"
        if search != above:
            lines.append(_line([search], heading=len(words)))
            above = search
        values = [footnotes.setting(one.trial.params.get(key)) for key in keys]
        scores = [_number(plan, value) for value in (one.score, one.error)]
        mark = "chosen" if one.chosen else ""
        lines.append(_line([f"#{one.seed}.{one.trial.number}", *values, *scores, one.state, mark]))
    numbers = (*keys, "score", "error")
    return grid.Grid(
        title=plan.heading(column) if column else "",
        headings=tuple(grid.GridCell(word, number=word in numbers) for word in words),
        lines=tuple(lines),
    )


def _line(texts: Sequence[str], heading: int = 0) -> grid.GridLine:
    """Make a line. `heading`: the number of cells that a heading spans."""
    texts = [*texts, *[""] * (heading - 1)]
    return grid.GridLine(tuple(map(grid.GridCell, texts)), heading=heading > 0)


def _number(plan: Plan, value: float | None) -> str:
    return "-" if value is None else f"{value:.{plan.judged.decimals}f}"


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
    explored = ", ".join(f"{key} {_range(found)} %" for key, found in shares.items())
    parts = [f"explored share of the range: {explored}"] if explored else []
    parts += footnotes.doubts(cell.chosen)
    yield f"{place}: {'; '.join(parts)}." if parts else f"{place}: settings are chosen."


def _range(shares: Sequence[float]) -> str:
    low, high = (f"{share:.0f}" for share in (min(shares), max(shares)))
    return low if low == high else f"{low}-{high}"
