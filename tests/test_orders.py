"""`ablate run`: what an order does with a run, in every state; how a driver obeys it; what a table
says of a run that was skipped; and that nothing of it is lost when somebody is killed."""

import dataclasses
import itertools
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import get_args

import pytest
from conftest import wait_for
from support.drivers import Elsewhere, driven, left_behind
from support.plans import record_plan, small_plan

from ablate.analysis import english
from ablate.cli import app
from ablate.planning.design import Looks
from ablate.run.rundir import FINAL_STATUSES
from ablate.run.spec import RunSpec
from ablate.running.orders import ORDERS, effect_of
from ablate.shared.errors import Failure, UserError
from ablate.store.events import RunState, Status
from ablate.store.find import without_skipped
from ablate.store.ledger import Ledger
from ablate.store.look_differences import look_changes
from ablate.store.looks import look
from ablate.store.store import Store

GOLDEN = Path(__file__).parent / "golden"


# --- What an order does -------------------------------------------------------------------------

TABLE = [
    # a result is never left out, whether it is there, was recorded, or was there once
    ("skip", "finished started", dict(result=True), "has a result, and a seed whose result is"),
    ("skip", "diverged", {}, "has a result"),
    ("skip", "planned started", dict(had_result=True), "had a result once"),
    # skipped, while it is trained too: once
    ("skip", "planned started failed interrupted", {}, "skipped"),
    ("skip", "skipped", {}, None),
    # and back
    ("undo", "skipped", {}, "retried"),
    ("undo", "skipped", dict(result=True), "is finished, so there is nothing to undo"),
    ("undo", "planned", {}, "is planned, so there is nothing to undo"),
    ("first", "planned", {}, "first: is no order"),
]


def done(order: str, status: str, *, result=False, had_result=False):
    return effect_of(order, RunState(status=status), result=result, had_result=had_result)


@pytest.mark.parametrize(("order", "statuses", "facts", "expected"), TABLE)
def test_each_order(order, statuses, facts, expected):
    for status in statuses.split():
        found = done(order, status, **facts)
        assert (found.event or found.refusal or None) == expected or (
            found.event is None and found.refusal.startswith(str(expected))
        )


def test_orders_are_total_and_doing_one_twice_is_doing_it_once():
    facts = itertools.product((False, True), repeat=2)
    for order, status, (result, had_result) in itertools.product(ORDERS, get_args(Status), facts):
        found = done(order, status, result=result, had_result=had_result)
        assert not (found.event and found.refusal)
        if result or status in FINAL_STATUSES:
            assert found.event is None
        if order == "skip" and had_result:
            assert found.event is None
        if order == "skip" and found.event:
            again = done(order, found.event, had_result=had_result)
            assert (again.event, again.refusal) == (None, "")


# --- A driver obeys -----------------------------------------------------------------------------


def states(store: Store) -> dict[str, str]:
    with Ledger.reading(store) as ledger:
        assert ledger.broken_seals() == []
        return {run: state.status for run, state in ledger.states().items()}


def at_poll(launcher: Elsewhere, doings: dict) -> None:
    """Do this at the n-th poll of the drive."""
    polls, poll = itertools.count(), launcher.poll

    def polled(wait_s: float = 0.0) -> dict[str, int]:
        doings.get(next(polls), lambda: None)()
        return poll()

    launcher.poll = polled


def test_a_driver_leaves_a_run_that_is_skipped(store):
    launcher, order = Elsewhere(), store.order
    launcher.slots = launcher.slots[:1]
    at_poll(launcher, {0: lambda: order("skip", ["b0"])})
    outcome = driven(store, launcher)
    assert launcher.started == ["a0", "a1", "b1"]
    assert outcome.progress.counts == {"finished": 3, "skipped": 1}
    assert outcome.progress.is_over is False  # its driver is this process
    assert list(store.orders()) == []
    again = driven(store, other := Elsewhere())
    assert (other.started, again.progress.counts) == ([], {"finished": 3, "skipped": 1})
    order("undo", ["b0"])
    assert driven(store, other).progress.counts == {"finished": 4}
    assert other.started == ["b0"]


def test_a_driver_stops_the_worker_of_a_run_that_is_skipped_and_no_other(store):
    store.liveness = launcher = Elsewhere(polls=6)
    at_poll(launcher, {1: lambda: store.order("skip", ["a0", "a1"])})
    assert driven(store, launcher).progress.counts == {"finished": 2, "skipped": 2}
    assert set(launcher.stopped) == {("a0", False)}
    assert "a1" not in launcher.started
    ended = {"a0": "skipped", "b0": "finished", "a1": "skipped", "b1": "finished"}
    assert states(store) == ended


