"""Writes the lines of a caption that are of one column each: its spread, and the gains that more
seeds would resolve. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ablate.analysis.across import pooled_gains
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
    parts = []
    if column.spread is not None:
        variants = column.baseline_ratio or plan.baseline_seeds
        whose = "the variants' spread" if variants else "spread"
        each = ""
        if column.spreads:
            least, most = (f"{spread:.{of.decimals}f}" for spread in column.spreads)
            each = f"; by their predictions {least} to {most}"
        parts.append(
            f"{whose} {column.spread:.{of.decimals}f} {of.points} ({column.df} df, "
            f"{column.pooled_rows} of {count(len(column.entries), 'row')}{each})"
        )
        if column.baseline_ratio and column.spreads:
            parts.append(
                f"the baseline's own spread is {column.baseline_ratio:.1f} times the spread that "
                f"its predictions and the variants tell: judged by its own"
            )
        elif column.baseline_ratio:
            parts.append(pooled_gains(column.baseline_ratio))
    elif column.baseline_ratio:  # by looks, which pool gains alone
        parts.append(pooled_gains(column.baseline_ratio))
    elif plan.spread in ("pooled", "predictions"):
        parts.append("spread unknown")
    if plan.spread == "predictions" and column.lacking:
        parts.append(f"one spread for all rows, since {column.lacking}")
    if (r := column.correlation) and r.low is not None and r.high is not None:
        parts.append(f"seed correlation {r.mean:.2f} [{r.low:.2f}, {r.high:.2f}]")
    else:
        parts.append("seed correlation unknown")
    return "; ".join(parts) + "."


def _forecast(plan: Plan, columns: Sequence[TableColumn]) -> Iterator[str]:
    """State the gain that twice as many seeds would resolve, and the command that trains them."""
    of = plan.metric
    told = [column for column in columns if column.forecast]
    for column in told:
        assert column.forecast is not None
        f = column.forecast
        half, low, high = (f"{x:.{of.decimals}f}" for x in (f.half, f.low, f.high))
        at = f"{column.heading}: " if column.heading else ""
        alike = "if the spreads of the rows are as equal as they look"
        alike = "in a row of that spread" if column.spreads else alike
        yield (
            f"{at}{f.seeds} seeds would resolve {of.change}s of about {half} {of.points} ({low} to "
            f"{high}), {alike}."
        )
    if told:
        n = len(plan.seeds)
        yield f"{count(n * len(plan.cells), 'more run')}: `{_command(plan, 2 * n)}`."


def _command(plan: Plan, n: int) -> str:
    """Return the command of the sweep with n seeds, its present seeds among them."""
    more = [seed for seed in range(FIRST_TUNING_SEED) if seed not in plan.seeds]
    seeds = [*plan.seeds, *more[: n - len(plan.seeds)]]
    text = str(n) if sorted(seeds) == [*range(n)] else f"[{','.join(map(str, seeds))}]"
    return with_words(plan, f"seeds={text}")
