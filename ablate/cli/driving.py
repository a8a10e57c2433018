"""Commands that train, or show the cost of training: sweep, plan, stop."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import starting
from ablate.cli.mistakes import number
from ablate.cli.printing import Format, TableView, TextFormat, print_json, print_table
from ablate.cli.selection import RUNS, Selection, StoreDir
from ablate.shared.errors import UserError

if TYPE_CHECKING:
    from ablate.analysis.table import Table
    from ablate.planning.plan import Plan
    from ablate.running.driver import Outcome
    from ablate.running.observers import Observers
    from ablate.store.events import RunState
    from ablate.store.store import Store


def sweep(
    selection: Selection,
    retry: Annotated[
        str, typer.Option(help="Train runs with these states again: failed,oom,hung,damaged.")
    ] = "",
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Give up earlier plans of this name: their seeds, or another sweep; `ablate gc` "
            "then offers their runs.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start a long sweep without asking.")] = False,
    detach: Annotated[
        str | None,
        typer.Option(
            metavar="here|job",
            help="Leave the driver in the background, or in a job of its own (launcher=slurm).",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print errors only; no table, so no verdict is read.")
    ] = False,
) -> None:
    """Train the missing runs of a sweep. The same command starts, resumes and extends it."""
    from ablate.api.training import check_retry

    again = [status for status in retry.split(",") if status]
    check_retry(again)
    with starting.silent() if quiet else contextlib.nullcontext():
        _sweep(selection, again, replace, yes, detach, quiet)


def _sweep(
    selection: Selection,
    again: list[str],
    replace: bool,
    yes: bool,
    detach: str | None,
    quiet: bool,
) -> None:
    from ablate.api.training import Start, check_name, renamed_lines
    from ablate.planning.logger import aside
    from ablate.report.live import view
    from ablate.running.disk import await_room
    from ablate.running.loggers import check_installed
    from ablate.running.observers import Observers
    from ablate.store.store import Store

    kept = Store(selection.store)
    beside = aside(selection.beside)
    check_installed([*beside.loggers])
    check_name(selection.words, kept)
    start = Start(selection.plan, kept, replace)
    if detach is not None:
        starting.detach(detach, start.plan, kept, start.settings, yes)
        return
    print(f"sweep: {start.plan.name}", flush=True)
    for line in renamed_lines(start.plan, kept):
        print(line)
    await_room(kept, view)
    with Observers(beside, kept.root, start.plan.name, _say) as observers:
        try:
            outcome = start.train(observers, again, partial(starting.confirm, yes=yes), _say)
        except KeyboardInterrupt:  # once it trains the driver listens itself
            print("stopped before the first run; the same command goes on")
            raise typer.Exit(130) from None
        _close(kept, outcome, observers, quiet)


def _say(line: str) -> None:
    print(line, flush=True)


def _close(store: Store, outcome: Outcome, observers: Observers, quiet: bool) -> None:
    """Print the end of a drive and the table, unless `quiet`, and exit with the code."""
    from ablate.analysis.headline import headline
    from ablate.api.training import check_outcome
    from ablate.store.find import left_out
    from ablate.store.ledger import Ledger

    plan, progress = outcome.plan, outcome.progress
    done = f"{progress.done} of {progress.total}"
    if outcome.signal is not None:
        print(f"stopped after {done}; the same command goes on")
        raise typer.Exit(128 + outcome.signal)
    if not quiet:  # a table that nobody sees would be a look
        with Ledger.reading(store) as ledger:
            shown = left_out(plan, ledger)
        table = print_table(shown, store, TableView())
        if line := headline(table):
            observers.read(line, _verdicts(table))
        for how in ("cancelled", *["skipped"] * bool(plan.design.needed(plan))):  # which lack them
            if held := progress.counts.get(how):
                print(f"{held} {how}: `ablate run RUN --undo` lets such a run train")
    check_outcome(outcome, store)


def _verdicts(table: Table) -> list[dict[str, Any]]:
    """Of a complete table that was printed, which was a look."""
    given = (entry for entry in table.entries if entry.verdict)
    return [
        {
            **{"row": entry.row, "column": entry.column, "verdict": entry.verdict},
            **{key: getattr(entry.gain, key, None) for key in ("mean", "low", "high", "n")},
        }
        for entry in given
    ]


def plan(
    selection: Selection,
    detect: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="POINTS",
            help="Show the seeds and hours it takes to detect this gain.",
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="POINTS",
            help="Standard deviation between seeds, for --detect and --until (default: measured).",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="DEVICE:N", help="Show the cost on other hardware, such as h100:8."),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="SHARE",
            help="Share of the peak speed that training reaches, for --on.",
        ),
    ] = None,
    format: TextFormat = Format.text,
) -> None:
    """Show the runs and the cost of a sweep, without training."""
    from ablate.analysis.own import with_own
    from ablate.api.training import check_name, grower, grown, imported_plan, memory
    from ablate.report import trees
    from ablate.report.designs import (
        DesignForecast,
        compare_designs,
        show_designs,
    )
    from ablate.report.planned import show_head, show_plan
    from ablate.report.power import Detection, Outlook, forecast, outlook
    from ablate.running import launchers
    from ablate.running.devices import Devices
    from ablate.running.estimate import costs
    from ablate.running.preflight import in_use
    from ablate.running.rehearse import rehearsed
    from ablate.store.store import Store

    kept = Store(selection.store)
    if (found := imported_plan(kept, selection.words)) is not None:
        made, settings = found
    else:
        check_name(selection.words, kept)
        made, settings = selection.plan(memory(kept), unseen=True)
    _check_options(detect, spread, on, mfu, made)
    devices = None if on is None else Devices.parse(on, mfu)
    if format is Format.text:
        show_head(made)
    made = grown(made, kept, grower(made, kept))
    states, finished = _told_by_ledger(made, kept)
    launcher = launchers.make(settings, kept.cache)
    try:
        cost = costs(made, kept, launcher, states, finished, on=devices)
        told = rehearsed(made, kept, launcher, cost.described)
    finally:
        launcher.free()
    detection: Detection | None = None
    withheld: dict[str, str] = {}
    ahead: Outlook | None = None
    designs: list[DesignForecast] = []
    if detect is not None or made.design.grows or made.changes is not None:
        results, withheld = kept.results(made.runs(), curves=True, probes=True)
        read = with_own(made, results, kept), kept.metrics, kept.probe
        designs = compare_designs(made, cost, detect, spread, read)
        if detect is not None and not designs:
            detection = forecast(made, detect, spread, cost, *read)
        ahead = outlook(made, spread, cost, *read) if made.design.grows else None
    amiss = [*launcher.devices.remarks, *in_use(launcher, kept, states)] if on is None else []
    if format is Format.json:
        why = withheld.values()
        known = states, cost, told, settings, detection, ahead, designs
        print_json(trees.of_plan(made, *known, why, amiss))
        return
    show_plan(made, states, cost, told, settings, amiss)
    show_designs(made, designs, detect)
    for lines in (part.lines() for part in (ahead, detection) if part is not None):
        print()
        print(*lines, sep="\n")
    for why_not in withheld.values():
        print(f"withheld: {why_not}")


def _told_by_ledger(plan: Plan, store: Store) -> tuple[dict[str, RunState], dict[str, Any]]:
    """The states of the plan's runs, and the details of all "finished" events."""
    from ablate.store.ledger import Ledger

    if not store.ledger.exists():
        return {}, {}
    with Ledger.reading(store) as ledger:
        return ledger.states({run.id for run in plan.runs()}), ledger.last_detail("finished")


