"""What a terminal adds to the start of a sweep: questions, silence, a driver left behind."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer

from ablate.shared.errors import UserError, unknown

if TYPE_CHECKING:
    from ablate.api.training import SweepCost
    from ablate.planning.plan import Plan
    from ablate.store.store import Store


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Print nothing on standard output, and take no answer: what would be asked is refused."""
    with open(os.devnull, "w") as out, open(os.devnull) as nobody:
        asked, sys.stdin = sys.stdin, nobody
        try:
            with contextlib.redirect_stdout(out):
                yield
        finally:
            sys.stdin = asked


def confirm(forecast: SweepCost, yes: bool) -> None:
    """Print warnings, and ask about the cost of a long sweep, unless `yes`. Raise UserError where
    nobody can answer."""
    for warning in forecast.warnings:
        print(f"warning: {warning}")
    if forecast.cost and not yes:
        if not sys.stdin.isatty():
            raise UserError(
                f"{forecast.cost}: a sweep of this length needs a confirmation; add --yes"
            )
        if not typer.confirm(f"{forecast.cost}. Start?"):
            raise typer.Exit(0)


def detach(where: str, plan: Plan, store: Store, settings: Mapping[str, Any], yes: bool) -> None:
    """Ask what the sweep would ask, which nobody could answer later; then leave the same command
    behind without this terminal and --detach."""
    from ablate.api.training import forecast, grower, grown
    from ablate.running import launchers
    from ablate.running.detach import WHERE, leave
    from ablate.store.ledger import Ledger

    if where not in WHERE:
        raise unknown("--detach", where, WHERE)
    if not yes:
        launcher = launchers.make(settings, store.cache)
        try:
            with Ledger.reading(store) if store.ledger.exists() else nullcontext() as ledger:
                now = grown(plan, store, grower(plan, store))
                confirm(forecast(now, store, ledger, launcher), yes=False)
        finally:
            launcher.free()
    words, skip = [], False
    for word in sys.argv[1:]:
        if not skip and word != "--detach" and not word.startswith("--detach="):
            words.append(word)
        skip = word == "--detach"
    if not yes:
        words.insert(words.index("sweep") + 1, "--yes")
    print(leave(where, words, plan.name, store, settings))
