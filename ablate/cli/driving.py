"""Commands that train, or show the cost of training: sweep, plan, stop, and run for single runs.

Used by cli/__init__.py, which adds each command; the work is in api/training.py. A new option also
needs docs/options.md, which tests/options_page.py writes; a new command its place in `GROUPS` and
its line in cli/help_texts.py `EXAMPLES`, too.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.answers import print_json
from ablate.cli.options import (
    RUNS,
    StoreDir,
    TextFormat,
    argument,
    flag,
    number,
    option,
    word_of,
)
from ablate.cli.printing import TableView, ask_for, print_table
from ablate.cli.selection import Selection, changing, reading, store_at
from ablate.report import announce
from ablate.shared import Failure, UserError

if TYPE_CHECKING:
    from ablate.analysis import Table
    from ablate.api import Start, SweepCost
    from ablate.planning import Plan
    from ablate.report import DesignForecast, EffectSpreads, SeedSpread
    from ablate.running import Observers, Outcome
    from ablate.store import Store


def sweep(
    selection: Selection,
    retry: Annotated[
        str, option("STATES", "Train runs in these states again: failed,oom,hung,damaged.")
    ] = "",
    replace: Annotated[
        bool,
        flag(
            "--replace",
            "Replace an earlier sweep of this name, or its seeds; `ablate gc` then offers to "
            "remove its runs.",
        ),
    ] = False,
    yes: Annotated[bool, flag("--yes", "Start a long sweep without asking.")] = False,
    detach: Annotated[
        str | None,
        option(
            "here|job",
            "Return at once: the driver runs in the background (here), or as a job of its own "
            "(job; needs launcher=slurm).",
            parser=word_of("here", "job"),
        ),
    ] = None,
    quiet: Annotated[
        bool, flag("--quiet", "Print errors only; no table, so no verdict is read.")
    ] = False,
    format: TextFormat = "text",
) -> None:
    """Train the missing runs of a sweep. The same command starts, resumes and extends it."""
    from ablate.api import Start, check_retry, renamed_lines
    from ablate.planning import read_logger_words
    from ablate.report import progress_view
    from ablate.running import Observers, await_disk_room, check_loggers_installed

    statuses = [status for status in retry.split(",") if status]
    check_retry(statuses)
    if quiet and format == "json":
        raise UserError("--quiet: prints no table; leave it or --format json out")
    view = None if quiet else TableView(format="json" if format == "json" else None)
    with _silence() if quiet else contextlib.nullcontext():
        store = store_at(selection.store)
        logger_settings = read_logger_words(selection.logger_words)
        check_loggers_installed([*logger_settings.loggers])
        start = Start(_declaring(selection, store), store, replace)
        if detach is not None:
            _detach(detach, start, store, statuses, yes)
            return
        _say(f"sweep: {start.plan.name}")
        for line in renamed_lines(start.plan, store):
            print(line)
        await_disk_room(store, progress_view)
        with Observers(logger_settings, store.root, start.plan.name, _say) as observers:
            try:
                outcome = start.train(observers, statuses, partial(_confirm, yes=yes), _say)
            except KeyboardInterrupt:  # once it trains the driver listens itself
                print("stopped before the first run; the same command goes on")
                raise
            _close(store, outcome, observers, view)


def _declaring(selection: Selection, store: Store) -> Callable[..., tuple[Plan, dict[str, Any]]]:
    """Return the function that plans the selection: the driven sweep that it names, or its words.

    It takes `recall` and `allow_missing`, as `planning.plan_declared` does.
    """
    from ablate.api import recall_declared
    from ablate.planning import plan_declared, read_logger_words

    read_logger_words(selection.logger_words)
    line = recall_declared(selection.words, selection.options, store)
    if line is None:
        return selection.plan
    return partial(plan_declared, line, store=store.root)


def _say(line: str) -> None:
    print(line, flush=True)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Print nothing on standard output, and take no answer: what would be asked is refused."""
    with open(os.devnull, "w") as out, open(os.devnull) as nobody:
        stdin, sys.stdin = sys.stdin, nobody
        try:
            with contextlib.redirect_stdout(out):
                yield
        finally:
            sys.stdin = stdin


