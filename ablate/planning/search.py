"""The search for settings, the same for every variant: one Optuna study a search and stage.

Trials are ordinary runs of the plan: dispatched, resumed, shared and verified like any other. A
search is a function of their results alone. Trials are asked in rounds, by a sampler that is seeded
anew for each (seed, search, stage, round), and their results go to Optuna in the order of the
trials. So a search can't depend on which trial finished first, and after any crash the driver
rebuilds it from the folders, up to where it was; `plan` and `merge` do the same. All cells get the
same space, budget, sampler seeds and training seeds; trial 0 of each is the baseline's default, and
the next are spread over the whole range before any sampler follows what was found.

Used by `running/driver.py` while `ablate sweep` drives, `api/training.py` (`grow_plan`, also for
`ablate plan`) and `audit/merge.py`.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ablate.planning.cell import Cell, Trial, TuningStage, TuningWinner
from ablate.planning.design import Standing
from ablate.planning.parents import FROM_PREFIX, is_of_parent, trees_of
from ablate.planning.plan import Plan
from ablate.planning.settings import LR_FACTORS, sweep_file_name
from ablate.planning.tuning import (
    SPREAD,
    default_of,
    distribution,
    explored,
    grid_points,
    is_at_edge,
    make_sampler,
    spread_points,
)
from ablate.run import LENGTH_KEYS, RunSpec, validated_run
from ablate.shared import UserError, make_folder, sync_folder

if TYPE_CHECKING:
    import optuna

MetricLines = Sequence[Mapping[str, Any]]  # lines of metrics.jsonl
MetricsReader = Callable[[str], MetricLines]  # run id -> its metric lines
ResultReader = Callable[[str], Mapping[str, Any] | None]  # run id -> its result, or None


class Grower(Protocol):
    """An object that adds runs to a plan as results come.

    If it `prunes`, it also ends runs that aren't worth going on.
    """

    @property
    def prunes(self) -> bool: ...

    @property
    def standing(self) -> Standing:
        """The decisions of its looks so far."""

    def grow(self, results: ResultReader, metrics: MetricsReader) -> Plan | None: ...

    def prune(self, run: str, metrics: MetricLines) -> int | None: ...


class Search:
    """The searches of a plan. `grow` is called again as results come."""

    def __init__(self, plan: Plan) -> None:
        """Begin the searches of a plan as expanded, with no trial asked.

        Raises UserError for a space that does not fit the plan's cells.
        """
        assert plan.tune is not None
        self._plan = plan
        self._searches: list[CellSearch] = []
        self.extend(plan)

    def extend(self, plan: Plan) -> None:
        """Go on with a plan whose cells have more seeds, each of which brings a search."""
        self._plan = plan
        old_searches = {(_place(search.cell), search.number): search for search in self._searches}
        numbers_by_cell = {_place(cell): plan.searches(cell) for cell in plan.cells}
        all_numbers = dict.fromkeys(itertools.chain(*numbers_by_cell.values()))
        self._searches = []
        for number in all_numbers:  # the first searches of all cells, then the second ones, ...
            for cell in plan.cells:
                place = _place(cell)
                if number in numbers_by_cell[place]:
                    search = old_searches.get((place, number)) or CellSearch(plan, cell, number)
                    self._searches.append(search)

    def grow(self, results: ResultReader, metrics: MetricsReader) -> Plan | None:
        """Return the plan with all trials that can be asked by now, and the runs of ended searches.

        Return None where nothing is new since the last time.
        """
        moved = [search.advance(results, metrics) for search in self._searches]
        if not any(moved):
            return None
        trials: list[Trial] = []  # the first ones of all searches, then the second ones, ...
        for row in itertools.zip_longest(*(search.trials for search in self._searches)):
            trials += [trial for trial in row if trial is not None]
        searches_by_cell: dict[tuple[str, str], list[CellSearch]] = {}
        for search in self._searches:
            searches_by_cell.setdefault(_place(search.cell), []).append(search)
        cells = []
        for cell in self._plan.cells:
            searches = searches_by_cell.get(_place(cell))
            cells.append(self._with_runs(cell, searches) if searches else cell)
        return replace(self._plan, trials=tuple(trials), cells=tuple(cells))

    def _with_runs(self, cell: Cell, searches: Sequence[CellSearch]) -> Cell:
        """Return the cell with the runs of its searches that are over."""
        seeds_by_search = self._plan.searches(cell)
        winners: list[TuningWinner] = []
        specs: list[RunSpec] = []
        ids: dict[int, str] = {}
        for search in searches:
            winner = search.winner(seeds_by_search)
            if winner is not None:
                winners.append(winner)
                specs.append(search.spec)
                ids |= search.spec.ids(winner.seeds)
        return replace(
            cell,
            ids={seed: ids[seed] for seed in self._plan.seeds if seed in ids},
            chosen=tuple(winners),
            specs=tuple(specs),
        )

    @property
    def standing(self) -> Standing:
        return {}

    @property
    def prunes(self) -> bool:
        assert self._plan.tune is not None
        return self._plan.tune.pruner != "none"

    def prune(self, run: str, metrics: MetricLines) -> int | None:
        """Return the step after which a running trial is not worth going on.

        Return None where it is, and where the run is no trial.
        """
        if not self.prunes:
            return None
        for search in self._searches:
            step = search.prune(run, metrics)
            if step:
                return step
        return None

    def write(self, folder: Path) -> Path:
        """Write all studies as one Optuna journal, `NAME.log` in `folder`, for optuna-dashboard.

        Return its path. The file is written whole or not at all, and never read back.
        """
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState

        states = (TrialState.COMPLETE, TrialState.PRUNED)
        make_folder(folder)
        path = folder / f"{sweep_file_name(self._plan.name)}.log"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as place:
            journal = Path(place) / "journal"
            storage = JournalStorage(JournalFileBackend(str(journal)))
            for search in self._searches:
                several = len(self._plan.searches(search.cell)) > 1
                for name, study in search.studies(several):
                    trials = study.get_trials(deepcopy=False, states=states)
                    journal_study = optuna.create_study(
                        storage=storage, study_name=name, direction=study.direction
                    )
                    journal_study.add_trials(map(_plain, trials))
            os.replace(journal, path)
        sync_folder(folder)
        return path


def _place(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.column


def _plain(trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    """Return the trial without its sampler's notes, which may be a pickle."""
    from optuna.trial import create_trial

    return create_trial(
        state=trial.state,
        value=trial.value,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=trial.user_attrs,
        intermediate_values=trial.intermediate_values,
    )


