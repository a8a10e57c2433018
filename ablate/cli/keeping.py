"""Commands that keep a store in order: doctor, verify, gc, merge.

Used by cli/__init__.py, which adds each command; the work is in audit/ and store/. A new option
also needs docs/options.md, which tests/options_page.py writes; a new command its place in `GROUPS`
and its line in cli/help_texts.py `EXAMPLES`, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import options
from ablate.cli.answers import print_json
from ablate.cli.options import RUNS, Scale, StoreDir, TextFormat, argument, flag, option
from ablate.cli.printing import ask_for
from ablate.cli.selection import Selection, changing, reading, store_at
from ablate.report import announce
from ablate.shared import (
    Failure,
    NotThere,
    UserError,
    count_text,
    printable,
)

if TYPE_CHECKING:
    from ablate.run import RunDir, RunSpec
    from ablate.running import Slot
    from ablate.shared import Notes
    from ablate.store import Store, StreamFile


def doctor(
    words: Annotated[
        list[str] | None,
        argument(
            "NAME KEY=VALUE",
            "Name of a sweep, or settings of a run (default: quickstart).",
            options.words,
        ),
    ] = None,
    scale: Scale = None,
    repair: Annotated[
        bool, flag("--repair", "Rebuild the ledger from plans and run folders.")
    ] = False,
    statistics: Annotated[
        bool,
        flag(
            "--statistics",
            "Estimate how often verdicts are wrong, from runs of the store (default: all sweeps).",
        ),
    ] = False,
    constraints: Annotated[
        bool,
        flag(
            "--constraints",
            "Print constraints for `pip install -c` that keep the installed versions.",
        ),
    ] = False,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Check machine, store and bit-exact resume; with the launcher of a cluster, check a job there.

    The resume check trains a short run: the baseline of the named sweep, or a run with the given
    settings.
    """
    from ablate.audit import (
        check_store,
        findings_tree,
        null_tables,
        print_findings,
        run_checks,
        write_constraints,
    )

    if constraints:
        if words or scale or statistics or repair:
            raise UserError("--constraints: prints a file's path; leave other words out")
        file = write_constraints()
        print(file)
        print_json({"constraints": str(file)})
        return
    place = store_at(store)
    repaired: list[str] = []
    tell = print_findings if format == "text" else list
    if repair:
        if words or scale or statistics:
            raise UserError("--repair: checks the store alone; leave other words out")
        repaired = _repair(place)
        if format == "text":
            print("\n".join(repaired))
        findings = tell(check_store(place))
    elif statistics:
        if scale:
            raise UserError("--statistics: takes names of sweeps of the store; leave --scale out")
        findings = tell(null_tables(place, words or []))
    else:
        label, specs, settings = _config(words, scale, store)
        try:
            if "engine" in settings:  # of a cluster
                findings = tell(check_store(place, settings))
            else:
                with _host(settings, place) as (slots, *asks):
                    findings = tell(run_checks(place, settings, slots, label, specs, *asks))
        except KeyboardInterrupt:
            print("stopped; the same command begins again", file=sys.stderr)
            raise typer.Exit(130) from None
    if format == "json":
        print_json(findings_tree(findings, repaired))
    problems = [finding.check for finding in findings if finding.level == "problem"]
    if problems:
        names = ", ".join(dict.fromkeys(problems))
        raise Failure(f"doctor: {count_text(len(problems), 'problem')} ({names})")


@contextlib.contextmanager
def _host(settings: Mapping[str, Any], store: Store) -> Iterator[tuple[Any, ...]]:
    """Open a process of the training half on this host: the slots, and the functions `ask` and
    `unfit` of `run_checks`."""
    from ablate.running import ForkServer, make_launcher, worker_environment

    launcher = make_launcher(settings, store.cache, may_be_remote=False)
    slots = [slot for slot in launcher.slots if slot.ranks == launcher.worlds[0]]
    # not of an inline launcher: another process shall resume what one has begun
    with ForkServer(worker_environment(slots)) as server:
        ask = functools.partial(server.ask, environment=slots[0].environment)
        yield slots, ask, server.unfit


