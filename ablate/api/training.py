"""Trains the missing runs of a sweep, from the plan that its words declare to its last run.

The ledger keeps where a drive comes from: its command, folder, host, and what git says of the
folder.

Used by `ablate sweep` and `ablate plan` (cli/driving.py), and by `Sweep.plan` and `Sweep.train` of
Python (api/nouns.py). A new key of `OPTIONS_OF_NAME` or `WORDS_OF_NAME` also needs the text of the
error in `recall_declared`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ablate.api.recall import StoreRecall, readable_plan
from ablate.planning import (
    Composer,
    Declared,
    Grower,
    Plan,
    Recall,
    Search,
    read_line,
    sweep_files,
)
from ablate.report import device_time, duration, progress_view
from ablate.run import FINAL_STATUSES
from ablate.running import Launcher, make_launcher
from ablate.shared import (
    Failure,
    UserError,
    count_text,
    make_folder,
    sha256_of,
    system,
    unknown_value,
    write_whole,
)
from ablate.store import (
    BLOCKED,
    GIVEN_UP,
    Ledger,
    RunState,
    Store,
    StreamFile,
    living_notes,
    observe_progress,
)

if TYPE_CHECKING:
    from ablate.report import PlanForecast
    from ablate.running import Devices, Observers, Outcome, Worlds


LONG_H = 24.0  # device-hours that are worth a question
RETRIED = ("failed", "oom", "hung", "damaged")

Say = Callable[[str], None]  # takes a line for the user
ShowProgress = Callable[[], contextlib.AbstractContextManager[Any]]  # makes the view of a drive


class Declare(Protocol):
    """Reads the words of a sweep: its plan, and the settings of its launcher. Raises UserError."""

    def __call__(self, recall: Recall | None) -> tuple[Plan, dict[str, Any]]: ...


@dataclass(frozen=True)
class SweepCost:
    """The warnings and the cost of a sweep, before it starts. `cost`: a line, "" for a sweep that
    is not long."""

    warnings: tuple[str, ...]
    cost: str
    worlds: Worlds = field(default_factory=dict)  # devices of a run, where `auto` decides


Confirm = Callable[[SweepCost], None]  # ends the sweep by an exception where it is not to start


class Start:
    """A sweep that is about to be driven. `replace`: earlier plans of its name are given up."""

    def __init__(
        self, declare: Declare, store: Store, replace: bool = False, stop_mark: int | None = None
    ) -> None:
        """`stop_mark`: the store's when the command began, where that was earlier."""
        self._declare, self._store, self._replace = declare, store, replace
        store.refuse_bundle()
        # First, since planning may take minutes. A driver in the background has the mark of the
        # command that started it.
        self.stop_mark = store.stop_mark() if stop_mark is None else stop_mark
        self.plan, self.settings = self._declared()
        self._recorded = recorded(store, self.plan.name)

    def _declared(self) -> tuple[Plan, dict[str, Any]]:
        plan, settings = self._declare(
            recall=StoreRecall(self._store, with_plans=not self._replace)
        )
        StreamFile.refuse_sweep(self._store, plan.name)
        if not self._replace:
            check_words(plan, self._store)
        return plan, settings

    def now(self) -> Plan:
        """Return the plan by the records of now: the sweep may have waited for another driver of
        it."""
        is_new = recorded(self._store, self.plan.name) != self._recorded
        return self._declared()[0] if is_new else self.plan

    def train(
        self,
        observers: Observers,
        retry: Sequence[str],
        confirm: Confirm,
        say: Say,
        show_progress: ShowProgress = progress_view,
    ) -> Outcome:
        """Drive the plan of now to its last run. `retry`: states whose runs are trained again;
        `show_progress`: makes the view."""
        from ablate.analysis import make_grower
        from ablate.running import (
            Drive,
            Outcome,
            check_parents,
            driver_session,
            narrow_worlds,
            set_damaged_aside,
            settle_devices,
        )

        store, name = self._store, self.plan.name
        launcher = make_launcher({**self.settings, "origin": origin(store.diffs)}, store.cache)
        for line in launcher.devices.remarks:
            say(f"warning: {line}")
        try:
            with driver_session(store, name, show_progress) as ledger:
                plan = self.now()
                if store.start_was_stopped(self.stop_mark, name):
                    progress = observe_progress(plan, list(plan.runs()), store, ledger)
                    outcome = Outcome(plan, progress, signal=signal.SIGTERM)
                    store.driver.note(ended=outcome.ended)
                    return outcome
                search = Search(plan) if plan.tune else None
                with contextlib.suppress(OSError):  # a full disk, which the drive waits for
                    for line in launcher.offer(0, ()):  # its beat begins, however long it prepares
                        say(line)
                for note in plan.notes:
                    say(f"note: {note}")
                grower = make_grower(
                    plan, store, search, functools.partial(ledger.look, store), say
                )
                if "damaged" in retry:
                    last_plan = store.read_plan(name)  # with what a search has asked for
                    for line in set_damaged_aside(
                        [*plan.runs(), *(last_plan.runs() if last_plan else ())], store, ledger
                    ):
                        say(line)
                if grower is not None:
                    plan = grow_plan(plan, store, grower)
                ready = _ready(plan, store, ledger, launcher, retry, confirm, say)
                check_parents(plan.runs(), store)
                for line in leave_runs(plan, store, ledger, self._replace):
                    say(line)
                with show_progress() as watching:
                    view = observers.observed(watching)
                    drive = Drive(plan, store, ledger, launcher, self.settings, view, grower)
                    if ready is not None:
                        _prepare(plan, store, launcher, watching)
                        drive.decisions = settle_devices(plan, store, launcher, self.settings, say)
                        cells = [*plan.cells, *plan.parents()]
                        drive.worlds = narrow_worlds(ready.worlds, cells, launcher, drive.decisions)
                    outcome = drive.run(retry)
                    store.driver.note(ended=outcome.ended)
                if search is not None:
                    search.write(store.studies)
        finally:
            launcher.free()
        return outcome


