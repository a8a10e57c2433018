"""The door to workers: drivers and readers ask whoever answers for them, and no lock themselves.

The workers here hold no lock of this host, as those of a cluster: who asks a lock finds none alive.
"""

import contextlib
import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.drivers import Elsewhere, Quiet, driven, left_behind
from support.plans import record_plan, small_plan

from ablate.audit.doctor import stored
from ablate.report.show import RunLog, describe_run
from ablate.report.status import SweepView
from ablate.run.rundir import RunDir, to_json, write_whole
from ablate.running.driver_lock import driver_session, stop_driver
from ablate.running.launchers import Slot
from ablate.shared.errors import Failure
from ablate.shared.notes import Notes
from ablate.store.gc import GarbageCollection, KeptSweeps
from ablate.store.ledger import Ledger
from ablate.store.progress import observe_progress
from ablate.store.store import Store


@pytest.fixture
def working(store) -> Elsewhere:
    return left_behind(store, Elsewhere())


def test_a_code_is_no_proof_of_death(store):
    """Told of all that it ever started, in every poll, the driver waits until they are dead."""
    launcher = Elsewhere(polls=5)
    launcher.poll = lambda wait_s=0.0, poll=launcher.poll: poll() | dict.fromkeys(launcher.left, 1)
    assert driven(store, launcher).progress.counts == {"finished": 4}
    assert len(launcher.started) == 4


def test_a_worker_of_another_launcher_is_adopted_and_its_word_is_the_stores(store, working):
    own = Elsewhere()
    own.poll = lambda wait_s=0.0, poll=own.poll: (working.poll() and {}) or poll()
    assert driven(store, own).progress.counts == {"finished": 4}
    assert sorted(own.started) == ["a1", "b0", "b1"]


def test_a_run_that_has_finished_while_it_waits_is_not_started_again(store):
    """By a worker that was given up for dead, and was not."""
    launcher = Elsewhere()
    start = launcher.start

    def finishes(run: RunDir, slot: Slot, settled: object = None) -> None:
        start(run, slot)
        if run.id == "a0":
            store.rundir("b1").create({})
            write_whole(store.rundir("b1").result, to_json({"status": "finished"}))

    launcher.start = finishes
    assert driven(store, launcher).progress.counts == {"finished": 4}
    assert sorted(launcher.started) == ["a0", "a1", "b0"]


def test_a_death_on_another_host_is_told_with_the_log_that_stays(store):
    """The next attempt goes on with it, and the folder of the dead one is removed."""
    launcher, view, died = Elsewhere(), Quiet(), []
    launcher.remote = True

    def poll(wait_s=0.0, poll=launcher.poll):
        if died or "a0" not in launcher.left:
            return poll()
        died.append(launcher.folders["a0"])
        died[0].say("its last words")
        del launcher.left["a0"]
        launcher.started.remove("a0")
        return {"a0": -9}

    launcher.poll = poll
    driven(store, launcher, view)
    (line,) = (line for line in view.lines if line.startswith("died: "))
    log = Path(line.partition("(see ")[2].rstrip(")"))
    assert not died[0].path.exists()
    assert "its last words" in log.read_text()


def test_one_that_gives_no_sign_of_life_is_killed_by_whoever_answers_for_it(store, working):
    working.left["a0"] = 10**9
    own = Elsewhere()
    driven(store, own, hang_s=0.01)
    assert working.stopped == [("a0", True)]
    assert "a0" in own.started  # once more


@pytest.mark.parametrize(("device", "at_once"), [("cuda", 2), ("cpu", 1)])
def test_the_next_run_starts_while_the_last_one_checks_its_data(store, device, at_once):
    """On a GPU, which has nothing to do by then. A core has."""
    launcher, most = Elsewhere(polls=6), []
    launcher.slots = [Slot("far:0", "far:0", device)]

    def poll(wait_s=0.0, poll=launcher.poll):
        for run, left in launcher.left.items():
            if left == 4:
                launcher.said[run] = replace(launcher.said[run], phase="check")
        most.append(len(launcher.left))
        return poll()

    launcher.poll = poll
    assert driven(store, launcher).progress.counts == {"finished": 4}
    assert max(most) == at_once
    assert len(launcher.started) == 4


