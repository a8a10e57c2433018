"""Computes blocks below the columns of a table: averages over columns and groups of them, and
contrasts between columns.

Used by `tabulate.py`, for every table, by `effects.py`, and by report/designs.py (`Arrays`). A new
kind of block also needs its place in the maps of kinds in report/formats/layout.py and tidy.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ablate.analysis import stats
from ablate.analysis.english.noise import noisy_words
from ablate.analysis.evidence import Evidence
from ablate.analysis.judging import (
    Detail,
    gain_alpha,
    hide_empty,
    shown_gain,
    verdict_of,
    verdict_words,
)
from ablate.analysis.summary import Summary, SummaryLine, p_values
from ablate.planning import Column, Plan, wide_places


@dataclass(frozen=True)
class Arrays:
    """The evidence as the blocks below the columns judge it. `detail`: what may be shown of gains;
    `right`: of each column, which images the runs of its rows get right (R, replicates, N), None
    unless it is known of all columns; `by_looks`: verdicts are those of looks alone; `read_count`:
    variants that were read over the baseline's runs, where its own are fewer."""

    evidence: Evidence
    detail: Detail
    right: Sequence[stats.Bools] | None
    by_looks: bool = False
    read_count: int = 0

    @property
    def plan(self) -> Plan:
        return self.evidence.compared

    @property
    def y(self) -> stats.Floats:
        return self.evidence.y

    @property
    def unstable(self) -> stats.Bools:
        return self.evidence.unstable

    @property
    def omitted(self) -> stats.Bools:
        return self.evidence.omitted

    @property
    def judge(self) -> bool:
        """True if the blocks give verdicts of their own."""
        return self.detail is Detail.VERDICTS and not self.by_looks

    @property
    def looks_judge(self) -> bool:
        """True if the blocks give the verdicts of looks."""
        return self.detail is Detail.VERDICTS and self.by_looks

    @cached_property
    def incomplete(self) -> stats.Bools:
        """The columns (C,) whose baseline lacks a replicate."""
        import numpy as np

        return np.asarray(np.isnan(self.y[:, self.baseline]).any(axis=-1))

    def images(self, columns: Iterable[int]) -> list[stats.Bools] | None:
        """Return which images the runs get right, an array (R, replicates, N) for each of these
        columns; None unless it is known of all columns."""
        return None if self.right is None else [self.right[c] for c in columns]

    def row(self, label: str) -> int:
        return [row.label for row in self.plan.rows].index(label)

    @property
    def baseline(self) -> int:
        return self.row(self.plan.baseline)

    def method(self, contrasts: int, family: int = 1) -> stats.Method:
        analysis = self.plan.analysis
        size = max(1, contrasts)
        return stats.Method(
            spread=self.plan.spread,
            alpha=gain_alpha(analysis),
            contrasts=max(size, self.read_count) * (family if analysis.family == "table" else 1),
            variants=size,
        )

    def line(
        self,
        label: str,
        column: str,
        gain: stats.RowGain,
        judgeable: bool,
        margin: bool = True,
        words: tuple[str, str] | None = None,
        **fields: Any,
    ) -> SummaryLine:
        """Make a line. `judgeable`: it may have a verdict; `margin`: it is judged with the margin;
        `words`: see `verdict_of`, by default the plan's; `fields`: other fields of the line."""
        metric, limit = self.plan.metric, self.plan.analysis.margin if margin else None
        words = words or verdict_words(self.plan)
        word = verdict_of(gain.gain, limit, self.judge and judgeable, words)
        return SummaryLine(label, column, shown_gain(gain, metric), word, p_values(gain), **fields)


def blocks(arrays: Arrays) -> tuple[Summary, ...]:
    """Compute the contrasts that the sweep has columns for."""
    return tuple(block for block in _contrasts(arrays) if block.lines)