# --- What a name and its words stood for before ---------------------------------------------------


# Words and options that may follow the name of a sweep that was driven: they alter no run of it.
WORDS_OF_NAME = ("seeds", "analysis", "launcher")
OPTIONS_OF_NAME = ("name", "until", "margin")


def recall_declared(
    words: Sequence[str],
    options: Mapping[str, Any],
    store: Store,
    settings: Mapping[str, Any] | None = None,
) -> Declared | None:
    """Return what a sweep declares that was driven and has no sweep file, changed by what is given
    here; None where the first word is not the name of one.

    `options`, `settings`: see `planning.plan_from_words`.

    Raises UserError for words and options that alter the runs of such a sweep, for an imported
    sweep, and for one whose file is not found; Failure where its plan was edited.
    """
    name = words[0] if words else ""
    if not name or name.endswith(".yaml") or name in sweep_files():
        return None
    if (plan := readable_plan(name, store)) is None:
        return None
    if plan.stream is not None:
        raise UserError(
            f"{name}: has the runs of a stream's proposals; `{store.command(*plan.command)}` goes "
            f"on with them"
        )
    has_file = isinstance(plan.declared, Declared) and plan.declared.file is not None
    if "=" in name and not has_file:  # a word, which stores of before have as a sweep's name
        return None
    if not isinstance(plan.declared, Declared):
        raise UserError(
            f"{name}: was imported, and its runs were trained elsewhere, so none can be "
            f"trained here; `{plan.repeat_command(store.command)}` extends it"
        )
    if name == plan.declared.file:
        raise UserError(
            f"{name}: is the name of a driven sweep, but its sweep file is neither in this "
            f"folder nor in ./sweeps; start ablate where {name}.yaml lies, or give its path"
        )
    with Ledger.reading(store) as ledger:
        plan = ledger.sealed_plan(store, name) or plan
    last_line = plan.declared
    assert isinstance(last_line, Declared)
    refused = [f"--{key}" for key in options if key not in OPTIONS_OF_NAME and options[key]]
    words_of_name = ["", *words[1:]]  # a name may have "=", as words do
    composer = Composer(store.root)
    added = read_line(words_of_name, composer.groups, settings=settings)
    refused += [w.text for w in added.words if w.key.partition(".")[0] not in WORDS_OF_NAME]
    if refused:
        renamed = last_line.with_options(name=None)
        raise UserError(
            f"{refused[0]}: {name} is driven again as it was, and its name takes only seeds=N, "
            f"analysis.KEY=VALUE, launcher words, --until and --margin; with other words it is "
            f"another sweep, `{store.command('sweep', *renamed.texts)}` with these and --as NAME"
        )
    given_options = {k: options[k] for k in OPTIONS_OF_NAME if options.get(k) is not None}
    launcher = added.launcher.get("launcher")
    if launcher not in (None, last_line.launcher.get("launcher")):  # nobody can leave out its words
        last_line = last_line.with_launcher(composer.launcher({"launcher": launcher}))
    return last_line.with_words(*added.words).with_options(**given_options)


