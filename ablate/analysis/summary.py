"""The blocks below the columns of a table as data: averages, contrasts and effects, a line each.

Used by `across.py` and `effects.py`, which make blocks, and by report/formats/ and
report/plot/changes.py, which show them. A new field also needs `python tests/json_page.py`, which
writes docs/json.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from ablate.analysis import stats
from ablate.planning import effect_label

GOOD_FROM = "good from "  # begins the verdict of a row that is good from some column on


@dataclass(frozen=True)
class PValues:
    """p-values for tidy CSV and JSON, which decide nothing: see `stats.RowGain`. `fisher`: of the
    diverged runs against the baseline's. Each `floor` is the smallest p of so few runs."""

    p: float | None = None  # adjusted for the family
    raw: float | None = None
    sign_flip: float | None = None
    sign_flip_floor: float | None = None
    fisher: float | None = None
    fisher_floor: float | None = None


def p_values(gain: stats.RowGain | None, fisher: stats.Exact | None = None) -> PValues:
    flip = gain.sign_flip if gain else None
    exact = (part for test in (flip, fisher) for part in (test[:2] if test else (None, None)))
    return PValues(gain.p if gain else None, gain.raw_p if gain else None, *exact)


@dataclass(frozen=True)
class SummaryLine:
    """A line of a block, for a row or for an effect. `column`: its column or its group of columns,
    "" for all columns; `part`: the part of a change that the line gives, such as "alone", "" for a
    row; `between`: the rows of a contrast between two, of which the second is subtracted."""

    label: str
    column: str
    gain: stats.Estimate
    verdict: str | None
    p_values: PValues
    sampled: stats.Estimate | None = None  # the average, if columns were a sample of those to come
    columns: tuple[str, ...] = ()  # that the average is over
    part: str = ""
    between: tuple[str, ...] = ()
    by_seed: Mapping[int, float] = field(default_factory=dict)  # what a change gains with each seed
    code: str = ""  # of an effect: which code version alone trained a level of its factors

    @property
    def is_good_from(self) -> bool:
        """True if the verdict says from which column on a row is good."""
        return self.verdict is not None and self.verdict.startswith(GOOD_FROM)

    @property
    def full_label(self) -> str:
        """The label, followed by the part of the change if it is not a main effect: "dpn alone" is
        the gain over a cell without changes."""
        return effect_label(self.label, self.part)

    def mean_alone(self) -> SummaryLine:
        gain = dataclasses.replace(self.gain, low=None, high=None, sd=None, df=None)
        return dataclasses.replace(self, gain=gain, verdict=None, p_values=PValues(), sampled=None)


@dataclass(frozen=True)
class Summary:
    """A block of lines below the columns. `kind`: of rows, average, group (averages over groups of
    columns), contrast, or sequence (from which column on a row is good); of two rows, row_contrast;
    of effects, change, pair, shapley or placement, see `ablate.analysis.effects`. `note`: what the
    lines are; `basis`: how they were judged, which only full notes print; `contrasts`: those that
    share the error of the intervals."""

    kind: str
    name: str
    title: str
    note: str
    contrasts: int
    lines: tuple[SummaryLine, ...]
    basis: str = ""

    @property
    def of_rows(self) -> bool:
        """True if the lines are rows of the table, False if they are effects."""
        return self.kind in ("average", "group", "contrast", "sequence")

    def without_intervals(self) -> Summary:
        """Return the block with means alone, for a table that lacks runs."""
        return dataclasses.replace(self, lines=tuple(line.mean_alone() for line in self.lines))
