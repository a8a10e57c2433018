"""Reads verdicts: every command that prints a verdict makes its table here, and records the look.

The look is recorded before it is printed: a look that nobody saw costs a note, a look that nobody
recorded would hide an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from ablate.analysis.course import courses_of, look_events
from ablate.analysis.own import with_own
from ablate.analysis.scores import Curves, Probes, Results
from ablate.analysis.table import Table
from ablate.analysis.tabulate import tabulate
from ablate.planning.plan import Plan
from ablate.shared.spec import DRAWS, draws_of, older_id
from ablate.store import looks
from ablate.store.ledger import Unrecorded
from ablate.store.looks import InterimLook
from ablate.store.store import Store


class Reading(NamedTuple):
    """A table, and the looks at which verdicts of its sweep were read, its own the last.

    `withheld`: why it has no verdicts though it is complete, where they can't be recorded.
    """

    table: Table
    looks: list[InterimLook]
    withheld: str = ""


def read(plan: Plan, store: Store, results: Results, **options: Any) -> Reading:
    """Make the table of a sweep with its verdicts, once the look is recorded. If it can't be
    recorded, the table has no verdicts and a note. `options`: of `tabulate`.
    """
    results = with_own(plan, results, store, options.get("also", ()))
    readers = {"curves": store.metrics, "probes": store.probe, "predictions": store.predictions}
    options = {**readers, **options}
    now = _now(plan, results, options["curves"], options["probes"])
    seen = _before(plan, store, now[:1])
    while True:
        table = tabulate(plan, results, seen, words=True, **options)
        if not table.is_look:
            return Reading(table, seen)
        try:
            for look in now:
                store.add_look(look.event(plan.name))
        except Unrecorded as why:
            table = tabulate(plan, results, seen, **options)
            line = f"Verdicts withheld: the look can't be recorded ({why})."
            return Reading(dataclasses.replace(table, notes=(line, *table.notes)), seen, str(why))
        before = _before(plan, store, now[:1])
        if before == seen:
            return Reading(table, [*seen, *now])
        seen = before  # another process read it meanwhile, and was first


def older(plan: Plan, store: Store) -> int:
    """How many of its runs the store has, too, as an older version drew them: other runs, which no
    cell of it has."""
    runs = [run for run in plan.runs() if draws_of(run.cell.spec) == DRAWS]
    ids = {older_id(run.cell.spec, run.seed) for run in runs}
    ids -= {run.id for run in runs}  # those that draw nothing
    return sum(store.rundir(run).has_result() for run in ids)


def _now(plan: Plan, results: Results, curves: Curves, probes: Probes) -> list[InterimLook]:
    """What it is to read the plan's verdicts: one look, or all that gave out its seeds."""
    if not plan.until:
        return [looks.look(plan)]
    return list(look_events(plan, courses_of(plan, results, curves, probes)))


def _before(plan: Plan, store: Store, now: Sequence[InterimLook]) -> list[InterimLook]:
    """The looks before the first of these."""
    found = looks.read(store.read_looks(plan.name))
    return looks.before(found, now[0]) if now else found