def test_a_skipped_run_whose_worker_outlived_its_driver_is_stopped_by_the_next(store):
    launcher = left_behind(store, Elsewhere(polls=50))
    with Ledger.driving(store) as ledger:
        ledger.record("a0", "skipped", was="started", begun=True, step=0)
    launcher.polls = 1
    assert driven(store, launcher).progress.counts == {"finished": 3, "skipped": 1}
    assert ("a0", False) in launcher.stopped


def test_an_order_that_a_killed_driver_left_is_obeyed_once(store):
    """Between the event and the end of the order's file, and before it."""
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, small_plan())
        ledger.record("b1", "skipped", was="planned", begun=False, step=0)
    store.order("skip", ["b1"])
    (store.root / "orders" / "torn.json").write_text('{"order": ')
    (store.root / "orders" / "wrong.json").write_text('{"order": "skip", "runs": ["../x"]}')
    store.order("dance", ["b1"])
    assert driven(store, Elsewhere()).progress.counts == {"finished": 3, "skipped": 1}
    assert os.listdir(store.root / "orders") == []
    with Ledger.reading(store) as ledger:
        assert [kind for _, kind, _ in ledger.events("b1")].count("skipped") == 1


def test_a_run_whose_parent_is_skipped_and_undone_before_its_worker_stopped_starts_once(store):
    golden = Store(GOLDEN / "store").read_plan("fixture")
    [cell, _] = (plan := small_plan(seeds=(0,))).cells
    spec = RunSpec.of({"data": {"classes": 10}, "parent": golden.cells[0].spec.tree})
    plan = dataclasses.replace(plan, cells=(dataclasses.replace(cell, spec=spec),))
    [parent, child] = [run.id for run in plan.runs()]
    launcher = Elsewhere(polls=4)
    at_poll(launcher, {0: lambda: [store.order(order, [parent]) for order in ("skip", "undo")]})
    driven(store, launcher, plan=plan)
    assert launcher.started == [parent, child]


# --- Commands, where nobody drives --------------------------------------------------------------


def ask(*words: str) -> None:
    app(words, standalone_mode=False)


@pytest.fixture
def finished(tmp_path, monkeypatch) -> Store:
    """Two variants of three seeds, all finished, and of a fourth that was only planned."""
    monkeypatch.chdir(tmp_path)
    store = Store(shutil.copytree(GOLDEN / "store", tmp_path / "runs"))
    plan, seeds = store.read_plan("fixture"), (0, 1, 2, 3)
    cells = tuple(dataclasses.replace(c, ids=c.spec.ids(seeds)) for c in plan.cells)
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, dataclasses.replace(plan, seeds=seeds, cells=cells))
    return store


def happened(store: Store, run: str, *kinds: str) -> None:
    with Ledger.driving(store) as ledger:
        for kind in kinds:
            ledger.record(run, kind, **{"step": 0} if kind == "started" else {})


def table(capsys, *words: str) -> str:
    capsys.readouterr()
    ask("table", "fixture", *words)
    return capsys.readouterr().out


def in_view(**runs: int) -> str:
    """Say that these numbers of runs were skipped with curves in view."""
    return english.write("looks.skipped-in-view", runs)


@pytest.mark.whole
def test_a_table_without_runs_that_were_skipped_says_so(finished, capsys, tmp_path):
    """It is that of the other seeds, and has its verdicts."""
    untouched = shutil.copytree(GOLDEN / "store", tmp_path / "untouched")
    rows = table(capsys, "--format", "tidy", "--store", str(untouched)).splitlines()
    accuracy = {row for row in rows if ",top1," in row or "gain" in row}
    assert "UNFINISHED: 2 of 8 runs missing" in table(capsys)
    ask("run", "post#3", "--skip")
    uneven = table(capsys)
    assert "UNFINISHED: 1 of 7 runs missing (1 of pre)" in uneven
    assert english.write("skipped", {"runs": ["post#3"], "uneven": True}) in uneven
    ask("run", "pre#3", "--skip")
    found = table(capsys)
    assert "2 runs skipped by the user: pre#3, post#3. The table leaves out this seed;" in found
    assert "Skipped by the user: seed 3, before it began." in found
    assert "UNFINISHED" not in found
    assert "had begun" not in found
    assert accuracy
    assert accuracy <= {*table(capsys, "--format", "tidy").splitlines()}
    ask("verify", "fixture")
    ask("export", "fixture", "out")
    capsys.readouterr()
    ask("table", "--from", "out")
    ask("verify", "out")
    said = capsys.readouterr().out
    assert "2 runs skipped by the user" in said
    assert "nothing wrong" in said