def _confirm(forecast: SweepCost, yes: bool) -> None:
    """Print warnings, and ask about the cost of a long sweep, unless `yes`. Raise UserError where
    nobody can answer."""
    for warning in forecast.warnings:
        print(f"warning: {warning}")
    if forecast.cost:
        lacking = f"{forecast.cost}: a sweep of this length needs a confirmation"
        ask_for(lacking, f"{forecast.cost}. Start?", yes)


# Options that the driver in the background does not take.
ONLY_HERE = ("--detach", "--format", "--fields")


def _detach(place: str, start: Start, store: Store, retry: Sequence[str], yes: bool) -> None:
    """Ask what the sweep would ask, which nobody could answer later; then leave the same command
    behind without this terminal and --detach."""
    from ablate.api import forecast_sweep, grow_plan
    from ablate.running import detach_driver, make_launcher

    plan, settings = start.plan, start.settings
    if not yes:
        launcher = make_launcher(settings, store.cache)
        try:
            current_plan = grow_plan(plan, store)
            _confirm(forecast_sweep(current_plan, store, launcher, retry), yes=False)
        finally:
            launcher.free()
    words, skip = [], False
    for word in sys.argv[1:]:
        name = word.partition("=")[0]
        if not skip and name not in ONLY_HERE:
            words.append(word)
        skip = word in ONLY_HERE
    if not yes:
        words.insert(words.index("sweep") + 1, "--yes")
    line = detach_driver(place, words, plan.name, store, settings, start.stop_mark)
    print(line)
    print_json({"sweep": plan.name, "driver": line})


def _close(store: Store, outcome: Outcome, observers: Observers, view: TableView | None) -> None:
    """Print the end of a drive and the table, unless it has no view, and exit with the code."""
    from ablate.analysis import table_headline
    from ablate.api import check_outcome
    from ablate.store import without_skipped

    plan, progress = outcome.plan, outcome.progress
    if outcome.signal is not None:
        tally = f"{progress.ended_count} of {progress.total}"
        with contextlib.suppress(OSError):  # of a pipe or a terminal that nobody reads any longer
            print(f"stopped after {tally}; the same command goes on", flush=True)
        raise typer.Exit(128 + outcome.signal)
    # A table that nobody sees would be a look.
    if view is not None and outcome.misread is None:
        with reading(store.root) as (_, ledger):
            table_plan = without_skipped(plan, ledger)
        table = print_table(table_plan, store, view)
        if line := table_headline(table):
            observers.keep_verdicts(line, _verdicts(table))
        skipped = progress.counts.get("skipped")
        if skipped and plan.design.needed_runs(plan):  # a search or looks, which need every run
            print(f"{skipped} skipped: `ablate run RUN --undo` lets such a run train")
    check_outcome(outcome, store)


def _verdicts(table: Table) -> list[dict[str, Any]]:
    """Return the verdicts of a complete table that was printed, and so was a look: row, column,
    verdict, and the gain's mean, interval and n."""
    numbers = ("mean", "low", "high", "n")
    return [
        {"row": e.row, "column": e.column, "verdict": e.verdict}
        | {key: getattr(e.gain, key, None) for key in numbers}
        for e in table.entries
        if e.verdict
    ]


