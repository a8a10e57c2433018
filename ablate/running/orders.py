"""The orders of `ablate run` for single runs: one pure function decides what an order does.

An order is a file of the store until the driver, or `ablate run` in the driver's turn, has recorded
the event. An order that is carried out twice, because the first process was killed, has no further
effect.

Used by `ablate run` (cli/driving.py), which gives orders, and by the driver of `ablate sweep`
(running/driver.py), which carries them out. A new order also needs its option and its entry in
cli/driving.py `ORDER_EFFECTS`.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ablate.run import FINAL_STATUSES
from ablate.running.driver_lock import Waiting
from ablate.shared import UserError
from ablate.store import Ledger, RunState, Store, driven_plans, driver_of

Order = Literal["skip", "undo"]
ORDERS = get_args(Order)
PATIENCE_S = 2.0  # for a driver at work; one that decodes data answers later


@dataclass(frozen=True)
class Effect:
    """The effect of an order: an event to record, if any, with its detail, or the reason for
    refusing the order."""

    event: str | None
    refusal: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def effect_of(order: str, state: RunState, *, result: bool, had_result: bool) -> Effect:
    """Decide what an order does with a run, whether it has a worker or not. It handles every state.

    `state`: the ledger's; `result`: its folder has one; `had_result`: its result was recorded at
    some time, so the user may have seen it. The first rule that fits holds;
    docs/resume-and-store.md describes them for users.
    """
    ended = result or state.status in FINAL_STATUSES
    status = "finished" if result and state.status not in FINAL_STATUSES else state.status
    match order:
        case "undo" if state.status == "skipped" and not ended:
            return Effect("retried")
        case "undo":
            return Effect(None, f"is {status}, so there is nothing to undo")
        case "skip" if ended or had_result:
            reason = "has a result" if ended else "had a result once"
            return Effect(None, f"{reason}, and a seed whose result is known can't be left out")
        case "skip" if state.status == "skipped":
            return Effect(None)
        case "skip":
            return Effect("skipped")
    return Effect(None, f"{order}: is no order")


def decide(store: Store, ledger: Ledger, order: str, run: str, state: RunState) -> Effect:
    """Decide as `effect_of` does, for a run as the store has it. A skipped run's detail says how
    far it had come."""
    folder = store.rundir(run)
    kinds = {kind for _, kind, _ in ledger.events(run)}
    effect = effect_of(
        order,
        state,
        result=folder.read_result() is not None,
        had_result=not kinds.isdisjoint(FINAL_STATUSES),
    )
    if effect.event != "skipped":
        return effect
    step = max(folder.newest_step(), store.liveness.notes(folder).step or 0)
    detail = {"was": state.status, "begun": "started" in kinds, "step": step}
    return replace(effect, detail=detail)


def carry_out(store: Store, ledger: Ledger, order: str, run: str) -> None:
    """Carry out an order, in the driver's turn, for a run that nobody drives now."""
    state = ledger.states([run]).get(run)
    if state is None:
        return
    effect = decide(store, ledger, order, run, state)
    if effect.event is not None:
        ledger.record(run, effect.event, **effect.detail)
    if order == "skip" and not effect.refusal:
        store.liveness.stop(store.rundir(run))  # of a driver that died


# --- Given by `ablate run` ----------------------------------------------------------------------


def check_order(store: Store, ledger: Ledger, order: str, runs: Mapping[str, str]) -> None:
    """Raise UserError where the order can't be given to one of the runs. `runs`: id -> the user's
    name of the run.

    A search needs all of its trials, and a look all runs of its column, so none of these can be
    skipped.
    """
    states = ledger.states(runs)
    for run, label in runs.items():
        if run not in states:
            raise UserError(f"{label}: no sweep has planned this run")
        effect = decide(store, ledger, order, run, states[run])
        if effect.refusal:
            raise UserError(f"{label}: {effect.refusal}")
    if order != "skip":
        return
    for plan in driven_plans(store, ledger, runs.keys()):
        dependents = plan.design.needed_runs(plan)
        for run in runs.keys() & dependents.keys():
            raise UserError(
                f"{runs[run]}: {dependents[run]} of {plan.name} needs this run; "
                f"`{store.command('stop')}` stops the sweep"
            )


def give_order(store: Store, order: str, runs: list[str], say: Callable[[str], None]) -> None:
    """Have an order carried out: by the driver, else here in its turn. Returns once the events are
    recorded, and the workers that must stop have stopped."""
    file = store.order(order, runs)
    since = time.monotonic()
    while file.exists():
        if store.take_turn():
            _obey(store)
        elif time.monotonic() - since > PATIENCE_S:
            driver = driver_of(store)
            if driver is not None:
                since = math.inf  # says so once
                say(
                    f"waiting for process {driver.pid}, which drives {store.root}; after Ctrl-C "
                    f"the order stays with it"
                )
        time.sleep(0.05)
    if order == "skip":
        _await_workers(store, runs, say)


def _await_workers(store: Store, runs: list[str], say: Callable[[str], None]) -> None:
    """Wait until no run has a worker."""
    folders = [store.rundir(run) for run in runs]
    waiting = Waiting(say)
    while True:
        alive = [folder for folder in folders if store.liveness.alive(folder)]
        if not alive:
            return
        waiting.on({folder.id: store.liveness.notes(folder).pid for folder in alive})


def _obey(store: Store) -> None:
    try:
        store.driver.note(pid=os.getpid(), host=platform.node(), sweep="run")
        with Ledger.driving(store) as ledger:
            for order, runs, file in store.orders():
                for run in runs:
                    carry_out(store, ledger, order, run)
                file.unlink(missing_ok=True)
    finally:
        store.driver.release()
