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
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablate.planning.plan import Cell, Choice, Plan, Stage, Trial, Tune, file_name
from ablate.shared import spec
from ablate.shared.build import build_run
from ablate.shared.errors import UserError
from ablate.shared.rundir import sync_folder

if TYPE_CHECKING:
    import optuna

Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl
Metrics = Callable[[str], Lines]  # run id -> them
Results = Callable[[str], Mapping[str, Any] | None]  # run id -> its result, once it has one
EDGE = 0.02  # of a range, from its ends
SPREAD = 8  # trials after the default that only search: spread evenly, whatever the results are


class Search:
    """The searches of a plan. `grow` is called again as results come."""

    def __init__(self, plan: Plan) -> None:
        """`plan`: as expanded, with nothing asked. Raises UserError for a space that does not fit
        its cells."""
        assert plan.tune is not None
        self._plan = plan
        self._taken = plan.tune.searches(plan.seeds)
        self._searches = [
            _CellSearch(plan, cell, number) for number in self._taken for cell in plan.cells
        ]

    def grow(self, results: Results, metrics: Metrics) -> Plan | None:
        """The plan with all trials that can be asked by now, and with the runs of every search
        that is over; None where nothing is new since the last time."""
        moved = [search.advance(results, metrics) for search in self._searches]
        if not any(moved):
            return None
        rounds = itertools.zip_longest(*(search.trials for search in self._searches))
        trials = (trial for trials in rounds for trial in trials if trial is not None)
        cells = tuple(map(self._reported, self._plan.cells))
        return replace(self._plan, trials=tuple(trials), cells=cells)

    def _reported(self, cell: Cell) -> Cell:
        """The cell with the runs of its searches that are over."""
        found = [
            (choice, search.spec)
            for search in self._searches
            if search.cell is cell and (choice := search.choice(self._taken)) is not None
        ]
        ids: dict[int, str] = {}
        for choice, tree in found:
            ids |= _ids(tree, choice.seeds)
        return replace(
            cell,
            ids={seed: ids[seed] for seed in self._plan.seeds if seed in ids},
            chosen=tuple(choice for choice, _ in found),
            specs=tuple(tree for _, tree in found),
        )

    def prune(self, run: str, metrics: Lines) -> int | None:
        """The step after which a running trial is not worth going on; None: it is, or no trial."""
        assert self._plan.tune is not None
        if self._plan.tune.pruner == "none":
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
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{file_name(self._plan.name)}.log"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as place:
            journal = Path(place) / "journal"
            storage = JournalStorage(JournalFileBackend(str(journal)))
            for search in self._searches:
                for name, study in search.studies(several=len(self._taken) > 1):
                    kept = optuna.create_study(
                        storage=storage, study_name=name, direction=study.direction
                    )
                    kept.add_trials(map(_plain, study.get_trials(deepcopy=False, states=told)))
            os.replace(journal, path)
        sync_folder(folder)
        return path


