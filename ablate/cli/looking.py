"""Commands that only look: status, table, list, config."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli.words import (
    RUNS,
    Across,
    Debug,
    Each,
    Format,
    Name,
    Scale,
    StoreDir,
    Words,
    planned,
    print_table,
)


def status(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """Where a sweep stands: runs by state, what each worker does, what failed and why."""
    from ablate.ledger import Ledger, Store
    from ablate.report.status import show_status

    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        show_status(planned(kept, ledger, words, scale, name, across, each), kept, ledger)


def table(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    format: Annotated[
        Format | None, typer.Option(help="Default: rich on a terminal, md elsewhere.")
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """The gain of every variant over the baseline, with 95 % intervals and verdicts."""
    from ablate.ledger import Ledger, Store

    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        made = planned(kept, ledger, words, scale, name, across, each)
    print_table(made, kept, format)


def list_(
    kind: Annotated[
        str | None, typer.Argument(help="sweeps, norms, stems, blocks, archs, data, recipes ...")
    ] = None,
    debug: Debug = False,
) -> None:
    """What may be chosen: each by its name, a line and its source."""
    from ablate.report.listing import listing
    from ablate.sweep import find_sweeps

    print(listing(kind, lambda: ((name, title, str(path)) for name, title, path in find_sweeps())))


def config(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values to set.")
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """The whole configuration of one run, composed and checked, and its id."""
    from omegaconf import OmegaConf

    from ablate.config import resolve

    tree, run = resolve(words or [], store)
    print(f"# run {run}\n{OmegaConf.to_yaml(OmegaConf.create(tree))}", end="")
