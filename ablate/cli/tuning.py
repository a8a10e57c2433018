"""Commands that look into searches: trials."""

from __future__ import annotations

import sys

from ablate.cli.printing import Format, TrialsFormat, print_json, print_set
from ablate.cli.selection import Selection, planned


def trials(
    selection: Selection,
    format: TrialsFormat = None,
) -> None:
    """Show the trials of the searches of a sweep: settings, validation scores and winners."""
    from ablate.report import trials as report
    from ablate.report.formats.grid import split
    from ablate.report.formats.markdown import markdown
    from ablate.report.formats.terminal import rich
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        made = planned(kept, ledger, selection)
        found = report.list_trials(made, ledger.states({run.id for run in made.runs()}))
    match format:
        case Format.csv:
            sys.stdout.write(report.csv(made, found))
        case Format.json:
            print_json(report.tree(made, found))
        case _:
            sheet = report.sheet(made, found)
            print_set(format, lambda _: markdown(sheet), lambda width: rich(split(sheet, width)))