class _CellSearch:
    """One of the searches of a cell, stage by stage."""

    def __init__(self, plan: Plan, cell: Cell, number: int) -> None:
        assert plan.tune is not None
        self._tune, self._metric = plan.tune, plan.analysis.judged
        self.cell, self._number, self._seed = cell, number, plan.tune.trial_seed(number)
        self._chance = 1 / int(cell.spec["data"]["classes"])
        baseline = plan.cell(plan.baseline, cell.column)
        assert baseline is not None
        self.spec = dict(cell.spec)  # with the winners of the stages that are done
        self._studies: list[tuple[Stage, optuna.Study]] = []
        self._defaults = [
            {key: _default(baseline.spec, key, values) for key, values in stage.space.items()}
            for stage in plan.tune.stages
        ]
        self._params: dict[str, Any] = {}  # these winners
        self._noise: tuple[str, ...] = ()  # keys of stages whose winner may be the luck of a draw
        self._cut: dict[str, int | None] = {}  # run that was told -> where it was pruned
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
        """The results of a round, in the order of its trials. Equal trials are one run, which is
        paid and judged once."""
        from optuna.trial import TrialState

        study = self._studies[-1][1]
        again = []
        for place, ((trial, _), (_, lines)) in enumerate(zip(self._asked, found, strict=True)):
            run = _only(trial.cell.ids)
            again.append(run in self._cut)
            if run not in self._cut:
                pruned = self._tune.pruner != "none"
                self._cut[run] = self._judge(place)(lines) if pruned else None
        for (trial, asked), (result, lines), paid in zip(self._asked, found, again, strict=True):
            step = self._cut[_only(trial.cell.ids)]
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
            self.trials[trial.number] = replace(
                trial,
                score=told.value,  # pruned: its last one
                error=self._error(told.value, counted),
                state="pruned" if early else result["status"],
            )
            if paid:
                continue
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

    def choice(self, taken: Mapping[int, tuple[int, ...]]) -> Choice | None:
        """What it chose, once it is over. `taken`: the reports that take each search's winner."""
        return self._choice and replace(self._choice, seeds=taken[self._number])

    def studies(self, several: bool) -> list[tuple[str, optuna.Study]]:
        """(name, study) of every stage begun; `several`: is it one of them in its cell?"""
        label = self.cell.row + (f"@{self.cell.column}" if self.cell.column else "")
        label += f" search {self._number}" if several else ""
        stages = len(self._tune.stages) > 1
        return [
            (f"{label} stage {n}" if stages else label, study)
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
        size = self._tune.round + (self._told == 0)  # the default, and a round
        size = min(size, stage.trials - self._told)
        key = (self._tune.seed, self._number, place)
        default, points = self._defaults[place], []
        if self._tune.sampler == "grid":
            points = _grid(stage, default)
        elif self._told <= SPREAD:
            points = [default, *_spread(stage, SPREAD + self._tune.round, key)]
        for params in points[self._told : self._told + size]:
            study.enqueue_trial(params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of samplers that Optuna calls experimental
            study.sampler = _sampler(self._tune, (*key, self._told))
            distributions = {key: _distribution(values) for key, values in stage.space.items()}
            for _ in range(size):
                asked = study.ask(fixed_distributions=distributions)
                trial = self._trial(stage, place, dict(asked.params))
                asked.set_user_attr("run", _only(trial.cell.ids))
                self._asked.append((trial, asked))
                self.trials.append(trial)

    def _trial(self, stage: Stage, place: int, params: dict[str, Any]) -> Trial:
        tree = applied(self.spec, {**stage.at, **params})
        cell = replace(self.cell, spec=tree, ids=_ids(tree, (self._seed,)))
        return Trial(len(self.trials), place, params, cell, search=self._number)

    def _close_stage(self) -> None:
        stage, study = self._studies[-1]
        best = study.best_trial
        before = len(self.trials) - stage.trials
        self._params |= best.params
        self.spec = applied(self.spec, best.params)
        if _is_noise(self.trials[before:], self._goal):
            self._noise += tuple(stage.space)
        if len(self._studies) < len(self._tune.stages):
            self._ask()
            return
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
            search=self._number,
            seed=self._seed,
            explored={
                key: explored([t.params[key] for t in self.trials if key in t.params], values)
                for stage in self._tune.stages
                for key, values in stage.space.items()
            },
            noise=self._noise,
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
        return float(scores[prefix + self._metric])

    def _error(self, score: float | None, lines: Lines) -> float | None:
        """The binomial standard error of a share of the validation set; None of a loss."""
        n = next((line["val_n"] for line in lines if line.get("val_n")), None)
        if score is None or n is None or self._metric == "loss":
            return None
        return math.sqrt(max(score * (1 - score), 0.0) / n)


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
    whole = spec.to_tree(build_run({**changed, "seed": 0}))
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


def _sampler(tune: Tune, key: tuple[int, ...]) -> Any:
    """A sampler whose draws are those of its key, whatever came before."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    if tune.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    if tune.sampler == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=1 + SPREAD)
    return samplers.RandomSampler(seed=seed)


def _spread(stage: Stage, count: int, key: tuple[int, ...]) -> list[dict[str, Any]]:
    """Points of a scrambled Sobol sequence over the whole space, each range on its own scale: of
    the first four one lies in every quarter, of eight one in every eighth."""
    import numpy as np
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of counts that are no power of 2
        sequence = qmc.Sobol(len(stage.space), seed=np.random.default_rng(key))
        draws = sequence.random(count)
    return [
        {k: _placed(float(u), v) for u, (k, v) in zip(draw, stage.space.items(), strict=True)}
        for draw in draws
    ]


def _placed(share: float, values: Mapping[str, tuple[Any, ...]]) -> Any:
    """The value at a share, below 1, of its range."""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        return bounds[int(share * len(bounds))]
    low, high = bounds
    if kind == "int":
        return low + int(share * (high - low + 1))
    if kind == "log":
        return min(high, low * math.exp(share * math.log(high / low)))
    return min(high, low + share * (high - low))


def explored(tried: Sequence[Any], values: Mapping[str, tuple[Any, ...]]) -> float:
    """The share of a range, on its scale, between the least and the greatest that were tried; of
    choices, the share that was."""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        return len({repr(value) for value in tried}) / len(bounds)
    scale = math.log if kind == "log" else float
    return (scale(max(tried)) - scale(min(tried))) / (scale(bounds[1]) - scale(bounds[0]))


def _is_noise(trials: Sequence[Trial], goal: str) -> bool:
    """Do the best two trials differ by less than the standard error of their difference?"""
    told = {
        _only(trial.cell.ids): (trial.score, trial.error)
        for trial in trials
        if trial.state == "finished" and trial.score is not None and trial.error is not None
    }
    best = sorted(told.values(), reverse=goal == "maximize")[:2]
    if len(best) < 2:
        return False
    (one, its_error), (other, others_error) = best
    return abs(one - other) <= math.hypot(its_error, others_error)


def _grid(stage: Stage, default: Mapping[str, Any]) -> list[dict[str, Any]]:
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
