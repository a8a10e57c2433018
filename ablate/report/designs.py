"""Compares the designs that the changes of a sweep may have: cells, runs, cost, and what each can
detect.

Used by cli/driving.py, for `ablate plan` of a sweep of changes; `trees.py` writes its JSON. A new
field of `DesignForecast` also needs its line in docs/json.keys, then `python tests/json_page.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ablate.analysis import (
    Arrays,
    Curves,
    Detail,
    Evidence,
    Predictions,
    Probes,
    Results,
    RunFiles,
    cell_rows,
    gain_alpha,
    judge_changes,
    stats,
)
from ablate.planning import EFFECT_KINDS, Changes, Plan, design_cells, effect_label
from ablate.report.power import SeedSpread
from ablate.report.status import show_grid
from ablate.report.text import device_time, two_figures
from ablate.running import Costs
from ablate.shared import UserError, count_text
from ablate.store import PastLooks


class EffectSpread(NamedTuple):
    """The spread by which a table of `n` finished seeds judges an effect: the standard deviation of
    one seed's effect, in points, with its degrees of freedom."""

    sd: float
    df: float
    n: int


EffectSpreads = Mapping[str, EffectSpread]  # by what is told of a change: "dpn", "dpn alone"


@dataclass(frozen=True)
class DesignForecast:
    """The forecast of one design. `device_seconds`: of all of its runs, if a cell takes as long as
    those of the plan do on average; None: not known yet.

    `smallest`, `largest`: gains that the planned seeds detect with `stats.POWER`, by column, None
    with too few seeds for verdicts. They are the least and the greatest of the column's `changes`,
    if it has any; else the forecasts for cells that are alike, and for cells that share
    `stats.SHARED_PART` of the effect of a seed on a change. `changes`: the gain of each change, by
    column, with the spread that the finished runs of this design give it; {} where there are none.
    `seeds`: the number that --detect needs in the most demanding column, and with `changes` for its
    most demanding change; None without --detect, or beyond `stats.MOST_SEEDS`.
    """

    design: str
    cells: int
    runs: int
    device_seconds: float | None
    smallest: Mapping[str, float | None]
    largest: Mapping[str, float | None]
    changes: Mapping[str, Mapping[str, float]]
    seeds: int | None


def effect_spreads(
    plan: Plan,
    results: Results,
    curves: Curves,
    probes: Probes,
    predictions: Predictions,
) -> dict[str, EffectSpreads]:
    """Return by column the spreads by which the finished runs of a plan would have its changes
    judged. A column is left out if fewer seeds than verdicts need are finished in all cells, and a
    change if no seeds determine its spread."""
    if (changes := plan.changes) is None:
        return {}
    evidence = Evidence.collect(plan, results, RunFiles(curves, probes, predictions))
    images = evidence.images()
    arrays = Arrays(evidence, Detail.MEANS, images)
    plan = evidence.compared
    rows = [*cell_rows(plan, changes).values()]
    by_column = {}
    for c, column in enumerate(plan.columns):
        right = images[c] if images is not None else None
        complete_seeds = [
            s for s in range(arrays.y.shape[-1]) if not _missing(arrays.y[c][rows, s])
        ]
        if len(complete_seeds) < stats.FEWEST_SEEDS:
            continue
        judgement = judge_changes(
            plan,
            changes,
            arrays.y[c][:, complete_seeds],
            arrays.method(changes.contrasts),
            arrays.unstable[c],
            None if right is None else right[:, complete_seeds],
        )
        by_column[column.label] = {
            effect_label(*place): EffectSpread(gain.gain.sd, gain.df, len(complete_seeds))
            for place, gain in judgement.gains.items()
            if gain.gain.sd and gain.df
        }
    return {column: spreads for column, spreads in by_column.items() if spreads}


def _missing(values: stats.Floats) -> bool:
    return any(math.isnan(value) for value in values)


@dataclass(frozen=True)
class _PlanFacts:
    """The facts of a plan that the comparison of designs uses. `changes`: of the plan; `seeds`: the
    spread of seeds by column; `effects`: the spreads of the effects of the plan's own design, by
    column; `read_count`: how many variants were read before over the runs of its baseline."""

    plan: Plan
    changes: Changes
    seeds: Mapping[str, SeedSpread]
    effects: Mapping[str, EffectSpreads]
    read_count: int

    def method(self, changes: Changes) -> stats.Method:
        """Return how the table of a design will judge its changes."""
        analysis = self.plan.analysis
        families = len(self.plan.columns) if analysis.family == "table" else 1
        return stats.Method(
            spread=self.plan.spread,
            alpha=gain_alpha(analysis),
            contrasts=max(changes.contrasts, self.read_count) * families,
            variants=changes.contrasts,
        )

    def by_change(self, changes: Changes, column: str, n: int) -> dict[str, float]:
        """Return the gain of each change that n seeds detect, by the spread of finished runs; {}
        for another design than theirs, and with too few seeds."""
        method, gains = self.method(changes), dict[str, float]()
        for label, spread in self.effects.get(column, {}).items():
            if changes.design == self.changes.design:
                gain = stats.detected_again(spread.sd, spread.df, spread.n, n, method)
                gains |= {} if gain is None else {label: gain}
        return gains

    def ends(self, changes: Changes, column: str, n: int) -> tuple[float | None, float | None]:
        """Return `smallest` and `largest` of a forecast."""
        if gains := self.by_change(changes, column, n).values():
            return min(gains), max(gains)
        sd, method = self.seeds[column].spread.sd, self.method(changes)
        if changes.crossed:
            cells = len(design_cells(changes.names, changes.design))
            alike, sharing = (
                stats.detected_effect(sd, cells, n, method, part)
                for part in (0.0, stats.SHARED_PART)
            )
            return alike, sharing
        if n < stats.FEWEST_SEEDS:
            return None, None
        df = (n - 1) * (1 if method.spread == "paired" else len(changes.names) + 1)
        gain = stats.smallest_gain(sd * math.sqrt(2 / n), df, method.alpha, method.contrasts)
        return gain, gain

    def fewest_seeds(self, changes: Changes, column: str, gain: float) -> int | None:
        """Return the fewest seeds that detect a gain; None beyond `stats.MOST_SEEDS`."""
        measured = bool(self.by_change(changes, column, stats.FEWEST_SEEDS))
        for n in range(stats.FEWEST_SEEDS, stats.MOST_SEEDS + 1):
            detectable_gain = self.ends(changes, column, n)[1 if measured else 0]
            if detectable_gain is not None and detectable_gain <= gain:
                return n
        return None


