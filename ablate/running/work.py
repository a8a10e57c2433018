"""The work of a plan: the multiply-adds and kernels of a training, the trainings that are left, and
the trainings of one seed, with the searches of settings and the parents of runs.

Used by running/estimate.py, running/devices.py and running/world_sizes.py, for the costs of `ablate
plan`. tests/test_launches.py compares the counts of kernels with what a step launches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.planning import Cell, Plan, Tune, apply_settings
from ablate.run import RunSpec


@dataclass
class CellWork:
    """The work of the runs of a cell."""

    cell: Cell
    trainings_left: float  # short trials count in part
    multiply_adds: float | None = None  # of a training; None: unknown before the data is there
    search: float | None = None  # multiply-adds of its search
    images: float = 0.0  # that its steps read; 0: unknown, or its task has steps of its own
    evaluated: int = 0  # images that a training evaluates
    seed: float = 1.0  # trainings that one seed of the plan takes
    launches: float = 0.0  # kernels that a training launches
    seconds: float | None = None  # of a training; None: nobody knows
    exchanged: float = 0.0  # bytes that each of several ranks sends in a training
    beside_s: float = 0.0  # seconds that several ranks take for what one has not to do
    ranks: int = 1  # that share a training


SEARCHED = ".from.tune"  # behind the label of a row: the search of its parents


def searched(plan: Plan) -> list[Cell]:
    """Return a cell for each search of parents: the first trial's, with the ids of all trials."""
    if plan.tune is None or not plan.tune.parents:
        return []
    trial_cells: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for trial in plan.trials:
        trial_cells[trial.cell.row, trial.cell.column].append(trial.cell)
    searches = []
    for (row, _), cells in trial_cells.items():
        runs = [run for cell in cells for run in cell.ids.values()]
        searches.append(replace(cells[0], row=row + SEARCHED, ids=dict(enumerate(runs))))
    return searches


def works_of(
    plan: Plan,
    closed: Collection[str],
    cells: Sequence[Cell],
    answers: Sequence[Mapping[str, Any]],
) -> list[CellWork]:
    """Count the work of the plan's cells and of those that they start from. `closed`: the runs that
    are not trained any more; `answers`: the worker's description of each cell."""
    works = []
    searched_here = set()
    for n, (cell, answer) in enumerate(zip(cells, answers, strict=True)):
        is_parent = n >= len(plan.cells)
        runs_left = 0.0
        for seed in cell.ids if is_parent else plan.planned(cell):
            run = cell.ids.get(seed, "")  # "": its settings are not chosen yet, so it is to come
            runs_left += run not in closed
        work = CellWork(cell, runs_left)
        works.append(work)
        if answer["examples"] is None:
            continue
        examples, size = answer["examples"], answer["multiply_adds"]
        images = _images(cell.spec, examples)
        child = _child(plan, cell) if is_parent else cell
        place = child.row, child.column
        if is_parent:  # one for all seeds, or one for each; those of a search are counted there
            parents_per_seed = min(1.0, len(cell.ids) / max(1, len(plan.planned(child))))
            work.seed = 0.0 if plan.tune is not None and plan.tune.parents else parents_per_seed
        tuned = plan.is_tuned(child)
        if plan.tune is not None and tuned and _has_trials(cell.row, is_parent, plan.tune):
            trials_of_search = _trial_specs(plan.tune, child)
            trials_key = repr(trials_of_search)
            if trials_key in searched_here:
                trials_of_search = []  # another cell has the same trials, which train once
            searched_here.add(trials_key)
            # In trainings of this cell: of one search, and of all trials to come.
            search_images = sum(count * _images(spec, examples) for count, spec in trials_of_search)
            ratio = search_images / images
            searches, seeds = len(plan.searches(child)), len(child.seeds or plan.seeds)
            closed_trials = 0
            for trial in plan.trials:
                if (trial.cell.row, trial.cell.column) != place:
                    continue
                for run in trial.cell.ids.values():
                    # Those of parents are runs of this cell, left or not.
                    closed_trials += plan.tune.parents or run in closed
            if trials_of_search:
                work.search = 3.0 * images * ratio * searches * size
            work.trainings_left += ratio * (searches - closed_trials / plan.tune.trials_each)
            report = 1.0
            if plan.tune.parents:  # and with what they choose a parent for each report
                assert child.spec.parent is not None
                parent = _images(child.spec.parent, examples) / images
                report = parent if trials_of_search else 0.0
                work.trainings_left += report * (seeds - len(child.ids))
            work.seed = ratio * searches / seeds + report
        work.multiply_adds = 3.0 * images * size
        work.images = images if cell.spec.task.shown is None else 0.0
        work.evaluated = _evaluated(cell.spec, examples)
        work.launches = launches_of(cell.spec, answer["launches"], images, work.evaluated)
        gradient = 4.0 * answer["parameters"]
        work.exchanged = 2 * gradient * images / cell.spec.tree["train"]["batch"]
    return works


