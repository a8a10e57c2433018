"""Forecasts a planned sweep: what it can detect, and how many runs one with looks takes.

Used by cli/driving.py, for `ablate plan` with `--detect` or with looks. A new key of a `tree` also
needs its line in docs/json.keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ablate.analysis import (
    PAIRING_REMEDY,
    Curves,
    Evidence,
    Probes,
    Results,
    RunFiles,
    method_of,
    sequential_of,
    stats,
    worth_pairing,
)
from ablate.planning import Column, Plan
from ablate.report.text import device_time, plain, two_figures
from ablate.running import Costs
from ablate.shared import amount_text, count_text
from ablate.store import PastLooks

SINGULAR = {"seeds": "seed", "searches": "search", "runs": "run"}  # of what n counts
ASSUMED = 0.5  # points: where nothing was measured and nothing is given


@dataclass(frozen=True)
class SeedSpread:
    """The spread of the seeds of a column. `spread`: in the points of the metric; `correlation`: of
    seeds, None where it is not known; `source`: where both come from, in words."""

    spread: stats.Spread
    correlation: float | None
    source: str


@dataclass(frozen=True)
class InColumn:
    """The forecast of one column. `hours`: device-hours of one seed of every row; None: not known
    yet. `contrasts`: in the family that its table will be judged by."""

    column: Column
    seeds: SeedSpread
    hours: float | None
    power_forecast: stats.Forecast
    contrasts: int


@dataclass(frozen=True)
class Detection:
    """The seeds and hours that it takes to detect a gain over the baseline."""

    plan: Plan
    gain: float
    columns: Sequence[InColumn]

    def lines(self) -> Iterator[str]:
        """Write the lines of `ablate plan --detect GAIN`, in the unit that tables print."""
        plan, points = self.plan, self.plan.metric.points
        count = SINGULAR[plan.repeats]
        gain_text = amount_text(f"{self.gain:g}", points)
        counts = sorted({forecast.contrasts for forecast in self.columns})
        *other_counts, largest = counts
        comparisons = count_text(largest, "simultaneous comparison")
        yield (
            f"to detect a gain of {gain_text} over {plan.baseline_words} with "
            f"{100 * stats.POWER:.0f} % power, if the other variants gain nothing "
            f"({' or '.join([*map(str, other_counts), comparisons])}, spread: {plan.spread}):"
        )
        for forecast in self.columns:
            yield f"  {_in_column(forecast.column, forecast.seeds)}"
            seeds = _seeds(forecast.power_forecast, self._hours(forecast), plan.repeats)
            yield f"    {seeds if plan.design.trains else seeds.partition(';')[0]}"
            yield f"    {_planned_power(forecast.power_forecast, plan.n, points, count)}"
            correlation = forecast.seeds.correlation or 0.0
            if worth_pairing(plan, correlation):
                yield f"    {plan.repeats} correlate by {correlation:.2f}: {PAIRING_REMEDY}"
        seed_counts = [forecast.power_forecast.seeds.expected for forecast in self.columns]
        hours = [self._hours(forecast) for forecast in self.columns]
        if len(seed_counts) > 1 and None not in seed_counts and None not in hours:
            most_seeds = max(seeds for seeds in seed_counts if seeds is not None)
            total = most_seeds * sum(column_hours or 0.0 for column_hours in hours)
            cost = amount_text(plain(total), "device-hours")
            seeds = count_text(most_seeds, count)
            yield f"  all columns with {seeds}: {cost}"
        if plan.spread == "images":
            yield (
                "  The table takes the spread of each row from test images that change between its "
                "seeds. A forecast has no such images: its figures are for rows that are alike."
            )

    def _hours(self, forecast: InColumn) -> float | None:
        """Return the device-hours of what n counts of every row: of a seed, or of a search with the
        seeds that share it; None: not known yet."""
        if forecast.hours is None:
            return None
        return forecast.hours * len(self.plan.seeds) / len(self.plan.replicates)

    def tree(self) -> dict[str, Any]:
        """Return the answer as a tree for JSON: gain, metric, unit, power to reach, method;
        columns: {column, spread, how, hours_a_seed, seeds, power, smallest, correlation}.

        seeds, power and smallest are {low, expected, high} over the spread's interval (seeds: null
        beyond what is tried; the others: null with too few seeds); correlation of seeds, null where
        it is not known.
        """
        few = self.plan.n < stats.FEWEST_SEEDS
        return {
            "gain": self.gain,
            "metric": self.plan.metric.key,
            "unit": self.plan.metric.points,
            "power": stats.POWER,
            "method": self.plan.spread,
            "columns": [
                {
                    "column": forecast.column.label,
                    "spread": forecast.seeds.spread.sd,
                    "how": forecast.seeds.source,
                    "hours_a_seed": forecast.hours,
                    "seeds": forecast.power_forecast.seeds._asdict(),
                    "power": None if few else forecast.power_forecast.power._asdict(),
                    "smallest": None if few else forecast.power_forecast.smallest._asdict(),
                    "correlation": forecast.seeds.correlation,
                }
                for forecast in self.columns
            ],
        }


def forecast_seeds(
    plan: Plan,
    gain: float,
    costs: Costs,
    spreads: Mapping[str, SeedSpread],
    past: PastLooks | None = None,
) -> Detection:
    """Forecast the seeds and hours that it takes to detect `gain`. `spreads`: of `seed_spreads`;
    `past`: the looks before, whose contrasts count."""
    n = max(plan.n, stats.FEWEST_SEEDS)
    columns = []
    for column in plan.columns:
        seed_spread, method = spreads[column.label], method_of(plan, column.label, past)
        forecast = stats.detect(gain, n, seed_spread.spread, method, seed_spread.correlation or 0.0)
        columns.append(
            InColumn(column, seed_spread, hours_of(column.label, costs), forecast, method.contrasts)
        )
    return Detection(plan, gain, columns)


def seed_spreads(
    plan: Plan,
    assumed: float | None,
    results: Results,
    curves: Curves,
    probes: Probes | None = None,
) -> dict[str, SeedSpread]:
    """Return the spread of each column between seeds: `assumed` where it is given, else measured
    over every finished run of the column, else ASSUMED."""
    points = plan.metric.points
    if assumed is not None:
        sd = amount_text(f"{assumed:g}", points)
        source = f"spread {sd} between {plan.repeats}, given by --spread"
        spread = SeedSpread(stats.Spread(assumed), None, source)
        return {column.label: spread for column in plan.columns}
    evidence = Evidence.collect(plan, results, RunFiles(curves, probes))
    return {
        column.column.label: _measured(
            plan, plan.metric.sign * column.means(plan), int((~np.isnan(column.y)).sum())
        )
        for column in evidence.columns
    }


def _measured(plan: Plan, y: np.ndarray, finished: int) -> SeedSpread:
    """Measure the spread of a column's seeds, or of its searches. `y` (R, n): the scores of rows,
    NaN where there is none; `finished`: the runs that have a score."""
    points = plan.metric.points
    if (measured := stats.residual_spread(y, plan.design.blocks)) is None:
        sd = amount_text(f"{ASSUMED:g}", points)
        source = (
            f"spread {sd} between {plan.repeats}: a guess, for too few runs have finished; "
            f"--spread sets another"
        )
        return SeedSpread(stats.Spread(ASSUMED), None, source)
    low, _, high = measured.interval
    runs = count_text(finished, "finished run")
    ends = f"{two_figures(low)}, {two_figures(high)}"
    interval_text = f"[{ends} at 80 %; {measured.df} df, {runs}]"
    sd = amount_text(two_figures(measured.sd), points)
    source = f"spread {sd} between {plan.repeats} {interval_text}"
    if measured.barely_known:
        source += ": barely known"
    full_rows = y[~np.isnan(y).any(1)]
    blocks = plan.design.blocks and min(full_rows.shape) > 1
    correlation = stats.seed_correlation(full_rows) if blocks else None
    return SeedSpread(measured, correlation.mean if correlation else None, source)


def _in_column(column: Column, seed_spread: SeedSpread) -> str:
    return f"{column.heading}: {seed_spread.source}" if column.label else seed_spread.source


def hours_of(column: str, costs: Costs) -> float | None:
    """Return the device-hours of one seed of every row of a column; None: not known yet."""
    seconds = costs.seed_s[column]
    return None if seconds is None else seconds / 3600


def _seeds(forecast: stats.Forecast, hours: float | None, repeats: str) -> str:
    """Write what the gain needs, and its cost. `hours`: of one of the `repeats` of every row."""

    def seeds(n: int | None) -> str:
        return f">{stats.MOST_SEEDS}" if n is None else str(n)

    text = f"needs {_range(forecast.seeds, seeds)} {repeats} a variant"
    if hours is None:
        return f"{text}; the cost is not known yet"

    def cost(n: int | None) -> str:
        return f">{plain(hours * stats.MOST_SEEDS)}" if n is None else plain(hours * n)

    return f"{text}: {amount_text(_range(forecast.seeds, cost), 'device-hours')}"


def _planned_power(forecast: stats.Forecast, n: int, points: str, noun: str) -> str:
    if n < stats.FEWEST_SEEDS:
        return f"with {count_text(n, noun)}: no verdicts, so no gain can be detected"
    power = _range(forecast.power, lambda p: f"{100 * p:.0f}")
    smallest = _range(forecast.smallest, two_figures)
    return (
        f"with the {count_text(n, noun)} planned: power {power} %; detects gains from "
        f"{amount_text(smallest, points)}"
    )


def _range(bounds: stats.OverSpread[Any], text: Callable[[Any], str]) -> str:
    """Return "9 (6 to 14)", over the spread's interval, or "9" if the ends are equal."""
    low, expected, high = map(text, bounds)
    ends = sorted({low, high}, key=[low, high].index)
    return expected if ends == [expected] else f"{expected} ({' to '.join(ends)})"