def joined_note(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def noisy(ratios: Iterable[float | None], by_images: bool) -> str:
    """Say that baselines vary far more than the rows, by their `ratio`; "" where none does.
    `by_images`: see `noisy_words`."""
    all_ratios = [*ratios]
    if not all_ratios:
        return ""
    # None: the rows have none at all.
    known_ratios = [ratio for ratio in all_ratios if ratio is not None]
    ratio = max(known_ratios) if len(known_ratios) == len(all_ratios) else None
    return noisy_words(ratio, by_images)


# --- Contrasts between columns ------------------------------------------------------------------


def _contrasts(arrays: Arrays) -> Iterable[Summary]:
    import numpy as np

    plan = arrays.plan
    for name, contrast in plan.analysis.column_contrasts.items():
        key, ends = contrast["across"], (contrast["from"], contrast["to"])
        pairs = list(_pairs(plan.columns, key, *ends))
        method = arrays.method(len(plan.rows) - 1, len(pairs))
        lines, ratios = [], []
        for start_column, end_column in pairs:
            rest = {k: v for k, v in plan.columns[start_column].settings.items() if k != key}
            changes = stats.changes(
                arrays.y[start_column],
                arrays.y[end_column],
                arrays.baseline,
                method,
                np.any(arrays.unstable[[start_column, end_column]], axis=0),
                arrays.images((start_column, end_column)),
            )
            if changes.void:
                continue
            ratios += [changes.ratio] * changes.tripped
            partial = np.any(arrays.omitted[[start_column, end_column]], axis=0)
            lines += [
                arrays.line(
                    row.label,
                    ", ".join(f"{k}={v}" for k, v in rest.items()),
                    change,
                    judgeable=not partial[[r, arrays.baseline]].any(),
                )
                for r, (row, change) in enumerate(zip(plan.rows, changes.rows, strict=True))
                if change is not None
            ]
        yield Summary(
            kind="contrast",
            name=name,
            title=f"Contrast {name}: the gain at {key}={ends[1]} minus the gain at {ends[0]}",
            note=f"+: the row gains more at {ends[1]}",
            contrasts=method.contrasts,
            lines=tuple(lines),
            basis=noisy(ratios, by_images=arrays.right is not None),
        )


def _pairs(columns: Sequence[Column], key: str, start: Any, end: Any) -> Iterable[tuple[int, int]]:
    """Yield pairs of columns that differ in `key` alone: `start` in one, `end` in the other."""
    for b, start_column in enumerate(columns):
        for a, end_column in enumerate(columns):
            if start_column.settings.get(key) == start and end_column.settings == {
                **start_column.settings,
                key: end,
            }:
                yield b, a


# --- Averages over columns ------------------------------------------------------------------------

FEWEST = 2  # columns of an average
FIXED_COLUMNS = "for these columns and new seeds"


def averages(arrays: Arrays) -> tuple[Summary, ...]:
    """Compute the average over the columns; and that over the columns of each group, in a block of
    its own. The groups are one family where `analysis.family` is the table."""
    plan = arrays.plan
    rows, everywhere = len(plan.rows) - 1, range(len(plan.columns))
    method = arrays.method(rows)
    lines, note, noise = _averages(arrays, everywhere, method, "")
    usable = len(plan.columns) - sum(map(len, _unusable(arrays, everywhere).values()))
    average = Summary(
        kind="average",
        name="average",
        title=f"Average over the {usable} columns",
        note=note,
        contrasts=method.contrasts,
        lines=lines,
        basis=joined_note(FIXED_COLUMNS, noise),
    )
    return tuple(block for block in (average, *_group_averages(arrays)) if block.lines)


def _group_averages(arrays: Arrays) -> Iterator[Summary]:
    plan = arrays.plan
    places = [wide_places(plan.columns)[column.label] for column in plan.columns]
    members = {
        group.name: [c for c, place in enumerate(places) if place.heading in group.headings]
        for group in plan.groups
    }
    averaged = {name: indices for name, indices in members.items() if len(indices) >= FEWEST}
    if not averaged:
        return
    method = arrays.method(len(plan.rows) - 1, len(averaged))
    group_averages = [
        _averages(arrays, indices, method, name) for name, indices in averaged.items()
    ]
    yield Summary(
        kind="group",
        name="group",
        title="Average over the columns of each group",
        note=joined_note(*dict.fromkeys(note for _, note, _ in group_averages)),
        contrasts=method.contrasts,
        lines=tuple(line for lines, *_ in group_averages for line in lines),
        basis=joined_note(FIXED_COLUMNS, *(noise for *_, noise in group_averages)),
    )


def _with_mean(average: stats.AverageGain) -> stats.Estimate:
    """Return the interval if columns were a sample, about the mean that the line has already: the
    two means are sums of the same numbers in another order, and may round to other digits."""
    return dataclasses.replace(average.sampled, mean=average.gain.gain.mean)


def _unusable(arrays: Arrays, column_indices: Iterable[int]) -> dict[str, list[str]]:
    """Return which of the columns with these indices no row is averaged over: why -> headings."""
    headings: dict[str, list[str]] = {}
    for c in column_indices:
        if arrays.unstable[c, arrays.baseline]:
            reason = "its baseline is unstable"
        elif arrays.incomplete[c]:
            reason = "its baseline lacks a seed"
        else:
            continue
        headings.setdefault(reason, []).append(arrays.plan.columns[c].heading)
    return headings


def _averages(
    arrays: Arrays, column_indices: Sequence[int], method: stats.Method, group: str
) -> tuple[tuple[SummaryLine, ...], str, str]:
    """Return a line for each row with two of the columns with these indices or more, with its
    average over them; which columns are left out; and whose baselines are noisy."""
    plan, columns = arrays.plan, list(column_indices)
    unusable = _unusable(arrays, columns)
    if len(columns) - sum(map(len, unusable.values())) < FEWEST:
        return (), "", ""
    y, unstable = arrays.y[columns], arrays.unstable[columns]
    right = arrays.images(columns)
    averaged = stats.average_gains(y, arrays.baseline, method, unstable, right)
    lines, ratios = [], {}
    for r, (row, average) in enumerate(zip(plan.rows, averaged, strict=True)):
        if average is not None and len(average.columns) >= FEWEST:
            averaged_columns = [columns[c] for c in average.columns]
            partial = bool(arrays.omitted[averaged_columns][:, [r, arrays.baseline]].any())
            if average.tripped:
                ratios[tuple(averaged_columns)] = average.ratio
            lines.append(
                arrays.line(
                    row.label,
                    group,
                    average.gain,
                    judgeable=not partial,
                    sampled=hide_empty(_with_mean(average), plan.metric),
                    columns=tuple(plan.columns[c].label for c in averaged_columns),
                )
            )
    left_out = "; ".join(
        f"without {', '.join(headings)}: {reason}" for reason, headings in unusable.items()
    )
    noise = noisy(ratios.values(), by_images=right is not None)
    noise = f"{group}: {noise}" if group and noise else noise
    return tuple(lines), left_out, noise
