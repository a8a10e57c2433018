"""Says how many runs a sweep with looks takes: at most, and about, if its rows gain so much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.analysis.captions import count
from ablate.analysis.methods import sequential_of
from ablate.analysis.scores import Curves, Probes, Results
from ablate.planning.plan import Plan
from ablate.report.power import hours_of, spread_of
from ablate.report.text import device_time
from ablate.running.costs import Costs

NO_GAIN = "if no row gains anything"
GAINS = {1: "if all rows gain the margin", 2: "if all rows gain twice the margin"}


@dataclass(frozen=True)
class Outlook:
    """The runs of all columns together. `expected`: (if what, runs, device-hours), hours None
    where they are not known; `spreads`: of each column, in words."""

    plan: Plan
    expected: Sequence[tuple[str, float, float | None]]
    most: int
    most_hours: float | None
    spreads: Sequence[str]

    def lines(self) -> Iterator[str]:
        """Write what `ablate plan` prints."""
        plan = self.plan
        yield f"until: {plan.design.spelled(plan.seeds)}{_given(plan)}"
        for case, runs, hours in self.expected:
            yield f"  about {self._runs(round(runs))}{_hours(hours)} {case}"
        yield f"  at most {self._runs(self.most)}{_hours(self.most_hours)}".rstrip(",")
        yield from (f"  {spread}" for spread in self.spreads)

    def _runs(self, runs: int) -> str:
        trials = f" after {count(self._trials(runs), 'tuning trial')}" if self.plan.tune else ""
        return count(runs, "run") + trials

    def _trials(self, runs: float) -> int:
        """Return how many trials choose the settings of so many runs."""
        return 0 if self.plan.tune is None else round(runs) * self.plan.tune.trials_each

    def tree(self) -> dict[str, Any]:
        """looks, margin; expected: {case, runs, trials, device_hours}; most: the last three;
        spreads."""
        return {
            "looks": list(self.plan.design.at),
            "margin": self.plan.analysis.margin,
            "expected": [
                {"case": case, "runs": runs, "trials": self._trials(runs), "device_hours": hours}
                for case, runs, hours in self.expected
            ],
            "most": {
                "runs": self.most,
                "trials": self._trials(self.most),
                "device_hours": self.most_hours,
            },
            "spreads": list(self.spreads),
        }


def outlook(
    plan: Plan,
    assumed: float | None,
    costs: Costs,
    results: Results,
    curves: Curves,
    probes: Probes | None = None,
) -> Outlook:
    """Simulate the looks of every column, for rows of equal spread: `assumed` where it is given,
    else measured, else as `power.spread_of` has it."""
    from ablate.analysis import stats

    margin = plan.analysis.margin
    cases: dict[str, float] = {NO_GAIN: 0.0}
    if margin is not None:
        cases |= {text: times * margin for times, text in GAINS.items()}
    runs, hours = dict.fromkeys(cases, 0.0), dict[str, float | None].fromkeys(cases, 0.0)
    most, most_hours, spreads = 0, 0.0, []
    known = True
    for column in plan.columns:
        spread, _, how = spread_of(plan, column.label, assumed, results, curves, probes)
        spreads.append(f"{column.heading}: {how}" if column.label else how)
        variants = sum(cell.column == column.label for cell in plan.cells) - 1
        each = hours_of(column.label, costs)
        known = known and each is not None
        a_run = (each or 0.0) / (variants + 1)
        method = replace(
            sequential_of(plan, column.label),
            margin=None if margin is None else margin / spread.sd,
        )
        first, *_, last = plan.design.at
        for case, gain in cases.items():  # the baseline alone is judged by no look
            if not variants:
                took = float(first)
            else:
                took = stats.runs_until(method, variants, gain / spread.sd)
            runs[case] += took
            hours[case] = (hours[case] or 0.0) + took * a_run
        greatest = (variants + 1) * (last if variants else first)
        most += greatest
        most_hours += greatest * a_run
    return Outlook(
        plan,
        [(case, runs[case], hours[case] if known else None) for case in cases],
        most,
        most_hours if known else None,
        spreads,
    )


def _given(plan: Plan) -> str:
    margin = plan.analysis.margin
    return f", margin {margin:g} {plan.metric.points}" if margin is not None else ""


def _hours(hours: float | None) -> str:
    return "" if hours is None else f", {device_time(3600 * hours)},"
