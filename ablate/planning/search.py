"""The same searches for every variant before it is compared: one Optuna study a search and stage.

Trials are ordinary runs of the plan: dispatched, resumed, shared and verified like any other. A
search is a function of their results alone. Trials are asked in rounds, by a sampler seeded anew
for each (seed, search, stage, round), and told in their order: so it can't depend on who finished
first, and after any crash it is made again from the folders, up to where it was. All cells get the
same space, budget, sampler seeds and training seeds; trial 0 of each is the baseline's default, and
the next are spread over the whole range before any sampler follows what was found.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ablate.planning.cell import Cell
from ablate.planning.cell_search import CellSearch, Lines, Metrics, Results
from ablate.planning.design import Standing
from ablate.planning.plan import Plan
from ablate.planning.tree import file_name
from ablate.shared import spec
from ablate.shared.files import make_folder, sync_folder

if TYPE_CHECKING:
    import optuna


class Grower(Protocol):
    """What makes a plan grow as results come and, if it `prunes`, ends runs that aren't worth going
    on."""

    @property
    def prunes(self) -> bool: ...

    @property
    def standing(self) -> Standing:
        """What its looks have decided so far."""

    def grow(self, results: Results, metrics: Metrics) -> Plan | None: ...

    def prune(self, run: str, metrics: Lines) -> int | None: ...


class Search:
    """The searches of a plan. `grow` is called again as results come."""

    def __init__(self, plan: Plan) -> None:
        """`plan`: as expanded, with nothing asked. Raises UserError for a space that does not fit
        its cells."""
        assert plan.tune is not None
        self._plan = plan
        self._searches: list[CellSearch] = []
        self.extend(plan)

    def extend(self, plan: Plan) -> None:
        """Go on with the plan, whose cells have more seeds: each brings a search."""
        self._plan = plan
        begun = {(_place(search.cell), search.number): search for search in self._searches}
        taken = {_place(cell): plan.searches(cell) for cell in plan.cells}
        self._searches = [
            begun.get((_place(cell), number)) or CellSearch(plan, cell, number)
            for number in dict.fromkeys(n for numbers in taken.values() for n in numbers)
            for cell in plan.cells
            if number in taken[_place(cell)]
        ]

    def grow(self, results: Results, metrics: Metrics) -> Plan | None:
        """The plan with all trials that can be asked by now, and with the runs of every search
        that is over; None where nothing is new since the last time."""
        moved = [search.advance(results, metrics) for search in self._searches]
        if not any(moved):
            return None
        rounds = itertools.zip_longest(*(search.trials for search in self._searches))
        trials = (trial for trials in rounds for trial in trials if trial is not None)
        of_cell: dict[tuple[str, str], list[CellSearch]] = {}
        for search in self._searches:
            of_cell.setdefault(_place(search.cell), []).append(search)
        cells = tuple(
            self._reported(cell, of_cell[_place(cell)]) if _place(cell) in of_cell else cell
            for cell in self._plan.cells
        )
        return replace(self._plan, trials=tuple(trials), cells=cells)

    def _reported(self, cell: Cell, searches: Sequence[CellSearch]) -> Cell:
        """The cell with the runs of its searches that are over."""
        taken = self._plan.searches(cell)
        found = [
            (choice, search.spec)
            for search in searches
            if (choice := search.choice(taken)) is not None
        ]
        ids: dict[int, str] = {}
        for choice, tree in found:
            ids |= spec.ids_of(tree, choice.seeds)
        return replace(
            cell,
            ids={seed: ids[seed] for seed in self._plan.seeds if seed in ids},
            chosen=tuple(choice for choice, _ in found),
            specs=tuple(tree for _, tree in found),
        )

    @property
    def standing(self) -> Standing:
        return {}

    @property
    def prunes(self) -> bool:
        assert self._plan.tune is not None
        return self._plan.tune.pruner != "none"

    def prune(self, run: str, metrics: Lines) -> int | None:
        """The step after which a running trial is not worth going on; None: it is, or no trial."""
        if not self.prunes:
            return None
        return next((step for each in self._searches if (step := each.prune(run, metrics))), None)

    def write(self, folder: Path) -> Path:
        """All studies as one Optuna journal, `NAME.log` in `folder`, for optuna-dashboard. Whole
        or not at all; never read back."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState

        told = (TrialState.COMPLETE, TrialState.PRUNED)
        make_folder(folder)
        path = folder / f"{file_name(self._plan.name)}.log"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as place:
            journal = Path(place) / "journal"
            storage = JournalStorage(JournalFileBackend(str(journal)))
            for search in self._searches:
                for name, study in search.studies(
                    several=len(self._plan.searches(search.cell)) > 1
                ):
                    kept = optuna.create_study(
                        storage=storage, study_name=name, direction=study.direction
                    )
                    kept.add_trials(map(_plain, study.get_trials(deepcopy=False, states=told)))
            os.replace(journal, path)
        sync_folder(folder)
        return path


def _place(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.column


def _plain(trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    """Without what its sampler noted, which may be a pickle."""
    from optuna.trial import create_trial

    return create_trial(
        state=trial.state,
        value=trial.value,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=trial.user_attrs,
        intermediate_values=trial.intermediate_values,
    )
