"""Words that several commands take: options, the sweep that they name, its printed table."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.spec import Failure, UserError, unknown

if TYPE_CHECKING:
    from ablate.ledger import Ledger, Store
    from ablate.plan import Plan


class Format(StrEnum):
    """What a table can be printed as."""

    rich = "rich"
    md = "md"
    csv = "csv"
    json = "json"


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME KEY=VALUE", help="A sweep's name, and values to set."),
]
StoreDir = Annotated[
    Path, typer.Option("--store", envvar="ABLATE_STORE", help="Where runs and results are kept.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Scale = Annotated[str | None, typer.Option("--scale", help="One of the sweep file's scales.")]
Name = Annotated[str | None, typer.Option("--as", help="Call the sweep by this name.")]
Across = Annotated[
    list[str] | None, typer.Option("--across", help="This key's values are columns.")
]
Each = Annotated[bool, typer.Option("--each", help="One factor at a time, not their product.")]
RUNS = Path("runs")


def planned(
    store: Store,
    ledger: Ledger,
    words: list[str] | None,
    scale: str | None,
    name: str | None,
    across: list[str] | None,
    each: bool,
) -> Plan:
    """The driven plan that these words name: the last one for none, else a name or its words."""
    known = ledger.sweeps()
    if not known:
        raise UserError(f"{store.root}: no sweep was driven here yet: `ablate sweep quickstart`")
    wanted = name
    if wanted is None and words:
        single = len(words) == 1 and not (scale or across or each)
        wanted = _instance(words[0], known) if single else None
        if wanted is None and single and "=" not in words[0] and not words[0].endswith(".yaml"):
            wanted = words[0]  # a bare name, of no sweep driven here
    if wanted is None and words:
        from ablate.sweep import plan as make_plan

        made, _ = make_plan(words, store=store.root, scale=scale, across=across or (), each=each)
        wanted = made.name
    wanted = wanted or known[0]
    if wanted not in known:
        raise unknown("sweep", wanted, known, f"one driven in {store.root}:")
    driven = store.read_plan(wanted)
    if driven is None:
        raise Failure(f"{store.plan_path(wanted)}: not whole; `ablate sweep` writes it again")
    return driven


def _instance(word: str, known: list[str]) -> str | None:
    """The driven sweep of that name; of those that only begin with it, the single one."""
    if word in known or "=" in word:
        return word if word in known else None
    instances = [sweep for sweep in known if sweep.startswith((f"{word}@", f"{word}+"))]
    if len(instances) > 1:
        raise UserError(f"{word}: which of {', '.join(instances)}?")
    return instances[0] if instances else None


def print_table(plan: Plan, store: Store, format: Format | None, strict: bool = False) -> None:
    from ablate.report import looks
    from ablate.report.formats import render
    from ablate.report.table import tabulate

    results = {run.id: store.rundir(run.id).read_result() for run in plan.runs()}
    tabulated = tabulate(plan, results, looks.read(store.looks, plan.name), strict=strict)
    if format is None:
        format = Format.rich if sys.stdout.isatty() else Format.md
    printed = render(tabulated, format)
    if format is Format.rich:
        from rich.console import Console

        Console(force_terminal=sys.stdout.isatty()).print(printed)  # whatever FORCE_COLOR says
    else:
        sys.stdout.write(printed)
    if tabulated.is_look:
        looks.record(store.looks, plan.name, plan.seeds)
