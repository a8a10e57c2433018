"""Words that several commands take: options, the sweep that they name, its printed table."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.shared.errors import UserError, unknown

if TYPE_CHECKING:
    from ablate.analysis.scores import Results
    from ablate.analysis.table import Table
    from ablate.planning.plan import Plan
    from ablate.store.ledger import Ledger, Store


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
    sealed: bool = True,
) -> Plan:
    """The driven plan that these words name: the last one for none, else a name or its words.

    `analysis.KEY=VALUE` changes it for a command by which verdicts are `read`, which is a look;
    others refuse a value that is not the driven one. `sealed`: see `find.driven`. Raises UserError
    for any other word that says another sweep than the driven one.
    """
    from ablate.planning.compose import Composer
    from ablate.planning.declaration import changed
    from ablate.planning.expand import plan as make_plan
    from ablate.planning.sweep_file import sweep_files
    from ablate.planning.words import analysis_apart, read_line
    from ablate.store.find import computed, driven, instance, sweeps

    known = sweeps(store, ledger)
    words, analysis = analysis_apart(words or ())
    options = bool(scale or across or each)
    made, wanted = None, name
    if wanted is None and len(words) == 1 and not options:
        wanted = instance(words[0], known)
        if wanted is None and "=" not in words[0] and not words[0].endswith(".yaml"):
            wanted = words[0]  # a bare name, of no sweep driven here
    if (words or options) and (wanted is None or name is not None):
        first = words[0] if words else ""
        line = read_line(words, Composer(store.root).groups)
        if name is None and first in known and first not in sweep_files():
            raise _more_than_a_name(driven(store, ledger, known, first, sealed), words[1:])
        if name is None and line.file is None and not any(word.swept for word in line.settings):
            raise _more_than_a_name(driven(store, ledger, known, known[0], sealed), words)
        made, _ = make_plan(
            words, store=store.root, scale=scale, name=name, across=across or (), each=each
        )
        wanted = made.name
    plan = driven(store, ledger, known, wanted or known[0], sealed)
    if made is not None:
        _check_said(made, plan, store)
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


def _more_than_a_name(plan: Plan, others: list[str]) -> UserError:
    """A name says all that there is to say of what is read."""
    return UserError(
        f"{shlex.join(others) or 'options'}: {plan.name} is read as it was driven, and takes "
        f"analysis.KEY=VALUE alone; `ablate sweep {shlex.join(plan.words)}` with more seeds "
        f"extends it, with other words and --as NAME it is another sweep"
    )


def _check_said(made: Plan, plan: Plan, store: Store) -> None:
    """Raises UserError where the words that `made` is of say other runs than the driven plan."""
    from ablate.planning.expand import alike

    if not alike(plan.words, made.words, store.root):  # by --as
        raise UserError(
            f"--as {plan.name}: was driven by other words, `ablate sweep "
            f"{shlex.join(plan.words)}`; leave yours out to read it"
        )
    said = {word.partition("=")[0]: word for word in made.words}
    if "seeds" in said and set(made.seeds) != set(plan.seeds):
        more = set(made.seeds) > set(plan.seeds)
        again = shlex.join(["ablate", "sweep", *made.words])
        raise UserError(
            f"{said['seeds']}: {plan.name} was driven with {len(plan.seeds)} seeds, and all of "
            f"them are read, by analysis.KEY=VALUE at most; "
            + (f"`{again}` trains more" if more else f"with --as NAME, `{again}` is another sweep")
        )
    images = [{cell.spec["data"]["fingerprint"] for cell in p.cells} for p in (made, plan)]
    if "data.path" in said and images[0] != images[1]:
        raise UserError(
            f"{said['data.path']}: holds other images than those that {plan.name} was driven with; "
            f"leave it out to read what was trained on those"
        )


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
    from ablate.analysis.paper import beside
    from ablate.analysis.reading import read
    from ablate.planning.plan import is_metric
    from ablate.report.formats import DEFAULT, check_show
    from ablate.running.estimate import sizes

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
