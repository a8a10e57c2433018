"""The command for single runs: run."""

from __future__ import annotations

import contextlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.selection import RUNS, StoreDir
from ablate.shared.errors import Failure, UserError

if TYPE_CHECKING:
    from ablate.store.store import Store

# order -> (the status that it leaves, None: as it was; what is said)
DONE = {
    "skip": ("skipped", "skipped: {}; tables leave out its seed and say so"),
    "cancel": ("cancelled", "cancelled: {}; it is not trained until `{}`"),
    "first": (None, "first: {}; it is trained before all others"),
    "undo": (None, "undone: {}; the same `ablate sweep` trains it"),
}


def run(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="LABEL@COLUMN#SEED, or the beginning of an id."),
    ],
    skip: Annotated[
        bool,
        typer.Option(
            "--skip", help="Never train it; tables leave out its seed, and say so in a note."
        ),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop it, with a checkpoint, and don't train it on.")
    ] = False,
    first: Annotated[bool, typer.Option("--first", help="Train it before all others.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take --skip or --cancel back.")] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Remove its folder; asks first. A sweep trains it again."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    store: StoreDir = RUNS,
) -> None:
    """Skip, cancel, prefer or delete single runs of a sweep, also while it is driven."""
    from ablate.report.live import begin
    from ablate.running.orders import ask, check
    from ablate.store.find import find_run
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    orders = {"skip": skip, "cancel": cancel, "first": first, "undo": undo, "delete": delete}
    given = [order for order, said in orders.items() if said]
    if len(given) != 1:
        names = ", ".join(f"--{order}" for order in orders)
        raise UserError(
            f"run: expected one of {names}, got {len(given)}; `ablate show RUN` shows a run, "
            f"`ablate sweep {shlex.join(runs)}` trains a sweep"
        )
    if yes and not delete:
        raise UserError("--yes: needs --delete")
    [order] = given
    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        found = {find_run(kept, ledger, text): text for text in runs}
        if order != "delete":
            check(kept, ledger, order, found)
    if delete:
        _delete(kept, found, yes)
        return
    try:
        ask(kept, order, list(found), begin)
    except KeyboardInterrupt:
        begin("the order stays: whoever drives the store next obeys it")
        raise typer.Exit(130) from None
    expected, said = DONE[order]
    with Ledger.reading(kept) as ledger:
        states = ledger.states(found)
    for one, text in found.items():
        status = states[one].status
        if expected not in (None, status):
            raise Failure(f"{text}: is {status} by now")
        print(said.format(text, kept.command("run", text, "--undo")))


def _delete(store: Store, runs: dict[str, str], yes: bool) -> None:
    from rich.filesize import decimal

    from ablate.running.driver_lock import alone
    from ablate.store.gc import remove_run, run_folder
    from ablate.store.ledger import Ledger

    with alone(store, "run"), Ledger.driving(store) as ledger:
        items = {run: run_folder(store, ledger, run, text) for run, text in runs.items()}
        states = ledger.states(runs)
        for run, item in items.items():
            status = states[run].status if run in states else "not in the ledger"
            print(f"to remove: {runs[run]} ({status}), {decimal(item.bytes)} in {item.path}")
        if not yes:
            if not sys.stdin.isatty():
                raise UserError(f"{', '.join(runs.values())}: needs a confirmation; add --yes")
            if not typer.confirm("Remove?"):
                raise typer.Exit(0)
        for run, item in items.items():
            again = _again(store, run)
            remove_run(store, ledger, run, item)
            print(f"removed: {runs[run]}; {again}")


def _again(store: Store, run: str) -> str:
    """Say which command brings a run back."""
    from ablate.shared.imported import is_imported

    with contextlib.suppress(ValueError):  # a damaged run.json
        if is_imported(store.rundir(run).read_spec()):
            return "the same `ablate import` imports it again"
    return "the same `ablate sweep` trains it again"
