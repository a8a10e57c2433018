"""Counts the work of a plan: multiply-adds of a training, trainings that are left, and how many of
them one seed takes, with the searches of settings and the parents that runs start from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.planning.cell import Cell, Tune
from ablate.planning.cell_search import applied
from ablate.planning.plan import Plan
from ablate.running import launches
from ablate.shared import spec
from ablate.shared.result import FINAL
from ablate.store.events import HELD, RunState


@dataclass(frozen=True)
class CellWork:
    """The work of a cell: multiply-adds of a training (None: unknown before the data is there), the
    trainings that are left (short trials count in part), multiply-adds of its search, images that
    a training evaluates, how many such trainings one seed of the plan takes, and the kernels that
    a training launches."""

    cell: Cell
    each: float | None
    left: float
    search: float | None
    evaluated: int = 0
    seed: float = 1.0
    launches: float = 0.0


SEARCHED = ".from.tune"  # behind the label of a row: the search of its parents


def searched(plan: Plan) -> list[Cell]:
    """Where parents are searched: of each cell's trials the first, with the ids of all."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for trial in plan.trials if plan.tune is not None and plan.tune.parents else ():
        found.setdefault((trial.cell.row, trial.cell.column), []).append(trial.cell)
    return [
        replace(
            trials[0],
            row=row + SEARCHED,
            ids=dict(enumerate(run for trial in trials for run in trial.ids.values())),
        )
        for (row, _), trials in found.items()
    ]


def works_of(
    plan: Plan,
    states: Mapping[str, RunState],
    cells: Sequence[Cell],
    answers: Sequence[Mapping[str, Any]],
) -> list[CellWork]:
    """Of the plan's cells and of those that they start from; `answers`: the worker's, of each."""
    tried = defaultdict[tuple[str, str], list[Cell]](list)
    for trial in plan.trials:
        tried[trial.cell.row, trial.cell.column].append(trial.cell)
    works = []
    for n, (cell, answer) in enumerate(zip(cells, answers, strict=True)):
        is_parent = n >= len(plan.cells)
        # of seeds whose settings are not chosen yet the runs are to come
        runs = [cell.ids.get(seed, "") for seed in (cell.ids if is_parent else plan.planned(cell))]
        ended = (*FINAL, *HELD)
        left = float(sum(states.get(run, RunState()).status not in ended for run in runs))
        if answer["examples"] is None:
            works.append(CellWork(cell, None, left, None))
            continue
        examples, size = answer["examples"], answer["multiply_adds"]
        images = _images(cell.spec, examples)
        search, a_seed = None, 1.0
        child = _child(plan, cell) if is_parent else cell
        if is_parent:  # one for all seeds, or one for each; those of a search are counted there
            each = min(1.0, len(cell.ids) / max(1, len(plan.planned(child))))
            a_seed = 0.0 if plan.tune is not None and plan.tune.parents else each
        tuned = plan.is_tuned(child)
        if plan.tune is not None and tuned and _has_trials(cell.row, is_parent, plan.tune):
            # In trainings of this cell: of one search, and of all trials to come.
            ratio = _images_of_search(plan.tune, child, examples) / images
            searches, seeds = len(plan.searches(child)), len(child.seeds or plan.seeds)
            search = 3.0 * images * ratio * searches * size
            trials = [run for trial in tried[child.row, child.column] for run in trial.ids.values()]
            known = plan.tune.parents  # trials that were asked are runs of this cell, left or not
            done = sum(known or states.get(r, RunState()).status in FINAL for r in trials)
            left += ratio * (searches - done / plan.tune.trials_each)
            a_seed = ratio * searches / seeds + 1.0
            if plan.tune.parents:  # and with what they choose a parent for each report
                whole = _images(child.spec["parent"], examples) / images
                left += whole * (seeds - len(child.ids))
                a_seed += whole - 1.0
        evaluated, trains = _evaluated(cell.spec, examples), spec.task_in(cell.spec).shown is None
        launched = launches.of_training(
            cell.spec, answer["launches"], trains, images * (1 if trains else 3), evaluated
        )
        each = 3.0 * images * size
        works.append(CellWork(cell, each, left, search, evaluated, a_seed, launched))
    return works


def _has_trials(row: str, is_parent: bool, tune: Tune) -> bool:
    """Are the trials of a search counted with this cell?"""
    return row.endswith(SEARCHED) if tune.parents else not is_parent


def _child(plan: Plan, parent: Cell) -> Cell:
    """Return the cell whose runs, or trials, start from it, by its label."""
    row = parent.row.removesuffix(SEARCHED)
    while (child := plan.cell(row, parent.column)) is None:
        row = row[: -len(".from")]
    return child


def _images_of_search(tune: Tune, child: Cell, examples: Mapping[str, int]) -> float:
    """Count the images that all trials of one search see, nothing pruned."""
    found = 0.0
    for stage in tune.stages:
        tree = applied(child.spec, stage.at)
        found += stage.trials * _images(tree["parent"] if tune.parents else tree, examples)
    return found


def time_a_seed(
    works: Sequence[CellWork], seconds: Sequence[float | None]
) -> dict[str, float | None]:
    """Sum the device-seconds that one seed of every row takes, by column: its run, its search, and
    the parents of both; `seconds`: of each work. None where not all are known."""
    found: dict[str, float | None] = {}
    for work, a_run in zip(works, seconds, strict=True):
        if work.seed:
            so_far = found.get(work.cell.column, 0.0)
            if so_far is not None and a_run is not None:
                found[work.cell.column] = so_far + work.seed * a_run
            else:
                found[work.cell.column] = None
    return found


def time_left(
    works: Sequence[CellWork], seconds: Sequence[float | None], rate: float = math.inf
) -> float:
    """Sum the device-seconds that are left; cells of unknown time run at `rate` multiply-adds/s."""
    return sum(
        work.left * (told if told is not None else (work.each or 0.0) / rate)
        for work, told in zip(works, seconds, strict=True)
    )


def _images(tree: Mapping[str, Any], examples: Mapping[str, int]) -> float:
    """Count the images that a training sees; `examples`: of each split. An image that a run is
    only shown counts a third: a step takes three times a forward pass."""
    train, shown = tree["train"], spec.task_in(tree).shown
    if shown is not None:
        return shown(examples, spec.classes_of(tree)) / 3
    epoch = examples["train"] // train["batch"] * train["batch"]
    return float(
        (train["steps"] or 0) * train["batch"] or train["examples"] or train["epochs"] * epoch
    )


def _evaluated(tree: Mapping[str, Any], examples: Mapping[str, int]) -> int:
    """Count the images of `data.size` that all validations and the test show the model."""
    task = spec.task_in(tree)
    if task.shown is not None:
        return 0  # `_images` counts what it shows
    batch, validation = tree["train"]["batch"], examples.get("validation", 0)
    steps = math.ceil(_images(tree, examples) / batch)
    every = max(1, tree["eval"]["every"] * (examples["train"] // batch))
    return int(math.ceil(steps / every) * validation + examples.get("test", 0)) * task.views
