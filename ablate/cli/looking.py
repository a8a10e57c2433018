"""Commands that only look: status, watch, show, table, plot, trials.

Used by cli/__init__.py, which adds each command; the work is in report/ and analysis/. A new option
also needs docs/options.md, which tests/options_page.py writes; a new command its place in `GROUPS`
and its line in cli/help_texts.py `EXAMPLES`, too.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ablate.cli import options
from ablate.cli.answers import print_json, print_json_now
from ablate.cli.options import (
    RUNS,
    Rows,
    RunName,
    StoreDir,
    TextFormat,
    TrialsFormat,
    argument,
    flag,
    number,
    option,
    whole_number,
)
from ablate.cli.printing import (
    TableView,
    check_out,
    print_set,
    print_table,
    write_out,
)
from ablate.cli.selection import ReadSelection, Selection, reading, store_at
from ablate.report import announce
from ablate.shared import Failure, NotThere, TryAgain, UserError, count_text, unknown_value

if TYPE_CHECKING:
    from ablate.planning import Plan
    from ablate.report import FigureForm, SweepView
    from ablate.store import Ledger, Store


MAX_PORT = 65535
AGAIN_S = 0.5  # until a sweep is looked for again
MANY = 1000  # runs: reading their results takes seconds


GOALS = ("finished", "look")


def _goal_or_seeds(text: str) -> str | int:
    return text if text in GOALS else whole_number(text)


@dataclass(frozen=True)
class AwaitedSelection(Selection):
    """A sweep, and what is waited for: `--until` takes a goal, too."""

    until: Annotated[
        Any,
        option(
            "finished|look|N",
            "With --wait: until the sweep has ended (default), or until its next look has decided; "
            "N as with sweep.",
            parser=_goal_or_seeds,
        ),
    ] = None
    goal: Literal["finished", "look"] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Move a goal out of the options by which the sweep is declared."""
        super().__post_init__()
        if self.until in GOALS:
            object.__setattr__(self, "goal", self.until)
            object.__setattr__(self, "until", None)


def status(
    selection: AwaitedSelection,
    watch: Annotated[bool, flag("--watch", "Refresh every second until the sweep ends.")] = False,
    wait: Annotated[
        bool,
        flag("--wait", "Wait until the sweep has ended, then show it."),
    ] = False,
    timeout: Annotated[
        float,
        option(
            "SECONDS",
            "With --wait: show what stands after this time, and exit with 75.",
            parser=number,
            show_default=False,
        ),
    ] = math.inf,
    format: TextFormat = "text",
) -> None:
    """Show the progress of a sweep: runs by state, active workers, failures and their causes."""
    from ablate.report import SweepView, trees

    _check_wait(selection, watch, wait, timeout)
    if watch and format != "text":
        raise UserError(f"--format {format}: --watch prints text alone; give one of them")
    wait_end = None
    with _opened(selection) as (store, ledger, plan):
        if selection.goal == "look" and not plan.design.grows:
            raise UserError(f"--until look: {plan.name} has no looks; leave it out")
        if watch:
            with _until_interrupted():
                SweepView.watch(plan, store, ledger)
            return
        if wait:
            goal = selection.goal or "finished"
            view, wait_end = SweepView.await_goal(plan, store, ledger, goal, timeout)
        else:
            view = SweepView.observe(plan, list(plan.runs()), store, ledger)
        if format == "json":
            print_json(trees.of_status(view, store.results(view.runs).withheld.values()))
        else:
            view.show()
    if wait_end is not None:
        _check_awaited(view, wait_end, timeout)


@contextlib.contextmanager
def _opened(selection: Selection) -> Iterator[tuple[Store, Ledger, Plan]]:
    """Open the driven sweep: see `Selection.opened`. Raises TryAgain where it has no plan yet, and
    a job is to drive it."""
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(selection.opened())
        except NotThere:
            submitted = store_at(selection.store).submitted_driver()
            if submitted is None or selection.words not in ([], [submitted.sweep]):
                raise
            raise TryAgain(
                f"{submitted.sweep}: job {submitted.job}, its driver, has not begun; give the same "
                f"command again"
            ) from None
        yield opened


