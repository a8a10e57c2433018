"""Reads tables: every command that prints one makes it here, and records the look.

The look is recorded before it is printed: a look that nobody saw costs a note, a look that nobody
recorded would hide an error. A table without intervals of gains is recorded as a peek.

Used by cli/printing.py (`ablate table`, the end of `ablate sweep`), api/publishing.py
(`ablate plot`, `ablate report`) and report/watch/answers.py (`ablate watch`); also by
audit/export.py and Python. What a look holds is decided in store/looks.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ablate.analysis.evidence import Evidence, RunFiles
from ablate.analysis.judging import Detail
from ablate.analysis.note import notes, sentence
from ablate.analysis.own import with_own_metrics
from ablate.analysis.scores import Results
from ablate.analysis.sequential import ColumnCourse, follow, look_events
from ablate.analysis.table import Table
from ablate.analysis.tabulate import NO_EXTRAS, Extras, make_table
from ablate.planning import Plan
from ablate.store import InterimLook, Look, PastLooks, Store, Unrecorded, looks


class Reading(NamedTuple):
    """A table, and the looks that bear upon it, its own among them.

    `withheld`: why gains have no intervals though it is complete, where no look can be recorded.
    """

    table: Table
    looks: list[InterimLook]
    withheld: str = ""


def read_verdicts(
    plan: Plan,
    store: Store,
    results: Results,
    *,
    withheld: Mapping[str, str] | None = None,
    strict: bool = False,
    extras: Extras = NO_EXTRAS,
    files: RunFiles | None = None,
) -> Reading:
    """Make the table of a sweep with its verdicts, once the look is recorded. If it can't be
    recorded, gains have no intervals and no verdicts, and a note says so. `withheld`, `strict`,
    `extras`: see `make_table`; `files`: readers of the runs' files, those of `store` if None."""
    evidence = _collect_evidence(plan, store, results, extras, withheld, files)
    results = evidence.results
    recorded_looks = store.read_looks()
    while True:
        past = PastLooks(looks.parse_events(recorded_looks), looks.look(plan, results))
        courses = follow(evidence, past)
        table = make_table(
            evidence,
            past,
            courses=courses,
            detail=Detail.VERDICTS,
            strict=strict,
            extras=extras,
        )
        events = list(_events(evidence, table, courses, past))
        lacking = [event for event in events if event not in recorded_looks]
        try:
            for event in lacking:
                store.add_look(event)
        except Unrecorded as error:
            if not table.is_look:
                return Reading(table, past.related())
            table = make_table(evidence, past, detail=Detail.MEANS, strict=strict, extras=extras)
            reason = notes("warning", [sentence("looks.unrecorded", reason=str(error))])
            table = dataclasses.replace(table, notes=(*reason, *table.notes))
            return Reading(table, past.related(), str(error))
        current_looks = store.read_looks() if lacking else recorded_looks
        if len(current_looks) <= len(recorded_looks) + len(lacking):
            return Reading(
                table,
                PastLooks(looks.parse_events(current_looks), looks.look(plan, results)).related(),
            )
        # Another process read some of these runs meanwhile, and was first.
        recorded_looks = current_looks


def read_means(
    plan: Plan, store: Store, results: Results, withheld: Mapping[str, str] | None = None
) -> Table:
    """Make the table of a sweep with means alone, which is recorded where it can be."""
    evidence = _collect_evidence(plan, store, results, NO_EXTRAS, withheld, None)
    table = make_table(evidence, detail=Detail.MEANS)
    recorded_looks = store.read_looks()
    with contextlib.suppress(Unrecorded):
        for event in _peek(plan, evidence.results):
            if event not in recorded_looks:
                store.add_look(event)
    return table


def _collect_evidence(
    plan: Plan,
    store: Store,
    results: Results,
    extras: Extras,
    withheld: Mapping[str, str] | None,
    files: RunFiles | None,
) -> Evidence:
    """Collect the results of a sweep with the user's own metrics."""
    results = with_own_metrics(plan, results, store, extras.also)
    if files is None:
        files = RunFiles(store.metrics, store.probe, store.predictions)
    return Evidence.collect(plan, results, files, extras.also, withheld)


def _events(
    evidence: Evidence, table: Table, courses: Mapping[str, ColumnCourse], past: PastLooks
) -> Iterator[Look]:
    """Yield the events that record the reading of this table: its looks, and a peek if it is
    incomplete or no look."""
    plan, results = evidence.plan, evidence.results
    yield from (look.event() for look in look_events(plan, courses, past, results))
    if table.is_look and not courses:
        yield past.judged_look().event()
    if not table.complete or not table.is_look:
        yield from _peek(plan, results)


def _peek(plan: Plan, results: Results) -> Iterator[Look]:
    """Yield the peek that records a reading of the plan's means, unless no variant has a result."""
    peek = looks.peek(plan, results)
    if any(row.runs for column in peek.columns.values() for row in peek.variants(column)):
        yield peek.event()
