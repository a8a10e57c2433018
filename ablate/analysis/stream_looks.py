"""Looks at a stream's proposals: the rules of `stats.gate`, applied to records and results.

A result is read as the number of one metric, as it is printed, and turned so that higher is better.

Used by api/stream.py, which trains what the next look needs and seals it, and by audit/streams.py,
which judges sealed looks again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ablate.analysis.stats import (
    GateLook,
    GateRules,
    Need,
    Pool,
    next_step_of,
    self_pairs,
)
from ablate.run import Metric, OwnSpec, RunSpec
from ablate.shared import UserError, is_number, unknown_value
from ablate.store import StreamRecord

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
        raw = (result.get(self.part) or {}).get(self.metric.key)
        if not is_number(raw):
            raise UserError(f"{self.name}: a run left no such number as its {self.part} result")
        return self.metric.sign * self.metric.scale * float(raw)

    def printed(self, value: float) -> float:
        """Return a mean of `value`s as it is printed, with its own sign."""
        return self.metric.sign * value


def stream_metric(spec: RunSpec, name: str | None, place: str) -> StreamMetric:
    """Return the metric of this name: KEY, read in the test, or val_KEY, on validation.

    None is the first metric that a trainer of the user's own declares, or the first of the task on
    validation, since hundreds of looks wear a test set out. Raises UserError for another name.
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


class ProposalRuns(NamedTuple):
    """The runs that a step is decided by: numbers of a proposal and of the baseline, in the order
    of their seeds."""

    proposal: Sequence[float]
    baseline: Sequence[float]


def next_step(record: StreamRecord, number: int, runs: ProposalRuns) -> Need | GateLook:
    """Return what a proposal needs next, or its next look."""
    proposal = record.proposals[number - 1]
    return next_step_of(
        runs.proposal,
        runs.baseline,
        Pool(*proposal.pool),
        [look.runs for look in proposal.looks],
        rules_of(record, number),
    )


def rules_of(record: StreamRecord, number: int) -> GateRules:
    proposal, rules = record.proposals[number - 1], record.rules
    return GateRules(rules.margin, proposal.simplify, proposal.most, rules.level, rules.pairs)


def look_event(record: StreamRecord, look: GateLook, runs: ProposalRuns) -> dict[str, Any]:
    """Return what is sealed of a look: its fields, a number that is none as null and, where it ends
    the proposal, what its runs and the baseline's add to the pool."""
    fields = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(look).items()
    }
    if look.word != "goes on":
        proposal, baseline = runs.proposal[: look.runs], runs.baseline[: look.baseline_runs]
        if record.rules.pairs:
            proposal = [c - b for c, b in zip(proposal, baseline, strict=True)]
        fields["spreads"] = {
            "proposal": [*Pool().with_runs(proposal)],
            "baseline": [*Pool().with_runs(baseline)],
        }
    return fields


def failed_look(runs: int, reason: str) -> dict[str, Any]:
    """Return what is sealed where a run of a proposal diverged or collapsed: it is discarded."""
    empty = dict.fromkeys(("gain", "low", "high"))
    return {
        **{"runs": runs, "baseline_runs": 0, "word": "discard", **empty, "p": 1.0},
        **{"reason": reason, "spreads": {}},
    }


def first_pairs(baseline: Sequence[float]) -> tuple[float, int]:
    """Return the pool that a stream of pairs begins with: see `stats.self_pairs`."""
    squares, df = self_pairs(baseline)
    return squares, df
