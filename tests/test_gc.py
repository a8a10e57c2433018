"""`ablate gc`: what no plan refers to goes, and nothing else; it asks, and nobody drives."""

import contextlib
import dataclasses
import os
import pty
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ABLATE, Shell, contents

from ablate.run.rundir import RunDir
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import Lock
from ablate.store.events import RunState
from ablate.store.gc import GarbageCollection, Rubbish, kept_sweeps
from ablate.store.ledger import Ledger
from ablate.store.store import Store

SIZE = ("model.arch=mu/4", "model.depth=1", "train.steps=4", "seeds=1")
RIGHT = ("sweep", "stem=none,post", *SIZE, "--as", "right")


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Path:
    """The sweeps `left` and `right`, which share the run of stem=none."""
    shell = Shell(tmp_path_factory.mktemp("driven"))
    shell("sweep", "stem=none,pre", *SIZE, "--as", "left", "launcher=inline")
    shell(*RIGHT, "launcher=inline")
    return shell.folder / "runs"


@pytest.fixture
def store(driven, shell) -> Store:
    """A copy of it, where `shell` works."""
    return Store(shutil.copytree(driven, shell.folder / "runs"))


def ids(store: Store, sweep: str) -> set[str]:
    return {run.id for run in store.read_plan(sweep).runs()}


def own(store: Store) -> str:
    """The run that `right` alone has."""
    (run,) = ids(store, "right") - ids(store, "left")
    return run


def found(store: Store, *forget: str) -> list[Rubbish]:
    with Ledger.reading(store) as ledger:
        return GarbageCollection.forgetting(store, ledger, forget).rubbish


def gone(store: Store, *forget: str) -> list[Path]:
    """Collect; returns what was found."""
    with Ledger.driving(store) as ledger:
        collection = GarbageCollection.forgetting(store, ledger, forget)
        collection.remove()
    return [item.path for item in collection.rubbish]


def aged(path: Path) -> None:
    os.utime(path, (time.time() - 7200,) * 2)