def imported_plan(store: Store, words: Sequence[str]) -> tuple[Plan, dict[str, Any]] | None:
    """Return the plan of the imported sweep that one word names, and a launcher's settings, for
    commands that read its runs."""
    plan = readable_plan(words[0], store) if len(words) == 1 else None
    if plan is None or plan.design.trains or words[0] in sweep_files():
        return None
    return plan, Composer(store.root).launcher({})


def recorded(store: Store, name: str) -> str:
    """Return the hash of a sweep's plan file, "" where there is none."""
    path = store.plan_path(name)
    return sha256_of(path) if path.exists() else ""


def recorded_states(plan: Plan, store: Store) -> tuple[dict[str, RunState], dict[str, Any]]:
    """Return the states of the plan's runs, and the details of all "finished" events; nothing where
    the store has no ledger yet."""
    if not store.ledger.exists():
        return {}, {}
    with Ledger.reading(store) as ledger:
        return ledger.states({run.id for run in plan.runs()}), ledger.last_detail("finished")


def check_words(plan: Plan, store: Store) -> None:
    """Raise UserError if the store has a sweep of this name with other runs."""
    last_plan = readable_plan(plan.name, store)
    if last_plan is None:
        return
    is_same = isinstance(plan.declared, Declared) and plan.declared.is_same_sweep(
        last_plan.declared
    )
    if is_same and last_plan.stream in (None, plan.stream):  # None: stores of before lack it
        return
    raise UserError(
        f"{plan.name}: is the name of another sweep, `{last_plan.repeat_command(store.command)}`; "
        f"give another name with --as NAME, or replace that sweep with --replace, which keeps the "
        f"runs of both until `ablate gc`"
    )


def renamed_lines(plan: Plan, store: Store) -> Iterator[str]:
    """Yield a line for each row and column that has another label than in the plan of before."""
    from ablate.store import renamed_labels, trained_identity

    last_plan = readable_plan(plan.name, store)
    for labels in (
        ()
        if last_plan is None
        else renamed_labels(trained_identity(last_plan), trained_identity(plan))
    ):
        for label, new_label in labels.items():
            if label and new_label:
                yield f"renamed: {label!r} is {new_label!r} now; all runs are kept"
            elif label:
                yield f"the column {label!r} is the only one now, without a name; its runs are kept"
            else:  # of the only column of a plan without column keys
                yield f"the column of before is {new_label!r} now; all runs are kept"


def leave_runs(plan: Plan, store: Store, ledger: Ledger, replace: bool) -> Iterator[str]:
    """Yield a line on the runs that the sweep planned last and this plan lacks. With `replace`, and
    after one that a crash cut off, give them up, and the runs of all earlier plans."""
    replace = replace or ledger.replaces(plan.name, recorded(store, plan.name))
    ids = ledger.dropped_runs(plan)
    if replace:
        ids = list({*ids, *ledger.earlier(plan.name).kept_runs} - {run.id for run in plan.runs()})
        ledger.replace(store, plan)
    if ids:
        runs = f"{count_text(len(ids), 'run')} of earlier plans {'is' if len(ids) == 1 else 'are'}"
        if replace:
            yield f"note: {runs} given up: `ablate gc` offers those that no sweep has"
        else:
            command = store.command(*plan.command, "--replace")
            yield f"note: {runs} not in this one; `ablate gc` keeps them until `{command}`"


def check_retry(statuses: Sequence[str]) -> None:
    """Raise UserError for a state whose runs can't be trained again."""
    for status in statuses:
        if status == "skipped":
            raise UserError(f"--retry {status}: `ablate run RUN --undo` lets such a run train")
        if status not in RETRIED:
            raise unknown_value("--retry", status, RETRIED)