def _check_options(
    detect: float | None, spread: float | None, on: str | None, mfu: float | None, plan: Plan
) -> None:
    if detect is None and not plan.design.grows and not plan.changes and spread is not None:
        raise UserError("--spread: needs --detect or --until")
    if detect is not None and plan.design.grows:
        raise UserError(
            "--detect: forecasts a fixed number of seeds, which a sweep with looks has not; leave "
            "it out, and `ablate plan` shows the runs that the looks take"
        )
    if on is None and mfu is not None:
        raise UserError("--mfu: needs --on")
    for option, value in (("--detect", detect), ("--spread", spread)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{option}: must be more than 0 points, got {value:g}")


def stop(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Sweep to stop (default: the sweep that is being driven)."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            parser=number,
            metavar="SECONDS",
            help="Give up after this time (default: wait until Ctrl-C).",
            show_default=False,
        ),
    ] = math.inf,
    store: StoreDir = RUNS,
) -> None:
    """Stop a sweep from another shell. Workers write checkpoints first; a second stop ends them."""
    from ablate.report.live import begin
    from ablate.running import driver_lock
    from ablate.store.ledger import Ledger
    from ablate.store.progress import driver_of, observe
    from ablate.store.store import Store

    if not timeout > 0:
        raise UserError(f"--timeout: must be more than 0 seconds, got {timeout:g}")
    kept = Store(store)
    if driver_of(kept) is not None:
        begin("stopping: workers write their checkpoints")
    stopped = driver_lock.stop(kept, sweep, begin, timeout)
    if stopped is None:
        print(f"no run of {sweep or store} is active")
        return
    plan = kept.read_plan(stopped)
    if plan is None:  # it had planned nothing yet
        print(f"stopped {stopped}")
        return
    with Ledger.reading(kept) as ledger:
        progress = observe(plan, list(plan.runs()), kept, ledger)
    done = f"{progress.done} of {progress.total}"
    print(f"stopped {stopped} after {done}; the same `ablate sweep` goes on")
