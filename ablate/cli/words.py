"""Words that several commands take: options, the sweep that they name, its printed table."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.spec import UserError, unknown

if TYPE_CHECKING:
    from ablate.ledger import Ledger, Store
    from ablate.plan import Plan
    from ablate.report.table import Results, Table


class Format(StrEnum):
    """What a table can be printed as."""

    rich = "rich"
    md = "md"
    latex = "latex"
    html = "html"
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
    read: bool = False,
) -> Plan:
    """The driven plan that these words name: the last one for none, else a name or its words.

    `analysis.KEY=VALUE` changes it for a command by which verdicts are `read`, which is a look;
    others refuse a value that is not the driven one.
    """
    from ablate.report.find import computed, driven, instance, sweeps
    from ablate.sweep.declaration import changed
    from ablate.sweep.words import analysis_apart

    known = sweeps(store, ledger)
    words, analysis = analysis_apart(words or ())
    wanted = name
    if wanted is None and words:
        single = len(words) == 1 and not (scale or across or each)
        wanted = instance(words[0], known) if single else None
        if wanted is None and single and "=" not in words[0] and not words[0].endswith(".yaml"):
            wanted = words[0]  # a bare name, of no sweep driven here
    if wanted is None and words:
        from ablate.sweep import plan as make_plan

        made, _ = make_plan(words, store=store.root, scale=scale, across=across or (), each=each)
        wanted = made.name
    plan = driven(store, known, wanted or known[0])
    if read:
        plan = computed(store, plan)
    found = changed(plan.analysis, analysis)
    for key in analysis if not read else ():
        if getattr(found, key) != getattr(plan.analysis, key):
            raise UserError(
                f"analysis.{key}: {plan.name} was driven with another value; `table`, `report`, "
                f"`plot` and `export` read it with yours"
            )
    plan = replace(plan, analysis=found)
    plan.metric  # noqa: B018 - raises UserError where its task has none of this name
    return plan


def print_table(
    plan: Plan,
    store: Store,
    format: Format | None,
    strict: bool = False,
    show: str | None = None,
    transpose: bool = False,
    against: str | None = None,
    recomputed: Results | None = None,
) -> None:
    """The table of a sweep. `recomputed`: the results of a bundle."""
    from ablate.plan import is_metric
    from ablate.report.cost import sizes
    from ablate.report.formats import DEFAULT, check_show
    from ablate.report.paper import beside
    from ablate.report.reading import read

    if against not in (None, "paper"):
        raise unknown("--against", against, ("paper",))
    parts = check_show(show) if show is not None else DEFAULT
    if against and "paper" not in parts:
        parts = (*parts, "paper")
    named = "params" in parts or "macs" in parts
    also = [part for part in parts if is_metric(part)]
    curves = any(m.of_curve for m in (plan.metric, *(plan.named(n, "--show") for n in also)))
    results: Results = recomputed or {}
    withheld: dict[str, str] = {}
    if recomputed is None:
        results, withheld = store.results(plan.runs(), curves)
    table = read(
        plan,
        store,
        results,
        withheld=withheld,
        strict=strict,
        also=also,
        sizes=sizes(plan, store, results) if named else None,
        cost="cost" in parts,
        paper=beside(plan, store.root) if "paper" in parts else None,
    ).table
    print_rendered(table, format, parts, transpose)


def print_rendered(
    table: Table, format: Format | None, show: tuple[str, ...], transpose: bool
) -> None:
    """A table on standard output."""
    from ablate.report.formats import render

    if format is None:
        format = Format.rich if sys.stdout.isatty() else Format.md
    if format is not Format.rich:
        sys.stdout.write(render(table, format, show=show, transpose=transpose))
        return
    from rich.console import Console

    console = Console(force_terminal=sys.stdout.isatty())  # whatever FORCE_COLOR says
    console.print(render(table, format, show=show, transpose=transpose, width=console.width))
