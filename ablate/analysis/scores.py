"""Collects the results of a cell: metrics by seed; missing, diverged and collapsed runs.

So are the images of a test set that each run got right, from its predictions.

Used by `evidence.py`, through which every table and look gets its numbers; `short_number` by
whatever prints sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ablate.analysis import stats
from ablate.planning import Cell, Column, Plan
from ablate.run import (
    Metric,
    RunSpec,
    probe_numbers,
    threshold,
)
from ablate.shared import UserError

Results = Mapping[str, Mapping[str, Any] | None]  # run id -> result.json, None or absent: no result
Curves = Callable[[str], Sequence[Mapping[str, Any]]]  # run id -> the lines of metrics.jsonl
Probes = Callable[[str, str], Mapping[str, Any] | None]  # run id, probe -> the arrays of its file


LARGEST = 1e60  # of a value: variances, and products of them, are still numbers


@dataclass(frozen=True)
class Values:
    """A metric by seed. `never`: finished runs that never reached the threshold."""

    by_seed: Mapping[int, float]
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scores:
    """The results of the runs of a cell."""

    cell: Cell
    main: Values  # of the analysis' metric
    other_values: Mapping[str, Values]
    missing: tuple[int, ...]
    diverged: Mapping[int, int | None]  # seed -> step
    collapsed: tuple[int, ...]
    beyond: Mapping[str, Mapping[int, float]]  # metric -> seed -> a value too large to compute with
    results: tuple[Mapping[str, Any], ...]

    @property
    def unstable(self) -> tuple[int, ...]:
        """Seeds whose run diverged or collapsed."""
        return tuple(sorted((*self.diverged, *self.collapsed)))


def mean_by_replicate(values: Values, plan: Plan) -> list[float]:
    """Average the seeds of each replicate, which n counts; NaN for a replicate without values."""
    replicate_values = (
        [values.by_seed[s] for s in seeds if s in values.by_seed] for seeds in plan.replicates
    )
    return [math.fsum(some) / len(some) if some else math.nan for some in replicate_values]


def cell_scores(
    cell: Cell,
    plan: Plan,
    results: Results,
    also: Iterable[str],
    curves: Curves | None,
    probes: Probes | None = None,
) -> Scores:
    """Collect the scores of a cell. `also`: metrics in addition to the plan's. Raises UserError for
    a metric that was not measured, except for a probe's metric of `also`, which a cell may lack."""
    finished: dict[int, Mapping[str, Any]] = {}
    diverged: dict[int, int | None] = {}
    missing, cell_results = [], []
    for seed in plan.planned(cell):
        result = results.get(cell.ids.get(seed, ""))  # none while it is tuned
        status = result["status"] if result else None
        if result is None or status not in ("finished", "diverged"):
            missing.append(seed)
            continue
        cell_results.append(result)
        if status == "diverged":
            diverged[seed] = result.get("step")
        else:
            finished[seed] = result

    def values(metric: Metric) -> Values:
        values_of: dict[int, float] = {}
        never = []
        for seed in plan.seeds:
            value: float | None = None
            if seed in finished:
                value = tested.get(metric.key, {}).get(seed)
                if metric.of_curve:
                    value = _of_curve(metric, plan.task.metrics[0], cell.ids[seed], curves)
            elif (
                seed in diverged and plan.is_judged(cell.row) and plan.analysis.diverged == "chance"
            ):
                value = metric.chance(cell.spec.guesses)
            else:
                continue
            if value is None and not metric.probe:  # guessing has no such number
                never.append(seed)
            elif value is not None:
                values_of[seed] = float(value) * metric.scale
        return Values(values_of, tuple(never))

    table_metrics = [plan.metric, *(plan.metric_named(name, "--show") for name in also)]
    run_metrics = [*plan.task.metrics, *dict.fromkeys(m for m in table_metrics if m.probe or m.own)]
    probe_names = {m.probe for m in table_metrics if m.probe}
    numbers = {
        s: {**r["test"], **_probed(cell, s, probe_names, probes)} for s, r in finished.items()
    }
    tested = {m.key: {s: numbers[s].get(m.key) for s in finished} for m in run_metrics}
    beyond = {
        key: {seed: v for seed, v in of_seed.items() if v is not None and not abs(v) <= LARGEST}
        for key, of_seed in tested.items()
    }
    for metric in run_metrics:
        for seed, value in tested[metric.key].items():
            if value is not None and (reason := metric.no_share(value)):
                remedy = "then give the `ablate sweep` again"
                raise UserError(f"run {cell.label}#{seed}: {reason}; {remedy}")
    measured = [m for m in run_metrics if None not in tested[m.key].values() and not beyond[m.key]]
    for metric in table_metrics:
        if metric in run_metrics and metric not in measured:
            place = "analysis.metric" if metric == plan.metric else "--show"
            if not metric.probe or beyond[metric.key]:
                raise UserError(f"{place}: {_lacking(metric, plan, cell, beyond[metric.key])}")
            if metric == plan.metric:
                raise UserError(f"{place}: {_no_number(metric, cell, numbers)}")
    other_metrics = [m for m in measured if finished] + [
        m for m in table_metrics if m not in run_metrics
    ]
    return Scores(
        cell=cell,
        main=values(plan.metric),
        other_values={m.key: values(m) for m in other_metrics if m.key != plan.metric.key},
        missing=tuple(missing),
        diverged=diverged,
        collapsed=tuple(seed for seed, result in finished.items() if result.get("collapsed")),
        beyond={name: values for name, values in beyond.items() if values},
        results=tuple(cell_results),
    )


