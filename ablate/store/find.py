"""Finds the run or the sweep that a word on the command line names.

Used by `cli/selection.py` for all commands that name a driven sweep, and by `ablate show` and
`ablate run` (`cli/looking.py`, `cli/driving.py`) for runs.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ablate.planning import Cell, Plan, PlannedRun
from ablate.shared import (
    Failure,
    NotThere,
    UserError,
    expected_words,
    unknown_value,
)
from ablate.store.folder import WRITES_AGAIN
from ablate.store.ledger import Ledger
from ablate.store.store import Store

MOST_SHOWN = 5  # candidates that an error names


def find_run(store: Store, ledger: Ledger, text: str, sweep: str | None = None) -> str:
    """Return the id of the run that `text` names: LABEL@COLUMN#SEED, or the beginning of an id.

    LABEL@COLUMN#SEED is looked up in all driven plans, the last driven first, or only in the plan
    of `sweep`. In a plan with one column, LABEL#SEED is enough. Raises UserError where no run
    matches, or where several ids begin with `text`.
    """
    if "#" in text:
        return _labelled(store, ledger, text, sweep)
    ids = ledger.states().keys() | store.folders()
    if text in ids:
        return text
    matches = sorted(run for run in ids if run.startswith(text))
    if len(matches) > 1:
        raise UserError(f"run: {text}: matches several runs, {_some(matches)}; give one of them")
    if not matches:
        planned = (run.label for plan in driven_plans(store, ledger) for run in plan.runs())
        labels = list(dict.fromkeys(planned))
        near = [label for label in labels if label.startswith(text)]
        form = _some(near or labels) if labels else "LABEL@COLUMN#SEED"
        raise UserError(
            f"run: no id of {store.root} begins with {text!r}; "
            f"give the first letters of one, or a label: {form}"
        )
    return matches[0]


def _labelled(store: Store, ledger: Ledger, text: str, sweep: str | None) -> str:
    ids_by_label: dict[str, str] = {}
    for name in ledger.sweeps():
        if sweep not in (None, name):
            continue
        names = _names_there(store, name)
        if text in names and (plan := ledger.sealed_plan(store, name)) is not None:
            return _names(plan).get(text, names[text])
        ids_by_label |= names
    near = (
        difflib.get_close_matches(text, ids_by_label, n=MOST_SHOWN)
        or list(ids_by_label)[:MOST_SHOWN]
    )
    raise unknown_value("run", text, near, "LABEL@COLUMN#SEED of a sweep driven here, such as")


def _names_there(store: Store, sweep: str) -> dict[str, str]:
    """Return `_names` of the plan file as it is, {} where it is missing or unreadable.

    The seal is not checked here: an edited plan matters only if it has the name.
    """
    with contextlib.suppress(Failure):
        plan = store.read_plan(sweep)
        return {} if plan is None else _names(plan)
    return {}


def _names(plan: Plan) -> dict[str, str]:
    """Map every name of a run of the plan to the run's id.

    A run is named by its label as printed, by the aliases of its row, by LABEL#SEED where the plan
    has one column, and by each trial that it serves as.
    """
    aliases = {row.label: row.aliases for row in plan.rows}
    runs = [*plan.runs(), *plan.tried()]
    names = {run.label: run.id for run in runs}
    for run in runs:
        columns = {run.cell.column} | ({""} if len(plan.columns) == 1 else set())
        for row, column in itertools.product((run.cell.row, *aliases[run.cell.row]), columns):
            names.setdefault(
                f"{row}@{column}#{run.number}" if column else f"{row}#{run.number}", run.id
            )
    return names


def sweep_names(store: Store, ledger: Ledger) -> list[str]:
    """List the sweeps driven in the store, the last driven first.

    Raises NotThere (a UserError) if there are none, and Failure if there are plans but none is
    readable.
    """
    sweeps = ledger.sweeps()
    if not sweeps and (lost := store.plans()):
        raise Failure(f"{lost[0]}: no whole plan; {WRITES_AGAIN}")
    if not sweeps:
        raise NotThere(
            f"{store.root}: no sweep was driven here yet; start with `ablate sweep quickstart`"
        )
    return sweeps


def resolve_sweep_name(word: str, names: list[str]) -> str | None:
    """Return the driven sweep with that name, or the only one whose name continues it by @ or +.

    Returns None if there is none. Raises UserError if several names continue it.
    """
    if word in names or "=" in word:
        return word if word in names else None
    instances = [sweep for sweep in names if sweep.startswith((f"{word}@", f"{word}+"))]
    if len(instances) > 1:
        raise UserError(f"{word}: matches several sweeps; give one of {', '.join(instances)}")
    return instances[0] if instances else None


def driven_plan(
    store: Store, ledger: Ledger, names: Sequence[str], name: str, check_seal: bool = True
) -> Plan:
    """Return the plan of a sweep driven in the store. `names`: those of all driven sweeps.

    With `check_seal=False` the file is read without comparing it with its seal, for callers that
    report what is wrong with it. Raises NotThere for an unknown name, and Failure where the plan is
    missing, torn or, if `check_seal`, edited.
    """
    if name not in names:
        expectation = f"one driven in {store.root}:"
        raise NotThere(f"sweep: {expected_words(name, names, expectation)}")
    plan = ledger.sealed_plan(store, name) if check_seal else store.read_plan(name)
    if plan is None:
        raise Failure(f"{store.plan_path(name)}: not whole; {WRITES_AGAIN}")
    return plan


def newest_plan(store: Store, ledger: Ledger, names: Sequence[str]) -> tuple[Plan, list[str]]:
    """Return the plan of the last driven sweep whose plan is readable, and lines on those skipped.

    There is one line for each sweep that was driven later and whose plan can't be read. `names`:
    those of all sweeps, the last driven first. Raises Failure if no plan can be read.
    """
    lines: list[str] = []
    for name in names:
        try:
            return driven_plan(store, ledger, names, name), lines
        except Failure as error:
            lines.append(str(error))
    raise Failure(lines[0])


class FollowedSweep:
    """A driven plan that is read again as it grows: by seeds, rows, a search or looks."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store, self.plan = store, plan
        self._stamp: tuple[int, int] | None = None  # of the file that it was read from

    def grew(self, ledger: Ledger) -> bool:
        """Return whether the plan's file was written again, and read it into `plan` if so.

        Raises Failure where the file was edited.
        """
        stamp = self._store.plan_stamp(self.plan.name)
        if stamp in (None, self._stamp):
            return False
        self.plan = (ledger.sealed_plan(self._store, self.plan.name) or self.plan).with_own()
        self._stamp = stamp
        return True


