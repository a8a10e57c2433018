"""What `ablate run` orders for single runs: one pure function decides what an order does.

Orders are files of the store until whoever drives it, or `ablate run` in the driver's turn, has
recorded the event. An order that is obeyed twice, since its obeyer was killed, does nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ablate.shared.result import FINAL
from ablate.store.events import HELD, RunState
from ablate.store.ledger import Ledger
from ablate.store.progress import GIVEN_UP
from ablate.store.store import Store

Order = Literal["skip", "cancel", "first", "undo"]
ORDERS = get_args(Order)


@dataclass(frozen=True)
class Obeyed:
    """Record this event, if any. Or why the order is refused."""

    event: str | None
    refused: str = ""


def obeyed(order: str, state: RunState, *, result: bool, alive: bool, known: bool) -> Obeyed:
    """What an order does with a run. Total.

    `state`: the ledger's; `result`: its folder has one; `alive`: it has a worker; `known`: its
    result was recorded at any time, so the user may have seen it. Rows from the top, as in
    docs/resume-and-store.md.
    """
    ended = result or state.status in FINAL
    status = "finished" if result and state.status not in FINAL else state.status
    again = {"oom": state.oom, "hung": state.hung}.get(state.status, 2) <= 1
    match order:
        case "undo" if state.status in HELD and not ended:
            return Obeyed("retried")
        case "undo":
            return Obeyed(None, f"is {status}, so there is nothing to undo")
        case "skip" if ended or known:
            why = "has a result" if ended else "had a result once"
            return Obeyed(None, f"{why}, and a seed whose result is known can't be left out")
        case "cancel" | "first" if ended:
            return Obeyed(None, f"is {status}, so nothing is left to train")
        case "skip" if alive:
            return Obeyed(None, "is being trained; --cancel stops it, then it can be skipped")
        case "cancel" if state.status == "skipped":
            return Obeyed(None, "is skipped, so it is not trained anyway")
        case "skip" | "cancel":
            event = {"skip": "skipped", "cancel": "cancelled"}[order]
            return Obeyed(None if state.status == event else event)
        case "first" if alive:
            return Obeyed(None, "is being trained already")
        case "first" if state.status in HELD:
            return Obeyed(None, f"is {state.status}; --undo comes before --first")
        case "first" if state.status in GIVEN_UP and not again:
            retry = f"`ablate sweep ... --retry {state.status}` trains it again"
            return Obeyed(None, f"is {state.status}; {retry}")
        case "first":
            return Obeyed("first")
    return Obeyed(None, f"{order}: is no order")


def decide(
    store: Store, ledger: Ledger, order: str, run: str, state: RunState, alive: bool | None = None
) -> Obeyed:
    """As `obeyed`, of a run as the store has it. `alive`: what its driver knows."""
    folder = store.rundir(run)
    return obeyed(
        order,
        state,
        result=folder.read_result() is not None,
        alive=store.liveness.alive(folder) if alive is None else alive,
        known=any(kind in FINAL for _, kind, _ in ledger.events(run)),
    )


def detail_of(
    store: Store, ledger: Ledger, event: str, run: str, state: RunState
) -> dict[str, Any]:
    """What the event says: of a run that was skipped how far it had come."""
    if event not in HELD:
        return {}
    begun = any(kind == "started" for _, kind, _ in ledger.events(run))
    return {"was": state.status, "begun": begun, "step": store.rundir(run).newest_step()}


def carry_out(store: Store, ledger: Ledger, order: str, run: str) -> None:
    """In the driver's turn, with a run that nobody drives now."""
    state = ledger.states([run]).get(run)
    if state is None:
        return
    found = decide(store, ledger, order, run, state)
    if found.event is not None:
        ledger.record(run, found.event, **detail_of(store, ledger, found.event, run, state))
    if order == "cancel" and not found.refused:
        store.liveness.stop(store.rundir(run))  # of a driver that died
