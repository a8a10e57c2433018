"""`ablate gc`: what no plan refers to goes, and nothing else; it asks, and nobody drives."""

from __future__ import annotations

import dataclasses
import os
import pty
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ABLATE, Shell, contents

from ablate.shared.errors import Failure, UserError
from ablate.shared.files import Lock
from ablate.shared.rundir import RunDir
from ablate.store.events import RunState
from ablate.store.gc import Rubbish, collect, kept, rubbish
from ablate.store.ledger import Ledger
from ablate.store.store import Store

SIZE = ("model.arch=mu/4", "model.depth=1", "train.steps=4", "seeds=1")
RIGHT = ("sweep", "stem=none,post", *SIZE, "--as", "right")


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Path:
    """The sweeps `left` and `right`, which share the run of stem=none."""
    shell = Shell(tmp_path_factory.mktemp("driven"))
    shell("sweep", "stem=none,pre,post", *SIZE, "--as", "both", "launcher=inline")
    store = Store(shell.folder / "runs")
    both = store.read_plan("both")
    assert both is not None
    with Ledger.driving(store) as ledger:
        for name, row in (("left", "pre"), ("right", "post")):
            cells = tuple(cell for cell in both.cells if cell.row in ("none", row))
            rows = tuple(r for r in both.rows if r.label in ("none", row))
            words = ("stem=none," + row, *SIZE, "--as", name)
            plan = dataclasses.replace(
                both, name=name, title=name, words=words, cells=cells, rows=rows
            )
            store.write_plan(plan)
            ledger.plan(plan)
        ledger.forget("both")
    store.plan_path("both").unlink()
    return store.root


@pytest.fixture
def store(driven, shell) -> Store:
    """A copy of it, where `shell` works."""
    return Store(shutil.copytree(driven, shell.folder / "runs"))


def ids(store: Store, sweep: str) -> set[str]:
    plan = store.read_plan(sweep)
    assert plan is not None
    return {run.id for run in plan.runs()}


def found(store: Store, *forget: str) -> list[Rubbish]:
    with Ledger.reading(store) as ledger:
        return rubbish(store, ledger, kept(store, ledger, forget))


def gone(store: Store, *forget: str) -> list[Path]:
    """Collect; returns what was found."""
    with Ledger.driving(store) as ledger:
        plans = kept(store, ledger, forget)
        items = rubbish(store, ledger, plans)
        collect(store, ledger, plans, items, forget)
    return [item.path for item in items]


def aged(path: Path) -> None:
    long_ago = time.time() - 7200
    os.utime(path, (long_ago, long_ago))


# --- Runs and sweeps ----------------------------------------------------------------------------


def test_nothing_goes_while_sweeps_refer_to_all(store, shell):
    before = contents(store.root / "runs"), contents(store.cache)
    assert found(store) == []
    assert shell("gc", "--yes").out == "nothing to remove: a sweep refers to every file\n"
    assert (contents(store.root / "runs"), contents(store.cache)) == before


def test_a_forgotten_sweep_takes_its_own_runs_and_they_can_be_trained_again(store, shell):
    own, shared = ids(store, "right") - ids(store, "left"), ids(store, "left") & ids(store, "right")
    assert (len(own), len(shared)) == (1, 1)
    (run,) = own
    table = shell("table", "right", "--format", "csv").out
    kept_files = {r: contents(store.rundir(r).path) for r in ids(store, "left")}
    with Ledger.reading(store) as ledger:
        events = {r: ledger.events(r) for r in ids(store, "right")}

    out = shell("gc", "right", "--yes").out
    assert "to forget: the sweep 'right'" in out
    assert f"1 runs that no sweep contains: {run}" in out
    assert not store.rundir(run).path.exists()
    assert not store.trash.exists()
    assert not store.plan_path("right").exists()
    assert {r: contents(store.rundir(r).path) for r in ids(store, "left")} == kept_files
    with Ledger.reading(store) as ledger:
        assert ledger.sweeps() == ["left"]
        assert ledger.planned("right") == []
        assert [kind for _, kind, _ in ledger.events(run)[len(events[run]) :]] == ["collected"]
        assert ledger.events(run)[: len(events[run])] == events[run]
        assert ledger.states([run]) == {run: RunState()}
        assert ledger.events(*shared) == events[next(iter(shared))]
        assert ledger.broken_seals() == []
    assert "nothing wrong" in shell("verify", "left").out

    again = shell(*RIGHT, "launcher=inline").out
    assert again.count("finished:") == 1
    assert "finished: post#0" in again
    assert shell("table", "right", "--format", "csv").out == table


