"""The same search for every variant before it is compared: one Optuna study a cell.

Trials are ordinary runs of the plan: dispatched, resumed, shared and verified like any other. A
search is a function of their results alone. Trials are asked in rounds, by a sampler seeded anew
for each (seed, stage, round), and told in their order: so it can't depend on who finished first,
and after any crash it is made again from the folders, up to where it was. All cells get the same
space, budget and sampler seeds, and the baseline's default is trial 0 of each.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablate import spec
from ablate.plan import FIRST_TUNING_SEED, Cell, Choice, Plan, Stage, Trial, Tune, file_name
from ablate.rundir import sync_folder
from ablate.spec import UserError

if TYPE_CHECKING:
    import optuna

Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl
Metrics = Callable[[str], Lines]  # run id -> them
Results = Callable[[str], Mapping[str, Any] | None]  # run id -> its result, once it has one
EDGE = 0.02  # of a range, from its ends


class Search:
    """The searches of a plan. `grow` is called again as results come."""

    def __init__(self, plan: Plan) -> None:
        """`plan`: as expanded, with nothing asked. Raises UserError for a space that does not fit
        its cells."""
        assert plan.tune is not None
        self._plan = plan
        self._cells = [_CellSearch(plan, cell) for cell in plan.cells]

    def grow(self, results: Results, metrics: Metrics) -> Plan | None:
        """The plan with all trials that can be asked by now, and with the runs of every cell whose
        settings are chosen; None where nothing is new since the last time."""
        moved = [cell.advance(results, metrics) for cell in self._cells]
        if not any(moved):
            return None
        rounds = itertools.zip_longest(*(cell.trials for cell in self._cells))
        trials = (trial for trials in rounds for trial in trials if trial is not None)
        cells = tuple(cell.reported(self._plan.seeds) for cell in self._cells)
        return replace(self._plan, trials=tuple(trials), cells=cells)

    def prune(self, run: str, metrics: Lines) -> int | None:
        """The step after which a running trial is not worth going on; None: it is, or no trial."""
        assert self._plan.tune is not None
        if self._plan.tune.pruner == "none":
            return None
        return next((step for cell in self._cells if (step := cell.prune(run, metrics))), None)

    def write(self, folder: Path) -> Path:
        """All studies as one Optuna journal, `NAME.log` in `folder`, for optuna-dashboard. Whole
        or not at all; never read back."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState

        told = (TrialState.COMPLETE, TrialState.PRUNED)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{file_name(self._plan.name)}.log"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as place:
            journal = Path(place) / "journal"
            storage = JournalStorage(JournalFileBackend(str(journal)))
            for cell in self._cells:
                for name, study in cell.studies():
                    kept = optuna.create_study(
                        storage=storage, study_name=name, direction=study.direction
                    )
                    kept.add_trials(map(_plain, study.get_trials(deepcopy=False, states=told)))
            os.replace(journal, path)
        sync_folder(folder)
        return path


