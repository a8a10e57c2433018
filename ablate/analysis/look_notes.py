"""Says what looks before a table do to its verdicts. What they were `store.past_looks` tells."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ablate.analysis.captions import names
from ablate.planning.plan import Plan
from ablate.store.looks import changes
from ablate.store.past_looks import PastLooks, SeedCounts

if TYPE_CHECKING:
    from ablate.analysis.stats import Method

STRICT = "--strict: verdicts withheld."


def look_notes(
    plan: Plan, past: PastLooks | None, methods: Mapping[str, Method], strict: bool
) -> tuple[list[str], bool]:
    """The notes on a table, and whether `strict` withholds its verdicts. `methods`: of the columns
    that have gains, where looks are known."""
    found, grave = list[str](), list(_left_out(plan))
    if past is not None:
        counts = {column: past.counts(column) for column in methods}
        changed = list(_changed(past))
        found += _by_column(plan, methods, lambda at: _among(past, at, methods[at].contrasts))
        found += (*_read_at(plan, counts, methods), *changed)
        found += _by_column(plan, methods, lambda column: _beside(plan, past, column))
        grave += changed
        grave += [one for one in counts if not counts[one].declared and counts[one].has_more]
    withheld = strict and bool(grave)
    return [*found, *_left_out(plan), *[STRICT] * withheld], withheld


def _by_column(
    plan: Plan, columns: Mapping[str, Method], note: Callable[[str], str]
) -> Iterator[str]:
    """The note on every column, one for those of which it says the same."""
    alike: dict[str, list[str]] = {}
    for column in columns:
        alike.setdefault(note(column), []).append(plan.heading(column))
    for text, headings in alike.items():
        if text:
            yield text if len(headings) == len(columns) else f"{names(headings)}: {text}"


def _among(past: PastLooks, column: str, judged: int) -> str:
    count = past.contrasts(column)
    if count <= len(past.now.columns[column].variants):
        return ""
    return (
        f"These runs were read before, in {names(past.others(column))}, among {count} variants: "
        f"judged as {judged} contrasts."
    )


def _read_at(
    plan: Plan, counts: Mapping[str, SeedCounts], methods: Mapping[str, Method]
) -> Iterator[str]:
    """Yield a note if verdicts, or means of an unfinished table, were also read at other numbers of
    seeds, which were not declared."""
    from ablate.analysis import stats

    alike: dict[str, list[str]] = {}
    for column, found in counts.items():
        if len(found.every) > 1 and not found.declared:
            alike.setdefault(_where(found), []).append(column)
    for where, columns in alike.items():
        errors = [stats.look_error(counts[c].every, _same(methods[c])) for c in columns]
        by_column = plan.analysis.family == "column"
        error = max(errors) if by_column else 1 - math.prod(1 - e for e in errors)
        of = " of a column" if len(errors) > 1 and by_column else ""
        part = f"{names([plan.heading(c) for c in columns])}: " * (len(columns) < len(methods))
        yield (
            f"{part}{where}: the chance of a false verdict on some variant{of} is about "
            f"{100 * error:.0f} %. Looks that are declared beforehand (analysis.looks) share alpha."
        )


def _same(method: Method) -> Method:
    """The method, of a column that has all variants that were read."""
    return dataclasses.replace(method, comparisons=max(method.contrasts, method.comparisons))


def _where(counts: SeedCounts) -> str:
    """ "Verdicts on these runs were also read at n = 3 (sweep corr)"."""
    verdicts, means = (
        ", ".join(f"{n} (sweep{'s'[: len(of) > 1]} {names(of)})" for n, of in sorted(some.items()))
        for some in (counts.verdicts, counts.means)
    )
    if not verdicts:
        return f"Means of these runs were also seen at n = {means}, before all had a result"
    more = f", and means at n = {means}" if means else ""
    return f"Verdicts on these runs were also read at n = {verdicts}{more}"


def _changed(past: PastLooks) -> Iterator[str]:
    """Yield a note if the table has changed since the first look at its runs."""
    first = past.first()
    if first is not None and (parts := changes(first, past.now)):
        where = f" in {first.sweep}" if first.sweep != past.now.sweep else ""
        counted = all(part.startswith("rows: ") for part in parts)
        yield (
            f"Changed since verdicts were first read{where}, at n = {first.n}: {'; '.join(parts)}. "
            f"The change was made with results in view: "
            + ("all variants are counted." if counted else "its error is unknown.")
        )


def _left_out(plan: Plan) -> Iterator[str]:
    """Yield a note if the user skipped runs while curves of their seed could be seen."""
    begun = sum(bool(detail.get("begun")) for detail in plan.skipped.values())
    seen = sum(bool(detail.get("seen")) for detail in plan.skipped.values())
    if begun or seen:
        parts = (f"{begun} had begun",) * bool(begun)
        parts += (f"of {seen} the seed had begun in another row",) * bool(seen)
        yield (
            f"Of the runs that the user skipped {', and '.join(parts)}: seeds were left out with "
            f"curves in view, so the error of the verdicts is unknown."
        )


def _beside(plan: Plan, past: PastLooks, column: str) -> str:
    count, sweeps = past.beside(column)
    if not sweeps:
        return ""
    families = len({*sweeps, past.now.sweep})
    alpha = f"{plan.analysis.alpha:g}".removeprefix("0")
    return (
        f"{count} variants in {families} sweeps were read against these baseline runs, each sweep "
        f"as its own family: {alpha} each."
    )
