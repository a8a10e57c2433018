"""The commands, thin: they read words, call the half below, print. `--help` loads typer only."""

from __future__ import annotations

import functools
import os
import sqlite3
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate import __version__
from ablate.spec import Failure, UserError, unknown

if TYPE_CHECKING:
    from ablate.drive import Outcome
    from ablate.launch import Launcher
    from ablate.ledger import Ledger, Store
    from ablate.plan import Plan

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Does this change to a Vision Transformer help, and how sure are we?",
)


class Format(StrEnum):
    """What a table can be printed as."""

    rich = "rich"
    md = "md"
    csv = "csv"
    json = "json"


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME KEY=VALUE", help="A sweep's name, and values to set."),
]
StoreDir = Annotated[
    Path, typer.Option("--store", envvar="ABLATE_STORE", help="Where runs and results are kept.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Scale = Annotated[str | None, typer.Option("--scale", help="One of the sweep file's scales.")]
Name = Annotated[str | None, typer.Option("--as", help="Call the sweep by this name.")]
Across = Annotated[
    list[str] | None, typer.Option("--across", help="This key's values are columns.")
]
Each = Annotated[bool, typer.Option("--each", help="One factor at a time, not their product.")]
RUNS = Path("runs")


@app.command()
def sweep(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    retry: Annotated[
        str, typer.Option(help="Start runs again that ended so: failed,oom,hung.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask about long sweeps.")] = False,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """Plan what is missing and train it: start, resume and extend are this one command."""
    from ablate import drive, launch
    from ablate.ledger import Store
    from ablate.report.live import view
    from ablate.sweep import plan as make_plan

    again = _retry(retry)
    kept = Store(store)
    plan, settings = make_plan(
        words or [], store=store, scale=scale, name=name, across=across or (), each=each
    )
    launcher = launch.make(settings, kept.cache)
    with drive.driving(kept) as ledger:
        print(f"sweep: {plan.name}", flush=True)
        for note in plan.notes:
            print(f"note: {note}")
        try:
            lacking = _ready(plan, kept, ledger, launcher, yes)
            with view() as watching:
                if lacking:
                    _prepare(plan, kept, watching)
                outcome = drive.drive(plan, kept, ledger, launcher, settings, watching, again)
        except KeyboardInterrupt:  # later on the driver listens itself
            print("stopped before the first run; the same command goes on")
            raise typer.Exit(130) from None
        finally:
            launcher.free()
    _close(plan, kept, outcome)


def _retry(text: str) -> list[str]:
    statuses = [status for status in text.split(",") if status]
    for status in statuses:
        if status not in ("failed", "oom", "hung"):
            raise unknown("--retry", status, ("failed", "oom", "hung"))
    return statuses


LONG_H = 24.0  # device-hours that are worth a question


def _ready(plan: Plan, store: Store, ledger: Ledger, launcher: Launcher, yes: bool) -> bool:
    """Is anything left to train? Then every model is built once, without weights, and the cost of
    a long sweep is shown and asked about."""
    from ablate.ledger import FINAL
    from ablate.report.cost import costs
    from ablate.report.live import duration

    ids = {run.id for run in plan.runs()}
    states = ledger.states(ids)
    if all(run in states and states[run].status in FINAL for run in ids):
        return False
    cost = costs(plan, store, launcher, states, ledger.last_detail("finished"))
    for warning in cost.warnings():
        print(f"warning: {warning}")
    if cost.left_s > LONG_H * 3600 and not yes:
        text = f"{plan.name}: about {cost.left_s / 3600:.0f} device-hours"
        text += f", {duration(cost.left_s / len(launcher.slots))} on {len(launcher.slots)} slots"
        if not sys.stdin.isatty():
            raise UserError(f"{text}: too long to start unasked; add --yes")
        if not typer.confirm(f"{text}. Start?"):
            raise typer.Exit(0)
    return True


def _prepare(plan: Plan, store: Store, watching: Any) -> None:
    """Decode what is not decoded yet, before anything trains: a bad image ends the command here."""
    from ablate.launch.ask import ask

    data = {cell.spec["data"]["fingerprint"]: cell.spec for cell in plan.cells}
    for fingerprint, spec in data.items():
        if not (store.cache / fingerprint).is_dir():  # it appears whole
            name = spec["data"]["name"]
            question = {"spec": {**spec, "seed": 0}, "cache": str(store.cache)}
            ask("prepare", question, functools.partial(watching.reading, name))


def _close(plan: Plan, store: Store, outcome: Outcome) -> None:
    """Say how it ended, print the table, exit with the code."""
    if outcome.signal is not None:
        print(f"stopped after {outcome.done} of {outcome.total}; the same command goes on")
        raise typer.Exit(128 + outcome.signal)
    _print_table(plan, store, None)
    lost = {s: n for s, n in outcome.counts.items() if s in ("failed", "oom", "hung")}
    if lost:
        text = ", ".join(f"{n} {status}" for status, n in lost.items())
        raise Failure(
            f"{plan.name}: {text} of {outcome.total} runs: `ablate status {plan.name}` says why, "
            f"`ablate sweep ... --retry {','.join(lost)}` tries again"
        )


@app.command()
def plan(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """Show what `sweep` with the same words would run, and what it costs. Trains nothing."""
    from ablate import launch
    from ablate.ledger import Ledger, Store
    from ablate.report.cost import costs
    from ablate.report.status import show_plan
    from ablate.sweep import plan as make_plan

    kept = Store(store)
    made, settings = make_plan(
        words or [], store=store, scale=scale, name=name, across=across or (), each=each
    )
    states, finished = {}, {}
    if kept.ledger.exists():
        with Ledger.reading(kept) as ledger:
            states = ledger.states({run.id for run in made.runs()})
            finished = ledger.last_detail("finished")
    launcher = launch.make(settings, kept.cache)
    show_plan(made, states, costs(made, kept, launcher, states, finished), len(launcher.slots))


@app.command()
def status(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """Where a sweep stands: runs by state, what each worker does, what failed and why."""
    from ablate.ledger import Ledger, Store
    from ablate.report.status import show_status

    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        show_status(_planned(kept, ledger, words, scale, name, across, each), kept, ledger)


@app.command()
def table(
    words: Words = None,
    scale: Scale = None,
    name: Name = None,
    across: Across = None,
    each: Each = False,
    format: Annotated[
        Format | None, typer.Option(help="Default: rich on a terminal, md elsewhere.")
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """The gain of every variant over the baseline, with 95 % intervals and verdicts."""
    from ablate.ledger import Ledger, Store

    kept = Store(store)
    with Ledger.reading(kept) as ledger:
        made = _planned(kept, ledger, words, scale, name, across, each)
    _print_table(made, kept, format)


def _planned(
    store: Store,
    ledger: Ledger,
    words: list[str] | None,
    scale: str | None,
    name: str | None,
    across: list[str] | None,
    each: bool,
) -> Plan:
    """The driven plan that these words name: the last one for none, else a name or its words."""
    known = ledger.sweeps()
    if not known:
        raise UserError(f"{store.root}: no sweep was driven here yet: `ablate sweep quickstart`")
    wanted = name
    if wanted is None and words:
        single = len(words) == 1 and not (scale or across or each)
        wanted = _instance(words[0], known) if single else None
        if wanted is None and single and "=" not in words[0] and not words[0].endswith(".yaml"):
            wanted = words[0]  # a bare name, of no sweep driven here
    if wanted is None and words:
        from ablate.sweep import plan as make_plan

        made, _ = make_plan(words, store=store.root, scale=scale, across=across or (), each=each)
        wanted = made.name
    wanted = wanted or known[0]
    if wanted not in known:
        raise unknown("sweep", wanted, known, f"one driven in {store.root}:")
    driven = store.read_plan(wanted)
    if driven is None:
        raise Failure(f"{store.plan_path(wanted)}: not whole; `ablate sweep` writes it again")
    return driven


def _instance(word: str, known: list[str]) -> str | None:
    """The driven sweep of that name; of those that only begin with it, the single one."""
    if word in known or "=" in word:
        return word if word in known else None
    instances = [sweep for sweep in known if sweep.startswith((f"{word}@", f"{word}+"))]
    if len(instances) > 1:
        raise UserError(f"{word}: which of {', '.join(instances)}?")
    return instances[0] if instances else None


def _print_table(plan: Plan, store: Store, format: Format | None) -> None:
    from ablate.report import looks
    from ablate.report.formats import render
    from ablate.report.table import tabulate

    results = {run.id: store.rundir(run.id).read_result() for run in plan.runs()}
    tabulated = tabulate(plan, results, looks.read(store.looks, plan.name))
    if format is None:
        format = Format.rich if sys.stdout.isatty() else Format.md
    printed = render(tabulated, format)
    if format is Format.rich:
        from rich.console import Console

        Console(force_terminal=sys.stdout.isatty()).print(printed)  # whatever FORCE_COLOR says
    else:
        sys.stdout.write(printed)
    if tabulated.is_look:
        looks.record(store.looks, plan.name, plan.seeds)


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="sweeps, norms, stems, blocks, archs, data, recipes ...")
    ] = None,
    debug: Debug = False,
) -> None:
    """What may be chosen: each by its name, a line and its source."""
    from ablate.report.listing import listing
    from ablate.sweep import find_sweeps

    print(listing(kind, lambda: ((name, title, str(path)) for name, title, path in find_sweeps())))


@app.command()
def config(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values to set.")
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """The whole configuration of one run, composed and checked, and its id."""
    from omegaconf import OmegaConf

    from ablate.config import resolve

    tree, run = resolve(words or [], store)
    print(f"# run {run}\n{OmegaConf.to_yaml(OmegaConf.create(tree))}", end="")


data_app = typer.Typer(no_args_is_help=True, help="The images that runs learn from.")
app.add_typer(data_app, name="data")


@data_app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A dataset: `ablate list data`.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="data.KEY=VALUE", help="Values to set.")
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """Fetch and decode a dataset ahead of sweeps. Stopped, the same command goes on."""
    from ablate.config import resolve_data
    from ablate.launch.ask import ask
    from ablate.ledger import Store
    from ablate.report.live import view

    kept = Store(store)
    spec, notes = resolve_data(name, words or [], store)
    for note in notes:
        print(f"note: {note}")
    question = {"spec": spec, "cache": str(kept.cache)}
    try:
        found = ask("prepare", {**question, "look": True})
        if not found["whole"]:
            print(f"data={name}: {_images(found)}; {found['free']} are free", flush=True)
            if found["done"]:
                print(f"going on after {found['done']:,} images", flush=True)
            with view() as watching:
                found = ask("prepare", question, functools.partial(watching.reading, name))
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        raise typer.Exit(130) from None
    print(f"data={name} is there: {_images(found)}")


def _images(found: dict[str, Any]) -> str:
    """What the worker said of a dataset, for people."""
    if found["examples"] is None:
        return "not fetched yet, its size is not known"
    splits: dict[str, int] = found["examples"]
    counts = ", ".join(f"{split} {splits[split]:,}" for split in ("train", "validation", "test"))
    return f"{sum(splits.values()):,} images ({counts}), {found['size']} in {found['folder']}"


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """`ablate`: exit code 2 for the user's mistake, 1 for a failure, each with one line."""
    try:
        app(standalone_mode=True)
    except (UserError, Failure) as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"ablate: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except BrokenPipeError:  # `ablate table | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except sqlite3.Error as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"ablate: the store's ledger.db: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a store that is a file, or can't be written to
        if "--debug" in sys.argv:
            traceback.print_exc()
        place = f"{error.filename}: " if error.filename else ""
        print(f"ablate: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