def unedited_plan(store: Store, plan: Plan) -> Plan:
    """Return the plan for computing with it. Raises Failure if its file was edited."""
    try:
        return plan.checked()
    except ValueError as error:
        raise Failure(f"{store.plan_path(plan.name)}: {error}; {WRITES_AGAIN}") from error


def without_skipped(plan: Plan, ledger: Ledger) -> Plan:
    """Return the plan without the runs that the user skipped, for computing with it.

    A plan whose design needs all skipped runs is returned unchanged: a sweep with looks needs every
    run.
    """
    states = ledger.states({run.id for run in plan.runs()})
    skipped_ids = {run for run, state in states.items() if state.status == "skipped"}
    if not skipped_ids or skipped_ids <= plan.design.needed_runs(plan).keys():
        return plan
    details = ledger.last_detail("skipped")
    skipped = {
        PlannedRun(run, cell, seed).label: details[run]
        | {"seen": _had_started_peer(plan, ledger, cell, seed)}
        for cell in plan.cells
        for seed, run in cell.ids.items()
        if run in skipped_ids
    }
    cells = (
        replace(cell, ids={seed: run for seed, run in cell.ids.items() if run not in skipped_ids})
        for cell in plan.cells
    )
    return replace(plan, cells=tuple(cells), skipped={**plan.skipped, **skipped})


def _had_started_peer(plan: Plan, ledger: Ledger, cell: Cell, seed: int) -> bool:
    """Return whether a run to compare with this skipped one had started before it was skipped.

    The runs that a gain would compare with it are those of the same column and seed.
    """
    skip_time = max(
        timestamp for timestamp, kind, _ in ledger.events(cell.ids[seed]) if kind == "skipped"
    )
    peer_ids = {peer.ids.get(seed) for peer in plan.cells if peer.column == cell.column}
    peer_ids -= {None, cell.ids[seed]}
    return any(
        kind == "started" and timestamp < skip_time
        for run in peer_ids
        for timestamp, kind, _ in ledger.events(str(run))
    )


def driven_plans(
    store: Store, ledger: Ledger, runs: Collection[str] | None = None
) -> Iterator[Plan]:
    """Yield the driven plans that are whole, the last driven first.

    With `runs`, only plans that contain one of these. Raises Failure for a plan that was edited.
    """
    for name in ledger.sweeps() if runs is None else ledger.sweeps_of(runs):
        plan = ledger.sealed_plan(store, name)
        if plan is not None:
            yield plan


def sweeps_of_run(store: Store, ledger: Ledger, run: str) -> list[tuple[str, PlannedRun]]:
    """List (sweep, planned run) for every driven sweep that contains the run, the last driven
    first."""
    return [
        (plan.name, planned)
        for plan in driven_plans(store, ledger, {run})
        for planned in plan.runs()
        if planned.id == run
    ]


def _some(names: list[str]) -> str:
    suffix = f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + suffix
