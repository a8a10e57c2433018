"""Commands that train, or show the cost of training: sweep, plan, stop."""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.mistakes import number
from ablate.cli.printing import Format, TextFormat, print_json, print_table
from ablate.cli.selection import RUNS, Selection, StoreDir
from ablate.shared.errors import Failure, UserError, unknown

if TYPE_CHECKING:
    from ablate.planning.plan import Plan
    from ablate.running.driver import Outcome
    from ablate.running.launchers import Launcher
    from ablate.store.events import RunState
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store


def sweep(
    selection: Selection,
    retry: Annotated[
        str, typer.Option(help="Train runs with these states again: failed,oom,hung.")
    ] = "",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace another sweep of the same name; its runs stay."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start a long sweep without asking.")] = False,
    detach: Annotated[
        str | None,
        typer.Option(
            metavar="here|job",
            help="Leave the driver in the background, or in a job of its own (launcher=slurm).",
        ),
    ] = None,
) -> None:
    """Train the missing runs of a sweep. The same command starts, resumes and extends it."""
    from ablate.planning.search import Search
    from ablate.report.live import view
    from ablate.running import launchers
    from ablate.running.driver import drive
    from ablate.running.settle import settle
    from ablate.running.turns import await_room, driving
    from ablate.store.provenance import origin
    from ablate.store.store import Store

    again = _retry(retry)
    kept = Store(selection.store)
    _check_name(selection.words, kept)
    plan, settings = selection.plan()
    if not replace:
        _check_words(plan, kept)
    if detach is not None:
        _detach(detach, kept, settings)
        return
    print(f"sweep: {plan.name}", flush=True)
    await_room(kept, view)
    launcher = launchers.make({**settings, "origin": origin(kept.diffs)}, kept.cache)
    for line in launcher.devices.remarks:
        print(f"warning: {line}")
    search = Search(plan) if plan.tune else None
    try:
        with driving(kept, plan.name, view) as ledger:
            for note in plan.notes:
                print(f"note: {note}")
            if search is not None:
                seals = ledger.seals()
                plan = (
                    search.grow(lambda run: kept.result(run, seals.get(run)), kept.metrics) or plan
                )
            lacking = _ready(plan, kept, ledger, launcher, yes)
            with view() as watching:
                decisions = {}
                if lacking:
                    _prepare(plan, kept, launcher, watching)
                    decisions = settle(plan, kept, launcher)
                outcome = drive(
                    plan, kept, ledger, launcher, settings, watching, again, search, decisions
                )
            if search is not None:
                search.write(kept.studies)
    except KeyboardInterrupt:  # once it trains the driver listens itself
        print("stopped before the first run; the same command goes on")
        raise typer.Exit(130) from None
    finally:
        launcher.free()
    _close(kept, outcome)


def _detach(where: str, store: Store, settings: Mapping[str, Any]) -> None:
    """Run the same command without this terminal, and --detach."""
    from ablate.running.detach import WHERE, detach

    if where not in WHERE:
        raise unknown("--detach", where, WHERE)
    words, skip = [], False
    for word in sys.argv[1:]:
        if not skip and word != "--detach" and not word.startswith("--detach="):
            words.append(word)
        skip = word == "--detach"
    print(detach(where, words, store, settings))


def _check_name(words: list[str], store: Store) -> None:
    """Raise UserError if the first word names a driven sweep, but no sweep file."""
    from ablate.planning.sweep_file import sweep_files

    name = words[0] if words else ""
    if not name or "=" in name or name.endswith(".yaml") or name in sweep_files():
        return
    if (plan := _driven(name, store)) is not None:
        raise UserError(
            f"{name}: is the name of a driven sweep; to drive the sweep again give its words: "
            f"`ablate sweep {shlex.join([*plan.words, *words[1:]])}`"
        )


def _driven(name: str, store: Store) -> Plan | None:
    """Return the plan with this name, None if no such plan can be read."""
    try:
        return store.read_plan(name)
    except (LookupError, TypeError, AttributeError, ValueError):
        return None  # not whole: it is written again


