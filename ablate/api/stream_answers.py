"""The values that a stream of proposals takes and answers.

Used by api/stream.py, and through it by `ablate gate` (cli/gate.py) and by Python. A new field of
an answer also needs its line in docs/json.keys, and docs/json.md, which tests/json_page.py writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.shared import count_text

EXIT_CODES: Mapping[str, int] = {"keep": 0, "discard": 3, "undecided": 4, "stale": 5}


@dataclass(frozen=True)
class GateOptions:
    """The rules that a stream declares at its start; numbers are as the metric is printed.

    `metric`: KEY, or val_KEY for that on validation; None: the trainer's first, or for ablate's own
    training the task's first on validation. `margin`: of a gain that matters; None: 1.5 spreads.
    `most`: runs of a proposal at most. `pairs`: compare on the same seeds, side by side. `pins`:
    FILE or FILE:NAME that no proposal may change. `holdout`: metrics that are reported at each
    keep, and read by no rule.
    """

    metric: str | None = None
    margin: float | None = None
    most: int = 12
    level: float = 0.01
    pairs: bool = False
    pins: Sequence[str] = ()
    holdout: Sequence[str] = ()


@dataclass(frozen=True)
class GateAnswer:
    """The answer of a stream to a proposal. Numbers are in the unit of the metric as printed, and a
    gain above 0 is better.

    `reason`: gain, small, runs (none is left), bits (all runs are equal: the code ignores its
    seed), constant (all runs of the baseline are, too), diverged or collapsed. `interval`: of the
    gain at the last look, at 95 %. `runs`: of the proposal; `baseline_runs`: those it was compared
    with. `kept_so_far`, `expected_false_keeps`: of the proposals that had to gain, so of no
    simplification. `next`: what to do now, in words. `exit_code`: 0 keep, 3 discard, 4 undecided,
    5 stale, None for an open proposal of a log.
    """

    stream: str
    proposal: int
    word: str
    reason: str
    gain: float | None
    interval: tuple[float, float] | None
    unit: str
    p: float
    runs: int
    baseline_runs: int
    against: int
    note: str
    holdout: Mapping[str, tuple[float | None, float | None]]
    proposals: int
    kept_so_far: int
    expected_false_keeps: float
    next: str

    @property
    def exit_code(self) -> int | None:
        return EXIT_CODES.get(self.word)

    @property
    def tree(self) -> dict[str, Any]:
        """The answer as plain values, as `ablate gate try --format json` prints it."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class MeasuredBaseline:
    """A code that was kept for a gain, or the first one, by its own fresh runs: mean and interval
    at 95 %, as printed."""

    number: int
    runs: int
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class StreamLog:
    """The history of a stream. `sentence`: how many keeps chance would have made at most, and how
    many there are. `simplifications`: the proposals that had nothing to gain; `simplified`: those
    of them that were kept. `runs`: all that looks have read. `spread`: of one run. `answers`: one
    for each proposal, an open one without a word."""

    stream: str
    metric: str
    unit: str
    proposals: int
    kept: int
    discarded: int
    undecided: int
    stale: int
    open: int
    simplifications: int
    simplified: int
    runs: int
    expected_false_keeps: float
    spread: float | None
    margin: float | None
    answers: tuple[GateAnswer, ...]
    baselines: tuple[MeasuredBaseline, ...]

    @property
    def sentence(self) -> str:
        """How many keeps chance alone would have made at most, and how many were made.
        Simplifications are counted apart: they are kept without a gain on purpose."""
        if self.proposals == 0:
            return "No proposal yet."
        text = self._gains_sentence
        if self.simplified:
            text += f"; {count_text(self.simplified, 'simplification')} kept"
        return f"{text}."

    @property
    def _gains_sentence(self) -> str:
        judged_count, kept_count = (
            self.proposals - self.simplifications,
            self.kept - self.simplified,
        )
        bound = f"{self.expected_false_keeps:.2g}"
        if judged_count == 0:
            return "No proposal had to gain anything"
        if judged_count == 1:
            end = "kept" if kept_count else "not kept"
            return (
                f"Had the proposal gained nothing, its chance to be kept was at most {bound}; it "
                f"was {end}"
            )
        verb = "was" if kept_count == 1 else "were"
        return (
            f"Had none of the {judged_count} proposals gained anything, at most {bound} would be "
            f"kept on average; {kept_count} {verb}"
        )

    @property
    def tree(self) -> dict[str, Any]:
        """The log as plain values, as `ablate gate log --format json` prints it."""
        return {**dataclasses.asdict(self), "sentence": self.sentence}
