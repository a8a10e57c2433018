"""What a sweep checks and asks before it starts, here or behind."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer

from ablate.shared.errors import Failure, UserError, unknown

if TYPE_CHECKING:
    from ablate.planning.plan import Plan
    from ablate.planning.recall import Recall
    from ablate.planning.search import Grower
    from ablate.running.launchers import Launcher
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store


def check_name(words: list[str], store: Store) -> None:
    """Raise UserError if the first word names a driven sweep, but no sweep file."""
    from ablate.planning.sweep_paths import sweep_files

    name = words[0] if words else ""
    if not name or "=" in name or name.endswith(".yaml") or name in sweep_files():
        return
    if (plan := _driven(name, store)) is not None:
        from ablate.analysis.captions import other_words

        if name == plan.words[0]:
            raise UserError(
                f"{name}: is the name of a driven sweep, but its sweep file is neither in this "
                f"folder nor in ./sweeps; start ablate where {name}.yaml lies, or give its path"
            )
        raise UserError(
            f"{name}: is the name of a driven sweep; to drive the sweep again give its words: "
            f"`{store.command('sweep', *other_words(plan, *words[1:]))}`"
        )


def _driven(name: str, store: Store) -> Plan | None:
    """Return the plan with this name, None if no such plan can be read."""
    try:
        return store.read_plan(name)
    except Failure:
        return None  # not whole: it is written again


def memory(store: Store) -> Recall:
    """Return what tells by which plan the store drove a sweep last, None where its words made
    another sweep, or where that plan is not the one that was recorded."""
    from ablate.planning.words import alike
    from ablate.store.ledger import Ledger

    def recall(name: str, words: Sequence[str]) -> Plan | None:
        if not (store.ledger.exists() or store.plans()):
            return None
        with Ledger.reading(store) as ledger, contextlib.suppress(Failure, UserError):
            before = ledger.sealed_plan(store, name) if name in ledger.sweeps() else None
            if before is not None and alike(before.words, words, store.root):
                return before
        return None

    return recall


def recorded(store: Store, name: str) -> str:
    """Return the hash of a sweep's plan file, "" where there is none."""
    from ablate.shared.files import sha256_of

    path = store.plan_path(name)
    return sha256_of(path) if path.exists() else ""


def check_words(plan: Plan, store: Store) -> None:
    """Raise UserError if the store has a sweep of this name with other runs."""
    from ablate.planning.words import alike

    before = _driven(plan.name, store)
    if before is None:
        return
    with contextlib.suppress(UserError):  # words that can't be read any more are others
        if alike(before.words, plan.words, store.root):
            return
    raise UserError(
        f"{plan.name}: is the name of another sweep, `{store.command('sweep', *before.words)}`; "
        f"give another name with --as NAME, or replace that sweep with --replace, which keeps the "
        f"runs of both until `ablate gc`"
    )


def tell_renamed(plan: Plan, store: Store) -> None:
    """Print which rows and columns have another label than when the sweep was planned last."""
    from ablate.store.looks import renamed, trained

    before = _driven(plan.name, store)
    for labels in () if before is None else renamed(trained(before), trained(plan)):
        for label, now in labels.items():
            print(f"renamed: {label!r} is {now!r} now; all runs are kept")


def leave_runs(plan: Plan, store: Store, ledger: Ledger, replace: bool) -> None:
    """Print how many runs the sweep planned last that are not in this plan. With `replace`, and
    after one that a crash cut off, give them up, and those of all earlier plans."""
    from ablate.analysis.captions import count

    replace = replace or ledger.replaces(plan.name, recorded(store, plan.name))
    left = ledger.left(plan)
    if replace:
        left = list({*left, *ledger.earlier(plan.name).kept} - {run.id for run in plan.runs()})
        ledger.replace(store, plan)
    if left:
        runs = f"{count(len(left), 'run')} of earlier plans {'is' if len(left) == 1 else 'are'}"
        if replace:
            print(f"note: {runs} given up: `ablate gc` offers those that no sweep has")
        else:
            print(f"note: {runs} not in this one; `ablate gc` keeps them until --replace")


RETRIED = ("failed", "oom", "hung", "damaged")