def _check_wait(selection: AwaitedSelection, watch: bool, wait: bool, timeout: float) -> None:
    """Raise UserError for options of a wait that is not asked for, and for no time."""
    if watch and wait:
        raise UserError("--watch: shows the sweep until it ends, as --wait waits; leave one out")
    if not wait and (selection.goal or timeout != math.inf):
        option = "--timeout" if selection.goal is None else f"--until {selection.goal}"
        raise UserError(f"{option}: says how long to wait; add --wait, or leave it out")
    if not timeout > 0:
        raise UserError(f"--timeout: must be more than 0 seconds, got {timeout:g}")


def _check_awaited(view: SweepView, wait_end: str, timeout: float) -> None:
    """Raise TryAgain for a wait whose time is over, and Failure where runs are left that nobody
    trains, as `ablate sweep` does."""
    from ablate.api import check_outcome
    from ablate.running import Outcome

    plan, progress = view.plan, view.progress
    tally = f"{progress.ended_count} of {count_text(progress.total, 'run')} done"
    if wait_end == "timeout":
        submitted, queued = progress.submitted, ""
        if submitted is not None:
            queued = f", and job {submitted.job}, its driver, has not begun"
        raise TryAgain(
            f"{plan.name}: {tally} after {timeout:g} s{queued}; the same command waits on"
        )
    if wait_end == "left":
        command = plan.repeat_command(view.store.command)
        raise Failure(f"{plan.name}: {tally}, and no process drives it; `{command}` goes on")
    if progress.is_over:
        check_outcome(Outcome(plan, progress, signal=None), view.store)


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Run a view in this context until Ctrl-C ends it; the sweep or run that it shows goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def watch(
    selection: Selection,
    port: Annotated[
        int, option("PORT", "Port to listen on (default: a free one).", parser=whole_number)
    ] = 0,
) -> None:
    """Serve a live page of a sweep to a browser on this machine: state, curves, logs, gains.

    A sweep that is not there yet is waited for. Without a name the page lists the sweeps of the
    store. The address holds a token: only who knows it sees the page. Ctrl-C ends it.
    """
    from ablate.report import StoreAnswers, WatchServer

    if not 0 <= port <= MAX_PORT:
        raise UserError(f"--port: expected a port from 1 to {MAX_PORT}, got {port}")
    with _until_interrupted():
        store = store_at(selection.store)
        plan = _awaited(selection)
        has_choice = selection.words or selection.has_options
        answers = StoreAnswers(store)
        page = f"{answers.open(plan)}/" if has_choice else ""
        try:
            server = WatchServer(answers, port)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; give another, or none") from error
        with server:
            print(f"{server.url}{page}", flush=True)
            print_json_now({"url": f"{server.url}{page}"})
            server.serve_forever()


def _awaited(selection: Selection) -> Plan:
    """Return the selected plan, once it is there."""
    announced = False
    while True:
        try:
            with selection.opened() as (_, _, plan):
                return plan
        except NotThere as error:
            if not announced:
                announce(f"{error}; waiting for it, until Ctrl-C")
            announced = True
            time.sleep(AGAIN_S)


