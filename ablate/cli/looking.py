"""Commands that only look: status, watch, show, table, plot."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import completing
from ablate.cli.mistakes import whole
from ablate.cli.out import check_out, write_out
from ablate.cli.printing import (
    Format,
    Rows,
    TableView,
    TextFormat,
    TrialsFormat,
    print_json,
    print_rendered,
    print_set,
    print_table,
    read_table,
)
from ablate.cli.selection import RUNS, Selection, StoreDir, planned
from ablate.shared.errors import NotThere, UserError, unknown

if TYPE_CHECKING:
    from ablate.planning.plan import Plan
    from ablate.report.plot.form import Form
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store


MAX_PORT = 65535
AGAIN_S = 0.5  # until a sweep is looked for again
MANY = 1000  # runs: reading their results takes seconds


def status(
    selection: Selection,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until the sweep ends.")
    ] = False,
    format: TextFormat = Format.text,
) -> None:
    """Show the progress of a sweep: runs by state, active workers, failures and their causes."""
    from ablate.report import trees
    from ablate.report.status import SweepView, show_status, watch_status
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    if watch and format is not Format.text:
        raise UserError(f"--format {format}: --watch prints text alone; give one of them")
    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        made = planned(kept, ledger, selection)
        if format is Format.json:
            view = SweepView.of(made, list(made.runs()), kept, ledger)
            print_json(trees.of_status(view, kept.results(view.runs).withheld.values()))
            return
        if not watch:
            show_status(made, kept, ledger)
            return
        try:
            watch_status(made, kept, ledger)
        except KeyboardInterrupt:  # it is not ours to stop
            raise typer.Exit(130) from None


def watch(
    selection: Selection,
    port: Annotated[
        int,
        typer.Option(parser=whole, metavar="PORT", help="Port to listen on (default: a free one)."),
    ] = 0,
) -> None:
    """Serve a live page of a sweep to a browser on this machine: state, curves, logs, gains.

    A sweep that is not there yet is waited for. Without a name the page lists the sweeps of the
    store. The address holds a token: only who knows it sees the page. Ctrl-C ends it.
    """
    from ablate.report.watch.answers import StoreAnswers, SweepAnswers
    from ablate.report.watch.server import WatchServer
    from ablate.store.store import Store

    if not 0 <= port <= MAX_PORT:
        raise UserError(f"--port: expected a port from 1 to {MAX_PORT}, got {port}")
    kept = Store(selection.store)
    try:
        made = _awaited(kept, selection)
        asked = selection.words or selection.has_options
        answers = SweepAnswers(made, kept) if asked else StoreAnswers(kept)
        try:
            server = WatchServer(answers, port)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; give another, or none") from error
        with server:
            print(server.url, flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _awaited(kept: Store, selection: Selection) -> Plan:
    """The plan that is selected, once it is there."""
    from ablate.report.live import begin
    from ablate.store.ledger import Ledger

    told = False
    while True:
        try:
            with Ledger.reading(kept) as ledger:
                return planned(kept, ledger, selection)
        except NotThere as error:
            if not told:
                begin(f"{error}; waiting for it, until Ctrl-C")
            told = True
            time.sleep(AGAIN_S)


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="LABEL@COLUMN#SEED, or the beginning of an id.")
    ],
    log: Annotated[bool, typer.Option("--log", help="Print only the log of the run.")] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Follow the log until the run ends."),
    ] = False,
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="Show only the differences from this run.")
    ] = None,
    format: TextFormat = Format.text,
    store: StoreDir = RUNS,
) -> None:
    """Show one run: history, result, curves, provenance and configuration."""
    from ablate.report import trees
    from ablate.report.logs import follow_log, print_log
    from ablate.report.show import compare_runs, describe_run
    from ablate.store.find import find_run
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    logged = "--follow" if follow else "--log" if log else ""
    if logged and format is not Format.text:
        raise UserError(f"--format {format}: {logged} prints text alone; give one of them")
    if logged and against is not None:
        raise UserError(f"--against: compares runs, and {logged} prints one log; leave one out")
    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        found = find_run(kept, ledger, run)
        other = None if against is None else find_run(kept, ledger, against)
        if follow:
            try:
                follow_log(kept, ledger, found, sys.stdout.buffer)
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
        elif log:
            print_log(kept, found, sys.stdout.buffer)
        elif format is Format.json:
            both = other and trees.of_runs(kept, ledger, (found, other))
            print_json(both or trees.of_run(kept, ledger, found))
        elif other is not None:
            print(compare_runs(kept, ledger, found, other))
        else:
            print(describe_run(kept, ledger, found))


def table(
    selection: Selection,
    view: TableView,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Recompute the table from a folder of `ablate export`."
        ),
    ] = None,
    mixed: Annotated[
        bool,
        typer.Option("--mixed", help="Show imported rows beside rows that were trained here."),
    ] = False,
) -> None:
    """Show the gain of each variant over the baseline, with 95 % intervals and verdicts.

    `ablate table A B` shows two sweeps side by side, or one below the other.
    `ablate table paper:T1L` shows a published table, read by the same code; `ablate list paper`
    lists the published tables.
    """
    from ablate.analysis.published import SHOW, WHERE, read_published
    from ablate.report.formats import check_show
    from ablate.report.live import begin
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    view.check()
    first = selection.words[0] if selection.words else ""
    if first.startswith(WHERE):
        more = selection.words[1:] or selection.has_options
        if more or view.against or view.strict or bundle:
            raise UserError(
                f"{first}: takes --format, --show, --rows, --columns, --sort, --transpose and "
                f"--wide, and --label, --caption and --notes; leave other words out"
            )
        parts = check_show(view.show) if view.show is not None else SHOW
        print_rendered(view.of(read_published(first.removeprefix(WHERE))), view, parts)
        return
    if bundle is not None:
        if selection.words or selection.has_options:
            raise UserError("--from: an export holds one sweep; leave its name and words out")
        from ablate.audit.bundle import Bundle

        exported = Bundle(bundle)
        made, told = exported.read()
        if len(told) >= MANY:
            begin(f"recomputing {made.name} from {bundle}")
        print_table(made, exported, view, exported.recompute(made, told))
        return
    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        two = paired(kept, ledger, selection)
        refused(two, transpose=view.transpose, wide=view.wide, against=view.against)
        made, *others = [planned(kept, ledger, one, read=True) for one in two or [selection]]
    if others:
        print_pair((made, *others), kept, view, mixed)
        return
    if len(made.cells) * len(made.seeds) >= MANY:
        begin(f"reading the runs of {made.name}")
    print_table(made, kept, view)


@dataclass(frozen=True)
class DrawnSelection(Selection):
    """A sweep, and behind its words what is drawn of it."""

    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] [KEY=VALUE ...] KIND",
            help="Name of a sweep, settings, and the kind of figure (`ablate list plots`).",
            autocompletion=completing.words,
        ),
    ] = field(default_factory=list)


def plot(
    selection: DrawnSelection,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write: .svg, .pdf or .png (default: NAME-KIND.svg, for a paper .pdf).",
        ),
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            metavar="page|paper|slides", help="Letters, size, and what is written on the figure."
        ),
    ] = "page",
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="Width and height in inches, such as 3.3x2.4.")
    ] = None,
    rows: Rows = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="family", help="gain: one colour a family, not one a row."),
    ] = None,
    highlight: Annotated[
        str | None, typer.Option(metavar="ROW", help="gain: the row to draw large, and on top.")
    ] = None,
    no_caption: Annotated[
        bool, typer.Option("--no-caption", help="Write no heading, caption and notes on it.")
    ] = False,
) -> None:
    """Draw a figure of a sweep, as SVG, PDF or PNG."""
    from ablate.analysis import captions
    from ablate.analysis.own import with_own
    from ablate.analysis.reading import read
    from ablate.analysis.tabulate import tabulate
    from ablate.planning.tree import file_name
    from ablate.report.live import begin
    from ablate.report.plot import FORMATS, KINDS, draw
    from ablate.report.plot.form import Form, read_size
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    *words, kind = selection.words or [""]
    if kind not in KINDS:
        raise unknown("plot", kind, KINDS, "as the last word one of")
    if kind != "gain" and (by or highlight):
        raise UserError(f"{'--by' if by else '--highlight'}: is of the figure gain; leave it out")
    form = Form(style, read_size(size) if size is not None else None, not no_caption, by=by)
    ending = "pdf" if style == "paper" else "svg"
    if out is not None:
        ending = check_out(out, FORMATS)
    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        made = planned(kept, ledger, replace(selection, words=words), read=True)
    form = _with_rows(form, made, rows, highlight)
    begin(f"drawing {kind} of {made.name}")
    out = out or Path(f"{file_name(made.name)}-{kind}.{ending}")
    results, withheld = kept.results(made.runs(), curves=True, probes=True, predictions=True)
    if KINDS[kind].gives_intervals:
        table = read(made, kept, results, withheld=withheld).table
    else:
        table = tabulate(
            made,
            with_own(made, results, kept),
            curves=kept.metrics,
            probes=kept.probe,
            predictions=kept.predictions,
            withheld=withheld,
        )
    for line in captions.withheld(withheld):
        begin(line)
    drawn = draw(made, table, kind, kept.rundir, ending, form)
    if drawn.caption:
        begin(f"for its caption: {drawn.caption}")
    if write_out(out, drawn.content):
        print(out)


def _with_rows(form: Form, made: Plan, rows: str | None, highlight: str | None) -> Form:
    """The form with the rows that are shown beside the baseline, and the one that stands out."""
    from ablate.report.chosen import read_labels

    labels = [row.label for row in made.rows]
    also = {alias: row.label for row in made.rows for alias in row.aliases}
    if rows is not None:
        chosen = {made.baseline, *read_labels("--rows", rows, labels, also)}
        form = replace(form, rows=tuple(label for label in labels if label in chosen))
    if highlight is not None:
        shown = [label for label in form.rows or labels if label != made.baseline]
        if (label := also.get(highlight, highlight)) not in shown:
            raise unknown("--highlight", highlight, shown)
        form = replace(form, highlight=label)
    return form


# --- Searches -------------------------------------------------------------------------------------


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


# --- Two sweeps: `ablate table A B` ---------------------------------------------------------------


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


def print_pair(plans: Sequence[Plan], store: Store, view: TableView, mixed: bool) -> None:
    """Print two sweeps side by side, one below the other where they share no row, of the first what
    `view` shows. `mixed`: one may have been imported."""
    from ablate.analysis.imports import mixture
    from ablate.analysis.table import Note
    from ablate.report.formats import PAIRED, render_pair
    from ablate.report.formats.tidy import tree
    from ablate.report.pair import pair
    from ablate.report.pair import tree as of_pair

    one, other = plans
    if (said := mixture(plans)) and not mixed:
        raise UserError(f"table {one.name} {other.name}: {said}; --mixed shows them together")
    (first, parts), (second, _) = (read_table(plan, store, view) for plan in plans)
    if said:
        mark = Note("caption", f"Mixed: {said}.")
        first, second = (replace(table, notes=(mark, *table.notes)) for table in (first, second))
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