def statuses_of(text: str) -> list[str]:
    from ablate.store.events import HELD

    statuses = [status for status in text.split(",") if status]
    for status in statuses:
        if status in HELD:
            raise UserError(f"--retry {status}: `ablate run RUN --undo` lets such a run train")
        if status not in RETRIED:
            raise unknown("--retry", status, RETRIED)
    return statuses


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Print nothing on standard output, and take no answer: what would be asked is refused."""
    with open(os.devnull, "w") as out, open(os.devnull) as nobody:
        asked, sys.stdin = sys.stdin, nobody
        try:
            with contextlib.redirect_stdout(out):
                yield
        finally:
            sys.stdin = asked


LONG_H = 24.0  # device-hours that are worth a question


def ready(plan: Plan, store: Store, ledger: Ledger, launcher: Launcher, yes: bool) -> bool:
    """Is a run left to train? Then build every model once, without weights, and ask about the cost
    of a long sweep."""
    from ablate.running.preflight import preflight
    from ablate.shared.result import FINAL
    from ablate.store.events import HELD
    from ablate.store.progress import working

    ids = {run.id for run in plan.runs()}
    states = ledger.states(ids)
    held = {run for run in states if states[run].status in HELD}
    done = (run for run in ids - held if run in states and states[run].status in FINAL)
    if sum(store.rundir(run).has_result() for run in done) + len(held) == len(ids):
        return False
    launcher.warm()  # while the models are built
    slots = {str(notes.get("slot")) for notes in working(store, states)}
    preflight(launcher, slots, lambda line: print(f"warning: {line}"))
    _confirm(plan, store, ledger, launcher, yes)
    return True


def _confirm(
    plan: Plan, store: Store, ledger: Ledger | None, launcher: Launcher, yes: bool
) -> None:
    """Print warnings, and ask about the cost of a long sweep, unless `yes`. Raise UserError where
    nobody can answer."""
    from ablate.planning.plan_merge import unasked
    from ablate.planning.search import Search
    from ablate.report.text import device_time, duration
    from ablate.running.estimate import costs
    from ablate.running.preflight import in_use
    from ablate.running.rehearse import rehearsed

    most = plan.design.at_most(plan)
    about = "about" if most is plan else "at most about"
    if most is not plan and most.tune:  # with the parents of all trials
        most = grown(most, store, Search(unasked(most)))
    plan = most
    states = {} if ledger is None else ledger.states({run.id for run in plan.runs()})
    finished = {} if ledger is None else ledger.last_detail("finished")
    cost = costs(plan, store, launcher, states, finished, from_s=LONG_H * 3600)
    told = rehearsed(plan, store, launcher, cost.described, own_only=True)
    for warning in (*cost.warnings(), *told.warnings, *in_use(launcher, store, states)):
        print(f"warning: {warning}")
    if cost.left_s > LONG_H * 3600 and not yes:
        text = f"{plan.name}: more than a month on {cost.where}"
        if math.isfinite(cost.left_s):
            text = f"{plan.name}: {about} {device_time(cost.left_s)}"
            text += f", {duration(cost.wall_s)} on {cost.where}"
        if not sys.stdin.isatty():
            raise UserError(f"{text}: a sweep of this length needs a confirmation; add --yes")
        if not typer.confirm(f"{text}. Start?"):
            raise typer.Exit(0)


def grower(plan: Plan, store: Store) -> Grower | None:
    """What would make the plan grow, if anything; nothing of it is told or recorded."""
    from ablate.analysis.seeding import growing
    from ablate.planning.search import Search

    return growing(plan, store, Search(plan) if plan.tune else None)


def grown(plan: Plan, store: Store, by: Grower | None) -> Plan:
    """Return the plan with the runs that are asked for by now."""
    if by is None:
        return plan
    seals = store.seals()
    return by.grow(lambda run: store.result(run, seals.get(run)), store.metrics) or plan


def detach(where: str, plan: Plan, store: Store, settings: Mapping[str, Any], yes: bool) -> None:
    """Ask what the sweep would ask, which nobody could answer later; then leave the same command
    behind without this terminal and --detach."""
    from ablate.running import launchers
    from ablate.running.detach import WHERE, leave
    from ablate.store.ledger import Ledger

    if where not in WHERE:
        raise unknown("--detach", where, WHERE)
    if not yes:
        launcher = launchers.make(settings, store.cache)
        try:
            with Ledger.reading(store) if store.ledger.exists() else nullcontext() as ledger:
                now = grown(plan, store, grower(plan, store))
                _confirm(now, store, ledger, launcher, yes=False)
        finally:
            launcher.free()
    words, skip = [], False
    for word in sys.argv[1:]:
        if not skip and word != "--detach" and not word.startswith("--detach="):
            words.append(word)
        skip = word == "--detach"
    if not yes:
        words.insert(words.index("sweep") + 1, "--yes")
    print(leave(where, words, plan.name, store, settings))