def show(
    run: RunName,
    log: Annotated[bool, flag("--log", "Print only the log of the run.")] = False,
    follow: Annotated[
        bool, option(None, "Follow the log until the run ends.", "--follow", "-f")
    ] = False,
    against: Annotated[
        str | None, option("RUN", "Show only the differences from this run.")
    ] = None,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Show one run: history, result, curves, provenance and configuration."""
    from ablate.report import RunLog, compare_runs, describe_run, trees
    from ablate.store import find_run

    log_option = "--follow" if follow else "--log" if log else ""
    if log_option and format != "text":
        raise UserError(f"--format {format}: {log_option} prints text alone; give one of them")
    if log_option and against is not None:
        raise UserError(f"--against: compares runs, and {log_option} prints one log; leave one out")
    with reading(store) as (place, ledger):
        runs = [find_run(place, ledger, name) for name in (run, against) if name is not None]
        if follow:
            with _until_interrupted():
                RunLog(place, runs[0], sys.stdout.buffer).follow(ledger)
        elif log:
            RunLog(place, runs[0], sys.stdout.buffer).print()
        elif format == "json":
            tree = trees.of_run(place, ledger, *runs) if len(runs) == 1 else None
            print_json(tree or trees.of_runs(place, ledger, runs))
        elif against is None:
            print(describe_run(place, ledger, *runs))
        else:
            print(compare_runs(place, ledger, *runs))


def table(
    selection: ReadSelection,
    view: TableView,
    bundle: Annotated[
        Path | None,
        option("DIR", "Recompute the table from a folder of `ablate export`.", "--from"),
    ] = None,
) -> None:
    """Show the gain of each variant over the baseline, with 95 % intervals and verdicts."""
    view.check()
    if bundle is not None:
        if selection.words or selection.has_options:
            raise UserError("--from: an export holds one sweep; leave its name and words out")
        if selection.contrasts:
            raise UserError("--from: an export keeps its own comparisons; leave --contrast out")
        from ablate.audit import Bundle

        exported = Bundle(bundle)
        plan, events = exported.read_sealed()
        if len(events) >= MANY:
            announce(f"recomputing {plan.name} from {bundle}")
        print_table(plan, exported, view, exported.recompute(plan, events))
    else:
        with selection.opened(is_look=True) as (store, _, plan):
            if len(plan.cells) * len(plan.seeds) >= MANY:
                announce(f"reading the runs of {plan.name}")
        print_table(plan, store, view)


@dataclass(frozen=True)
class DrawnSelection(Selection):
    """A sweep, and behind its words what is drawn of it."""

    words: Annotated[
        list[str],
        argument(
            "[NAME] [KEY=VALUE ...] KIND",
            "Name of a sweep, settings, and the kind of figure (`ablate list plots`).",
            options.words,
        ),
    ] = field(default_factory=list)


def plot(
    selection: DrawnSelection,
    out: Annotated[
        Path | None,
        option(
            "FILE", "File to write: .svg, .pdf or .png (default: NAME-KIND.svg, for a paper .pdf)."
        ),
    ] = None,
    style: Annotated[
        str, option("page|paper|slides", "Fonts, size and captions for a page, a paper or slides.")
    ] = "page",
    size: Annotated[
        str | None, option("WxH", "Width and height in inches, such as 3.3x2.4.")
    ] = None,
    rows: Rows = None,
    by: Annotated[
        str | None, option("family", "With gain: one colour for each family of rows.")
    ] = None,
    highlight: Annotated[
        str | None, option("ROW", "With gain: the row to draw large and on top.")
    ] = None,
    no_caption: Annotated[
        bool, flag("--no-caption", "Leave out the heading, the caption and the notes.")
    ] = False,
) -> None:
    """Draw a figure of a sweep, as SVG, PDF or PNG."""
    from ablate.api import draw_sweep
    from ablate.planning import output_name
    from ablate.report import FIGURE_FORMATS, FIGURE_KINDS, FigureForm

    *words, kind = selection.words or [""]
    if kind not in FIGURE_KINDS:
        raise unknown_value(
            "plot", kind, FIGURE_KINDS, "a figure at the end of the command, one of"
        )
    form = FigureForm(
        style,
        FigureForm.read_size(size) if size is not None else None,
        captioned=not no_caption,
        grouping=by,
        highlight=highlight,
    )
    ending = "pdf" if style == "paper" else "svg"
    if out is not None:
        ending = check_out(out, FIGURE_FORMATS)
    with replace(selection, words=words).opened(is_look=True) as (store, _, plan):
        form = _with_rows(form, plan, rows)
    announce(f"drawing {kind} of {plan.name}")
    content, caption, withheld_lines = draw_sweep(plan, store, kind, ending, form)
    for line in withheld_lines:
        announce(line)
    if caption:
        announce(f"for its caption: {caption}")
    out = out or Path(f"{output_name(plan.name)}-{kind}.{ending}")
    if write_out(out, content):
        print(out)
    facts = {"sweep": plan.name, "kind": kind, "file": str(out)}
    print_json({**facts, "caption": caption or None, "withheld": withheld_lines})


def _with_rows(form: FigureForm, plan: Plan, rows: str | None) -> FigureForm:
    """Return the form with the rows that the option names."""
    from ablate.planning import read_labels

    if rows is None:
        return form
    labels = [row.label for row in plan.rows]
    return replace(form, rows=read_labels("--rows", rows, labels, plan.row_names))


def trials(selection: Selection, format: TrialsFormat = None) -> None:
    """Show the trials of the searches of a sweep: settings, validation scores and winners."""
    from ablate.report import set_sheet
    from ablate.report import trials as report

    with selection.opened() as (_, ledger, plan):
        tried = report.list_trials(plan, ledger.states({run.id for run in plan.runs()}))
    match format:
        case "csv":
            sys.stdout.write(report.csv(plan, tried))
        case "json":
            print_json(report.tree(plan, tried))
        case _:
            print_set(format, functools.partial(set_sheet, report.sheet(plan, tried)))