def test_unknown_sweeps_and_stores_are_named(store, shell, tmp_path):
    assert "got 'rigth' (did you mean 'right'?)" in shell("gc", "rigth", code=2).err
    assert "no store at nowhere" in shell("gc", "--store", "nowhere", code=2).err
    assert not (shell.folder / "nowhere").exists()


@pytest.mark.parametrize("content", [b"", b'{"name": "right"', b"{}", b"[1]", None])
def test_a_plan_that_can_not_be_read_or_is_gone_stops_it(store, content):
    path = store.plan_path("right")
    path.unlink() if content is None else path.write_bytes(content)
    before = contents(store.root / "runs")
    with Ledger.driving(store) as ledger:
        with pytest.raises(Failure, match=r"right\.json: is (not whole|missing)"):
            kept(store, ledger, [])
        with pytest.raises(Failure, match=r"right\.json"):
            kept(store, ledger, ["left"])
        assert [plan.name for plan in kept(store, ledger, ["right"])] == ["left"]
        with pytest.raises(UserError, match="middle"):
            kept(store, ledger, ["right", "middle"])
    assert contents(store.root / "runs") == before
    assert len(gone(store, "right")) == 1
    assert found(store) == []


def without(store: Store, sweep: str, row: str) -> set[str]:
    """Take a row out of the plan's file, behind the ledger's back; the ids of its runs."""
    plan = store.read_plan(sweep)
    cells = tuple(cell for cell in plan.cells if cell.row != row)
    store.write_plan(dataclasses.replace(plan, cells=cells))
    return {run.id for run in plan.runs()} - ids(store, sweep)


def test_what_only_the_ledger_still_has_is_not_removed(store, shell):
    (run,) = without(store, "right", "post")
    before = contents(store.root / "runs")
    done = shell("gc", "--yes", code=1)
    assert f"right.json: lacks 1 runs that the ledger has for 'right' ({run})" in done.err
    assert "ablate gc 'right'" in done.err
    assert done.err.count("\n") == 1
    shell("gc", "left", "--yes", code=1)
    assert contents(store.root / "runs") == before
    shell(*RIGHT, "launcher=inline")  # what it says to do
    assert found(store) == []
    without(store, "right", "post")
    assert gone(store, "right") == [store.rundir(run).path]


def test_a_name_that_is_another_sweeps_is_not_taken_unasked(store, shell):
    """And `--replace` keeps the runs of both; nothing of this goes before `gc`."""
    (own,) = ids(store, "right") - ids(store, "left")
    plan = store.plan_path("right").read_bytes()
    other = ("sweep", "stem=none,pre", *SIZE, "--as", "right", "launcher=inline")
    err = shell(*other, code=2).err
    assert err.startswith(
        "ablate: right: is the name of another sweep, `ablate sweep stem=none,post "
    )
    assert "--replace" in err
    assert err.count("\n") == 1
    for words in (["norm=identity"], ["--each"]):  # of one value; the same rows otherwise spelled
        assert "--replace" in shell(*RIGHT[:2], *words, *RIGHT[2:], code=2).err
    assert store.plan_path("right").read_bytes() == plan

    spelled = (*SIZE[1:3], SIZE[0], "stem='none', post")
    out = shell("sweep", *spelled, "seeds=2", "--as", "right", "launcher=inline").out
    assert out.count("finished:") == 2  # extended: of its two rows one seed more
    assert len(ids(store, "right")) == 4

    out = shell(*other, "--replace").out
    assert "finished:" not in out  # `left` has these runs
    assert ids(store, "right") == ids(store, "left")
    assert store.rundir(own).has_result()
    assert own in {path.name for path in gone(store)}


def test_what_only_the_plan_has_is_not_removed_and_a_plan_in_a_wrong_place_stops_it(store):
    with Ledger.driving(store) as ledger:
        ledger.forget("right")
    assert found(store) == []  # a crash between plan and ledger leaves that
    shutil.copy(store.plan_path("left"), store.plan_path("right"))
    with pytest.raises(Failure, match=r"right\.json: is a plan of 'left'"):
        found(store)


