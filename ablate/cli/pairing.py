"""`ablate table A B`: two sweeps side by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ablate.cli.printing import Format, TableView, print_json, print_rendered, print_set, read_table
from ablate.cli.selection import Selection
from ablate.shared.errors import UserError

if TYPE_CHECKING:
    from ablate.planning.plan import Plan
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store


def paired(store: Store, ledger: Ledger, selection: Selection) -> list[Selection]:
    """A selection for each of two sweeps that the words name, `analysis.KEY=VALUE` in both; [] for
    other words."""
    from ablate.planning.words import analysis_apart
    from ablate.store.find import sweeps

    words, analysis = analysis_apart(selection.words)
    if len(words) != 2:
        return []
    known = sweeps(store, ledger)
    if any("=" in word and word not in known for word in words):
        return []
    both = [word for word in selection.words if word not in words] if analysis else []
    return [replace(selection, words=[word, *both]) for word in words]


def refused(two: Sequence[Selection], **options: Any) -> None:
    """Raises UserError for an option that is of one sweep alone."""
    if not two:
        return
    a, b = (selection.words[0] for selection in two)
    if two[0].has_options:
        raise UserError(f"table {a} {b}: two sweeps are shown as they were driven: names alone")
    for name, value in options.items():
        if value:
            raise UserError(f"--{name}: is of the table of one sweep; leave {b} or --{name} out")


def print_pair(plans: Sequence[Plan], store: Store, view: TableView) -> None:
    """Print two sweeps side by side, one below the other where they share no row, of the first what
    `view` shows."""
    from ablate.report.formats import PAIRED, render_pair
    from ablate.report.formats.tidy import tree
    from ablate.report.pair import pair
    from ablate.report.pair import tree as of_pair

    one, other = plans
    (first, parts), (second, _) = (read_table(plan, store, view) for plan in plans)
    made = pair((view.of(first, one), second), (one, other))
    if view.format is Format.json:
        print_json(of_pair(made, [tree(table) for table in made.tables]))
        return
    if not made.rows and view.format is not Format.csv:
        for table in made.tables:
            print(end="\n" * (table is not made.tables[0]))
            print_rendered(table, view, parts)
        return
    shown = PAIRED if view.show is None else parts
    draw = functools.partial(render_pair, made, show=shown, floated=view.floated)
    print_set(view.format, draw, lambda width: draw(Format.rich, width=width))
