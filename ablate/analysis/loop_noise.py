"""How many keeps of a past loop could be noise: what the runs of one code say about the others.

docs/statistics.md, "A loop's log", has the rule and what it assumes. Used by audit/loop_log.py
(`ablate import --loop`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class LoopKeep:
    """A proposal that was kept. `place`: the index of its run; `gain`: over the mean of the runs
    before it of the code that was kept last; `bound`: the gain beyond which it is no noise, None
    where nothing is known of noise."""

    place: int
    gain: float
    bound: float | None

    @property
    def is_beyond(self) -> bool:
        return self.bound is not None and self.gain > self.bound


@dataclass(frozen=True)
class LoopNoise:
    """The noise that a log shows. `proposals`: codes that were tried, and did not crash, after the
    first; `spread`: standard deviation of a run, from `df` degrees of freedom, of `repeated` codes
    with several runs; None without such a code, 0 where their runs are equal.

    `alpha`: the chance, at most, that any keep of a loop without gains is called a gain.
    """

    alpha: ClassVar[float] = 0.05
    proposals: int
    keeps: tuple[LoopKeep, ...]
    repeated: int
    df: int
    spread: float | None

    @property
    def could_be_noise(self) -> int | None:
        """The number of keeps that noise can explain; None where nothing is known of noise."""
        if not self.spread:
            return None
        return sum(not keep.is_beyond for keep in self.keeps)

    @classmethod
    def of_runs(
        cls, codes: Sequence[str], values: Sequence[float], are_kept: Sequence[bool]
    ) -> LoopNoise:
        """Judge the keeps of a loop, whose runs are given in the order of its log. `values`: of
        the metric, more is better, NaN of a crash. The first run that did not crash is the start; a
        later run of a code that was run before is a repetition, no proposal."""
        from scipy.special import stdtrit

        code_values: dict[str, list[float]] = {}
        base = ""
        gains: list[tuple[int, float, int]] = []  # place, gain, runs of the code before
        proposals = 0
        for place, (code, value, is_kept) in enumerate(zip(codes, values, are_kept, strict=True)):
            if not math.isfinite(value):
                continue
            if not code_values:
                base = code
            elif code not in code_values:
                proposals += 1
                if is_kept:
                    base_values = code_values[base]
                    mean = sum(base_values) / len(base_values)
                    gains.append((place, value - mean, len(base_values)))
                    base = code
            code_values.setdefault(code, []).append(value)
        groups = [group for group in code_values.values() if len(group) > 1]
        df = sum(len(group) - 1 for group in groups)
        spread = math.sqrt(sum(map(_squares, groups)) / df) if df else None
        bound = None  # of a gain over several runs, but for their number
        if spread and proposals:
            bound = spread * float(stdtrit(df, 1 - cls.alpha / proposals))
        keeps = tuple(
            LoopKeep(place, gain, None if bound is None else bound * math.sqrt(1 + 1 / n))
            for place, gain, n in gains
        )
        return cls(proposals, keeps, len(groups), df, spread)


def _squares(group: Sequence[float]) -> float:
    """Return the sum of squares about the mean, exactly 0 for equal values."""
    if len(set(group)) == 1:
        return 0.0
    mean = sum(group) / len(group)
    return sum((value - mean) ** 2 for value in group)