def _repair(store: Store) -> list[str]:
    """Rebuild the ledger; return lines on its content."""
    from collections import Counter

    from ablate.running import hold_driver_lock
    from ablate.store import repair_ledger

    if not store.root.is_dir():
        raise UserError(
            f"no store at {store.root}: give its folder with --store DIR (or ABLATE_STORE)"
        )
    with hold_driver_lock(store, "doctor --repair"):
        repair = repair_ledger(store)
    with reading(store.root) as (_, ledger):
        sweeps, states = ledger.sweeps(), ledger.states()
    lines = [] if repair.backup is None else [f"the old ledger is kept as {repair.backup}"]
    counts = Counter(state.status for state in states.values())
    tally = ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "none"
    events = f"{count_text(repair.events, 'event')}, " if repair.events else ""
    summary = f"rebuilt from {events}plans and run folders: sweeps: {len(sweeps):,}; runs: {tally}"
    return [*lines, *repair.lines, summary]


def _config(
    words: list[str] | None, scale: str | None, store: Path
) -> tuple[str, list[RunSpec], dict[str, Any]]:
    """Return (label, the spec to check and the other specs of its sweep, launcher settings)."""
    from ablate.planning import Composer, SettingsLayer, parse_word, single_values, split_launcher
    from ablate.planning import plan_from_words as make_plan

    if words and "=" in words[0] and scale is None:
        composer = Composer(store)
        launcher_settings, settings = split_launcher(
            single_values(parse_word(word, composer.groups) for word in words)
        )
        run = composer.run(composer.tree([SettingsLayer("", settings)]))
        return " ".join(words), [run.spec], composer.launcher(launcher_settings)
    plan, launcher = make_plan(words or ["quickstart"], store=store, scale=scale)
    specs = [cell.spec.with_seed(plan.seeds[0]) for cell in plan.cells]
    baseline = plan.cell(plan.baseline, plan.columns[0].label)
    assert baseline is not None
    suffix = f"@{baseline.column}" if baseline.column else ""
    baseline_spec = specs[plan.cells.index(baseline)]
    return f"{plan.name}: {baseline.row}{suffix}", [baseline_spec, *specs], launcher


def verify(
    selection: Selection,
    rerun: Annotated[
        str | None, option("RUN", "Train this run again and compare the bits.")
    ] = None,
    trust: Annotated[
        bool, flag("--trust", "With --rerun: start a command that no file here declares.")
    ] = False,
    format: TextFormat = "text",
) -> None:
    """Recompute every number of a table from the raw files, and check the files against the ledger.

    With a folder of `ablate export` as NAME: check every file against the manifest, and recompute
    every derived file. With the name of a stream: judge every look again.
    """
    from ablate.audit import Bundle, check_bundle, verify_stream
    from ablate.audit import verify_plan as verify_sweep
    from ablate.store import retry_remedy

    if rerun is not None:
        if selection.has_options:
            raise UserError(
                "--rerun: takes NAME, RUN and launcher.KEY=VALUE; leave other options out"
            )
        _rerun(selection.store, rerun, selection.words, trust, format)
        return
    if trust:
        raise UserError("--trust: needs --rerun RUN")
    bundle = Bundle(Path(selection.words[0])) if len(selection.words) == 1 else None
    remedy = ""
    if bundle is not None and (bundle.is_bundle or bundle.manifest.is_file()):
        if selection.has_options:
            raise UserError(f"{bundle.root}: is an export of one sweep; leave other options out")
        bundle.check_format()
        announce(f"checking the files of {bundle.root}")
        name, suffix, verified = (
            str(bundle.root),
            f" of the bundle {bundle.root}",
            check_bundle(bundle),
        )
    elif (file := _stream_named(selection)) is not None:
        announce(f"checking the looks of the stream {file.name}")
        name, suffix = file.name, f" of the stream {file.name}"
        store = store_at(selection.store)
        verified = verify_stream(store, file)
        if store.plan_path(name).exists():  # of a store of before, or one that others came into
            with selection.opened(checks_seal=False) as (store, ledger, plan):
                announce(f"checking the runs of {name}")
                sweep = verify_sweep(plan, store, ledger)
            verified.runs, verified.numbers = verified.runs + sweep.runs, sweep.numbers
            verified.add(sweep.findings, sweep.notes)
            suffix += " and the sweep"
    else:
        try:
            with selection.opened(checks_seal=False) as (store, ledger, plan):
                announce(f"checking the runs of {plan.name}")
                name, suffix, verified = plan.name, "", verify_sweep(plan, store, ledger)
                remedy = f"; where a run is damaged, {retry_remedy(plan)}"
        except NotThere as error:
            if bundle is None or "=" in selection.words[0]:
                raise
            neither = f"{bundle.root}: is no folder of a bundle (`ablate export` writes one)"
            reason = str(error).removeprefix("sweep: ")
            raise UserError(f"{neither}, and names no sweep: {reason}") from error
    if format == "json":  # name: the sweep, or the bundle's folder; how many were checked
        print_json({"name": name, **dataclasses.asdict(verified)})
    else:
        for line in (*verified.findings, *(f"note: {note}" for note in verified.notes)):
            print(printable(line))
    if verified.findings:
        raise Failure(f"{name}: {count_text(len(verified.findings), 'finding')}{remedy}")
    if format == "text":
        counts = f"{count_text(verified.runs, 'run')}, {count_text(verified.numbers, 'number')}"
        print(f"verified: {counts}{suffix}, nothing wrong")