def test_every_reader_asks_the_store(store, working, capsys):
    plan = small_plan()
    with Ledger.reading(store) as ledger:
        now = observe_progress(plan, list(plan.runs()), store, ledger)
        assert [(worker.run.id, worker.slot) for worker in now.workers] == [("a0", "far:1")]
        SweepView.observe(plan, list(plan.runs()), store, ledger).show()
        assert "running: a#0 on far:1: train" in capsys.readouterr().out
        assert "status: started, running: train" in describe_run(store, ledger, "a0")
        working.said["a0"] = Notes()  # it has just begun
        SweepView.observe(plan, list(plan.runs()), store, ledger).show()
        assert "running: a#0: start\n" in capsys.readouterr().out
        assert "status: started, running: start\n" in describe_run(store, ledger, "a0")
    assert stored._locks(store, None, ["a0", "a1"]).text.startswith("no driver, but 1 worker")

    real = store.rundir("ab" * 8)
    shutil.copytree(store.rundir("a0").path, real.path)
    working.live(real, "far:0")
    for alive in (True, False):
        with Ledger.reading(store) as ledger:
            found = [
                item.path
                for item in GarbageCollection(store, ledger, KeptSweeps([], {})).rubbish
                if item.kind == "runs"
            ]
        assert found == [real.path] * (not alive)
        working.left.clear()


def followed(store: Store, tmp_path: Path) -> str:
    with Ledger.reading(store) as ledger, open(tmp_path / "out", "wb") as out:
        RunLog(store, "a0", out).follow(ledger)
    return (tmp_path / "out").read_text()


def test_a_log_is_followed_while_there_is_a_worker(store, working, tmp_path):
    store.rundir("a0").log.write_text("one\n")
    asked = []
    working.alive = lambda run: len(asked) < 3 and not asked.append(run.id)
    assert followed(store, tmp_path) == "one\n"
    assert asked == ["a0"] * 3  # nobody drives the sweep: no other worker will come


@pytest.mark.parametrize("ends", ["result", "given up", "driver", "another's driver"])
def test_a_log_is_followed_until_the_run_or_its_driver_ends(store, working, tmp_path, ends):
    """The log is written between two looks; the second attempt's is a file of its own, which goes
    on from the first's."""
    folder = store.rundir("a0")
    assert store.driver.acquire()
    store.driver.note(pid=os.getpid(), sweep="p")

    def say(lines: str) -> None:
        folder.log.unlink(missing_ok=True)
        folder.log.write_text(lines)

    def end() -> None:
        with open(folder.log, "a") as log:
            log.write("its last word\n")
        if ends == "result":
            write_whole(folder.result, to_json({"status": "finished"}))
        elif ends == "given up":
            with Ledger.driving(store) as ledger:
                ledger.record("a0", "failed", reason="why")
        elif ends == "driver":
            store.driver.release()
        else:
            store.driver.note(sweep="another")

    looks = [
        (lambda: None, False),  # it has not begun
        (lambda: say("one\n"), True),
        (lambda: None, False),  # dead, and its driver will start it again
        (lambda: say("one\ntwo\n"), True),
        (end, False),
    ]

    def alive(run: RunDir) -> bool:
        act, lives = looks.pop(0)
        act()
        return lives

    working.alive = alive
    assert followed(store, tmp_path) == "one\ntwo\nits last word\n"
    assert looks == []
    store.driver.release()


def test_stop_asks_the_store_and_waits_for_the_end(store, working):
    alive = [True, True, True, True, False]
    working.alive = lambda run: alive[0] and alive.pop(0)
    assert stop_driver(store, None, print) == "p"
    assert working.stopped == [("a0", False)]
    assert len(alive) == 1


def test_a_second_stop_ends_workers_without_a_driver(store, working):
    store.rundir("a0").ask_to_stop()
    stop_driver(store, None, print)
    assert working.stopped == [("a0", True)]


def test_stop_finds_workers_of_a_sweep_that_was_driven_before_the_last(store, working):
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, small_plan("q", seeds=(0,)))
        ledger.record("a0", "started", step=0)
    shared = store.rundir("a0")  # of both sweeps
    assert stop_driver(store, None, print) == "q"
    with Ledger.driving(store) as ledger:
        ledger.record("b1", "started", step=0)  # of the first alone
    working.live(store.rundir("b1"), "far:1")
    working.live(shared, "far:0")
    said: list[str] = []
    assert stop_driver(store, None, said.append) == "q"
    assert [line.partition(":")[0] for line in said] == ["p"]
    assert stop_driver(store, None, said.append) == "p"
    assert [run for run, _ in working.stopped] == ["a0", "a0", "b1"]
    assert stop_driver(store, None, print) is None