def test_skipping_a_run_that_had_begun_is_a_choice_with_its_curve_in_view(finished, capsys):
    run = finished.read_plan("fixture").cells[1].ids[3]
    happened(finished, run, "started", "failed")
    ask("run", run[:8], "pre#3", "--skip")
    found = table(capsys)
    assert "Skipped by the user: seed 3, which had ended as failed." in found
    assert in_view(begun_runs=1, seen_runs=1) in found
    assert "--strict: verdicts are withheld" in table(capsys, "--strict")


def test_skipping_a_seed_that_had_begun_in_another_row_is_such_a_choice(finished, capsys):
    """A gain is of both runs of a seed: who has seen one of them chooses by leaving out the other.
    What begins later was not seen."""
    pre = finished.read_plan("fixture").cells[0].ids[3]
    ask("run", "post#3", "--skip")
    happened(finished, pre, "started")
    assert "had begun" not in table(capsys)
    ask("run", "post#3", "--undo")
    ask("run", "post#3", "--skip")
    happened(finished, pre, "interrupted")
    ask("run", "pre#3", "--skip")
    assert in_view(begun_runs=1, seen_runs=1) in table(capsys)
    assert "--strict: verdicts are withheld" in table(capsys, "--strict")


def test_verdicts_that_were_read_without_some_runs_are_a_look_at_others_only(finished, capsys):
    """Else seeds that are skipped, and undone after the look, would be added to it unsaid."""
    plan = finished.read_plan("fixture")
    ask("run", "post#3", "--skip")
    with Ledger.reading(finished) as ledger:
        uneven = look(without_skipped(plan, ledger))
    assert [set(row.runs) for row in uneven.columns[""].rows.values()] == [{0, 1, 2, 3}, {0, 1, 2}]
    assert look_changes(uneven, look(plan)).lines == ["skipped: post#3 -> none"]
    ask("run", "pre#3", "--skip")
    table(capsys)
    [read] = finished.read_looks()[-1:]
    assert read["columns"][""]["n"] == 3
    assert "skipped" not in read["analysis"]


@pytest.mark.whole
def test_another_store_knows_what_was_skipped_and_what_had_begun(finished, capsys):
    """Else a merged store could skip, as one that nobody has seen, a run that failed before."""
    pre, post = (cell.ids[3] for cell in finished.read_plan("fixture").cells)
    for run in (pre, post):
        happened(finished, run, "started", "failed")
    ask("run", "post#3", "pre#3", "--skip")
    ask("export", "fixture", "bundle")
    ask("run", "pre#3", "--undo")
    for source in ("bundle", "runs", "runs"):  # the last brings nothing twice
        ask("merge", source, "--store", "both")
    both = Store(finished.root.parent / "both")
    assert (states(both)[pre], states(both)[post]) == ("planned", "skipped")
    with Ledger.reading(both) as ledger:
        told = [kind for _, kind, _ in ledger.events(post)]
        assert told == ["planned", "started", "failed", "skipped"]
    ask("run", "pre#3", "--skip", "--store", "both")
    assert in_view(begun_runs=2, seen_runs=2) in table(capsys, "--store", "both")
    ask("run", "pre#3", "--undo", "--store", "both")
    assert "1 run skipped by the user: post#3." in table(capsys, "--store", "both")


def test_a_run_that_was_deleted_is_trained_again_and_never_left_out(finished, capsys):
    run = finished.read_plan("fixture").cells[0].ids[1]

    def refused(why: str, *words: str) -> None:
        with pytest.raises(UserError, match=f"pre#1: {why}"):
            ask("run", "pre#1", *words)

    refused("has a result, and a seed whose result is known", "--skip")
    refused("needs a confirmation; add --yes", "--delete")
    assert finished.rundir(run).has_result()
    ask("run", "pre#1", "--delete", "--yes")
    assert not finished.rundir(run).path.exists()
    assert states(finished)[run] == "planned"
    refused("had a result once", "--skip")
    refused("has no folder", "--delete", "--yes")
    ask("verify", "fixture")
    assert "nothing wrong" in capsys.readouterr().out