def test_nothing_goes_through_a_link(store, tmp_path, shell):
    """Another store owns what it leads to, and all that is there looks like rubbish here."""
    other = tmp_path / "other"
    for name in ("runs", "cache"):
        shutil.move(store.root / name, other / name)
        (store.root / name).symlink_to(other / name)
    for name in ("reruns", "diffs"):
        (other / name).mkdir()
        (store.root / name).symlink_to(other / name)
    run = store.rundir(next(iter(ids(store, "right") - ids(store, "left"))))
    (other / "reruns" / ("1" * 16)).mkdir()
    (other / "diffs" / f"{'a' * 16}.diff").write_text("--- a\n")
    child = subprocess.Popen(["true"])
    child.wait()
    (run.path / f".some.file.{child.pid}.3").touch()
    for path in other.rglob("*"):
        aged(path)
    before = contents(other)
    out = shell("gc", "right", "left", "--yes").out
    for name in ("runs", "cache", "reruns", "diffs"):
        assert f"left alone: runs/{name} is a link" in out
    assert contents(other) == before

    store.trash.symlink_to(other / "cache")
    (store.root / f".ledger.{child.pid}.0").touch()
    aged(store.root / f".ledger.{child.pid}.0")
    assert "trash: is a link" in shell("gc", "--yes", code=1).err
    assert contents(other) == before


def test_names_that_no_store_gives_stay(store):
    stay = [
        store.trash / "thesis.txt",
        store.reruns / "notes" / "a.txt",
        store.runs / "notes" / "a.txt",
        store.cache / "mine" / "a.txt",
    ]
    for path in stay:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    elsewhere = store.root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "result.json").write_text("{}")
    linked = store.runs / ("f" * 16)
    linked.symlink_to(elsewhere)
    (store.trash / "0").symlink_to(elsewhere)
    (store.trash / "1").mkdir()
    (run,) = ids(store, "right") - ids(store, "left")
    assert set(gone(store, "right")) == {store.trash / "1", store.rundir(run).path}
    assert all(path.read_text() == "mine" for path in stay)
    assert linked.is_symlink()
    assert (elsewhere / "result.json").exists()
    assert {path.name for path in store.trash.iterdir()} == {"thesis.txt", "0"}


def test_a_run_with_a_file_of_somebody_else_stays_and_is_named(store, shell):
    (run,) = ids(store, "right") - ids(store, "left")
    thesis = store.rundir(run).path / "thesis.txt"
    thesis.write_text("mine")
    lone = store.runs / ("d" * 16) / "thesis.txt"
    lone.parent.mkdir()
    lone.write_text("mine")
    out = shell("gc", "right", "--yes").out
    for path in (thesis, lone):
        assert path.read_text() == "mine"
        assert f"left alone: {path.relative_to(store.root.parent)}: ablate did not write it" in out
    assert store.rundir(run).has_result()
    thesis.unlink()
    shell("gc", "--yes")
    assert not store.rundir(run).path.exists()


def test_a_run_at_work_stays_with_its_data(store):
    (run,) = ids(store, "right") - ids(store, "left")
    others = {store.rundir(other).path for other in ids(store, "left")}
    lock = store.rundir(run).lock
    assert lock.acquire()
    assert set(gone(store, "right", "left")) == others
    assert store.rundir(run).has_result()
    lock.release()
    assert {path.parent.name for path in gone(store)} == {"runs", "cache"}
    assert not list((store.root / "runs").iterdir())


def test_a_run_that_somebody_took_since_stays(store):
    (run,) = ids(store, "right") - ids(store, "left")
    with Ledger.driving(store) as ledger:
        plans = kept(store, ledger, ["right"])
        items = rubbish(store, ledger, plans)
        lock = Lock(store.rundir(run).lock.path)
        assert lock.acquire()
        assert collect(store, ledger, plans, items, ["right"]) == 0
        assert ledger.states([run])[run].status == "finished"
    assert store.rundir(run).has_result()
    lock.release()


def test_a_crash_leaves_nothing_that_looks_like_a_run(store, monkeypatch):
    """Stopped right after the renames: the next one finishes, and tells the ledger."""
    (run,) = ids(store, "right") - ids(store, "left")
    remove = shutil.rmtree

    def crash(path: Path) -> None:
        if any(path.iterdir()):
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            gone(store, "right")
    assert not store.rundir(run).path.exists()
    (left,) = gone(store)
    assert left.parent == store.trash
    assert not store.trash.exists()
    with Ledger.reading(store) as ledger:
        assert ledger.states([run]) == {run: RunState()}
    assert found(store) == []


