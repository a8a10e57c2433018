"""Writes the lines of a caption that are of one column each: its spread, and the gains that more
seeds would resolve. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ablate.analysis.across import noisy
from ablate.analysis.captions import count, sentence, with_words
from ablate.planning.cell import FIRST_TUNING_SEED
from ablate.planning.plan import Plan

if TYPE_CHECKING:
    from ablate.analysis.table import TableColumn


def details(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[str]:
    """State the spread of every column, then what more seeds would resolve."""
    for column in columns:
        spread = _spread(plan, column)
        yield f"{column.heading}: {spread}" if column.heading else sentence(spread)
    yield from _forecast(plan, columns)


def _spread(plan: Plan, column: TableColumn) -> str:
    of = plan.metric
    if column.spreads is None:
        return f"{noisy([column.baseline_ratio])}." if column.tripped else "spread unknown."
    least, most = (f"{spread:.{of.decimals}f}" for spread in column.spreads)
    spread = least if least == most else f"{least} to {most}"
    rows = f"{column.kept_rows} of {count(len(column.entries), 'row')}"
    df = f"{column.df:.0f} df" if column.df is not None else ""
    match column.judged_by:
        case "images":
            parts = [
                f"each row's own spread, {spread} {of.points}, from which images change between "
                f"its seeds ({df}, {rows})"
            ]
        case "one way":
            parts = [f"spread {spread} {of.points} ({df}, {rows})"]
        case _:
            parts = [f"each row's own spread, {spread} {of.points} ({df})"]
    parts += [noisy([column.baseline_ratio])] * column.tripped
    parts += filter(None, [_test_set(plan, column), _likeness(column)])
    if plan.spread == "images" and column.lacking and len(column.entries) > 2:
        parts.append(f"not from images, since {column.lacking}")
    return "; ".join(parts) + "."


MOSTLY = 0.5  # of a variance
LARGER = 5  # times as many images


def _test_set(plan: Plan, column: TableColumn) -> str:
    """Say how much of the variance of gains is the size of the test set, where most of it is."""
    if column.flips <= MOSTLY or len(column.test_sizes) != 1:
        return ""
    [size] = column.test_sizes
    left = 1 - column.flips + column.flips / LARGER
    return (
        f"{100 * column.flips:.0f} % of the variance is the {size:,} test {plan.task.examples}: "
        f"{LARGER * size:,} would need {100 * left:.0f} % of the seeds"
    )


def _likeness(column: TableColumn) -> str:
    """Say which row's images flip most and least like the baseline's."""
    known = [(e.likeness, e.row) for e in column.entries if e.likeness is not None]
    if len(known) < 2 or column.judged_by != "images":
        return ""
    (low, least), (high, most) = min(known), max(known)
    return f"images flip with the baseline's: {high:.2f} {most} ... {low:.2f} {least}"


def _forecast(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[str]:
    """State the gain that twice as many seeds would resolve, and the command that trains them."""
    of = plan.metric
    told = [column for column in columns if column.forecast]
    for column in told:
        assert column.forecast is not None
        f = column.forecast
        half, low, high = (f"{x:.{of.decimals}f}" for x in (f.half, f.low, f.high))
        at = f"{column.heading}: " if column.heading else ""
        alike = "if the rows' spreads are as alike as they look"
        yield (
            f"{at}{f.seeds} seeds would resolve {of.change}s of about {half} {of.points} ({low} to "
            f"{high}), {alike}."
        )
    if told:
        n = len(plan.seeds)
        yield f"{count(n * len(plan.cells), 'more run')}: `{seeds_command(plan, 2 * n)}`."


def seeds_command(plan: Plan, n: int) -> str:
    """Return the command of the sweep with n seeds, its present seeds among them."""
    more = [seed for seed in range(FIRST_TUNING_SEED) if seed not in plan.seeds]
    seeds = [*plan.seeds, *more[: n - len(plan.seeds)]]
    text = str(n) if sorted(seeds) == [*range(n)] else f"[{','.join(map(str, seeds))}]"
    return with_words(plan, f"seeds={text}")