def all_scores(
    plan: Plan, results: Results, also: Iterable[str], curves: Curves | None, probes: Probes | None
) -> dict[tuple[str, str], Scores]:
    """Collect the scores of every cell, by row and column."""
    return {
        (cell.row, cell.column): cell_scores(cell, plan, results, also, curves, probes)
        for cell in plan.cells
    }


def by_seed(values: Mapping[int, float]) -> str:
    """Write values by seed: "1e+200 in seed 1, nan in seed 2"."""
    return ", ".join(f"{value:.3g} in seed {seed}" for seed, value in values.items())


def _lacking(metric: Metric, plan: Plan, cell: Cell, beyond: Mapping[int, float]) -> str:
    """Explain why a metric has no table, and name metrics that have one."""
    main_key, *other_keys = (m.key for m in plan.task.metrics if not m.needs)
    if beyond:
        return (
            f"{metric.key} of {cell.row!r} is {by_seed(beyond)}: no interval can be computed "
            f"beyond {LARGEST:g}; choose another metric"
        )
    needs = f"({metric.key} needs {metric.needs}); " if metric.needs else "; "
    return (
        f"{metric.key} was not measured for {cell.row!r}{' ' * bool(metric.needs)}{needs}"
        f"choose {' or '.join([main_key, *other_keys])}"
    )


def _no_number(metric: Metric, cell: Cell, numbers_by_seed: Mapping[int, Mapping[str, Any]]) -> str:
    """Explain that a row has no such number, and name the probe's numbers that it has."""
    keys = dict.fromkeys(key for numbers in numbers_by_seed.values() for key in numbers)
    probe_keys = [key for key in keys if key.startswith(f"{metric.probe}:")]
    choices = (
        f": it has {', '.join(probe_keys)}"
        if probe_keys
        else f", nor another number of {metric.probe}"
    )
    return f"{cell.row!r} has no {metric.key}{choices}; choose another metric, or other rows"


def _probed(
    cell: Cell, seed: int, probe_names: Iterable[str], probes: Probes | None
) -> dict[str, float]:
    """Return the numbers of these probes in the files of a run, by key."""
    if probes is None:
        return {}
    run, spec = cell.ids[seed], cell.at_seed(seed).spec
    return {
        key: value
        for probe in probe_names
        for key, value in probe_numbers(probe, probes(run, probe), spec.tree).items()
    }


def _of_curve(
    metric: Metric, first_metric: Metric, run: str, curves: Curves | None
) -> float | None:
    """Return a metric of the validation curve of a run, the curve of `first_metric`, the task's
    first: the first epoch that reaches the threshold of `metric`, None where the curve never gets
    there; without a threshold, the area under the curve. Raises UserError for an area of fewer than
    two validations."""
    import numpy as np

    lines, key = curves(run) if curves else (), f"val_{first_metric.key}"
    points = [(line["epoch"], line[key]) for line in lines if key in line]
    epochs, values = (np.array([point[i] for point in points], float) for i in (0, 1))
    if (value := threshold(metric.key)) is None:
        if len(points) < 2:
            raise UserError(
                f"{metric.key}: run {run} has {len(points)} of the two validations that a "
                f"curve needs; choose another metric"
            )
        return float(stats.auc(epochs, values))
    better = first_metric.sign * values
    epoch = (
        float(stats.epochs_to(epochs, better, first_metric.sign * value)) if points else math.nan
    )
    return None if math.isnan(epoch) else epoch


def short_number(value: float | None, unit: str = "") -> str:
    """Write a number with three figures: `22.1 M`; "-" for None."""
    if value is None:
        return "-"
    value = float(f"{value:.3g}")  # 999,600 is 1 M
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def blocks_of(
    plan: Plan, cells: Mapping[tuple[str, str], Scores]
) -> Iterator[tuple[Column, list[Scores]]]:
    """Yield each column with the scores of its rows, in the plan's order."""
    for column in plan.columns:
        keys = [(row.label, column.label) for row in plan.rows]
        yield column, [cells[key] for key in keys if key in cells]