def _stream_named(selection: Selection) -> StreamFile | None:
    """Return the stream that a single word names, if the store has it."""
    from ablate.store import StreamFile

    for file in StreamFile.of_store(store_at(selection.store)):
        if selection.words == [file.name]:
            return file
    return None


def _rerun(folder: Path, text: str, words: list[str], trust: bool, format: str) -> None:
    """Train a run once more, and print the differences. Raises Failure for any difference,
    UserError for a run that can only be read, or whose command came from elsewhere.

    As JSON: run; same: files and numbers with the same bits; findings: lines on differences;
    notes: lines on differences of the machine.
    """
    from ablate.audit import SAME_BITS, RerunStopped, retrain
    from ablate.planning import Composer, parse_word, single_values, split_launcher
    from ablate.report import progress_view
    from ablate.run import OwnSpec
    from ablate.running import decode_data, make_launcher
    from ablate.store import (
        SweepProgress,
        Worker,
        driven_plan,
        find_run,
        sweep_names,
        sweeps_of_run,
    )

    composer = Composer(folder)
    name, words = (words[0], words[1:]) if words and "=" not in words[0] else (None, words)
    launcher_settings, other_settings = split_launcher(
        single_values(parse_word(word, composer.groups) for word in words)
    )
    if other_settings:
        raise UserError(
            f"--rerun: takes launcher.KEY=VALUE only; leave {next(iter(other_settings))}= out"
        )
    with reading(folder) as (store, ledger):
        if name is not None:
            driven_plan(store, ledger, sweep_names(store, ledger), name)
        sweep_runs = sweeps_of_run(store, ledger, find_run(store, ledger, text, name))
    sweep_runs = [(sweep, run) for sweep, run in sweep_runs if name in (None, sweep)]
    if not sweep_runs:
        raise UserError(f"--rerun: {text}: no sweep contains this run")
    sweep, run = sweep_runs[0]
    if run.cell.spec.is_imported:
        raise UserError(f"--rerun: {text}: was trained elsewhere, so nothing can train it again")
    spec = run.spec
    if isinstance(spec, OwnSpec) and not (trust or composer.declares(spec)):
        raise UserError(
            f"--rerun: no file of ./conf/trainer has the command of {run.label}, which would start "
            f"in {spec.tree['code']['folder']}: {spec.trainer}; add --trust to start "
            f"it"
        )
    announce(f"training {run.label} once more")
    settings = composer.launcher(launcher_settings)
    launcher = make_launcher(settings, store.cache, may_be_remote=False)
    try:
        with progress_view() as watching:

            def show(slot: Slot, place: RunDir, notes: Notes) -> None:
                watching.show(SweepProgress(sweep, 1, {}, [Worker(run, slot.name, notes, place)]))

            decode_data([run.cell.spec], store.root, watching, launcher.ask)
            machine, lines = retrain(store, run, launcher, show)
    except RerunStopped as stopped:
        print("stopped; the new run was removed")
        raise typer.Exit(128 + stopped.number) from None
    finally:
        launcher.free()
    findings = [line for line in lines if not line.endswith(SAME_BITS)]
    names = {line: line.partition(":")[0] for line in lines}
    if format == "json":
        equal_parts = [name for line, name in names.items() if line not in findings]
        print_json({"run": run.id, "same": equal_parts, "findings": findings, "notes": machine})
    else:
        for line in machine:
            print(f"note: {line}; so other bits are no fault")
        for line in lines:
            print(line)
    if findings:
        different_parts = ", ".join(names[line] for line in findings)
        verb = "differs" if len(findings) == 1 else "differ"
        raise Failure(f"{run.id}: in the second training {different_parts} {verb}")
    if format == "text":
        print(f"{run.id}: the second training gave {SAME_BITS}")