# --- Before the first run -------------------------------------------------------------------------


def grow_plan(plan: Plan, store: Store, by: Grower | None = None) -> Plan:
    """Return the plan with the runs that its grower requests by now. `by`: None for the plan's own;
    nothing is reported or recorded."""
    from ablate.analysis import make_grower

    grower = by or make_grower(plan, store, Search(plan) if plan.tune else None)
    if grower is None:
        return plan
    seals = store.seals()
    return grower.grow(lambda run: store.result(run, seals.get(run)), store.metrics) or plan


def _ready(
    plan: Plan,
    store: Store,
    ledger: Ledger,
    launcher: Launcher,
    retry: Sequence[str],
    confirm: Confirm,
    say: Say,
) -> SweepCost | None:
    """Where a run is left to train, build every model once, without weights, and ask whether a long
    sweep is to start."""
    from ablate.running import drop_unfit_slots

    ids = {run.id for run in plan.runs()}
    states = ledger.states(ids)
    skipped = {run for run in states if states[run].status == "skipped"}
    final_runs = (
        run for run in ids - skipped if run in states and states[run].status in FINAL_STATUSES
    )
    if sum(store.rundir(run).has_result() for run in final_runs) + len(skipped) == len(ids):
        return None
    if any(cell.spec.wants_torch for cell in plan.cells):
        launcher.warm()  # while the models are built
    slots = {str(notes.slot) for notes in living_notes(store, states)}
    drop_unfit_slots(launcher, slots, lambda line: say(f"warning: {line}"))
    cost = forecast_sweep(plan, store, launcher, retry)
    confirm(cost)
    return cost


def forecast_plan(
    plan: Plan, store: Store, settings: Mapping[str, Any], on: Devices | None = None
) -> PlanForecast:
    """Return what the runs of a plan, with those that its grower requests by now, will cost:
    nothing is trained or recorded. `settings`: the launcher's; `on`: other hardware."""
    from ablate.report import PlanForecast
    from ablate.running import estimate_costs, gpus_in_use, rehearse_rows

    plan = grow_plan(plan, store)
    states, finished = recorded_states(plan, store)
    if on is None:
        launcher = make_launcher(settings, store.cache)
    else:  # the launcher only describes models here, and this machine may lack such groups of GPUs
        launcher = make_launcher({**settings, "gpus_per_run": 1}, store.cache)
    try:
        costs = estimate_costs(plan, store, launcher, states, finished, on=on)
        rehearsals = rehearse_rows(plan, store, launcher, costs.described)
        amiss = [] if on else [*launcher.devices.remarks, *gpus_in_use(launcher, store, states)]
    finally:
        launcher.free()
    return PlanForecast(plan, states, costs, rehearsals, settings, amiss)


def forecast_sweep(
    plan: Plan, store: Store, launcher: Launcher, retry: Sequence[str] = ()
) -> SweepCost:
    """Return the warnings of a sweep and, of a long one, its cost at most. `retry`: states whose
    runs are trained again."""
    from ablate.planning import before_searches
    from ablate.running import estimate_costs, gpus_in_use, rehearse_rows

    largest_plan = plan.design.at_most(plan)
    qualifier = "about" if largest_plan is plan else "at most about"
    if largest_plan is not plan and largest_plan.tune:  # with the parents of all trials
        largest_plan = grow_plan(largest_plan, store, Search(before_searches(largest_plan)))
    states, finished = recorded_states(largest_plan, store)
    states |= {run: RunState() for run, state in states.items() if state.status in retry}
    from_s = LONG_H * 3600 if len(launcher.worlds) == 1 else 0.0
    cost = estimate_costs(largest_plan, store, launcher, states, finished, from_s=from_s)
    rehearsals = rehearse_rows(largest_plan, store, launcher, cost.described, own_only=True)
    warnings = (*cost.warnings(), *rehearsals.warnings, *gpus_in_use(launcher, store, states))
    if cost.left_s <= LONG_H * 3600:
        return SweepCost(warnings, "", cost.worlds)
    time = f"{qualifier} {device_time(cost.left_s)}, {duration(cost.wall_s)} on {cost.hardware}"
    if math.isinf(cost.left_s):
        time = f"more than a month on {cost.hardware}"
    return SweepCost(warnings, f"{largest_plan.name}: {time}", cost.worlds)


