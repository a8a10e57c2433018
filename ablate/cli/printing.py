"""Prints tables on standard output, asks questions there, and writes to `--out`.

Used by the commands that print tables, such as `ablate table` (cli/looking.py) and `ablate sweep`
(cli/driving.py), and by those that ask, such as `ablate gc` (cli/keeping.py).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.answers import is_for_programs, print_json
from ablate.cli.options import Rows, TableFormat, flag, option
from ablate.shared import UserError, unknown_value

if TYPE_CHECKING:
    from ablate.analysis import Results, Table
    from ablate.planning import Plan
    from ablate.report import LatexFloat
    from ablate.store import Store


@dataclass(frozen=True)
class TableView:
    """How a table is shown, and what of it. The fields are options, as those of a Selection."""

    rows: Rows = None
    columns: Annotated[str | None, option("A,B", "Columns of the sweep to show.")] = None
    where: Annotated[
        list[str], option("KEY=VALUE", "Show only cells whose row or column has this setting.")
    ] = field(default_factory=list)
    sort: Annotated[str | None, option("gain", "Order of the rows: the best gain first.")] = None
    format: TableFormat = None
    show: Annotated[
        str | None,
        option(
            "ITEMS",
            "Columns: accuracy,gain,ci,pm,population,n,verdict,params,macs,cost,chosen,paper and "
            "metrics (`ablate list metrics`).",
        ),
    ] = None
    transpose: Annotated[bool, flag("--transpose", "Show variants as columns.")] = False
    wide: Annotated[
        bool | None,
        option(
            None,
            "Lay the table out as papers do: a line for each architecture and variant (default: "
            "for a sweep with groups).",
            "--wide/--no-wide",
            show_default=False,
        ),
    ] = None
    against: Annotated[
        str | None, option("paper", "Show published figures next to the measured ones.")
    ] = None
    label: Annotated[str | None, option("tab:NAME", "Label of the LaTeX table.")] = None
    caption: Annotated[
        str | None, option("TEXT", "Caption of the LaTeX table (default: title).")
    ] = None
    notes: Annotated[
        str | None,
        option(
            "short|full|none",
            "Notes on the table; full: also how its numbers are computed (default: short; full for "
            "LaTeX and HTML).",
        ),
    ] = None
    strict: Annotated[
        bool,
        flag(
            "--strict",
            "Refuse to mix unlike runs; withhold the verdicts of a table that was changed after a "
            "look, or that has fewer seeds.",
        ),
    ] = False

    def check(self) -> None:
        """Raise UserError for options that exclude each other, and for unknown notes."""
        from ablate.report import NOTES

        if self.notes is not None and self.notes not in NOTES:
            raise unknown_value("--notes", self.notes, NOTES)
        if self.wide and self.transpose:
            raise UserError("--wide: its columns are not variants; leave --transpose out")
        for name in ("label", "caption"):
            if getattr(self, name) is not None and self.format != "latex":
                raise UserError(f"--{name}: is of LaTeX; add --format latex, or leave --{name} out")
        self.floated  # noqa: B018 - raises UserError, too

    @property
    def floated(self) -> LatexFloat:
        """The label and caption of a LaTeX table. Raises UserError for values that are not
        valid."""
        from ablate.report import LatexFloat

        return LatexFloat(self.label, self.caption)

    def part_of(self, table: Table, plan: Plan) -> Table:
        """Return the part of the table that is shown; see `report.choose_part`."""
        from ablate.report import choose_part

        return choose_part(
            table, plan, rows=self.rows, columns=self.columns, conditions=self.where, sort=self.sort
        )


def ask_for(lacking: str, question: str, yes: bool) -> None:
    """Ask, unless `yes`. Where the answer is no, end the command with exit code 1, since it did
    nothing. Raises UserError, which begins with what is `lacking`, where nobody can answer: without
    a terminal, and a program."""
    if not yes:
        if is_for_programs() or not sys.stdin.isatty():
            raise UserError(f"{lacking}; add --yes")
        if not typer.confirm(question):
            raise typer.Exit(1)


def print_set(format: str | None, draw: Callable[..., Any]) -> None:
    """Print for readers what `draw` makes of a format and, for rich, a width in characters.

    `format` None is rich on a terminal, Markdown elsewhere.
    """
    from ablate.report import make_console

    terminal = sys.stdout.isatty()  # whatever FORCE_COLOR says
    format = format or ("rich" if terminal else "md")
    if format == "rich":
        screen = make_console(force_terminal=terminal)
        screen.print(draw(format, width=screen.width))
    else:
        sys.stdout.write(draw(format))


def print_table(
    plan: Plan, store: Store, view: TableView, recomputed: Results | None = None
) -> Table:
    """Print the table of a sweep, and return it. `recomputed`: the results of a bundle."""
    table, parts = _read_table(plan, store, view, recomputed)
    table = view.part_of(table, plan)
    _print_rendered(table, view, parts)
    return table


def _read_table(
    plan: Plan, store: Store, view: TableView, recomputed: Results | None = None
) -> tuple[Table, tuple[str, ...]]:
    """Read the table of a sweep, which is a look; return it with the parts that `--show` names."""
    from ablate.analysis import Extras, published_figures, read_verdicts
    from ablate.report import DEFAULT_SHOW, SHOW, check_show
    from ablate.running import estimate_sizes

    if view.against not in (None, "paper"):
        raise unknown_value("--against", view.against, ("paper",))
    parts = check_show(view.show, plan.task.names) if view.show is not None else DEFAULT_SHOW
    if view.against and "paper" not in parts:
        parts = (*parts, "paper")
    published_metric = plan.task.metrics[0].key
    if "paper" in parts and plan.metric.key != published_metric:
        raise UserError(
            f"--against paper: published figures are of {published_metric}, but the table is of "
            f"{plan.metric.key}; add analysis.metric={published_metric}"
        )
    if "population" in parts and (reason := plan.no_images(plan.metric)):
        raise UserError(f"--show population: {reason}; leave population out")
    also = [part for part in parts if part not in SHOW]
    plan = plan.with_own(*also, place="--show")
    metrics = [plan.metric, *(plan.metric_named(name, "--show") for name in also)]
    results: Results = recomputed or {}
    withheld: dict[str, str] = {}
    if recomputed is None:
        probes = any(metric.probe for metric in metrics)
        results, withheld = store.results(plan.runs(), True, probes, predictions=True)
    table = read_verdicts(
        plan,
        store,
        results,
        withheld=withheld,
        strict=view.strict,
        extras=Extras(
            also=tuple(also),
            sizes=estimate_sizes(plan, store, results) if {"params", "macs"} & {*parts} else {},
            cost="cost" in parts,
            paper=published_figures(plan, store.root) if "paper" in parts else {},
            population="population" in parts,
        ),
    ).table
    words = (plan.name, *store.option)
    if recomputed is not None:
        words = ("--from", str(store.root))
    return dataclasses.replace(table, words=words), parts


def _print_rendered(table: Table, view: TableView, parts: tuple[str, ...]) -> None:
    """Print a table on standard output."""
    from ablate.report import render_table, table_tree

    if view.format == "json":
        print_json(table_tree(table))
        return
    layout: Any = {
        "transpose": view.transpose,
        "wide": view.wide,
        "floated": view.floated,
        "notes": view.notes,
    }
    print_set(view.format, functools.partial(render_table, table, show=parts, **layout))


# --- Files of `--out` -----------------------------------------------------------------------------


def check_out(path: Path, formats: Sequence[str]) -> str:
    """Return the format that the file's ending names, or the first format for something that is no
    regular file, such as /dev/stdout. Raises UserError for another ending, for a folder, and where
    no file can be written."""
    if _is_stream(path):
        if is_for_programs() and os.path.samestat(path.stat(), os.fstat(1)):
            raise UserError(f"--out: {path}: --format json prints there; name another file")
        return formats[0]
    real = Path(os.path.realpath(path))
    if real.is_dir() or not real.parent.is_dir():
        raise UserError(f"--out: {path}: name a file in a folder that exists")
    format = real.suffix.removeprefix(".").lower()
    if format not in formats:
        raise unknown_value(f"--out: {path}", format, formats, "a file that ends in one of")
    return format


def write_out(path: Path, content: bytes) -> bool:
    """Write a file atomically, at the target of a link, and return True. Write directly into a
    device or a pipe, and return False: only a regular file may be replaced by a rename, for the
    name of a device is everybody's."""
    from ablate.shared import write_whole

    if _is_stream(path):
        with open(path, "wb") as stream:
            stream.write(content)
        return False
    write_whole(Path(os.path.realpath(path)), content)
    return True


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
