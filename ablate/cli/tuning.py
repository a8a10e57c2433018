"""Commands that look into searches: trials."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.mistakes import one_of
from ablate.cli.words import RUNS, Across, Debug, Each, Name, Scale, StoreDir, Words, planned

if TYPE_CHECKING:
    from ablate.report.formats.grid import Sheet


class Format(StrEnum):
    """What trials can be printed as."""

    rich = "rich"
    md = "md"
    csv = "csv"
    json = "json"


def trials(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    format: Annotated[
        Format | None,
        typer.Option(**one_of(Format), help="Default: rich on a terminal, md elsewhere."),
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """What the searches of a sweep tried: settings, validation scores, what was chosen."""
    from ablate.report import trials as report
    from ablate.store.ledger import Ledger, Store

    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        made = planned(kept, ledger, words, scale, name, across, each)
        found = report.tried(made, ledger.states({run.id for run in made.runs()}))
    match format:
        case Format.csv:
            sys.stdout.write(report.csv(made, found))
        case Format.json:
            sys.stdout.write(report.json(made, found))
        case _:
            _print(report.sheet(made, found), format)


def _print(sheet: Sheet, format: Format | None) -> None:
    from ablate.report.formats.grid import split
    from ablate.report.formats.markdown import markdown
    from ablate.report.formats.terminal import rich

    if format is Format.md or (format is None and not sys.stdout.isatty()):
        sys.stdout.write(markdown(sheet))
        return
    from rich.console import Console

    console = Console(force_terminal=sys.stdout.isatty())  # whatever FORCE_COLOR says
    console.print(rich(split(sheet, console.width)))