def test_a_finished_run_whose_folder_is_gone_is_told_with_the_remedy(finished, capsys):
    run = finished.read_plan("fixture").cells[0].ids[1]
    shutil.rmtree(finished.rundir(run).path)
    ask("status", "fixture")
    assert "missing: the ledger has a result of pre#1, but" in capsys.readouterr().out


def test_orders_are_told_and_undone(finished, capsys):
    for words, said in (
        (("--skip",), "skipped: pre#3"),
        (("--undo",), "undone: pre#3; the same `ablate sweep` trains it"),
        (("--skip",), "skipped: pre#3"),
    ):
        ask("run", "pre#3", *words)
        assert capsys.readouterr().out.startswith(said)
    ask("status", "fixture")
    assert "skipped: pre#3: `ablate run 'pre#3' --undo` lets it train" in capsys.readouterr().out
    for words, said in (
        (("pre#3",), "run: expected one of --skip, --undo, --delete, got 0"),
        (("pre#3", "--skip", "--undo"), "got 2"),
        (("pre#3", "--delete"), "pre#3: is skipped; --undo comes before --delete"),
        (("pre#3", "--undo", "--yes"), "--yes: needs --delete"),
        (("pre#9", "--undo"), "pre#9"),
    ):
        with pytest.raises(UserError, match=said):
            ask("run", *words)


@pytest.mark.parametrize("place", ["runs", "other"])
def test_the_command_that_undoes_can_be_typed_for_a_label_with_a_dash(finished, place, capsys):
    plan = finished.read_plan("fixture")
    renamed = {"post": "-post"}
    rows = [dataclasses.replace(row, label=renamed.get(row.label, row.label)) for row in plan.rows]
    cells = [dataclasses.replace(c, row=renamed.get(c.row, c.row)) for c in plan.cells]
    with Ledger.driving(finished) as ledger:
        plan = dataclasses.replace(plan, rows=tuple(rows), cells=tuple(cells))
        record_plan(finished, ledger, plan)
    finished.root.rename(place)
    ask("run", "--skip", "--store", place, "--", "-post#3")
    ask("status", "fixture", "--store", place)
    [command] = re.findall(r"`(ablate run .*)`", capsys.readouterr().out)
    ask(*shlex.split(command)[1:])
    assert "skipped" not in states(Store(Path(place))).values()


def test_what_a_look_or_a_search_needs_can_not_be_skipped(finished):
    plan = dataclasses.replace(finished.read_plan("fixture"), design=Looks((2, 4)))
    with Ledger.driving(finished) as ledger:
        record_plan(finished, ledger, plan)
    with pytest.raises(UserError, match="pre#3: a look of fixture needs this run; `ablate stop`"):
        ask("run", "pre#3", "--skip")


def test_nothing_is_deleted_beside_a_driver(finished):
    held = Store(finished.root).driver
    with held.hold():
        held.note(pid=os.getpid(), sweep="fixture")
        with pytest.raises(Failure, match="drives this store"):
            ask("run", "pre#1", "--delete", "--yes")


# --- Real workers -------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_skipped_worker_leaves_a_checkpoint_under_a_driver_and_without_one(shell):
    """One of two endless runs is skipped while they are driven; the driver is killed; the other."""
    words = ("block.attn=pre,post", "model.depth=1", "train.steps=10000000", "seeds=1")
    sweep = shell.start("sweep", *words, "--as", "endless", "--yes", "launcher.devices=cpu")
    store = Store(shell.folder / "runs")

    def running() -> dict[str, int]:
        plan = store.read_plan("endless")
        runs = {run.label: store.rundir(run.id) for run in plan.runs()} if plan else {}
        alive = {label: run for label, run in runs.items() if store.liveness.alive(run)}
        return {label: run.lock.notes().step or 0 for label, run in alive.items()}

    try:
        wait_for(lambda: min(running().values(), default=0) > 0, 240)
        both = sorted(running())
        for label in both:
            if label == both[-1]:
                sweep.send_signal(signal.SIGKILL)
                sweep.wait()
            assert f"skipped: {label}" in shell("run", label, "--skip").out
            assert label not in running()
    finally:
        sweep.kill()
        shell("stop")
    found = states(store)
    assert {*found.values()} <= {"skipped", "interrupted"}
    with Ledger.reading(store) as ledger:
        details = ledger.last_detail("skipped")
    for run in store.read_plan("endless").runs():
        if run.label in both:
            assert found[run.id] == "skipped"
            assert (details[run.id]["was"], details[run.id]["begun"]) == ("started", True)
            assert details[run.id]["step"] > 0
            assert store.rundir(run.id).newest_step() > 0