def _check_words(plan: Plan, store: Store) -> None:
    """Raise UserError if the store has a sweep of this name with other runs."""
    from ablate.planning.expand import alike

    before = _driven(plan.name, store)
    if before is None:
        return
    with contextlib.suppress(UserError):  # words of old that can't be read now are others
        if alike(before.words, plan.words, store.root):
            return
    raise UserError(
        f"{plan.name}: is the name of another sweep, `ablate sweep {shlex.join(before.words)}`; "
        f"give another name with --as NAME, or replace that sweep with --replace, which keeps the "
        f"runs of both"
    )


def _retry(text: str) -> list[str]:
    statuses = [status for status in text.split(",") if status]
    for status in statuses:
        if status not in ("failed", "oom", "hung"):
            raise unknown("--retry", status, ("failed", "oom", "hung"))
    return statuses


LONG_H = 24.0  # device-hours that are worth a question


def _ready(plan: Plan, store: Store, ledger: Ledger, launcher: Launcher, yes: bool) -> bool:
    """Is a run left to train? Then build every model once, without weights, and ask about the cost
    of a long sweep."""
    from ablate.report.live import duration
    from ablate.running.estimate import costs
    from ablate.running.preflight import in_use, preflight
    from ablate.running.rehearse import rehearsed
    from ablate.shared.result import FINAL
    from ablate.store.progress import working

    ids = {run.id for run in plan.runs()}
    states = ledger.states(ids)
    done = (run for run in ids if run in states and states[run].status in FINAL)
    if sum(store.rundir(run).has_result() for run in done) == len(ids):
        return False
    launcher.warm()  # while the models are built
    held = {str(notes.get("slot")) for notes in working(store, states)}
    preflight(launcher, held, lambda line: print(f"warning: {line}"))
    cost = costs(
        plan, store, launcher, states, ledger.last_detail("finished"), from_s=LONG_H * 3600
    )
    told = rehearsed(plan, store, launcher, cost.described, own_only=True)
    for warning in (*cost.warnings(), *told.warnings, *in_use(launcher, store, states)):
        print(f"warning: {warning}")
    if cost.left_s > LONG_H * 3600 and not yes:
        text = f"{plan.name}: more than a month on {cost.where}"
        if math.isfinite(cost.left_s):
            text = f"{plan.name}: about {cost.left_s / 3600:.0f} device-hours"
            text += f", {duration(cost.wall_s)} on {cost.where}"
        if not sys.stdin.isatty():
            raise UserError(f"{text}: a sweep of this length needs a confirmation; add --yes")
        if not typer.confirm(f"{text}. Start?"):
            raise typer.Exit(0)
    return True


def _prepare(plan: Plan, store: Store, launcher: Launcher, watching: Any) -> None:
    """Decode missing or damaged datasets before anything trains: a bad image ends the command here,
    a full disk pauses it."""
    from ablate.planning.cell import spec_parents
    from ablate.running.launchers.decode import decode
    from ablate.running.turns import with_room

    specs = [tree for cell in plan.cells for tree in (cell.spec, *spec_parents(cell.spec))]
    work = functools.partial(decode, specs, store.root, watching, launcher.ask)
    with_room(store, watching.say, work)