def dead() -> int:
    """A number of a process that there is no more."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


# --- Runs and sweeps ----------------------------------------------------------------------------


@pytest.mark.whole
def test_nothing_goes_while_sweeps_refer_to_all(store, shell):
    before = contents(store.runs), contents(store.cache)
    assert found(store) == []
    assert shell("gc", "--yes").out == "nothing to remove: a sweep refers to every file\n"
    assert (contents(store.runs), contents(store.cache)) == before


def test_a_forgotten_sweep_takes_its_own_runs_and_they_can_be_trained_again(store, shell):
    run, (shared,) = own(store), ids(store, "left") & ids(store, "right")
    table = shell("table", "right", "--format", "tidy").out
    kept_files = {r: contents(store.rundir(r).path) for r in ids(store, "left")}
    with Ledger.reading(store) as ledger:
        events = {r: ledger.events(r) for r in (run, shared)}

    out = shell("gc", "right", "--yes").out
    assert re.search(
        f"to forget: the sweep 'right'(.|\n)*1 runs that no sweep contains: {run}", out
    )
    left = (store.rundir(run).path, store.trash, store.plan_path("right"))
    assert not any(path.exists() for path in left)
    assert {r: contents(store.rundir(r).path) for r in kept_files} == kept_files
    with Ledger.reading(store) as ledger:
        assert ledger.sweeps() == ["left"]
        assert ledger.planned("right") == []
        *before, (_, last, _) = ledger.events(run)
        assert (before, last) == (events[run], "collected")
        assert ledger.states([run]) == {run: RunState()}
        assert ledger.events(shared) == events[shared]
        assert ledger.broken_seals() == []
    assert "nothing wrong" in shell("verify", "left").out

    again = shell(*RIGHT, "launcher=inline").out
    assert again.count("finished:") == again.count("finished: post#0") == 1
    assert shell("table", "right", "--format", "tidy").out == table


def test_unknown_sweeps_and_stores_are_named(store, shell, tmp_path):
    assert "got 'rigth' (did you mean 'right'?)" in shell("gc", "rigth", code=2).err
    assert "no store at nowhere" in shell("gc", "--store", "nowhere", code=2).err
    assert not (shell.folder / "nowhere").exists()


@pytest.mark.parametrize("content", [b"", b'{"name": "right"', b"{}", b"[1]", None])
def test_a_plan_that_can_not_be_read_keeps_its_runs_and_stops_no_other_sweep(store, shell, content):
    path, runs = store.plan_path("right"), ids(store, "right")
    path.unlink() if content is None else path.write_bytes(content)
    stray = store.cache / "0123456789abcdef.npz"  # decoded data that no plan here reads
    stray.touch()
    before = contents(store.runs)
    with Ledger.driving(store) as ledger:
        sweeps = kept_sweeps(store, ledger, [])
        assert ([plan.name for plan in sweeps.plans], sweeps.unreadable) == (
            ["left"],
            {"right": runs},
        )
        forgotten = kept_sweeps(store, ledger, ["right"])
        assert ([plan.name for plan in forgotten.plans], forgotten.unreadable) == (["left"], {})
        with pytest.raises(UserError, match="middle"):
            kept_sweeps(store, ledger, ["right", "middle"])
    assert found(store) == []
    for words in (("gc", "--yes"), ("gc", "left", "--yes")):
        [line] = [line for line in shell(*words).err.splitlines() if "right.json" in line]
        assert str(path.relative_to(shell.folder)) in line
        assert "`ablate gc right` forgets that sweep" in line
    assert {run for run in runs if store.rundir(run).has_result()} == runs  # `left` is gone
    assert contents(store.runs) != before
    assert stray.exists()
    assert {path.name for path in gone(store, "right")} >= runs
    assert not stray.exists()


def test_a_plan_that_can_not_be_read_and_that_the_ledger_does_not_know_stops_it(store, shell):
    store.plan_path("middle").write_bytes(b"{}")
    before = contents(store.runs)
    for words in (("gc", "--yes"), ("gc", "left", "--yes")):
        [line] = shell(*words, code=1).err.splitlines()
        assert "middle.json: is not whole" in line
        assert "move it away" in line
    assert contents(store.runs) == before


def without_post(store: Store) -> str:
    """Take a row out of the plan's file, behind the ledger's back; the id of its run."""
    run, plan = own(store), store.read_plan("right")
    cells = tuple(cell for cell in plan.cells if cell.row != "post")
    store.write_plan(dataclasses.replace(plan, cells=cells))
    return run


def test_what_only_the_ledger_still_has_is_not_removed(store, shell):
    run = without_post(store)
    before = contents(store.root / "runs")
    lacks = rf"right\.json: lacks 1 run that the ledger has for 'right' \({run}\).*ablate gc right`"
    assert re.fullmatch(f".*{lacks}.*\n", shell("gc", "--yes", code=1).err)
    shell("gc", "left", "--yes", code=1)
    assert contents(store.root / "runs") == before
    shell(*RIGHT, "launcher=inline")  # what it says to do
    assert found(store) == []
    without_post(store)
    assert gone(store, "right") == [store.rundir(run).path]


def test_a_name_that_is_another_sweeps_is_not_taken_unasked(store, shell):
    """And `--replace` keeps the runs of both; nothing of this goes before `gc`."""
    run, plan = own(store), store.plan_path("right").read_bytes()
    other = ("sweep", "stem=none,pre", *SIZE, "--as", "right", "launcher=inline")
    err = shell(*other, code=2).err
    assert re.fullmatch(
        "ablate: right: is the name of another sweep, `ablate sweep stem=none,post .*--replace.*\n",
        err,
    )
    for words in (["norm=identity"], ["--each"]):  # of one value; the same rows otherwise spelled
        assert "--replace" in shell(*RIGHT[:2], *words, *RIGHT[2:], code=2).err
    assert store.plan_path("right").read_bytes() == plan

    spelled = (*SIZE[1:3], SIZE[0], "stem='none', post")
    out = shell("sweep", *spelled, "seeds=2", "--as", "right", "launcher=inline").out
    assert out.count("finished:") == 2  # extended: of its two rows one seed more
    assert len(ids(store, "right")) == 4

    assert "finished:" not in shell(*other, "--replace").out  # `left` has these runs
    assert ids(store, "right") == ids(store, "left")
    assert store.rundir(run).has_result()
    assert run in {path.name for path in gone(store)}


def test_what_only_the_plan_has_is_not_removed_and_a_plan_in_a_wrong_place_stops_it(store):
    with Ledger.driving(store) as ledger:
        ledger.forget("right")
    assert found(store) == []  # a crash between plan and ledger leaves that
    shutil.copy(store.plan_path("left"), store.plan_path("right"))
    with pytest.raises(Failure, match=r"right\.json: is a plan of 'left'"):
        found(store)


def test_nothing_goes_through_a_link(store, tmp_path, shell):
    """Another store owns what it leads to, and all that is there looks like rubbish here."""
    other, run, pid = tmp_path / "other", store.rundir(own(store)), dead()
    names = ("runs", "cache", "reruns", "diffs")
    for name in names:
        if (store.root / name).exists():
            shutil.move(store.root / name, other / name)
        (other / name).mkdir(exist_ok=True)
        (store.root / name).symlink_to(other / name)
    (other / "reruns" / ("1" * 16)).mkdir()
    (other / "diffs" / f"{'a' * 16}.diff").write_text("--- a\n")
    (run.path / f".some.file.{pid}.3").touch()
    for path in other.rglob("*"):
        aged(path)
    before = contents(other)
    out = shell("gc", "right", "left", "--yes").out
    assert all(f"left alone: runs/{name} is a link" in out for name in names)
    assert contents(other) == before

    store.trash.symlink_to(other / "cache")
    (store.root / f".ledger.{pid}.0").touch()
    aged(store.root / f".ledger.{pid}.0")
    assert "trash: is a link" in shell("gc", "--yes", code=1).err
    assert contents(other) == before


def test_names_that_no_store_gives_stay(store):
    stay = [folder / "notes" / "a.txt" for folder in (store.reruns, store.runs, store.cache)]
    stay.append(store.trash / "thesis.txt")
    for path in stay:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    elsewhere = store.root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "result.json").write_text("{}")
    linked = store.runs / ("f" * 16)
    for link in (linked, store.trash / "0"):
        link.symlink_to(elsewhere)
    (store.trash / "1").mkdir()
    run = store.rundir(own(store)).path
    assert set(gone(store, "right")) == {store.trash / "1", run}
    assert all(path.read_text() == "mine" for path in stay)
    assert (linked.is_symlink(), (elsewhere / "result.json").exists()) == (True, True)
    assert {path.name for path in store.trash.iterdir()} == {"thesis.txt", "0"}


def test_a_run_with_a_file_of_somebody_else_stays_and_is_named(store, shell):
    run = store.rundir(own(store))
    thesis, lone = run.path / "thesis.txt", store.runs / ("d" * 16) / "thesis.txt"
    lone.parent.mkdir()
    for path in (thesis, lone):
        path.write_text("mine")
    out = shell("gc", "right", "--yes").out
    for path in (thesis, lone):
        assert path.read_text() == "mine"
        assert f"left alone: {path.relative_to(store.root.parent)}: ablate did not write it" in out
    assert run.has_result()
    thesis.unlink()
    shell("gc", "--yes")
    assert not run.path.exists()


def test_a_run_at_work_stays_with_its_data(store):
    run = store.rundir(own(store))
    others = {store.rundir(other).path for other in ids(store, "left")}
    with run.lock.hold():
        assert set(gone(store, "right", "left")) == others
        assert run.has_result()
    assert {path.parent.name for path in gone(store)} == {"runs", "cache"}
    assert not list((store.root / "runs").iterdir())


def test_a_run_that_somebody_took_since_stays(store):
    run = own(store)
    with Ledger.driving(store) as ledger:
        collection = GarbageCollection.forgetting(store, ledger, ["right"])
        assert collection.rubbish
        with Lock(store.rundir(run).lock.path).hold():
            assert collection.remove() == 0
            assert ledger.states([run])[run].status == "finished"
            assert store.rundir(run).has_result()


def test_a_crash_leaves_nothing_that_looks_like_a_run(store, monkeypatch):
    """Stopped right after the renames: the next one finishes, and tells the ledger."""
    run, remove = own(store), shutil.rmtree

    def crash(path: Path) -> None:
        if any(path.iterdir()):
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            gone(store, "right")
    assert not store.rundir(run).path.exists()
    assert [path.parent for path in gone(store)] == [store.trash]
    assert not store.trash.exists()
    with Ledger.reading(store) as ledger:
        assert ledger.states([run]) == {run: RunState()}
    assert found(store) == []


# --- Data and leftovers -------------------------------------------------------------------------


def test_data_that_no_sweep_has_goes_and_what_is_decoded_now_stays(store):
    (used,) = (path.name for path in store.cache.iterdir() if path.is_dir())
    other, busy = "0123456789abcdef", "fedcba9876543210"
    doomed = [store.cache / name for name in (other, f".{other}.building", f"{other}.a-b.file")]
    stay = [used, f"{used}.b.file", "costs.json", f"{other}.lock", f".{busy}.building"]
    stay = [store.cache / name for name in stay]
    for path in (*doomed[:2], stay[-1]):
        path.mkdir()
        (path / "train.images.npy").write_bytes(bytes(1000))
    doomed[2].write_bytes(bytes(10))
    for path in stay[1:-1]:
        path.touch()
    with Lock(store.cache / f"{busy}.lock").hold():
        items = found(store)
        assert {item.path for item in items} == set(doomed)
        assert 2010 <= sum(item.bytes for item in items) < 2010 + 3 * 8192
        gone(store)
    assert not any(path.exists() for path in doomed)
    assert all(path.exists() for path in stay)


def test_only_old_temporary_files_of_dead_processes_go(store):
    pid, run = dead(), store.rundir(own(store)).path
    folders = (store.root, run, store.cache, store.plan_path("left").parent)
    doomed = [folder / f".some.file.{pid}.3" for folder in folders]
    stay = [run / name for name in (f".some.file.{os.getpid()}.3", f".some.{pid}", "log.txt")]
    for path in (*doomed, *stay):
        path.touch()
        aged(path)
    stay.append(run / f".young.{pid}.0")
    stay[-1].touch()
    assert set(gone(store)) == set(doomed)
    assert not any(path.exists() for path in doomed)
    assert all(path.exists() for path in stay)


def test_diffs_that_no_run_was_trained_with_go(store):
    store.diffs.mkdir(exist_ok=True)
    used, old, young = (store.diffs / f"{digit * 16}.diff" for digit in "abc")
    for path in (used, old, young):
        path.write_text("--- a\n")
    aged(used)
    aged(old)
    env = store.rundir(own(store)).env
    env.write_text(env.read_text().replace("{", f'{{"diff": "diffs/{used.name}", ', 1))
    assert gone(store) == [old]
    assert {*store.diffs.iterdir()} == {used, young}


def test_what_a_killed_rerun_left_goes_but_not_under_one_at_work(store):
    left, busy = (RunDir(store.reruns / name) for name in ("1" * 16, "2" * 16))
    for folder in (left, busy):
        folder.create({"seed": 0})
    with busy.lock.hold():
        with store.rerunning.hold():
            assert found(store) == []
        assert gone(store) == [left.path]
        assert busy.run.exists()


# --- The command --------------------------------------------------------------------------------


@pytest.mark.whole
def test_it_asks_and_off_a_terminal_refuses(store, shell):
    run = own(store)
    done = shell("gc", "right", code=2)
    assert "to remove: needs a confirmation; add --yes" in done.err
    assert run in done.out
    for answer, end, left in (("n", 1, True), ("y", 0, False)):
        code, said = typed(shell, answer, "gc", "right")
        assert (code, "Remove these" in said) == (end, True), said
        there = store.rundir(run).path, store.plan_path("right")
        assert [path.exists() for path in there] == [left, left]


def typed(shell, answer: str, *words: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ABLATE, *words], cwd=shell.folder, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer.encode() + b"\n")
    said = b""
    with contextlib.suppress(OSError):  # its end of the terminal is closed
        while chunk := os.read(ours, 1 << 16):
            said += chunk
    os.close(ours)
    return process.wait(60), said.decode()


def test_it_stays_away_from_a_store_that_is_driven(store, shell):
    before = contents(store.root / "runs")
    with store.driver.hold():
        store.driver.note(pid=os.getpid())
        done = shell("gc", "right", "--yes", code=75)
    assert re.fullmatch(f".*process {os.getpid()} drives this store.*\n", done.err)
    assert contents(store.root / "runs") == before
    assert store.plan_path("right").exists()