class _CellSearch:
    """The search of one cell, stage by stage."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        assert plan.tune is not None
        self._tune, self._cell, self._metric = plan.tune, cell, plan.analysis.metric
        self._chance = 1 / int(cell.spec["data"]["classes"])
        baseline = plan.cell(plan.baseline, cell.column)
        assert baseline is not None
        self._spec = dict(cell.spec)
        self._studies: list[tuple[Stage, optuna.Study]] = []
        self._defaults = [
            {key: _default(baseline.spec, key, values) for key, values in stage.space.items()}
            for stage in plan.tune.stages
        ]
        self._params: dict[str, Any] = {}  # winners of the stages that are done
        self._asked: list[tuple[Trial, optuna.trial.Trial]] = []  # not told
        self._judges: list[_Judge] = []  # of these
        self._told = 0  # trials of the stage
        self._spent = 0.0  # of the trials, in whole ones
        self._multiply_adds = 0.0  # of what is spent
        self.trials: list[Trial] = []
        self._choice: Choice | None = None

    def advance(self, results: Results, metrics: Metrics) -> bool:
        """Tell rounds that are done and ask the next; False where there was nothing to do."""
        moved = False
        while self._choice is None:
            if self._asked:
                runs = [_only(trial.cell.ids) for trial, _ in self._asked]
                found = [results(run) for run in runs]
                if any(result is None for result in found):
                    break
                self._tell(
                    [(result or {}, metrics(run)) for run, result in zip(runs, found, strict=True)]
                )
            moved = True
            if self._studies and self._told == self._studies[-1][0].trials:
                self._close_stage()
            else:
                self._ask()
        return moved

    def prune(self, run: str, metrics: Lines) -> int | None:
        """See Search.prune. Only the rounds before are looked at, so that nobody's speed counts."""
        for place, (trial, _) in enumerate(self._asked):
            if run in trial.cell.ids.values():
                return self._judge(place)(metrics)
        return None

    def _tell(self, found: Sequence[tuple[Mapping[str, Any], Lines]]) -> None:
        """The results of a round, in the order of its trials."""
        from optuna.trial import TrialState

        study = self._studies[-1][1]
        cut: list[int | None] = [None] * len(found)
        if self._tune.pruner != "none":
            cut = [self._judge(place)(lines) for place, (_, lines) in enumerate(found)]
        for (trial, asked), (result, lines), step in zip(self._asked, found, cut, strict=True):
            counted = [line for line in lines if step is None or line["step"] <= step]
            for n, line in enumerate(counted, start=1):
                asked.report(self._score(line, "val_"), n)
                asked.should_prune()  # for what pruners note of a trial; it is decided above
            early = step is not None or result["status"] == "pruned"
            told = study.tell(
                asked,
                None if early else self._value(result),
                state=TrialState.PRUNED if early else TrialState.COMPLETE,
            )
            self.trials[trial.number] = replace(trial, score=told.value)  # pruned: its last one
            self._spent += _share(trial.cell.spec, counted[-1]) if early and counted else 1.0
            steps = counted[-1]["step"] if early and counted else result["step"]
            forward = result.get("multiply_adds", 0) * trial.cell.spec["train"]["batch"]
            self._multiply_adds += 3.0 * forward * steps
        self._told += len(self._asked)
        self._asked, self._judges = [], []

    def _judge(self, place: int) -> _Judge:
        """Whether the trial at that place of the round goes on."""
        from optuna.trial import TrialState, create_trial

        if not self._judges:
            study = self._studies[-1][1]
            told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            for before, _ in enumerate(self._asked):
                alone = self._new_study()
                alone.add_trials(told)
                alone.add_trials([create_trial(state=TrialState.FAIL)] * before)  # for its number
                self._judges.append(_Judge(alone.ask(), partial(self._score, prefix="val_")))
        return self._judges[place]

    def reported(self, seeds: tuple[int, ...]) -> Cell:
        """The cell as it is to be reported: without runs until its settings are chosen."""
        if self._choice is None:
            return replace(self._cell, ids={})
        ids = _ids(self._spec, seeds)
        return replace(self._cell, spec=self._spec, ids=ids, chosen=self._choice)

    def studies(self) -> list[tuple[str, optuna.Study]]:
        """(name, study) of every stage begun."""
        label = self._cell.row + (f"@{self._cell.column}" if self._cell.column else "")
        several = len(self._tune.stages) > 1
        return [
            (f"{label} stage {n}" if several else label, study)
            for n, (_, study) in enumerate(self._studies, start=1)
        ]

    def _new_study(self) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = {
            "none": optuna.pruners.NopPruner,
            "median": optuna.pruners.MedianPruner,
            "hyperband": optuna.pruners.HyperbandPruner,
        }[self._tune.pruner]
        # Hyperband hashes the name, which would else be a random one.
        return optuna.create_study(study_name="search", direction=self._goal, pruner=pruner())

    def _ask(self) -> None:
        if not self._studies or self._told == self._studies[-1][0].trials:
            self._studies.append((self._tune.stages[len(self._studies)], self._new_study()))
            self._told = 0
        stage, study = self._studies[-1]
        place = len(self._studies) - 1
        number = self._told // self._tune.round
        size = min(self._tune.round, stage.trials - self._told)
        default = self._defaults[place]
        if self._told == 0:
            study.enqueue_trial(default)
        if self._tune.sampler == "grid":
            for params in _points(stage, default)[max(self._told, 1) : self._told + size]:
                study.enqueue_trial(params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of samplers that Optuna calls experimental
            study.sampler = _sampler(self._tune, (place, number))
            distributions = {key: _distribution(values) for key, values in stage.space.items()}
            for _ in range(size):
                asked = study.ask(fixed_distributions=distributions)
                trial = self._trial(stage, place, dict(asked.params))
                asked.set_user_attr("run", _only(trial.cell.ids))
                self._asked.append((trial, asked))
                self.trials.append(trial)

    def _trial(self, stage: Stage, place: int, params: dict[str, Any]) -> Trial:
        number = len(self.trials)
        tree = applied(self._spec, {**stage.at, **params})
        cell = replace(
            self._cell, spec=tree, ids=_ids(tree, (FIRST_TUNING_SEED + number,)), chosen=None
        )
        return Trial(number, place, params, cell)

    def _close_stage(self) -> None:
        stage, study = self._studies[-1]
        best = study.best_trial
        self._params |= best.params
        self._spec = applied(self._spec, best.params)
        if len(self._studies) < len(self._tune.stages):
            self._ask()
            return
        before = len(self.trials) - stage.trials
        edges = [
            key
            for stage in self._tune.stages
            for key, values in stage.space.items()
            if _at_edge(self._params[key], values)
        ]
        assert best.value is not None
        self._choice = Choice(
            params=self._params,
            trial=before + best.number,
            trials=len(self.trials),
            value=best.value,
            edges=tuple(edges),
            spent=self._spent,
            multiply_adds=self._multiply_adds,
        )

    @property
    def _goal(self) -> Literal["minimize", "maximize"]:
        return "minimize" if self._metric == "loss" else "maximize"

    def _value(self, result: Mapping[str, Any]) -> float:
        """The trial's final validation score; what diverged is as bad as guessing."""
        if result["status"] == "finished":
            return self._score(result["validation"])
        return -math.log(self._chance) if self._metric == "loss" else self._chance

    def _score(self, scores: Mapping[str, Any], prefix: str = "") -> float:
        metric = self._metric if self._metric in ("loss", "top5") else "top1"
        return float(scores[prefix + metric])


class _Judge:
    """The pruner's word on one trial, of which it sees but those of the rounds before."""

    def __init__(self, trial: optuna.trial.Trial, score: Callable[[Mapping[str, Any]], float]):
        self._trial, self._score = trial, score
        self._seen = 0
        self._step: int | None = None

    def __call__(self, lines: Lines) -> int | None:
        """At which step it ends; None: it goes on. Lines that it saw before are the same again."""
        for line in lines[self._seen :]:
            if self._step is not None:
                break
            self._seen += 1
            self._trial.report(self._score(line), self._seen)
            if self._trial.should_prune():
                self._step = int(line["step"])
        return self._step


def applied(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain tree of a spec, without its seed, with dotted keys set, and checked."""
    lengths = [key for key in ("train.steps", "train.examples", "train.epochs") if key in values]
    if lengths:  # steps win over examples, those over epochs: what is asked must count
        values = {"train.steps": None, "train.examples": None, **values}
    changed = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()
    }
    for key, value in values.items():
        section, _, leaf = key.rpartition(".")
        _section(changed, section, key)[leaf] = value
    whole = spec.to_tree(spec.build({**changed, "seed": 0}))
    del whole["seed"]
    return whole


def _share(tree: Mapping[str, Any], line: Mapping[str, Any]) -> float:
    """How much of its whole training a run had done at a line of its metrics."""
    train = tree["train"]
    if train["steps"] is not None:
        return float(line["step"] / train["steps"])
    if train["examples"] is not None:
        return float(line["step"] * train["batch"] / train["examples"])
    return float(line["epoch"] / train["epochs"])


def _section(tree: dict[str, Any], section: str, key: str) -> dict[str, Any]:
    found = tree.get(section)
    if not isinstance(found, dict):
        raise UserError(f"tune: {key}: no such key; `ablate config` prints all")
    return found


def _ids(tree: Mapping[str, Any], seeds: tuple[int, ...]) -> dict[int, str]:
    identity = spec.tree_identity(tree)
    return {seed: spec.run_id(identity, seed) for seed in seeds}


def _only(ids: Mapping[int, str]) -> str:
    [run] = ids.values()
    return run


def _default(tree: Mapping[str, Any], key: str, values: Mapping[str, tuple[Any, ...]]) -> Any:
    """The baseline's own value of a key: trial 0. Raises UserError where the space lacks it."""
    section, _, leaf = key.rpartition(".")
    found = tree.get(section)
    if not isinstance(found, Mapping) or leaf not in found:
        raise UserError(f"tune.space: {key}: no such key; `ablate config` prints all")
    value = found[leaf]
    [(kind, bounds)] = values.items()
    if kind == "choices":
        if value not in bounds:
            raise UserError(
                f"tune.space: {key}: the baseline has {value!r}, which every search begins with; "
                f"add it to the choices {list(bounds)}"
            )
    elif not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
        raise UserError(
            f"tune.space: {key}: the baseline has {value!r}, which every search begins with; "
            f"widen [{bounds[0]:g}, {bounds[1]:g}] to have it"
        )
    return value


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


def _distribution(values: Mapping[str, tuple[Any, ...]]) -> Any:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    [(kind, bounds)] = values.items()
    if kind == "choices":
        return CategoricalDistribution(bounds)
    if kind == "int":
        return IntDistribution(bounds[0], bounds[1])
    low, high = bounds
    return FloatDistribution(low, high, log=kind == "log")


def _sampler(tune: Tune, key: tuple[int, int]) -> Any:
    """A sampler whose draws are those of (seed, stage, round), whatever came before."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence((tune.seed, *key)).generate_state(1)[0])
    if tune.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    if tune.sampler == "tpe":
        return samplers.TPESampler(seed=seed)
    return samplers.RandomSampler(seed=seed)


def _points(stage: Stage, default: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every point of the grid, the default first."""
    choices = [values["choices"] for values in stage.space.values()]
    points = [dict(zip(stage.space, point, strict=True)) for point in itertools.product(*choices)]
    return [dict(default), *(point for point in points if point != default)]


def _at_edge(value: Any, values: Mapping[str, tuple[Any, ...]]) -> bool:
    """Is a choice so near the end of its range that the best may lie beyond?"""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        numbers = [v for v in bounds if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(bounds) > 2 and value in (min(numbers), max(numbers))
    scale = math.log if kind == "log" else float
    low, high = (scale(bound) for bound in bounds)
    return not EDGE < (scale(value) - low) / (high - low) < 1 - EDGE