def _has_trials(row: str, is_parent: bool, tune: Tune) -> bool:
    """Return whether the trials of a search are counted with this cell."""
    return row.endswith(SEARCHED) if tune.parents else not is_parent


def _child(plan: Plan, parent: Cell) -> Cell:
    """Return the cell whose runs, or trials, start from `parent`, found by its label."""
    row = parent.row.removesuffix(SEARCHED)
    while (child := plan.cell(row, parent.column)) is None:
        row = row[: -len(".from")]
    return child


def time_a_seed(works: Sequence[CellWork]) -> dict[str, float | None]:
    """Sum, by column, the device-seconds of one seed of every row: its run, its search, and the
    parents of both. None where one of them is unknown."""
    sums: dict[str, float] = {}
    for work in works:
        if work.seed:
            column = work.cell.column
            seconds = math.nan if work.seconds is None else work.seconds
            sums[column] = sums.get(column, 0.0) + work.ranks * work.seed * seconds
    return {column: None if math.isnan(total) else total for column, total in sums.items()}


def time_left(works: Sequence[CellWork], rate: float = math.inf) -> float:
    """Sum the device-seconds that are left. Cells of unknown time run at `rate` multiply-adds a
    second."""
    total_s = 0.0
    for work in works:
        if work.seconds is not None:
            a_training = work.ranks * work.seconds
        else:
            a_training = (work.multiply_adds or 0.0) / rate
        total_s += work.trainings_left * a_training
    return total_s


# --- Images -------------------------------------------------------------------------------------


def _images(spec: RunSpec, examples: Mapping[str, int]) -> float:
    """Count the images that a training sees. `examples`: the size of each split. An image that only
    passes forward counts a third: a training step takes three times a forward pass."""
    train, count_shown = spec.tree["train"], spec.task.shown
    if count_shown is not None:
        return float(count_shown(examples, spec.classes) / 3)
    if train["steps"]:
        return float(train["steps"] * train["batch"])
    if train["examples"]:
        return float(train["examples"])
    epoch = examples["train"] // train["batch"] * train["batch"]
    return float(train["epochs"] * epoch)


def _trial_specs(tune: Tune, child: Cell) -> list[tuple[int, RunSpec]]:
    """Return for each stage of one search the number of its trials, nothing pruned, and the spec of
    a trial."""
    specs = []
    for stage in tune.stages:
        spec = apply_settings(child.spec, stage.at)
        trial = spec.parent if tune.parents else spec
        assert trial is not None
        specs.append((stage.trials, trial))
    return specs


def _evaluated(spec: RunSpec, examples: Mapping[str, int]) -> int:
    """Count the images of `data.size` that all validations and the test show the model."""
    tree, task = spec.tree, spec.task
    if task.shown is not None:
        return 0  # `_images` counts what it shows
    batch, validation = tree["train"]["batch"], examples.get("validation", 0)
    steps = math.ceil(_images(spec, examples) / batch)
    interval = max(1, tree["eval"]["every"] * (examples["train"] // batch))
    return int(math.ceil(steps / interval) * validation + examples.get("test", 0)) * task.views


# --- Kernels that a GPU launches, about: what a small model takes its time for --------------------

# Counted operator by operator, on tensors without values, of the shipped recipes:
# `tests/test_launches.py` holds each of them to this within a factor of two.
A_STEP = 3.7  # forward, backward and update, in launches of a forward
ALWAYS = 25  # of a step: input, loss, norm of the gradients, update
A_CHANGE = 40  # of a step that changes its images so
A_LAYER = 100  # of RandAugment
A_DROPOUT = 6  # of a block: its three places, one kernel each way
CHANGES = (
    "flip",
    "crop_pad",
    "crop_area",
    "three",
    "jitter",
    "rotate",
    "translate",
    "zoom_out",
    "erase",
    "mixup",
    "cutmix",
    "rescale",
    "photometric",
)


def launches_of_step(spec: RunSpec, forward: int) -> float:
    """Count the launches of one step of a run. `forward`: those of one forward pass of its
    model."""
    augment, train, model = (spec.tree[section] for section in ("augment", "train", "model"))
    changes = sum(bool(augment.get(key)) for key in CHANGES)
    dropout: float = A_DROPOUT * model["depth"] if model.get("dropout") else 0
    micro = train["micro_batch"]
    parts: float = train["batch"] / micro if isinstance(micro, int) else 1
    inputs: float = A_CHANGE * changes + A_LAYER * augment.get("randaug", 0)
    return parts * (A_STEP * forward + dropout) + ALWAYS + inputs


def launches_of(spec: RunSpec, forward: int, images: float, evaluated: int) -> float:
    """Count the launches of all steps and evaluations. `images`: see `_images`; `evaluated`: the
    number of images that the run is evaluated on."""
    evaluations = forward / float(spec.tree["eval"]["batch"])
    if spec.task.shown is not None:  # it doesn't train
        return 3 * images * evaluations
    steps = images / float(spec.tree["train"]["batch"])
    return steps * launches_of_step(spec, forward) + evaluated * evaluations