def gc(
    sweeps: Annotated[
        list[str] | None, argument("SWEEP", "Sweeps to forget before files are removed.")
    ] = None,
    yes: Annotated[bool, flag("--yes", "Remove files without asking.")] = False,
    store: StoreDir = RUNS,
) -> None:
    """Remove runs, decoded data and leftovers that no sweep refers to. Asks first."""
    from rich.filesize import decimal

    from ablate.store import GarbageCollection

    forget = list(dict.fromkeys(sweeps or []))
    with reading(store):
        pass  # there is a store
    with changing(store, "gc") as (place, ledger):
        collection, names = GarbageCollection.forgetting(place, ledger, forget), ledger.sweeps()
        for line in collection.sweeps.notes(place):
            print(line, file=sys.stderr)
        items = collection.rubbish
        for path in collection.linked_folders:
            print(f"left alone: {path} is a link; its target may belong to another store")
        for path in collection.foreign_files:
            print(f"left alone: {path}: ablate did not write it, so its folder stays")
        for name in forget:
            exists = name in names or place.plan_path(name).exists()
            print(f"to forget: the sweep {name!r}" if exists else f"already forgotten: {name!r}")
        for line in collection.summary():
            print(line)
        total = sum(item.bytes for item in items)
        files = [str(item.path) for item in items]
        print_json({"forgotten": forget, "paths": files, "bytes": total, "removed_bytes": 0})
        if not (items or forget):
            print("nothing to remove: a sweep refers to every file")
            return
        size = decimal(total)
        ask_for(f"{size} to remove: needs a confirmation", f"Remove these {size}?", yes)
        removed = collection.remove()
        print(f"removed {decimal(removed)}")
        print_json({"removed_bytes": removed})


# --- Merging stores -------------------------------------------------------------------------------


def merge(
    sources: Annotated[list[Path], argument("SOURCE", "Stores, and folders of `ablate export`.")],
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Bring sweeps and finished runs of other stores and of bundles into this store."""
    from ablate.audit import StoreMerge
    from ablate.shared import make_folder
    from ablate.store import StoreFolder

    StoreFolder(store).refuse_bundle()
    for source in sources:
        if source.resolve() == store.resolve():
            raise UserError(f"{source}: is the store itself; name another one")
    store_merge = StoreMerge.of(sources)
    make_folder(store)
    announce(f"checking the runs of {', '.join(map(str, sources))}")
    with changing(store, "merge") as (place, ledger):
        reports = store_merge.bring_into(place, ledger)
    if format == "json":
        print_json(
            {"store": str(store), "sources": [dataclasses.asdict(report) for report in reports]}
        )
    else:
        for report in reports:
            print("\n".join(map(printable, report.lines)))
    if damaged := [report.source for report in reports if report.damaged]:
        verb = "has" if len(damaged) == 1 else "have"
        raise Failure(f"{', '.join(damaged)}: {verb} damaged runs, which were not merged")