# --- One search of a cell, stage by stage -------------------------------------------------------


class CellSearch:
    """A search of a cell, stage by stage."""

    def __init__(self, plan: Plan, cell: Cell, number: int) -> None:
        assert plan.tune is not None
        if plan.tune.parents and cell.spec.parent is None:
            raise UserError("from.tune: runs start from no other run; give `from:` its settings")
        self._tune, self._metric = plan.tune, plan.objective
        self.cell, self.number = cell, number
        self._seed = plan.tune.trial_seed(number)
        baseline = plan.cell(plan.baseline, cell.column)
        assert baseline is not None
        self.spec = cell.spec  # with the winners of the stages that are done
        self._studies: list[tuple[TuningStage, optuna.Study]] = []
        self._defaults = [
            {key: default_of(baseline.spec, key, values) for key, values in stage.space.items()}
            for stage in plan.tune.stages
        ]
        # Of the seeds that take the winner, the first: trials start from its parent. Where the
        # settings of parents are searched, the parent of a trial has the trial's seed.
        self._first_seed = plan.searches(cell)[number][0]
        self._params: dict[str, Any] = {}  # the settings of these winners
        self._noise: tuple[str, ...] = ()  # keys of stages whose winner may be the luck of a draw
        self._cut: dict[str, int | None] = {}  # finished run -> step where it was pruned
        self._open_trials: list[tuple[Trial, optuna.trial.Trial]] = []  # without results
        self._judges: list[Judge] = []  # one for each trial of `_open_trials`
        self._finished = 0  # number of trials of this stage whose results the study has
        self._spent = 0.0  # cost of the trials, in whole ones
        self._multiply_adds = 0.0  # of the trials so far
        self.trials: list[Trial] = []
        self._winner: TuningWinner | None = None

    def advance(self, results: ResultReader, metrics: MetricsReader) -> bool:
        """Report finished rounds to the study, and ask the next.

        Return False where there was nothing to do.
        """
        moved = False
        while self._winner is None:
            if self._open_trials:
                runs = [only_run(trial.cell.ids) for trial, _ in self._open_trials]
                run_results = [result for run in runs if (result := results(run)) is not None]
                if len(run_results) < len(runs):
                    break
                run_metrics = [metrics(run) for run in runs]
                self._tell(list(zip(run_results, run_metrics, strict=True)))
            moved = True
            if self._studies and self._finished == self._studies[-1][0].trials:
                self._close_stage()
            else:
                self._ask()
        return moved

    def prune(self, run: str, metrics: MetricLines) -> int | None:
        """Return what `Search.prune` does.

        Only the rounds before are looked at, so that the speed of trials doesn't matter.
        """
        for place, (trial, _) in enumerate(self._open_trials):
            if run in trial.cell.ids.values():
                return self._judge(place)(self._scored_lines(metrics))
        return None

    def _tell(self, outcomes: Sequence[tuple[Mapping[str, Any], MetricLines]]) -> None:
        """Report the results of a round to the study, in the order of its trials.

        `outcomes`: (result, metric lines) of each. Equal trials are one run, which is paid and
        judged once.
        """
        from optuna.trial import TrialState

        study = self._studies[-1][1]
        repeats = []  # for each trial: is it the run of an earlier one?
        prunes = self._tune.pruner != "none"
        for place, (trial, _) in enumerate(self._open_trials):
            run = only_run(trial.cell.ids)
            repeats.append(run in self._cut)
            if run not in self._cut:
                _, lines = outcomes[place]
                judge = self._judge(place) if prunes else None
                self._cut[run] = None if judge is None else judge(self._scored_lines(lines))
        for (trial, live_trial), (result, lines), is_repeat in zip(
            self._open_trials, outcomes, repeats, strict=True
        ):
            step = self._cut[only_run(trial.cell.ids)]
            lines_to_end = [line for line in lines if step is None or line["step"] <= step]
            for n, line in enumerate(self._scored_lines(lines_to_end), start=1):
                live_trial.report(self._score(line, "val_"), n)
                live_trial.should_prune()  # for the pruner's own notes; the decision is made above
            is_pruned = step is not None or result["status"] == "pruned"
            if is_pruned:
                frozen_trial = study.tell(live_trial, None, state=TrialState.PRUNED)
            else:
                value = self._value(result, trial.cell.spec)
                frozen_trial = study.tell(live_trial, value, state=TrialState.COMPLETE)
            self.trials[trial.number] = replace(
                trial,
                score=frozen_trial.value,  # the last score of a pruned trial
                error=self._error(frozen_trial.value, lines_to_end),
                state="pruned" if is_pruned else result["status"],
            )
            if is_repeat:
                continue
            if is_pruned and lines_to_end:
                last_line = lines_to_end[-1]
                steps = last_line["step"]
                self._spent += trial.cell.spec.share_done(last_line)
            else:
                steps = result["step"]
                self._spent += 1.0
            self._multiply_adds += 3.0 * _forward(trial.cell.spec, result) * steps
        self._finished += len(self._open_trials)
        self._open_trials, self._judges = [], []

    def _judge(self, place: int) -> Judge:
        """Return the judge of whether the trial at `place` in the round goes on."""
        from optuna.trial import TrialState, create_trial

        if not self._judges:
            study = self._studies[-1][1]
            trials = study.get_trials(
                deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)
            )
            for number, _ in enumerate(self._open_trials):
                alone = self._new_study()
                alone.add_trials(trials)
                alone.add_trials([create_trial(state=TrialState.FAIL)] * number)  # set its number
                self._judges.append(Judge(alone.ask(), partial(self._score, prefix="val_")))
        return self._judges[place]

    def winner(self, seeds_by_search: Mapping[int, tuple[int, ...]]) -> TuningWinner | None:
        """Return the winner, once the search is over; None before.

        `seeds_by_search`: the number of every search -> the seeds that take its winner.
        """
        if self._winner is None:
            return None
        return replace(self._winner, seeds=seeds_by_search[self.number])

    def studies(self, several: bool) -> list[tuple[str, optuna.Study]]:
        """Return (name, study) of every stage begun. `several`: has its cell other searches?"""
        label = self.cell.label + (f" search {self.number}" if several else "")
        has_stages = len(self._tune.stages) > 1
        studies = []
        for n, (_, study) in enumerate(self._studies, start=1):
            name = f"{label} stage {n}" if has_stages else label
            studies.append((name, study))
        return studies

    def _new_study(self) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = {
            "none": optuna.pruners.NopPruner,
            "median": optuna.pruners.MedianPruner,
            "hyperband": optuna.pruners.HyperbandPruner,
        }[self._tune.pruner]
        # Hyperband hashes the name, which is random by default.
        return optuna.create_study(study_name="search", direction=self._goal, pruner=pruner())

    def _ask(self) -> None:
        if not self._studies or self._finished == self._studies[-1][0].trials:
            self._studies.append((self._tune.stages[len(self._studies)], self._new_study()))
            self._finished = 0
        stage, study = self._studies[-1]
        place = len(self._studies) - 1
        size = self._tune.round + (self._finished == 0)  # the first time the default trial, too
        size = min(size, stage.trials - self._finished)
        key = (self._tune.seed, self.number, place)
        default, points = self._defaults[place], []
        if self._tune.sampler == "grid":
            points = grid_points(stage, default)
        elif self._finished <= SPREAD:
            points = [default, *spread_points(stage, SPREAD + self._tune.round, key)]
        for params in points[self._finished : self._finished + size]:
            study.enqueue_trial(params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns that some samplers are experimental
            study.sampler = make_sampler(self._tune, (*key, self._finished))
            distributions = {key: distribution(values) for key, values in stage.space.items()}
            for _ in range(size):
                live_trial = study.ask(fixed_distributions=distributions)
                trial = self._trial(stage, place, dict(live_trial.params))
                live_trial.set_user_attr("run", only_run(trial.cell.ids))
                self._open_trials.append((trial, live_trial))
                self.trials.append(trial)

    def _trial(self, stage: TuningStage, place: int, params: dict[str, Any]) -> Trial:
        spec = apply_settings(self.spec, {**stage.at, **params})
        keys = {*stage.at, *params, *self._params}
        if self._tune.parents:
            assert spec.parent is not None  # see `__init__`
            spec = spec.parent.without_seed(spec.parent)
            keys = {key.removeprefix(FROM_PREFIX) for key in keys}
        if not any(map(is_of_parent, keys)):
            spec = spec.with_parent_seed(self._first_seed)
        row, column, overrides = self.cell.row, self.cell.column, self.cell.overrides
        cell = Cell(row, column, spec, spec.ids((self._seed,)), overrides)
        return Trial(len(self.trials), place, params, cell, search=self.number)

    def _close_stage(self) -> None:
        stage, study = self._studies[-1]
        best = study.best_trial
        start = len(self.trials) - stage.trials
        self._params |= best.params
        self.spec = apply_settings(self.spec, best.params)
        if _is_noise(self.trials[start:], self._goal):
            self._noise += tuple(stage.space)
        if len(self._studies) < len(self._tune.stages):
            self._ask()
            return
        edges = []
        values_tried = {}
        for stage in self._tune.stages:
            for key, values in stage.space.items():
                if is_at_edge(self._params[key], values):
                    edges.append(key)
                trial_values = [t.params[key] for t in self.trials if key in t.params]
                values_tried[key] = explored(trial_values, values)
        assert best.value is not None
        self._winner = TuningWinner(
            params=self._params,
            trial=start + best.number,
            trials=len(self.trials),
            value=best.value,
            edges=tuple(edges),
            spent=self._spent,
            multiply_adds=self._multiply_adds,
            search=self.number,
            seed=self._seed,
            explored=values_tried,
            noise=self._noise,
        )

    @property
    def _goal(self) -> Literal["minimize", "maximize"]:
        return "minimize" if self._metric.sign < 0 else "maximize"

    def _value(self, result: Mapping[str, Any], spec: RunSpec) -> float:
        """Return the final validation score of a trial with this spec.

        A trial that diverged is as bad as guessing. Raises UserError where nothing says how bad
        that is.
        """
        if result["status"] == "finished":
            return self._score(result["validation"])
        worst = spec.worst(self._metric)
        if worst is None:  # our own metrics always have one
            raise UserError(
                f"tune: a trial diverged, and trainer.metrics.{self._metric.key} says not what "
                f"that counts as; declare its chance or its range, and sweep again"
            )
        return worst

    def _scored_lines(self, lines: MetricLines) -> MetricLines:
        """Return the lines that have the metric of the search, as all lines of our training do."""
        return [line for line in lines if f"val_{self._metric.key}" in line]

    def _score(self, scores: Mapping[str, Any], prefix: str = "") -> float:
        key = self._metric.key
        if prefix + key not in scores:
            raise UserError(
                f"tune: {self.cell.row}: a trial logged no {key}, by which trials are judged; call "
                f"run.log(step, {key}=...) with its value on validation data"
            )
        return float(scores[prefix + key])

    def _error(self, score: float | None, lines: MetricLines) -> float | None:
        """Return the standard error of a score that is a share of the validation set (binomial).

        Return None for any other metric.
        """
        n = next((line["val_n"] for line in lines if line.get("val_n")), None)
        if score is None or n is None or not self._metric.is_share:
            return None
        return math.sqrt(max(score * (1 - score), 0.0) / n)


class Judge:
    """The pruner's judgement of one trial; of the others it sees only those of earlier rounds."""

    def __init__(self, trial: optuna.trial.Trial, score: Callable[[Mapping[str, Any]], float]):
        self._trial, self._score = trial, score
        self._line_count = 0
        self._step: int | None = None

    def __call__(self, lines: MetricLines) -> int | None:
        """Return the step at which the trial ends, or None where it goes on.

        Lines that it saw before must be the same again.
        """
        for line in lines[self._line_count :]:
            if self._step is not None:
                break
            self._line_count += 1
            self._trial.report(self._score(line), self._line_count)
            if self._trial.should_prune():
                self._step = int(line["step"])
        return self._step


def apply_settings(spec: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """Return a cell's spec with dotted keys set, and checked.

    Raises UserError for a key that the spec does not have, and for values that `build_run` refuses.
    """
    for key in values:
        if key.endswith(LENGTH_KEYS[0]):  # steps win over examples, and examples over epochs:
            level = key.removesuffix("train." + key.rpartition(".")[2])
            length_keys = (f"{level}train.steps", f"{level}train.examples")
            values = {**dict.fromkeys(length_keys), **values}  # so the given one counts
    changed = RunSpec.of(copy.deepcopy(dict(spec.tree)))
    for key, value in values.items():
        trees, path = trees_of(changed, key)
        section, _, leaf = path.rpartition(".")
        if not trees:
            raise UserError(f"tune: {key}: no such key; `ablate config` prints all")
        for subtree in trees:
            if path.startswith(LR_FACTORS):
                factors = subtree["optim"].get("lr_mult") or {}
                subtree["optim"]["lr_mult"] = {**factors, path.removeprefix(LR_FACTORS): value}
            else:
                _section(subtree, section, key)[leaf] = value
    return validated_run(changed.with_seed(0)).spec.without_seed(spec)


def _forward(spec: RunSpec, result: Mapping[str, Any]) -> float:
    """Return the multiply-adds of the forward passes of one step; 0 where nobody counted them."""
    forward = result.get("multiply_adds", 0)
    return float(forward * spec.tree["train"]["batch"]) if forward else 0.0


def _section(tree: Mapping[str, Any], section: str, key: str) -> dict[str, Any]:
    values = tree.get(section)
    if not isinstance(values, dict):
        raise UserError(f"tune: {key}: no such key; `ablate config` prints all")
    return values


def only_run(ids: Mapping[int, str]) -> str:
    [run] = ids.values()
    return run


def _is_noise(trials: Sequence[Trial], goal: str) -> bool:
    """Return whether the best two trials differ by no more than chance allows.

    That is the standard error of their difference. It is False for fewer than two scores with
    errors.
    """
    scores = {
        only_run(trial.cell.ids): (trial.score, trial.error)
        for trial in trials
        if trial.state == "finished" and trial.score is not None and trial.error is not None
    }
    best = sorted(scores.values(), reverse=goal == "maximize")[:2]
    if len(best) < 2:
        return False
    (best_score, best_error), (second_score, second_error) = best
    return abs(best_score - second_score) <= math.hypot(best_error, second_error)