def test_a_worker_of_another_user_is_not_told_that_it_was_asked(store, working, monkeypatch):
    def kill(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(Failure) as refused:
        stop_driver(store, None, print)
    assert refused.value.place == "a#0"
    assert working.stopped == []


def test_a_driver_of_another_user_is_asked_by_a_file(store):
    colleague = Store(store.root)

    def refuse(number: int) -> bool:
        raise PermissionError

    colleague.driver.signal = refuse
    with driver_session(store, "p", Quiet):
        assert not store.asked_to_stop()
        assert colleague.ask_to_stop()
        assert store.asked_to_stop()


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
def test_a_signal_before_the_drive_listens_interrupts_the_session(store, number, name):
    def handler() -> object:
        return signal.getsignal(number)

    before = handler()
    with pytest.raises(KeyboardInterrupt), driver_session(store, "p", Quiet):
        signal.raise_signal(number)
    assert store.driver.notes().ended.endswith(f" {name}")

    def break_off() -> None:  # as a library that then fails otherwise
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise AttributeError("half a configuration")

    with pytest.raises(AttributeError), driver_session(store, "p", Quiet):
        break_off()
    assert store.driver.notes().ended.endswith(f" {name}")
    assert handler() == before
    signal.signal(number, signal.SIG_IGN)  # as `nohup` does
    try:
        with driver_session(store, "p", Quiet):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


BEGINS = """
import os, signal, sys
from pathlib import Path
from ablate.store.store import Store

store = Store(Path(sys.argv[1]))
assert store.take_turn(10)
store.driver.note(pid=os.getpid(), sweep="p")
print("drives", flush=True)
signal.pause()
"""


def test_a_driver_is_stopped_although_the_disk_is_full(store, monkeypatch):
    def full(sweep: str | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store.root.mkdir(exist_ok=True)
    words = [sys.executable, "-c", BEGINS, store.root]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout.readline() == "drives\n"
            monkeypatch.setattr(store, "stop_starting", full)
            assert stop_driver(store, "p", print) == "p"
            assert driver.wait(10) == -15
        finally:
            driver.kill()


def test_a_driver_that_begins_while_workers_are_stopped_is_stopped_too(store, working):
    """Else `ablate stop` would say that it stopped what goes on."""
    asks, begun = [True, True], []

    def alive(run: RunDir) -> bool:
        if len(asks) == 1:  # its predecessor was killed, and it takes its turn now
            words = [sys.executable, "-c", BEGINS, store.root]
            begun.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            assert begun[0].stdout.readline() == "drives\n"
        return bool(asks) and asks.pop()

    working.alive = alive
    try:
        assert stop_driver(store, "p", print) == "p"
        assert begun[0].wait(10) == -15
    finally:
        begun[0].kill()
        begun[0].communicate()


def test_a_worker_that_notes_another_host_lives_while_it_writes_and_is_not_signalled(store):
    """Where locks don't reach other hosts: its lock is free here. Its process id is another's."""
    run, by = store.rundir("a0"), store.liveness
    run.create({})
    innocent = subprocess.Popen(["sleep", "60"])

    def note(**notes: object) -> None:
        run.lock.clear()
        lock = RunDir(run.path).lock
        with lock.hold():
            lock.note(pid=innocent.pid, **notes)

    try:
        note(host="another", phase="train")
        assert by.alive(run)
        command = f"ablate stop --store {store.root}"
        assert stop_at_once(store) == [f"a#0 trains on another: `{command}` stops it there"]
        for dead in (
            lambda: os.utime(run.lock.path, (0, 0)),
            lambda: note(host="another", exit="stopped"),
            lambda: note(host=platform.node(), phase="train"),
            lambda: note(phase="train"),
            lambda: write_whole(run.result, to_json({"status": "finished"})),
        ):
            note(host="another", phase="train")
            assert by.alive(run)
            dead()
            assert not by.alive(run)

        holder = RunDir(run.path).lock
        with holder.hold():
            holder.note(pid=innocent.pid, host="another")
            by.stop(run, now=True)
            time.sleep(0.1)
            assert innocent.poll() is None
            holder.note(host=platform.node())
            by.stop(run, now=True)
            assert innocent.wait(10) == -signal.SIGKILL
    finally:
        innocent.kill()
        innocent.wait()


def stop_at_once(store: Store) -> list[str]:
    """What `ablate stop` says, which gives up at once."""
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, small_plan())
        ledger.record("a0", "started", step=0)
    said: list[str] = []
    with pytest.raises(Failure, match="still alive: a#0"):
        stop_driver(store, None, said.append, timeout_s=0.01)
    return said
