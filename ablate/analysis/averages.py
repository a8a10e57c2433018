"""Computes the averages of a table: of the gains over all columns, and over each group of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ablate.analysis.across import (
    Arrays,
    Summary,
    SummaryLine,
    hide_empty,
    joined_note,
    noisy,
)
from ablate.planning.cell import wide_places

if TYPE_CHECKING:
    from ablate.analysis.stats import Method

FEWEST = 2  # columns of an average


def averages(arrays: Arrays) -> tuple[Summary, ...]:
    """Compute the average over the columns; and that over the columns of each group, in a block of
    its own. The groups are one family where `analysis.family` is the table."""
    plan = arrays.plan
    rows, everywhere = len(plan.rows) - 1, range(len(plan.columns))
    whole = arrays.method(rows)
    lines, notes = _lines(arrays, everywhere, whole, "")
    average = Summary(
        kind="average",
        name="average",
        title=f"Average over the {len(plan.columns) - len(arrays.void)} columns",
        note=joined_note(*notes),
        contrasts=whole.contrasts,
        lines=lines,
    )
    return tuple(block for block in (average, *_groups(arrays)) if block.lines)


def _groups(arrays: Arrays) -> Iterator[Summary]:
    plan = arrays.plan
    places = [wide_places(plan.columns)[column.label] for column in plan.columns]
    members = {
        group.name: [c for c, place in enumerate(places) if place.heading in group.headings]
        for group in plan.groups
    }
    averaged = {name: which for name, which in members.items() if len(which) >= FEWEST}
    if not averaged:
        return
    method = arrays.method(len(plan.rows) - 1, len(averaged))
    found = [_lines(arrays, which, method, name) for name, which in averaged.items()]
    yield Summary(
        kind="group",
        name="group",
        title="Average over the columns of each group",
        note=joined_note(*dict.fromkeys(note for _, notes in found for note in notes)),
        contrasts=method.contrasts,
        lines=tuple(line for lines, _ in found for line in lines),
    )


def _lines(
    arrays: Arrays, which: Sequence[int], method: Method, group: str
) -> tuple[tuple[SummaryLine, ...], tuple[str, ...]]:
    """A line for each row, of its average over `which` columns; and the notes on them."""
    from ablate.analysis import stats

    plan, columns = arrays.plan, list(which)
    void = [plan.columns[c].heading for c in columns if arrays.unstable[c, arrays.baseline]]
    if len(columns) - len(void) < FEWEST:
        return (), ()
    y, unstable = arrays.y[columns], arrays.unstable[columns]
    right = arrays.images(columns)
    averaged = stats.average_gains(y, arrays.baseline, method, unstable, right)
    lines, ratios = [], {}
    for r, (row, average) in enumerate(zip(plan.rows, averaged, strict=True)):
        if average is not None:
            over = [columns[c] for c in average.columns]
            partial = bool(arrays.omitted[over][:, [r, arrays.baseline]].any())
            if average.tripped:
                ratios[tuple(over)] = average.ratio
            lines.append(
                arrays.line(
                    row.label,
                    group,
                    average.gain,
                    given=not partial,
                    sampled=hide_empty(average.sampled, plan.metric),
                    columns=tuple(plan.columns[c].label for c in over),
                )
            )
    left_out = f"without {', '.join(void)}: its baseline is unstable" if void else ""
    noise = noisy(ratios.values())
    noise = f"{group}: {noise}" if group and noise else noise
    return tuple(lines), ("columns fixed, seeds random", left_out, noise)
