"""Reads the log of a past loop, which kept or discarded one change after the other, and says how
many of its keeps could be noise.

The usual log is a table with a line for each try: the code's commit, the metric, what became of it
(keep, discard, crash), and a text. Other columns are passed over. Nothing is written.

Used by cli/importing.py (`ablate import --loop`). A new key of its tree also needs its line in
docs/json.keys, then `python tests/json_page.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.analysis import LoopNoise
from ablate.audit.sheet_forms import read_content, read_lines
from ablate.audit.sheet_values import LOOP_REMEDIES, read_number
from ablate.planning import SheetKeys
from ablate.shared import UserError, count_text, unknown_value

CODE_COLUMNS = ("commit", "code", "sha", "hash")
OUTCOME_COLUMNS = ("status", "outcome", "decision")
Outcome = Literal["keep", "discard", "crash"]
OUTCOMES: Mapping[str, Outcome] = {
    **dict.fromkeys(("keep", "kept", "baseline", "accept", "accepted"), "keep"),
    **dict.fromkeys(("discard", "discarded", "revert", "reverted", "checks_failed"), "discard"),
    **dict.fromkeys(("crash", "crashed", "fail", "failed", "error", "timeout"), "crash"),
}
DIRECTIONS = {"more": 1, "less": -1}


@dataclass(frozen=True)
class LoopRun:
    """A line of a loop's log. `value`: of the metric, more is better, NaN of a crash; `place`: in
    the file; `text`: what was tried."""

    code: str
    value: float
    outcome: Outcome
    place: str
    text: str


@dataclass(frozen=True)
class LoopLog:
    """A loop's log, in its order."""

    source: str
    metric: str
    direction: str  # "more" | "less"
    runs: Sequence[LoopRun]

    @property
    def noise(self) -> LoopNoise:
        return LoopNoise.of_runs(
            [run.code for run in self.runs],
            [run.value for run in self.runs],
            [run.outcome == "keep" for run in self.runs],
        )

    def tree(self) -> dict[str, Any]:
        """Return what the log tells, as a plain tree, in the metric's own unit."""
        noise, outcomes = self.noise, [run.outcome for run in self.runs]
        return {
            "source": self.source,
            "metric": self.metric,
            "direction": self.direction,
            "runs": len(self.runs),
            "crashes": outcomes.count("crash"),
            "proposals": noise.proposals,
            "keeps": len(noise.keeps),
            "could_be_noise": noise.could_be_noise,
            "repeated": noise.repeated,
            "df": noise.df,
            "spread": noise.spread,
            "kept": [
                {
                    "place": self.runs[keep.place].place,
                    "code": self.runs[keep.place].code,
                    "text": self.runs[keep.place].text,
                    "gain": keep.gain,
                    "bound": keep.bound,
                    "beyond_noise": keep.is_beyond,
                }
                for keep in noise.keeps
            ],
            "needed": _remedy(noise),
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text form."""
        noise, crashes = self.noise, sum(run.outcome == "crash" for run in self.runs)
        keeps = count_text(len(noise.keeps), "keep")
        yield (
            f"{self.source}: {count_text(len(self.runs), 'run')} ({crashes:,} crashed), "
            f"{count_text(noise.proposals, 'proposal')}, {keeps}; {self.metric}: "
            f"{self.direction} is better"
        )
        if noise.could_be_noise is not None:
            yield (
                f"of {keeps}, {noise.could_be_noise:,} could be noise"
                f"{'; the log cannot tell these from it' if noise.could_be_noise else ''}"
            )
            yield (
                f"the runs of one code differ by {noise.spread:.3g} (standard deviation, "
                f"{count_text(noise.df, 'degree')} of freedom); in a log without any gain, one "
                f"keep or more is called a gain with probability {noise.alpha:.0%} at most"
            )
        if remedy := _remedy(noise):
            yield remedy
        for keep in noise.keeps:
            word = "beyond noise" if keep.is_beyond else "could be noise"
            bound = "" if keep.bound is None else f", {word} (bound {keep.bound:.3g})"
            text = f": {self.runs[keep.place].text}" if self.runs[keep.place].text else ""
            yield f"  {self.runs[keep.place].place}: gain {keep.gain:+.4g}{bound}{text}"


def _remedy(noise: LoopNoise) -> str | None:
    """Return what a log lacks that tells nothing about noise; None for one that does."""
    if noise.spread:
        return None
    fact = "no code is in the log twice"
    if noise.spread == 0:
        fact = "the runs of one code are equal to the last digit, so it fixes its seed"
    return (
        f"{fact}, and so the log says nothing about noise: run the code that was kept last five "
        f"times more, each with another seed, and add a line for each with the same commit"
    )


def read_loop(source: Path, metric: str | None = None, keys: SheetKeys | None = None) -> LoopLog:
    """Read a loop's log. `metric`: "COLUMN:more" or "COLUMN:less"; None is the first column of
    numbers behind the code's, in the direction in which its keeps move. `keys`: the file's
    encoding, comments and mark before decimals; of no column.

    Raises UserError for a file that can't be read, without a column for the code or the outcome,
    with an unknown outcome, for a line without its code or, unless it is of a crash, its number,
    and where the metric or its direction can't be told.
    """
    name = str(source)
    keys = keys or SheetKeys("")
    lines = read_lines(read_content(source, name), name, keys)
    columns = list(dict.fromkeys(key for _, values in lines for key in values))
    code = _column(columns, CODE_COLUMNS, name)
    outcome = _column(columns, OUTCOME_COLUMNS, name)
    outcomes = [_outcome(values.get(outcome), f"{name}: {place}") for place, values in lines]
    column, _, direction = (metric or "").partition(":")
    if not column:
        behind = columns[columns.index(code) + 1 :]
        numeric = (
            key
            for key in behind
            if any(_number(values.get(key), keys.decimal) for _, values in lines)
        )
        column = next(numeric, "")
    if column not in columns:
        raise unknown_value(f"{name}: --metric", column, columns, "a column among")
    values = [
        _score(line.get(column), f"{name}: {place}: {column}", keys.decimal, result)
        for (place, line), result in zip(lines, outcomes, strict=True)
    ]
    sign = _sign(values, outcomes, direction, f"{name}: {column}")
    runs = []
    for (place, line), value, result in zip(lines, values, outcomes, strict=True):
        score = math.nan if value is None else sign * value
        text = str(line.get("description") or "")
        commit = line.get(code)
        if commit in (None, "") and result != "crash":  # the code of a crash says nothing of noise
            raise UserError(f"{name}: {place}: lacks its {code}; add it, or leave the line out")
        runs.append(LoopRun("" if commit is None else str(commit), score, result, place, text))
    return LoopLog(name, column, "more" if sign > 0 else "less", runs)


def _column(columns: Sequence[str], names: Sequence[str], place: str) -> str:
    for name in columns:
        if name.lower() in names:
            return name
    raise UserError(f"{place}: expected a column {' or '.join(names)}, got {', '.join(columns)}")


def _outcome(text: object, place: str) -> Outcome:
    outcome = OUTCOMES.get(str(text).strip().lower())
    if outcome is None:
        raise unknown_value(place, text, OUTCOMES, "an outcome among")
    return outcome


def _number(value: object, decimal: str) -> float | None:
    """Return a finite number, with this mark before its decimals; None for anything else."""
    try:
        number = read_number(value, "", decimal)
    except UserError:
        return None
    return number if math.isfinite(number) else None


def _score(value: object, place: str, decimal: str, outcome: Outcome) -> float | None:
    """Return the number of a run, None of one that crashed or diverged. Raises UserError for a run
    that did not crash and has no number, and for a keep that diverged."""
    if outcome == "crash":
        return None
    number = read_number(value, place, decimal, LOOP_REMEDIES)
    if math.isfinite(number):
        return number
    if outcome == "keep":
        omission = LOOP_REMEDIES.omission("", None)
        raise UserError(f"{place}: expected a number of what was kept, got {number}; {omission}")
    return None


def _sign(
    values: Sequence[float | None], outcomes: Sequence[Outcome], direction: str, place: str
) -> int:
    """Return 1 where more is better, else -1. Raises UserError where neither the direction nor the
    keeps say so."""
    if direction:
        if direction not in DIRECTIONS:
            raise unknown_value(f"{place}: direction", direction, DIRECTIONS)
        return DIRECTIONS[direction]
    pairs = zip(values, outcomes, strict=True)
    scores = [value for value, outcome in pairs if value is not None and outcome == "keep"]
    drift = scores[-1] - scores[0] if scores else 0.0
    if drift == 0:
        raise UserError(
            f"{place}: its keeps don't say which values are better; add --metric COLUMN:more or "
            f"COLUMN:less"
        )
    return 1 if drift > 0 else -1