def compare_designs(
    plan: Plan,
    costs: Costs,
    detect: float | None,
    spreads: Mapping[str, SeedSpread],
    effects: Mapping[str, EffectSpreads] | None = None,
    past: PastLooks | None = None,
) -> list[DesignForecast]:
    """Forecast every design that there is for so many changes, none for a plan without. `spreads`:
    of `seed_spreads`; `effects`: of `effect_spreads`; `past`: the looks before."""
    if plan.changes is None:
        return []
    read_count = past.read_over_baselines() if past is not None else 0
    facts = _PlanFacts(plan, plan.changes, spreads, effects or {}, read_count)
    forecasts = []
    cell_seconds = [costs.seconds[cell.row, cell.column] for cell in plan.cells]
    timed = [seconds for seconds in cell_seconds if seconds is not None]
    for design in EFFECT_KINDS:
        try:
            cells = len(design_cells(plan.changes.names, design))
        except UserError:  # not for so many changes
            continue
        runs = cells * len(plan.columns) * plan.n
        changes = Changes(plan.changes.names, design)  # type: ignore[arg-type]
        ends = {label: facts.ends(changes, label, plan.n) for label in spreads}
        by_change = {label: facts.by_change(changes, label, plan.n) for label in spreads}
        seed_counts: list[int | None] = []
        if detect is not None:
            seed_counts = [facts.fewest_seeds(changes, label, detect) for label in spreads]
        forecasts.append(
            DesignForecast(
                design=design,
                cells=cells,
                runs=runs,
                device_seconds=(
                    runs * sum(timed) / len(timed) if len(timed) == len(cell_seconds) else None
                ),
                smallest={label: low for label, (low, _) in ends.items()},
                largest={label: high for label, (_, high) in ends.items()},
                changes={label: gains for label, gains in by_change.items() if gains},
                seeds=_most_seeds(seed_counts),
            )
        )
    return forecasts


def _most_seeds(seed_counts: Sequence[int | None]) -> int | None:
    """Return the most of these seeds; None for none, and where one of them is beyond all."""
    counts = [seeds for seeds in seed_counts if seeds is not None]
    return max(counts) if counts and len(counts) == len(seed_counts) else None


def show_designs(
    plan: Plan,
    forecasts: Sequence[DesignForecast],
    detect: float | None,
    spreads: Mapping[str, SeedSpread],
    effects: Mapping[str, EffectSpreads],
) -> None:
    """Print the designs side by side, the plan's own marked, and the spreads behind them."""
    assert plan.changes is not None
    head = ["cells", "runs", "cost", plan.metric.with_points("detects")]
    head += [f"seeds for {detect:g}"] if detect is not None else []
    print(f"\ndesigns of these {len(plan.changes.names)} changes, with {plan.seeds_said}:")
    show_grid(
        ("design", *head),
        [
            (
                forecast.design + " (this one)" * (forecast.design == plan.changes.design),
                f"{forecast.cells:,}",
                f"{forecast.runs:,}",
                "?" if forecast.device_seconds is None else device_time(forecast.device_seconds),
                " / ".join(dict.fromkeys(_detects(forecast, label) for label in forecast.smallest)),
                *[_seeds(forecast.seeds)] * (detect is not None),
            )
            for forecast in forecasts
        ],
    )
    print(
        f"detects: the smallest gain of one change that {100 * stats.POWER:.0f} % of such sweeps "
        f"would find; of two figures the second holds where all cells with a change share "
        f"{100 * stats.SHARED_PART:.0f} % of what a seed does to them"
    )
    for line in dict.fromkeys(_spread_line(plan, label, spreads[label]) for label in spreads):
        print(f"  {line}")
    plan_forecast = next(
        forecast for forecast in forecasts if forecast.design == plan.changes.design
    )
    for label, gains in plan_forecast.changes.items():
        n = next(iter(effects[label].values())).n
        gains_text = ", ".join(f"{effect} {two_figures(gain)}" for effect, gain in gains.items())
        heading = f"{plan.heading(label)}: " if label else ""
        print(
            f"  {heading}{plan_forecast.design} by its own {count_text(n, 'finished seed')}, "
            f"by change: {gains_text}"
        )


def _spread_line(plan: Plan, label: str, seed_spread: SeedSpread) -> str:
    several = len(plan.columns) > 1 and seed_spread.spread.df is not None
    return f"{plan.heading(label)}: {seed_spread.source}" if several else seed_spread.source


def _detects(forecast: DesignForecast, column: str) -> str:
    """Write the gains that a design detects in a column."""
    low, high = forecast.smallest[column], forecast.largest[column]
    if low is None or high is None:
        return "no verdicts"
    ends = dict.fromkeys((two_figures(low), two_figures(high)))
    return " to ".join(ends)


def _seeds(seeds: int | None) -> str:
    return f">{stats.MOST_SEEDS}" if seeds is None else str(seeds)
