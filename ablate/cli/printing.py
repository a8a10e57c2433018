"""Prints on standard output: tables, and JSON for other programs."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.mistakes import one_of
from ablate.shared import extensions
from ablate.shared.errors import UserError, unknown

if TYPE_CHECKING:
    from ablate.analysis.scores import Results
    from ablate.analysis.table import Table
    from ablate.planning.plan import Plan
    from ablate.report.formats import LatexFloat
    from ablate.store.store import Store


class Format(StrEnum):
    """The formats of output; each command takes some of them."""

    text = "text"
    yaml = "yaml"
    rich = "rich"
    md = "md"
    latex = "latex"
    html = "html"
    csv = "csv"
    json = "json"


def _of(*formats: str) -> Any:
    """An option that takes one of these; the first is the default."""
    return typer.Option("--format", **one_of(*formats), help="Output format.")


def _read(*formats: str) -> Any:
    help = "Output format (default: rich on a terminal, md elsewhere)."
    return typer.Option("--format", **one_of(*formats), help=help)


TextFormat = Annotated[Format, _of(Format.text, Format.json)]
YamlFormat = Annotated[Format, _of(Format.yaml, Format.json)]
TrialsFormat = Annotated[Format | None, _read(Format.rich, Format.md, Format.csv, Format.json)]
Rows = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Rows to show; intervals stay those of the whole sweep."),
]


@dataclass(frozen=True)
class TableView:
    """How a table is shown, and what of it. The fields are options, as those of a Selection."""

    rows: Rows = None
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns of the sweep to show.")
    ] = None
    where: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE", help="Show the cells where a key of rows or columns is so."
        ),
    ] = field(default_factory=list)
    sort: Annotated[
        str | None, typer.Option(metavar="gain", help="Order of the rows: the best gain first.")
    ] = None
    format: Annotated[
        str | None,
        _read(
            *(Format.rich, Format.md, Format.latex, Format.html, Format.csv, Format.json),
            *extensions.names("ablate_formats"),
        ),
    ] = None
    show: Annotated[
        str | None,
        typer.Option(
            help="Columns: accuracy,gain,ci,pm,population,n,verdict,params,macs,cost,chosen,paper "
            "and metrics (`ablate list metrics`)."
        ),
    ] = None
    transpose: Annotated[bool, typer.Option("--transpose", help="Show variants as columns.")] = (
        False
    )
    wide: Annotated[
        bool | None,
        typer.Option(
            "--wide/--no-wide",
            help="Lay the table out as papers do: a line for each architecture and variant "
            "(default: for a sweep with groups).",
            show_default=False,
        ),
    ] = None
    against: Annotated[
        str | None,
        typer.Option(metavar="paper", help="Show published figures beside the measured."),
    ] = None
    label: Annotated[
        str | None, typer.Option(metavar="tab:NAME", help="Label of the LaTeX table.")
    ] = None
    caption: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Caption of the LaTeX table (default: title)."),
    ] = None
    notes: Annotated[
        str | None,
        typer.Option(
            metavar="full|short|none", help="Notes under the LaTeX table (default: full)."
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse a table of unlike runs, and verdicts of repeated looks."
        ),
    ] = False

    def check(self) -> None:
        """Raises UserError for options that exclude each other."""
        if self.wide and self.transpose:
            raise UserError("--wide: its columns are not variants; leave --transpose out")
        for name in ("label", "caption", "notes"):
            if getattr(self, name) is not None and self.format is not Format.latex:
                raise UserError(f"--{name}: is of LaTeX; add --format latex, or leave --{name} out")
        self.floated  # noqa: B018 - raises UserError, too

    @property
    def floated(self) -> LatexFloat:
        """What is said of a LaTeX table."""
        from ablate.report.formats import LatexFloat

        return LatexFloat(self.label, self.caption, "full" if self.notes is None else self.notes)

    def of(self, table: Table, plan: Plan | None = None) -> Table:
        """The part of the table that is shown; see `report.chosen.choose`."""
        from ablate.report.chosen import choose

        return choose(
            table, plan, rows=self.rows, columns=self.columns, where=self.where, sort=self.sort
        )


JSON_VERSION = 1  # of the keys in docs/json.md, which says when it grows


def print_json(tree: Mapping[str, Any]) -> None:
    """Print a plain tree and its version as JSON with sorted keys: the same bytes for the same
    tree. A number that is not finite becomes null."""
    from ablate.shared.files import to_json

    sys.stdout.write(to_json(_finite({"version": JSON_VERSION, **tree})).decode())


def _finite(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def print_set(format: str | None, texts: Callable[[str], str], rich: Callable[[int], Any]) -> None:
    """Print for readers: `texts` makes every format but rich, `rich` takes the width in characters.

    `format` None is rich on a terminal, Markdown elsewhere.
    """
    terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says
    if format is None:
        format = Format.rich if terminal else Format.md
    if format is not Format.rich:
        sys.stdout.write(texts(format))
        return
    from ablate.report.gate import console

    screen = console(force_terminal=terminal)
    screen.print(rich(screen.width))


def print_table(
    plan: Plan, store: Store, view: TableView, recomputed: Results | None = None
) -> Table:
    """Print the table of a sweep, and return it. `recomputed`: the results of a bundle."""
    table, parts = read_table(plan, store, view, recomputed)
    table = view.of(table, plan)
    print_rendered(table, view, parts)
    return table


def read_table(
    plan: Plan, store: Store, view: TableView, recomputed: Results | None = None
) -> tuple[Table, tuple[str, ...]]:
    """The table of a sweep, which is a look, and the parts that `--show` asks for."""
    from ablate.analysis.paper import beside
    from ablate.analysis.reading import read
    from ablate.planning.probing import no_images
    from ablate.report.formats import DEFAULT, SHOW, check_show
    from ablate.running.estimate import sizes

    if view.against not in (None, "paper"):
        raise unknown("--against", view.against, ("paper",))
    parts = check_show(view.show, plan.task.names) if view.show is not None else DEFAULT
    if view.against and "paper" not in parts:
        parts = (*parts, "paper")
    if "paper" in parts and plan.metric.unit != "%":
        raise UserError(
            f"--against paper: published figures are accuracies, but the table is of "
            f"{plan.metric.key}; add analysis.metric={plan.task.metrics[0].key}"
        )
    if "population" in parts and (why := no_images(plan, plan.metric)):
        raise UserError(f"--show population: {why}; leave population out")
    named = "params" in parts or "macs" in parts
    also = [part for part in parts if part not in SHOW]
    plan = plan.with_own(*also, place="--show")
    asked = [plan.metric, *(plan.named(name, "--show") for name in also)]
    probes = any(m.probe for m in asked)
    results: Results = recomputed or {}
    withheld: dict[str, str] = {}
    if recomputed is None:
        results, withheld = store.results(plan.runs(), True, probes, predictions=True)
    table = read(
        plan,
        store,
        results,
        withheld=withheld,
        strict=view.strict,
        also=also,
        sizes=sizes(plan, store, results) if named else None,
        cost="cost" in parts,
        population="population" in parts,
        paper=beside(plan, store.root) if "paper" in parts else None,
    ).table
    if recomputed is not None:
        table = dataclasses.replace(table, words=("--from", str(store.root)))
    return table, parts


def print_rendered(table: Table, view: TableView, show: tuple[str, ...]) -> None:
    """Print a table on standard output."""
    from ablate.report.formats import render
    from ablate.report.formats.tidy import tree

    if view.format is Format.json:
        print_json(tree(table))
        return
    draw = functools.partial(
        render,
        table,
        show=show,
        transpose=view.transpose,
        wide=view.wide,
        floated=view.floated,
    )
    print_set(view.format, draw, lambda width: draw(Format.rich, width=width))