def plan(
    selection: Selection,
    detect: Annotated[
        float | None,
        option("POINTS", "Show the seeds and hours needed to detect this gain.", parser=number),
    ] = None,
    spread: Annotated[
        float | None,
        option(
            "POINTS",
            "Standard deviation between seeds, for --detect and --until (default: measured).",
            parser=number,
        ),
    ] = None,
    on: Annotated[
        str | None, option("DEVICE:N", "Show the cost on other hardware, such as h100:8.")
    ] = None,
    mfu: Annotated[
        float | None,
        option("SHARE", "Share of the peak speed that training reaches, for --on.", parser=number),
    ] = None,
    format: TextFormat = "text",
) -> None:
    """Show the runs and the cost of a sweep, without training."""
    from ablate.analysis import with_own_metrics
    from ablate.api import StoreRecall, forecast_plan, imported_plan
    from ablate.report import show_head, trees
    from ablate.running import Devices

    store = store_at(selection.store)
    if (imported := imported_plan(store, selection.words)) is not None:
        plan, settings = imported
        if selection.has_options:
            raise UserError(
                f"{plan.name}: was imported, and its runs stay as they are; leave options out"
            )
    else:
        declare = _declaring(selection, store)
        plan, settings = declare(recall=StoreRecall(store), allow_missing=True)
    _check_options(detect, spread, on, mfu, plan)
    devices = None if on is None else Devices.parse(on, mfu, settings)
    if format == "text":
        show_head(plan)
    forecast = forecast_plan(plan, store, settings, devices)
    plan, cost = forecast.plan, forecast.costs
    detection, ahead = None, None
    designs: list[DesignForecast] = []
    spreads: dict[str, SeedSpread] = {}
    effects: dict[str, EffectSpreads] = {}
    withheld: dict[str, str] = {}
    if detect is not None or plan.design.grows or plan.changes is not None:
        from ablate.report import (
            compare_designs,
            effect_spreads,
            forecast_seeds,
            seed_spreads,
            simulate_looks,
        )
        from ablate.store import looks

        results, withheld = store.results(
            plan.runs(), curves=True, probes=True, predictions=plan.changes is not None
        )
        own_results = with_own_metrics(plan, results, store)
        spreads = seed_spreads(plan, spread, own_results, store.metrics, store.probe)
        past = looks.PastLooks(looks.parse_events(store.read_looks()), looks.look(plan))
        if spread is None:
            effects = effect_spreads(
                plan, own_results, store.metrics, store.probe, store.predictions
            )
        designs = compare_designs(plan, cost, detect, spreads, effects, past)
        if detect is not None and not designs:
            detection = forecast_seeds(plan, detect, cost, spreads, past)
        ahead = simulate_looks(plan, cost, spreads, past) if plan.design.grows else None
    if format == "json":
        print_json(trees.of_plan(forecast, detection, ahead, designs, withheld.values()))
        return
    forecast.show()
    if designs:
        from ablate.report import show_designs

        show_designs(plan, designs, detect, spreads, effects)
    for part in (ahead, detection):
        if part is not None:
            print("", *part.lines(), sep="\n")
    for reason in withheld.values():
        print(f"withheld: {reason}")


def _check_options(
    detect: float | None, spread: float | None, on: str | None, mfu: float | None, plan: Plan
) -> None:
    if detect is None and not plan.design.grows and not plan.changes and spread is not None:
        raise UserError("--spread: needs --detect or --until")
    if detect is not None and plan.analysis.target is not None:
        raise UserError("--detect: forecasts gains, and analysis.target judges means; leave it out")
    if detect is not None and plan.smoke:
        raise UserError("--detect: forecasts gains, and a smoke test judges none; leave it out")
    if detect is not None and plan.design.grows:
        raise UserError(
            "--detect: forecasts a fixed number of seeds, which a sweep with looks has not; leave "
            "it out, and `ablate plan` shows the runs that the looks take"
        )
    if on is None and mfu is not None:
        raise UserError("--mfu: needs --on")
    for name, points in (("--detect", detect), ("--spread", spread)):
        if points is not None and not 0 < points < math.inf:
            raise UserError(f"{name}: must be more than 0 points, got {points:g}")


def stop(
    sweep: Annotated[
        str | None, argument("NAME", "Sweep to stop (default: the sweep that is being driven).")
    ] = None,
    timeout: Annotated[
        float,
        option(
            "SECONDS",
            "Stop waiting after this time (default: wait until Ctrl-C).",
            parser=number,
            show_default=False,
        ),
    ] = math.inf,
    store: StoreDir = RUNS,
) -> None:
    """Stop a sweep from another shell. Workers write checkpoints first; a second stop ends them."""
    from ablate.running import stop_driver
    from ablate.store import driver_of, observe_progress

    if not timeout > 0:
        raise UserError(f"--timeout: must be more than 0 seconds, got {timeout:g}")
    place = store_at(store)
    if driver_of(place) is not None:
        announce("stopping: workers write their checkpoints")
    stopped = stop_driver(place, sweep, announce, timeout)
    counts: dict[str, int | None] = {"done": None, "total": None}
    if stopped is None:
        place_name = sweep or f"the store {store}"
        print(f"nothing trains in {place_name}; a sweep that is starting now will stop")
    elif (plan := place.read_plan(stopped)) is None:  # it had planned nothing yet
        print(f"stopped {stopped}")
    else:
        with reading(store) as (_, ledger):
            progress = observe_progress(plan, list(plan.runs()), place, ledger)
        tally = f"{progress.ended_count} of {progress.total}"
        counts = {"done": progress.ended_count, "total": progress.total}
        print(f"stopped {stopped} after {tally}; the same `ablate sweep` goes on")
    print_json({"sweep": stopped, **counts})


