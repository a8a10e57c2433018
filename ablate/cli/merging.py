"""The command that brings stores together: merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.keeping import alone
from ablate.cli.printing import Format, TextFormat, print_json
from ablate.cli.selection import RUNS, StoreDir
from ablate.shared.errors import Failure, UserError
from ablate.shared.printable import printable

if TYPE_CHECKING:
    from ablate.audit.merge import Brought


def merge(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE", help="Stores, and folders of `ablate export`.")
    ],
    format: TextFormat = Format.text,
    store: StoreDir = RUNS,
) -> None:
    """Bring sweeps and finished runs of other stores and of bundles into this store."""
    from ablate.audit.bundle import Bundle
    from ablate.audit.merge import merge as bring
    from ablate.audit.source import read_source
    from ablate.report.live import begin
    from ablate.shared.files import make_folder
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    if Bundle(store).is_one:
        raise UserError(f"{store}: is a bundle, which nothing is added to; name a store")
    for source in sources:
        if source.resolve() == store.resolve():
            raise UserError(f"{source}: is the store itself; name another one")
    read = [read_source(source) for source in sources]
    kept = Store(store)
    make_folder(kept.root)
    begin(f"checking the runs of {', '.join(map(str, sources))}")
    with alone(kept, "merge"), Ledger.driving(kept) as ledger:
        done = bring(kept, ledger, read)
    if format is Format.json:
        print_json({"store": str(store), "sources": [dataclasses.asdict(one) for one in done]})
    else:
        for one in done:
            print("\n".join(map(printable, _lines(one))))
    if damaged := [one.source for one in done if one.damaged]:
        raise Failure(f"{', '.join(damaged)}: has damaged runs, which were not merged")


def _lines(done: Brought) -> Iterator[str]:
    counts = {
        "brought": done.brought,
        "here already": done.there,
        "half trained, to go on here": done.half,
        "not finished there": done.unfinished,
        "running here": done.running,
    }
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    yield f"{done.source}: runs: {said or 'none'}"
    words = {"new": "new", "same": "as it was", "grown": "has more runs now"}
    yield from (f"  sweep {name!r}: {words[how]}" for name, how in done.sweeps.items())
    yield from (f"  damaged: {line}" for line in done.damaged)