def _close(store: Store, outcome: Outcome) -> None:
    """Print the end of a drive and the table, and exit with the code."""
    from ablate.store.progress import BLOCKED, GIVEN_UP

    plan, progress = outcome.plan, outcome.progress
    done = f"{progress.done} of {progress.total}"
    if outcome.signal is not None:
        print(f"stopped after {done}; the same command goes on")
        raise typer.Exit(128 + outcome.signal)
    print_table(plan, store, None)
    if len(outcome.retired) and progress.counts.get("interrupted"):
        raise Failure(
            f"{plan.name}: no device is left ({', '.join(outcome.retired)}); "
            f"{done} runs are done, the same command goes on"
        )
    lost = {s: n for s, n in progress.counts.items() if s in GIVEN_UP}
    if outcome.stopped is not None:
        raise Failure(
            f"{plan.name}: {outcome.stopped}: no single variant is the cause; mend it, then "
            f"`ablate sweep ... --retry {','.join(lost) or 'failed'}` goes on; {done} runs are done"
        )
    stuck = progress.counts.get(BLOCKED, 0)
    if lost:
        told = lost | ({BLOCKED: stuck} if stuck else {})
        text = ", ".join(f"{n} {status}" for status, n in told.items())
        raise Failure(
            f"{plan.name}: {text} of {progress.total} runs: `ablate status {plan.name}` shows why, "
            f"`ablate sweep ... --retry {','.join(lost)}` trains them again"
        )
    if stuck:
        raise Failure(
            f"{plan.name}: {stuck} of {progress.total} runs are blocked: what they start from "
            f"diverged; `ablate status {plan.name}` names it"
        )


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
            help="Standard deviation between seeds to assume for --detect (default: measured).",
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
    from ablate.planning.search import Search
    from ablate.report import trees
    from ablate.report.power import Detection, forecast
    from ablate.report.status import show_head, show_plan
    from ablate.running import launchers
    from ablate.running.devices import Devices
    from ablate.running.estimate import costs
    from ablate.running.preflight import in_use
    from ablate.running.rehearse import rehearsed
    from ablate.store.store import Store

    _check_options(detect, spread, on, mfu)
    devices = None if on is None else Devices.parse(on, mfu)
    kept = Store(selection.store)
    _check_name(selection.words, kept)
    made, settings = selection.plan()
    if format is Format.text:
        show_head(made)
    if made.tune:
        seals = kept.seals()
        made = Search(made).grow(lambda run: kept.result(run, seals.get(run)), kept.metrics) or made
    states, finished = _told_by_ledger(made, kept)
    launcher = launchers.make(settings, kept.cache)
    try:
        cost = costs(made, kept, launcher, states, finished, on=devices)
        told = rehearsed(made, kept, launcher, cost.described)
    finally:
        launcher.free()
    detection: Detection | None = None
    withheld: dict[str, str] = {}
    if detect is not None:
        results, withheld = kept.results(made.runs(), curves=True, probes=True)
        measured = with_own(made, results, kept)
        detection = forecast(made, detect, spread, cost, measured, kept.metrics, kept.probe)
    amiss = [*launcher.devices.remarks, *in_use(launcher, kept, states)] if on is None else []
    if format is Format.json:
        why = withheld.values()
        print_json(trees.of_plan(made, states, cost, told, settings, detection, why, amiss))
        return
    show_plan(made, states, cost, told, settings, amiss)
    if detection is not None:
        print()
        for line in (*(f"withheld: {why}" for why in withheld.values()), *detection.lines()):
            print(line)


def _told_by_ledger(plan: Plan, store: Store) -> tuple[dict[str, RunState], dict[str, Any]]:
    """The states of the plan's runs, and the details of all "finished" events."""
    from ablate.store.ledger import Ledger

    if not store.ledger.exists():
        return {}, {}
    with Ledger.reading(store) as ledger:
        return ledger.states({run.id for run in plan.runs()}), ledger.last_detail("finished")


def _check_options(
    detect: float | None, spread: float | None, on: str | None, mfu: float | None
) -> None:
    if detect is None and spread is not None:
        raise UserError("--spread: needs --detect")
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
    from ablate.running import turns
    from ablate.store.ledger import Ledger
    from ablate.store.progress import driver_of, observe
    from ablate.store.store import Store

    if not timeout > 0:
        raise UserError(f"--timeout: must be more than 0 seconds, got {timeout:g}")
    kept = Store(store)
    if driver_of(kept) is not None:
        begin("stopping: workers write their checkpoints")
    stopped = turns.stop(kept, sweep, begin, timeout)
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