def _prepare(plan: Plan, store: Store, launcher: Launcher, watching: Any) -> None:
    """Decode missing or damaged datasets before anything trains: a bad image ends the command here,
    a full disk pauses it."""
    from ablate.running import decode_data, retry_on_full_disk

    specs = [spec for cell in plan.cells for spec in (cell.spec, *cell.spec.ancestors())]
    work = functools.partial(decode_data, specs, store.root, watching, launcher.ask)
    retry_on_full_disk(store, watching.say, work)


# --- After the last run ---------------------------------------------------------------------------


def check_outcome(outcome: Outcome, store: Store) -> None:
    """Raise Failure where runs are left that the same command doesn't train, or no device is;
    UserError where the declaration of a metric has to change."""
    plan, progress = outcome.plan, outcome.progress
    if outcome.misread is not None:
        raise UserError(
            f"{plan.name}: {outcome.misread}; mend its declaration, and the same command goes on"
        )
    tally = f"{progress.ended_count} of {count_text(progress.total, 'run')} done"
    lost = {status: n for status, n in progress.counts.items() if status in GIVEN_UP}
    retry_words = ("--retry", ",".join(lost)) if lost else ()
    retry = store.command("sweep", *plan.words, *retry_words)
    status_command = store.command("status", plan.name)
    if outcome.stopped is not None:
        raise Failure(f"{plan.name}: {outcome.stopped}; {tally}; mend it, and `{retry}` goes on")
    if outcome.retired and progress.counts.get("interrupted"):
        raise Failure(
            f"{plan.name}: no device is left ({', '.join(outcome.retired)}); "
            f"{tally}; the same command goes on"
        )
    stuck = progress.counts.get(BLOCKED, 0)
    if lost:
        states: Mapping[str, int] = lost | ({BLOCKED: stuck} if stuck else {})
        text = ", ".join(f"{n} {status}" for status, n in states.items())
        raise Failure(
            f"{plan.name}: {text} of {count_text(progress.total, 'run')}: `{status_command}` shows "
            f"why, `{retry}` trains {'it' if sum(lost.values()) == 1 else 'them'} again"
        )
    if stuck:
        raise Failure(
            f"{plan.name}: {stuck} of {count_text(progress.total, 'run')} blocked: what they start "
            f"from has no weights; `{status_command}` names it"
        )


DIFF_BYTES = 1_000_000  # of a diff are kept
_SECRET = re.compile(r"\+*notify=")  # a word that may hold a token


def origin(diffs: Path) -> dict[str, Any]:
    """Return what every run of this drive records of its origin, as JSON: command, folder, host,
    git.

    `command` has no words that may hold a token. `git` is None outside a repository, or without
    git; else the commit, whether files that it tracks differ from it (`dirty`), and if so `diff`,
    the name of the file in the store that says how. Files that git doesn't track are no part of
    that: plug-ins have digests of their own.
    """
    return {
        "command": [Path(sys.argv[0]).name, *(w for w in sys.argv[1:] if not _SECRET.match(w))],
        "folder": os.getcwd(),
        "host": platform.node(),
        "git": _repository(diffs),
    }


def _repository(diffs: Path) -> dict[str, Any] | None:
    commit = system.ask_git("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = system.ask_git("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    return {
        "commit": commit.decode().strip(),
        "dirty": None if diff is None else bool(diff),
        "diff": _keep(diff, diffs) if diff else None,
    }


def _keep(diff: bytes, diffs: Path) -> str:
    """Write the diff once, named by its content; a long one is cut, as its last line says."""
    path = diffs / f"{hashlib.sha256(diff).hexdigest()[:16]}.diff"
    if len(diff) > DIFF_BYTES:
        diff = diff[:DIFF_BYTES] + f"\n# cut: {DIFF_BYTES:,} of {len(diff):,} bytes\n".encode()
    if not path.exists():
        make_folder(diffs)
        write_whole(path, diff)
    return f"{diffs.name}/{path.name}"