NO_GAIN = "if no row gains anything"
GAINS = {1: "if all rows gain the margin", 2: "if all rows gain twice the margin"}


@dataclass(frozen=True)
class Outlook:
    """The runs of all columns together. `expected`: (if what, runs, device-hours), hours None
    where they are not known; `spreads`: of each column, in words."""

    plan: Plan
    expected: Sequence[tuple[str, float, float | None]]
    most_runs: int
    most_hours: float | None
    spreads: Sequence[str]

    def lines(self) -> Iterator[str]:
        """Write what `ablate plan` prints."""
        plan, margin = self.plan, self.plan.analysis.margin
        points = plan.metric.points
        margin_text = f", margin {amount_text(f'{margin:g}', points)}" if margin is not None else ""
        yield f"until: {plan.design.seeds_text(plan.seeds)}{margin_text}"
        for case, runs, hours in self.expected:
            yield f"  about {self._runs(round(runs))}{_hours(hours)} {case}"
        yield f"  at most {self._runs(self.most_runs)}{_hours(self.most_hours)}".rstrip(",")
        yield from (f"  {spread}" for spread in self.spreads)

    def _runs(self, runs: int) -> str:
        trials = (
            f" after {count_text(self._trials(runs), 'tuning trial')}" if self.plan.tune else ""
        )
        return count_text(runs, "run") + trials

    def _trials(self, runs: float) -> int:
        """Return how many trials choose the settings of so many runs."""
        return 0 if self.plan.tune is None else round(runs) * self.plan.tune.trials_each

    def tree(self) -> dict[str, Any]:
        """looks, margin; expected: {case, runs, trials, device_hours}; most: the last three;
        spreads."""
        return {
            "looks": list(self.plan.design.seed_counts),
            "margin": self.plan.analysis.margin,
            "expected": [
                {"case": case, "runs": runs, "trials": self._trials(runs), "device_hours": hours}
                for case, runs, hours in self.expected
            ],
            "most": {
                "runs": self.most_runs,
                "trials": self._trials(self.most_runs),
                "device_hours": self.most_hours,
            },
            "spreads": list(self.spreads),
        }


