"""The command that compares sweeps: diff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.printing import Format, TextFormat, print_json
from ablate.cli.selection import RUNS, StoreDir
from ablate.cli.starting import grower, grown, memory

if TYPE_CHECKING:
    from ablate.planning.plan import Plan
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store


def diff(
    one: Annotated[str, typer.Argument(metavar="NAME", help="Name of a sweep.")],
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER",
            help="Name of the sweep to compare with (default: the same words as they plan now).",
        ),
    ] = None,
    format: TextFormat = Format.text,
    store: StoreDir = RUNS,
) -> None:
    """Show what differs between two sweeps, or between a sweep and its file as it is now."""
    from ablate.planning.expand import plan
    from ablate.planning.words import apart
    from ablate.report.diff import compare_sweeps
    from ablate.store.ledger import Ledger
    from ablate.store.record import histories, load_records
    from ablate.store.store import Store

    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        mine = _named(kept, ledger, one)
        if other is None:
            words, options = apart(mine.words)
            now = plan(words, store=store, recall=memory(kept), **vars(options))[0]
            now = grown(now, kept, grower(now, kept))
            found = compare_sweeps(mine, now, f"{mine.name} as it is planned now")
        else:
            both = mine, _named(kept, ledger, other)
            records = [load_records(made, kept, histories(made, ledger)) for made in both]
            found = compare_sweeps(*both, both[1].name, records)
    if format is Format.json:
        print_json(found.tree())
    else:
        print("\n".join(found.lines()))


def _named(store: Store, ledger: Ledger, name: str) -> Plan:
    from ablate.store.find import driven, instance, sweeps

    known = sweeps(store, ledger)
    return driven(store, ledger, known, instance(name, known) or name)
