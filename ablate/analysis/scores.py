"""What came of the runs of a cell: metrics by seed, what is missing, diverged or collapsed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.planning.cell import Cell
from ablate.planning.plan import Plan, threshold
from ablate.shared.errors import UserError

Results = Mapping[str, Mapping[str, Any] | None]  # run id -> result.json, None or absent: no result
Curves = Callable[[str], Sequence[Mapping[str, Any]]]  # run id -> the lines of metrics.jsonl


@dataclass(frozen=True)
class Metric:
    """How a metric is named and printed. `sign`: -1 where less is better."""

    name: str
    unit: str  # of a value
    points: str  # of a difference
    scale: float
    decimals: int
    sign: int = 1
    of_curve: bool = False  # taken from the validation curve, not from the test set
    most: float | None = None  # of a value, whose least is 0


class _Metrics(dict[str, Metric]):
    """By name; any that `plan.check_metric` lets pass."""

    def __missing__(self, name: str) -> Metric:
        if (share := threshold(name)) is None:
            raise KeyError(name)
        words = f"epochs to {100 * share:g} % validation top-1"
        return Metric(words, "", "epochs", 1.0, 1, sign=-1, of_curve=True)


METRICS = _Metrics(
    top1=Metric("top-1 accuracy", "%", "points", 100.0, 2, most=100.0),
    top5=Metric("top-5 accuracy", "%", "points", 100.0, 2, most=100.0),
    loss=Metric("test loss", "", "nats", 1.0, 4, sign=-1),
    auc=Metric(
        "mean validation top-1 of the curve", "%", "points", 100.0, 2, of_curve=True, most=100.0
    ),
)
TESTED = ("top1", "top5", "loss")
LARGEST = 1e60  # of a value: variances, and products of them, are still numbers


def number(value: float, name: str, sign: bool = False) -> str:
    """A value or, with its `sign`, a difference of a metric, rounded as tables print it."""
    if abs(value) >= 1e9:
        return f"{value:{'+' if sign else ''}.3g}"
    decimals = METRICS[name].decimals
    value = round(value, decimals) + 0.0  # a rounded -0.001 is 0.00, not -0.00
    return f"{value:{'+' if sign else ''}.{decimals}f}"


@dataclass(frozen=True)
class Values:
    """A metric by seed. `never`: finished runs that never reached the threshold."""

    by_seed: Mapping[int, float]
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scores:
    """What came of the runs of a cell."""

    cell: Cell
    main: Values  # of the analysis' metric
    others: Mapping[str, Values]
    missing: tuple[int, ...]
    diverged: Mapping[int, int | None]  # seed -> step
    collapsed: tuple[int, ...]
    beyond: Mapping[str, Mapping[int, float]]  # metric -> seed -> a value too large to compute with
    results: tuple[Mapping[str, Any], ...]

    @property
    def unstable(self) -> tuple[int, ...]:
        """Seeds whose run diverged or collapsed."""
        return tuple(sorted((*self.diverged, *self.collapsed)))


def by_replicate(values: Values, plan: Plan) -> list[float]:
    """What n counts: the mean over the seeds of each replicate, NaN where none is there."""
    found = ([values.by_seed[s] for s in seeds if s in values.by_seed] for seeds in plan.replicates)
    return [sum(some) / len(some) if some else math.nan for some in found]


def scores(
    cell: Cell, plan: Plan, results: Results, also: Iterable[str], curves: Curves | None
) -> Scores:
    """`also`: metrics beside the plan's. Raises UserError for a metric of the plan's or of these
    that was not measured."""
    finished: dict[int, Mapping[str, Any]] = {}
    diverged: dict[int, int | None] = {}
    missing, found = [], []
    for seed in plan.seeds:
        result = results.get(cell.ids.get(seed, ""))  # none while it is tuned
        status = result["status"] if result else None
        if result is None or status not in ("finished", "diverged"):
            missing.append(seed)
            continue
        found.append(result)
        if status == "diverged":
            diverged[seed] = result.get("step")
        else:
            finished[seed] = result

    def values(name: str) -> Values:
        return _values(name, cell, plan, finished, diverged, curves)

    name = plan.analysis.metric
    tested = {m: {seed: r["test"].get(m) for seed, r in finished.items()} for m in TESTED}
    beyond = {
        m: {seed: v for seed, v in of_seed.items() if v is not None and not abs(v) <= LARGEST}
        for m, of_seed in tested.items()
    }
    measured = {m for m in TESTED if None not in tested[m].values() and not beyond[m]}
    others = [m for m in TESTED if m in measured and finished] + [
        m for m in also if m not in TESTED
    ]
    for asked in (name, *also):
        if asked in TESTED and asked not in measured:
            place = "analysis.metric" if asked == name else "--show"
            if beyond[asked]:
                raise UserError(
                    f"{place}: {asked} of {cell.row!r} is {by_seed(beyond[asked])}: no interval "
                    f"can be computed beyond {LARGEST:g}; choose another metric"
                )
            raise UserError(
                f"{place}: {asked} was not measured for {cell.row!r} "
                f"(top5 needs at least 10 classes); choose top1 or loss"
            )
    return Scores(
        cell=cell,
        main=values(name),
        others={m: values(m) for m in dict.fromkeys(others) if m != name},
        missing=tuple(missing),
        diverged=diverged,
        collapsed=tuple(seed for seed, result in finished.items() if result.get("collapsed")),
        beyond={name: values for name, values in beyond.items() if values},
        results=tuple(found),
    )


def by_seed(values: Mapping[int, float]) -> str:
    """ "1e+200 in seed 1, nan in seed 2"."""
    return ", ".join(f"{value:.3g} in seed {seed}" for seed, value in values.items())


def _values(
    name: str,
    cell: Cell,
    plan: Plan,
    finished: Mapping[int, Mapping[str, Any]],
    diverged: Mapping[int, Any],
    curves: Curves | None,
) -> Values:
    values: dict[int, float] = {}
    never = []
    for seed in plan.seeds:
        value: float | None = None
        if seed in finished:
            result = finished[seed]["test"]
            value = _of_curve(name, cell.ids[seed], curves) if name not in TESTED else result[name]
        elif seed in diverged and cell.row != plan.baseline and plan.analysis.diverged == "chance":
            value = _chance(name, cell)
        else:
            continue
        if value is None:
            never.append(seed)
        else:
            values[seed] = float(value) * METRICS[name].scale
    return Values(values, tuple(never))


def _of_curve(name: str, run: str, curves: Curves | None) -> float | None:
    """`auc` or `epochs_to:SHARE` of a run's validation top-1; None where it never gets there."""
    import numpy as np

    from ablate.analysis import stats

    lines = curves(run) if curves else ()
    points = [(line["epoch"], line["val_top1"]) for line in lines if "val_top1" in line]
    if len(points) < 2 and name == "auc":
        raise UserError(f"auc: run {run} was validated {len(points)} times; choose another metric")
    epochs, values = (np.array([point[i] for point in points], float) for i in (0, 1))
    if (share := threshold(name)) is None:
        return float(stats.auc(epochs, values))
    epoch = float(stats.epochs_to(epochs, values, share)) if points else math.nan
    return None if math.isnan(epoch) else epoch


def _chance(name: str, cell: Cell) -> float | None:
    """What guessing gets: every class as likely as any other."""
    classes = int(cell.spec["data"]["classes"])
    if name == "loss":
        return math.log(classes)
    if (share := threshold(name)) is not None:
        return 0.0 if share <= 1 / classes else None
    return min(5 if name == "top5" else 1, classes) / classes


def short(value: float | None, unit: str = "") -> str:
    """`22.1 M`: three figures."""
    if value is None:
        return "-"
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()