def sets_of(plan: Plan, column: str) -> list[str]:
    """Return the names of the further sets on which the table shows the runs of this column, the
    same for all rows; [] for a metric that is not of a test set."""
    if plan.metric not in plan.task.metrics and not plan.metric.own:
        return []
    cells = (cell for cell in plan.cells if cell.column == column)
    return [test_set["name"] for cell in itertools.islice(cells, 1) for test_set in cell.spec.also]


def column_of(cell: Cell, name: str) -> str:
    """Return the label of a cell's column for another set: "S/16 on dark", for example."""
    return f"{cell.column} on {name}".strip()


def on_set(cell: Cell, name: str) -> Cell:
    """Return the cell of the same runs in the column of another set. The data of this cell is that
    set, in the classes among which predictions on it are: those that are learnt; for a task that
    reads texts, and a set of `data.among=own`, the set's own."""
    data = next(test_set for test_set in cell.spec.also if test_set["name"] == name)
    classes = cell.spec.task.among(cell.spec.classes, data["classes"])
    if data.get("among") == "own":
        classes = data["classes"]
    spec = RunSpec.of({**cell.spec.tree, "data": {**data, "classes": classes}})
    return replace(cell, column=column_of(cell, name), spec=spec)


def results_on(results: Results, name: str) -> Results:
    """Return the results with their numbers on the set `name` in place of those on their own test
    set."""
    return {run: result and _on(result, name) for run, result in results.items()}


def _on(result: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return a result with its numbers on the set `name` in place of those on its own test set,
    None if it has none. A result of a run that did not finish is returned as it is: it was tested
    on nothing."""
    if result["status"] != "finished":
        return result
    set_result = (result.get("also") or {}).get(name)
    return set_result and {**result, "left_out": {}, "overlap": {}, **set_result}


# A run's predictions on a set of `eval.also`, "" being its own test set, whose hash its result has;
# None where there are none. Raises Failure where they are not what the run left.
Predictions = Callable[[str, str, str], Any]


SHARE = 0.01  # points between the share of right examples and the metric, which may be rounded


class Correct(NamedTuple):
    """The images that runs get right. `right` (R, S, N): whether row r with seed s gets image i
    right, False where a run did not finish; None where none did, or where predictions are missing,
    and then `lacking` says which."""

    right: stats.Bools | None
    lacking: str = ""


def right_images(
    plan: Plan, block: Sequence[Scores], results: Results, on: str, predictions: Predictions | None
) -> Correct:
    """Read which images the runs of a column get right, by the scores of its rows. `on`: a set of
    `eval.also`, "" for their own test set.

    They are unknown, with the reason, where a finished run has no predictions, or has predictions
    of other images or ones that don't say right or wrong.
    """
    import numpy as np

    if predictions is None:
        return Correct(None, "no predictions are read here")
    right: stats.Bools | None = None
    for r, scores in enumerate(block):
        for s, seed in enumerate(plan.seeds):
            if seed not in scores.main.by_seed or seed in scores.diverged:
                continue
            run = scores.cell.ids[seed]
            result = results[run] or {}
            set_result = result["also"][on] if on else result
            table = predictions(run, on, set_result.get("predictions_sha256", ""))
            if table is None:
                return Correct(None, f"seed {seed} of {scores.cell.row} has no predictions.npy")
            if right is None:
                right = np.zeros((len(block), len(plan.seeds), len(table)), dtype=bool)
            if len(table) != right.shape[-1]:
                return Correct(None, f"{scores.cell.row} was tested on other images")
            marks = _marks(plan.metric, table, scores.main.by_seed[seed])
            if marks is None:
                return Correct(None, f"predictions.npy of {scores.cell.row} is not right or wrong")
            right[r, s] = marks
    return Correct(right)


def _marks(metric: Metric, table: Any, value: float) -> stats.Bools | None:
    """Return which images (N,) a run's predictions get right, None where they don't say so.

    The predictions of a program of the user's may be one value of 0 or 1 per image, which says so
    itself: then its share in % must be the metric's `value`.
    """
    if table.dtype.names and "rank" not in table.dtype.names:  # of a lean bundle
        return table["class"] == table["label"] if metric.right_within == 1 else None
    if table.dtype.names:
        marks: stats.Bools = table["rank"] < metric.right_within
        return marks
    marks = table.astype(bool)
    is_binary = table.ndim == 1 and table.dtype.kind in "bui" and bool((marks == table).all())
    return marks if is_binary and is_share(value, float(marks.mean())) else None


def is_share(percent: float, right: float) -> bool:
    """Return whether a metric in % is the share of right examples; it may be rounded to two
    decimals."""
    return abs(100 * right - percent) < SHARE