# --- Data and leftovers -------------------------------------------------------------------------


def test_data_that_no_sweep_has_goes_and_what_is_decoded_now_stays(store):
    (used,) = (path.name for path in store.cache.iterdir() if path.is_dir())
    other, busy = "0123456789abcdef", "fedcba9876543210"
    doomed = [store.cache / name for name in (other, f".{other}.building", f"{other}.a-b.file")]
    for path in (doomed[0], doomed[1], store.cache / f".{busy}.building"):
        path.mkdir()
        (path / "train.images.npy").write_bytes(bytes(1000))
    doomed[2].write_bytes(bytes(10))
    stay = [store.cache / name for name in (used, f"{used}.b.file", "costs.json", f"{other}.lock")]
    for path in stay[1:]:
        path.touch()
    lock = Lock(store.cache / f"{busy}.lock")
    assert lock.acquire()
    items = found(store)
    assert {item.path for item in items} == set(doomed)
    assert 2010 <= sum(item.bytes for item in items) < 2010 + 3 * 8192
    gone(store)
    assert not any(path.exists() for path in doomed)
    assert all(path.exists() for path in stay)
    assert (store.cache / f".{busy}.building").exists()
    lock.release()


def test_only_old_temporary_files_of_dead_processes_go(store):
    child = subprocess.Popen(["true"])
    child.wait()
    run = store.rundir(next(iter(ids(store, "left")))).path
    dead = [
        folder / f".some.file.{child.pid}.3"
        for folder in (store.root, run, store.cache, store.plan_path("left").parent)
    ]
    stay = [run / f".some.file.{os.getpid()}.3", run / f".some.{child.pid}", run / "log.txt"]
    for path in (*dead, *stay):
        path.touch()
        aged(path)
    young = run / f".young.{child.pid}.0"
    young.touch()
    assert set(gone(store)) == set(dead)
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in (*stay, young))


def test_diffs_that_no_run_was_trained_with_go(store):
    store.diffs.mkdir(exist_ok=True)
    names = [f"{digit * 16}.diff" for digit in "abc"]
    for name in names:
        (store.diffs / name).write_text("--- a\n")
    for name in names[:2]:
        aged(store.diffs / name)
    env = store.rundir(next(iter(ids(store, "left")))).env
    env.write_text(env.read_text().replace("{", f'{{"diff": "diffs/{names[0]}", ', 1))
    assert gone(store) == [store.diffs / names[1]]
    assert sorted(path.name for path in store.diffs.iterdir()) == [names[0], names[2]]


def test_what_a_killed_rerun_left_goes_but_not_under_one_at_work(store):
    left, busy = (RunDir(store.reruns / name) for name in ("1" * 16, "2" * 16))
    for folder in (left, busy):
        folder.create({"seed": 0})
    assert busy.lock.acquire()
    assert store.rerunning.acquire()
    assert found(store) == []
    store.rerunning.release()
    assert gone(store) == [left.path]
    assert busy.run.exists()
    busy.lock.release()


# --- The command --------------------------------------------------------------------------------


def test_it_asks_and_off_a_terminal_refuses(store, shell):
    (run,) = ids(store, "right") - ids(store, "left")
    done = shell("gc", "right", code=2)
    assert "to remove: needs a confirmation; add --yes" in done.err
    assert run in done.out
    for answer, removed in (("n", False), ("y", True)):
        code, said = typed(shell, answer, "gc", "right")
        assert code == 0, said
        assert "Remove these" in said
        assert store.rundir(run).path.exists() is not removed
        assert store.plan_path("right").exists() is not removed


def typed(shell, answer: str, *words: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ABLATE, *words], cwd=shell.folder, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer.encode() + b"\n")
    said = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            said += chunk
    except OSError:  # its end of the terminal is closed
        pass
    os.close(ours)
    return process.wait(60), said.decode()


def test_it_stays_away_from_a_store_that_is_driven(store, shell):
    assert store.driver.acquire()
    store.driver.note(pid=os.getpid())
    before = contents(store.root / "runs")
    done = shell("gc", "right", "--yes", code=1)
    assert f"process {os.getpid()} drives this store" in done.err
    assert done.err.count("\n") == 1
    store.driver.release()
    assert contents(store.root / "runs") == before
    assert store.plan_path("right").exists()
