"""Looks at a stream's proposals: the rules of `stats.gate`, applied to records and results.

A result is read as the number of one metric, as it is printed, and turned so that higher is better.

Used by api/stream.py, which trains what the next look needs and seals it, and by audit/streams.py,
which judges sealed looks again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ablate.analysis.stats import (
    FIRST_PAIRS,
    KEEPING_LOOKS,
    Estimate,
    GateLook,
    GateRules,
    Need,
    Pool,
    mean_interval,
    next_step_of,
    self_pairs,
    spread_of,
)
from ablate.run import Metric, OwnSpec, RunSpec
from ablate.shared import UserError, is_number, unknown_value
from ablate.store import StreamRecord

Results = Sequence[Mapping[str, Any]]  # of runs, as result.json has them
VALIDATION = "val_"  # begins the name of a metric that is read on validation


@dataclass(frozen=True)
class StreamMetric:
    """A metric as a stream reads it. `part`: "validation" or "test", the part of a run's result."""

    metric: Metric
    part: str

    @property
    def name(self) -> str:
        return f"{VALIDATION if self.part == 'validation' else ''}{self.metric.key}"

    def value(self, result: Mapping[str, Any]) -> float:
        """Return the number of a run, in units as printed, higher is better. Raises UserError for a
        result without it."""
        raw = self._raw(result)
        if raw is None:
            raise UserError(f"{self.name}: a run left no such number as its {self.part} result")
        return self.metric.sign * self.metric.scale * raw

    def mean_as_printed(self, results: Results) -> float | None:
        """Return the mean of runs in units as printed; None where one of them left no number."""
        values = [self._raw(result) for result in results]
        numbers = [self.metric.scale * value for value in values if value is not None]
        return sum(numbers) / len(numbers) if len(numbers) == len(values) else None

    def _raw(self, result: Mapping[str, Any]) -> float | None:
        raw = (result.get(self.part) or {}).get(self.metric.key)
        return float(raw) if is_number(raw) else None


class StreamJudge:
    """Judges the proposals of a stream by the results of its runs. `results` of a proposal and of
    the baseline are in the order of their seeds.

    Raises UserError for a metric that the stream's first baseline doesn't have.
    """

    most_choices: ClassVar[tuple[int, ...]] = (*KEEPING_LOOKS,)  # runs of a proposal at most
    paired_start: ClassVar[int] = 2 * FIRST_PAIRS  # runs with which a stream of pairs begins

    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        self.spec = RunSpec.of(record.start.spec)
        self.metric = self.metric_of(self.spec, record.rules.metric, "metric")

    @staticmethod
    def metric_of(spec: RunSpec, name: str | None, place: str) -> StreamMetric:
        """Return the metric of this name: KEY, read in the test, or val_KEY, on validation.

        None is the first metric that a trainer of the user's own declares, or the first of the task
        on validation, since hundreds of looks wear a test set out. Raises UserError for another
        name.
        """
        metrics = {metric.key: metric for metric in spec.task.metrics}
        if name is None:
            return StreamMetric(
                spec.task.metrics[0], "test" if isinstance(spec, OwnSpec) else "validation"
            )
        if name in metrics:
            return StreamMetric(metrics[name], "test")
        key = name.removeprefix(VALIDATION)
        if key == name or key not in metrics:
            names = [*metrics, *(f"{VALIDATION}{key}" for key in metrics)]
            raise unknown_value(place, name, names)
        return StreamMetric(metrics[key], "validation")

    def lacking(
        self, number: int, proposal_results: Results, baseline_results: Results
    ) -> tuple[int, int] | None:
        """Return the runs that the next look at a proposal needs, its own and the baseline's, in
        all; None where it can be taken."""
        step = self._step(number, proposal_results, baseline_results)
        return (step.runs, step.baseline_runs) if isinstance(step, Need) else None

    def look(
        self, number: int, proposal_results: Results, baseline_results: Results
    ) -> dict[str, Any]:
        """Return the fields to seal of the next look at a proposal; nan becomes null. A look that
        ends the proposal also has what its runs and the baseline's add to the pool, and one that
        keeps it the means of the metrics that no rule reads."""
        look = self._step(number, proposal_results, baseline_results)
        assert isinstance(look, GateLook)
        fields = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(look).items()
        }
        if look.word != "goes on":
            proposal = self._values(proposal_results[: look.runs], self.metric)
            baseline = self._values(baseline_results[: look.baseline_runs], self.metric)
            if self.record.rules.pairs:
                proposal = [c - b for c, b in zip(proposal, baseline, strict=True)]
            fields["spreads"] = {
                "proposal": [*Pool().with_runs(proposal)],
                "baseline": [*Pool().with_runs(baseline)],
            }
        if look.word == "keep":
            fields["holdout"] = {
                name: self._means(name, proposal_results, baseline_results)
                for name in self._holdouts
            }
        return fields

    @staticmethod
    def failed(runs: int, baseline_runs: int, reason: str) -> dict[str, Any]:
        """Return what is sealed where a run of a proposal diverged or collapsed: it is
        discarded."""
        empty = dict.fromkeys(("gain", "low", "high"))
        return {
            **{"runs": runs, "baseline_runs": baseline_runs, "word": "discard", **empty, "p": 1.0},
            **{"reason": reason, "spreads": {}},
        }

    @property
    def spread(self) -> float | None:
        """The spread of one run, in units as printed; None where no proposal has ended."""
        spread = spread_of(Pool(*self.record.pool), (), self.record.rules.pairs)
        return None if math.isnan(spread) else spread

    def first_pool(self, results: Results) -> list[float]:
        """Return the pool that a stream of pairs begins with: see `stats.self_pairs`."""
        return [*self_pairs(self._values(results, self.metric))]

    def measured(self, results: Results) -> Estimate:
        """Return the mean of a baseline's runs with its interval at 95 %, as printed."""
        sign = self.metric.metric.sign
        return mean_interval([sign * value for value in self._values(results, self.metric)])

    @property
    def _holdouts(self) -> tuple[str, ...]:
        return self.record.rules.holdout

    def _means(
        self, name: str, proposal_results: Results, baseline_results: Results
    ) -> list[float | None]:
        """Return the means of a metric as printed, the proposal's and the baseline's. No rule reads
        them, so runs that left no such number stop nothing."""
        metric = self.metric_of(self.spec, name, "--holdout")
        return [metric.mean_as_printed(results) for results in (proposal_results, baseline_results)]

    def _step(
        self, number: int, proposal_results: Results, baseline_results: Results
    ) -> Need | GateLook:
        proposal, rules = self.record.proposals[number - 1], self.record.rules
        return next_step_of(
            self._values(proposal_results, self.metric),
            self._values(baseline_results, self.metric),
            Pool(*proposal.pool),
            [look.runs for look in proposal.looks],
            GateRules(rules.margin, proposal.simplify, proposal.most, rules.level, rules.pairs),
        )

    def _values(self, results: Results, metric: StreamMetric) -> list[float]:
        return [metric.value(result) for result in results]