# --- Orders for single runs -----------------------------------------------------------------------

# order -> (the status that it leaves, None: as it was; what is said)
ORDER_EFFECTS = {
    "skip": ("skipped", "skipped: {}; tables leave out its seed and say so"),
    "undo": (None, "undone: {}; the same `ablate sweep` trains it"),
}


def run(
    runs: Annotated[list[str], argument("RUN", "LABEL@COLUMN#SEED, or the beginning of an id.")],
    skip: Annotated[
        bool,
        flag("--skip", "Stop training the run; tables leave out its seed, and say so in a note."),
    ] = False,
    undo: Annotated[bool, flag("--undo", "Undo --skip.")] = False,
    delete: Annotated[
        bool, flag("--delete", "Remove its folder; asks first. A sweep trains it again.")
    ] = False,
    yes: Annotated[bool, flag("--yes", "Delete without asking.")] = False,
    store: StoreDir = RUNS,
) -> None:
    """Skip or delete single runs of a sweep, also while it trains."""
    from ablate.running import check_order, give_order
    from ablate.store import find_run

    orders = {"skip": skip, "undo": undo, "delete": delete}
    flags = [order for order, is_given in orders.items() if is_given]
    if len(flags) != 1:
        names = ", ".join(f"--{order}" for order in orders)
        words = ["NAME"] if any("#" in text for text in runs) else runs
        raise UserError(
            f"run: expected one of {names}, got {len(flags)}; `ablate show RUN` shows a run, "
            f"`ablate sweep {shlex.join(words)}` trains a sweep"
        )
    if yes and not delete:
        raise UserError("--yes: needs --delete")
    [order] = flags
    with reading(store) as (place, ledger):
        texts = {find_run(place, ledger, text): text for text in runs}
        if order != "delete":
            check_order(place, ledger, order, texts)
    if delete:
        _delete(store, texts, yes)
        return
    try:
        give_order(place, order, list(texts), announce)
    except KeyboardInterrupt:
        announce("the order stays: whoever drives the store next obeys it")
        raise typer.Exit(130) from None
    status_after, line = ORDER_EFFECTS[order]
    with reading(store) as (_, ledger):
        states = ledger.states(texts)
    for run_id, text in texts.items():
        status = states[run_id].status
        if status_after not in (None, status):
            raise Failure(f"{text}: is {status} by now")
        print(line.format(text))
    print_json(_order_tree(order, {run: states[run].status for run in texts}, texts))


def _order_tree(
    order: str, statuses: Mapping[str, str | None], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Return what an order did. Keys: order; runs: {run, label, status} in the order given."""
    runs = [{"run": run, "label": texts[run], "status": status} for run, status in statuses.items()]
    return {"order": order, "runs": runs}


def _delete(folder: Path, runs: dict[str, str], yes: bool) -> None:
    from rich.filesize import decimal

    from ablate.store import RemovableRun

    with changing(folder, "run") as (store, ledger):
        removals = [RemovableRun.of(store, ledger, run, text) for run, text in runs.items()]
        states = ledger.states(runs)
        for removal in removals:
            run, rubbish = removal.run, removal.folder
            status = states[run].status if run in states else "not in the ledger"
            print(f"to remove: {runs[run]} ({status}), {decimal(rubbish.bytes)} in {rubbish.path}")
        ask_for(f"{', '.join(runs.values())}: needs a confirmation", "Remove?", yes)
        for removal in removals:
            note = _restore_hint(store, removal.run)
            removal.remove()
            print(f"removed: {runs[removal.run]}; {note}")
    print_json(_order_tree("delete", dict.fromkeys(runs), runs))


def _restore_hint(store: Store, run: str) -> str:
    """Say which command brings a run back."""
    from ablate.run import RunSpec

    with contextlib.suppress(ValueError):  # a damaged run.json
        if RunSpec.of(store.rundir(run).read_spec()).is_imported:
            return "the same import brings it back"
    return "the same `ablate sweep` trains it again"
