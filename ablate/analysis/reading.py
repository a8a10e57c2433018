"""Reads tables: every command that prints one makes it here, and records the look.

The look is recorded before it is printed: a look that nobody saw costs a note, a look that nobody
recorded would hide an error. A table without intervals of gains is recorded as a peek.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ablate.analysis.note import notes, sentence
from ablate.analysis.own import with_own_metrics
from ablate.analysis.scores import Results
from ablate.analysis.sequential import courses_of, look_events
from ablate.analysis.table import Table
from ablate.analysis.tabulate import make_table
from ablate.planning import Plan
from ablate.store import InterimLook, Look, PastLooks, Store, Unrecorded, looks


class Reading(NamedTuple):
    """A table, and the looks that bear upon it, its own among them.

    `withheld`: why gains have no intervals though it is complete, where no look can be recorded.
    """

    table: Table
    looks: list[InterimLook]
    withheld: str = ""


def read_verdicts(plan: Plan, store: Store, results: Results, **options: Any) -> Reading:
    """Make the table of a sweep with its verdicts, once the look is recorded. If it can't be
    recorded, gains have no intervals and no verdicts, and a note says so. `options`: of `tabulate`.
    """
    results, options = _prepared(plan, store, results, options)
    recorded_looks = store.read_looks()
    while True:
        past = PastLooks(looks.parse_events(recorded_looks), looks.look(plan, results))
        table = make_table(plan, results, past, words=True, **options)
        events = list(_events(plan, table, results, options, past))
        lacking = [event for event in events if event not in recorded_looks]
        try:
            for event in lacking:
                store.add_look(event)
        except Unrecorded as error:
            if not table.is_look:
                return Reading(table, past.related())
            table = make_table(plan, results, past, means=True, **options)
            withheld = notes("warning", [sentence("looks.unrecorded", reason=str(error))])
            table = dataclasses.replace(table, notes=(*withheld, *table.notes))
            return Reading(table, past.related(), str(error))
        current_looks = store.read_looks() if lacking else recorded_looks
        if len(current_looks) <= len(recorded_looks) + len(lacking):
            return Reading(
                table,
                PastLooks(looks.parse_events(current_looks), looks.look(plan, results)).related(),
            )
        # Another process read some of these runs meanwhile, and was first.
        recorded_looks = current_looks


def read_means(plan: Plan, store: Store, results: Results, **options: Any) -> Table:
    """Make the table of a sweep with means alone, which is recorded where it can be."""
    results, options = _prepared(plan, store, results, options)
    table = make_table(plan, results, means=True, **options)
    recorded_looks = store.read_looks()
    with contextlib.suppress(Unrecorded):
        for event in _peek(plan, results):
            if event not in recorded_looks:
                store.add_look(event)
    return table


def _prepared(
    plan: Plan, store: Store, results: Results, options: Mapping[str, Any]
) -> tuple[Results, dict[str, Any]]:
    """Return the results with the user's own metrics, and the options with all readers of files."""
    results = with_own_metrics(plan, results, store, options.get("also", ()))
    readers = {"curves": store.metrics, "probes": store.probe, "predictions": store.predictions}
    return results, {**readers, **options}


def _events(
    plan: Plan, table: Table, results: Results, readers: Mapping[str, Any], past: PastLooks
) -> Iterator[Look]:
    """Yield the events that record the reading of this table: its looks, and a peek if it is
    incomplete or no look."""
    curves, probes, predictions = (readers[x] for x in ("curves", "probes", "predictions"))
    courses = courses_of(plan, results, curves, probes, predictions, past)
    yield from (look.event() for look in look_events(plan, courses, past, results))
    if table.is_look and not courses:
        yield past.judged_look().event()
    if not table.complete or not table.is_look:
        yield from _peek(plan, results)


def _peek(plan: Plan, results: Results) -> Iterator[Look]:
    """Yield the peek that records a reading of the plan's means, unless no variant has a result."""
    peek = looks.peek(plan, results)
    if any(row.runs for column in peek.columns.values() for row in column.variants):
        yield peek.event()