def simulate_looks(
    plan: Plan,
    costs: Costs,
    spreads: Mapping[str, SeedSpread],
    past: PastLooks | None = None,
) -> Outlook:
    """Simulate the looks of every column, for rows of equal spread. `spreads`: of `seed_spreads`;
    `past`: the looks before, whose contrasts count."""
    margin = plan.analysis.margin
    cases: dict[str, float] = {NO_GAIN: 0.0}
    if margin is not None:
        cases |= {text: times * margin for times, text in GAINS.items()}
    runs, hours = dict.fromkeys(cases, 0.0), dict[str, float | None].fromkeys(cases, 0.0)
    most_runs, most_hours = 0, 0.0
    hours_known = True
    for column in plan.columns:
        spread = spreads[column.label].spread
        variants = sum(cell.column == column.label for cell in plan.cells) - 1
        if plan.changes is not None:  # all cells go on until every change is told
            cases.clear()
        seed_hours = hours_of(column.label, costs)
        hours_known = hours_known and seed_hours is not None
        a_run = (seed_hours or 0.0) / (variants + 1)
        method = replace(
            sequential_of(plan, column.label, past),
            margin=None if margin is None else margin / spread.sd,
        )
        first_look, *_, last_look = plan.design.seed_counts
        for case, gain in cases.items():  # the baseline alone is judged by no look
            if not variants:
                took = float(first_look)
            else:
                took = stats.runs_until(method, variants, gain / spread.sd)
            runs[case] += took
            hours[case] = (hours[case] or 0.0) + took * a_run
        greatest = (variants + 1) * (last_look if variants else first_look)
        most_runs += greatest
        most_hours += greatest * a_run
    return Outlook(
        plan,
        [(case, runs[case], hours[case] if hours_known else None) for case in cases],
        most_runs,
        most_hours if hours_known else None,
        [_in_column(column, spreads[column.label]) for column in plan.columns],
    )


def _hours(hours: float | None) -> str:
    return "" if hours is None else f", {device_time(3600 * hours)},"
