"""kill -9 of the driver, of a worker, of both, at any moment; the same command again: the table is,
byte for byte, that of a sweep that nobody disturbed. Real processes, real signals."""

import contextlib
import os
import random
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import ABLATE, Done, Shell, wait_for
from support.processes import die, disturb, freeze, freeze_workers, held_runs, kill, thaw, workers

pytestmark = pytest.mark.faults

# Two variants x two seeds on digits: seconds of training, so that a kill finds it at work.
SWEEP = ("sweep", "block.attn=pre,post", "model.depth=2", "train.epochs=8", "--as", "killed")
OFTEN = ("launcher.checkpoint_s=0.2", "launcher.attempts=1000")
WORDS = (*SWEEP, "seeds=2", *OFTEN)
INLINE = "launcher=inline"  # where who trains is not the point: two processes saved


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Shell:
    """An uninterrupted sweep on this machine, without workers that could be killed."""
    shell = Shell(tmp_path_factory.mktemp("calm"))
    shell(*WORDS, INLINE)
    return shell


@pytest.fixture
def calm(undisturbed) -> str:
    """Its table."""
    return undisturbed("table", "killed", "--format", "tidy").out


@pytest.fixture
def shell(shell, undisturbed) -> Shell:
    """A new store whose data is decoded and whose costs are known: seconds saved, a test."""
    shutil.copytree(undisturbed.folder / "runs" / "cache", shell.folder / "runs" / "cache")
    return shell


def events(shell: Shell) -> list[tuple[str, str]]:
    """Of which run, and what."""
    with contextlib.closing(sqlite3.connect(shell.folder / "runs" / "ledger.db")) as ledger:
        return ledger.execute("SELECT run, kind FROM event").fetchall()


def check(shell: Shell, calm: str, runs: int = 4) -> Counter[str]:
    """The table equals the calm one; every run finished once, and every start is accounted for. How
    often what happened."""
    assert shell("table", "killed", "--format", "tidy").out == calm
    told = events(shell)
    finished = Counter(run for run, kind in told if kind == "finished")
    assert len(finished) == runs
    assert set(finished.values()) == {1}
    for run in finished:
        kinds = Counter(kind for other, kind in told if other == run)
        # A result found under another driver needs no start of its own; a start that was cut off
        # is one interruption.
        assert kinds["interrupted"] <= kinds["started"] <= kinds["interrupted"] + 1
    return Counter(kind for _, kind in told)


def succeeded(done: Done) -> Done:
    assert done.code == 0, done.out + done.err
    return done


def test_kill_the_driver_and_the_next_one_adopts_its_workers(shell, calm):
    driver = shell.start(*WORDS)
    wait_for(lambda: len(workers(shell.folder)) == 2)
    found = freeze_workers(shell)
    die(driver)
    assert {*found} <= {*workers(shell.folder)}  # they live on
    thaw(found)
    assert "died" not in shell(*WORDS).out
    assert check(shell, calm)["started"] == 4  # adopted, not started anew


def test_kill_workers_under_a_living_driver(shell, calm):
    """Of two runs: where three in a row die before any makes a step, a sweep stops by itself."""
    moment, driver = random.Random(0), shell.start(*WORDS)
    struck: set[str] = set()

    def victims() -> dict[int, str]:
        return {
            pid: run for pid, run in held_runs(shell.folder).items() if len(struck | {run}) <= 2
        }

    for _ in range(4):
        wait_for(lambda: victims() or driver.poll() is not None)
        time.sleep(moment.uniform(0, 0.5))
        if alive := victims():
            pid = moment.choice([*alive])
            struck.add(alive[pid])
            kill([pid])
    assert struck
    succeeded(shell.end(driver))
    check(shell, calm)


@pytest.mark.parametrize(
    ("seeds", "kills"), [(2, 5), pytest.param(60, 200, marks=pytest.mark.slow)]
)
def test_kills_of_driver_workers_or_both_at_any_moment(shell, tmp_path_factory, seeds, kills):
    words = (*SWEEP, f"seeds={seeds}", *OFTEN)
    calm = Shell(tmp_path_factory.mktemp("longer"))
    shutil.copytree(shell.folder / "runs" / "cache", calm.folder / "runs" / "cache")
    calm(*words, INLINE)
    disturb(shell, words, random.Random(kills), kills)
    shell(*words, INLINE)
    check(shell, calm("table", "killed", "--format", "tidy").out, runs=2 * seeds)


@pytest.mark.parametrize(
    "names", [("SIGINT", "SIGTERM"), pytest.param(("SIGHUP",), marks=pytest.mark.slow)]
)
def test_a_signal_checkpoints_stops_and_the_same_command_goes_on(shell, calm, names):
    folders = shell.folder / "runs" / "runs"
    for name in names:
        began = time.time()

        def since(pattern: str, began: float = began) -> set[Path]:
            return {file.parent for file in folders.glob(pattern) if file.stat().st_mtime > began}

        driver = shell.start(*SWEEP, "seeds=2", "launcher.checkpoint_s=1000")
        wait_for(lambda since=since: len(since("*/metrics.jsonl")) == 2)
        driver.send_signal(signal.Signals[name])
        done = shell.end(driver)
        assert done.code == 128 + signal.Signals[name]
        assert re.search(r"stopped after \d of 4; the same command goes on\n$", done.out)
        assert workers(shell.folder) == []
        begun = since("*/metrics.jsonl") - since("*/result.json")
        assert len(begun) in (1, 2)
        assert begun <= since("*/checkpoint-*.safetensors")
    shell(*WORDS, INLINE)
    check(shell, calm)


def test_a_signal_stops_a_sweep_that_trains_in_its_own_process(shell, calm):
    words = (*SWEEP, "seeds=2", INLINE)
    driver = shell.start(*words)
    wait_for(lambda: [*shell.folder.glob("runs/runs/*/metrics.jsonl")])
    driver.send_signal(signal.SIGINT)
    done = shell.end(driver)
    assert done.code == 130
    assert "stopped after 0 of 4" in done.out
    shell(*words)
    check(shell, calm)


@pytest.mark.parametrize("reader", ["pipe", "terminal"])
def test_where_nobody_reads_any_longer_workers_leave_checkpoints(shell, calm, reader):
    """Ctrl-C in `ablate sweep | tee log` ends `tee`, too; a closed window ends the terminal."""
    ours, theirs = os.pipe() if reader == "pipe" else os.openpty()
    words = (*SWEEP, "seeds=2", "launcher.checkpoint_s=1000")
    driver = subprocess.Popen(
        [ABLATE, *words],
        cwd=shell.folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    with contextlib.ExitStack() as stack:
        stack.callback(driver.kill)
        drain = threading.Thread(target=_drain, args=(ours, closing := threading.Event()))
        drain.start()
        wait_for(lambda: len([*shell.folder.glob("runs/runs/*/metrics.jsonl")]) == 2)
        closing.set()
        drain.join()
        if reader == "pipe":
            driver.send_signal(signal.SIGINT)
        ended = driver.wait(60)
        stack.pop_all()
    assert ended in ((130, 141) if reader == "pipe" else (129,))
    assert workers(shell.folder) == []
    names = ("metrics.jsonl", "checkpoint-*.safetensors", "result.json")
    begun, left, done = (
        {path.parent for path in shell.folder.glob(f"runs/runs/*/{name}")} for name in names
    )
    assert begun - done <= left
    shell(*WORDS, INLINE)
    check(shell, calm)


def _drain(descriptor: int, closing: threading.Event) -> None:
    """Read until the event, then close."""
    while not closing.is_set():
        if select.select([descriptor], [], [], 0.05)[0]:
            os.read(descriptor, 1 << 16)
    os.close(descriptor)


def test_what_nohup_has_ignored_stays_ignored(shell, calm):
    """The terminal is closed behind `nohup ablate sweep &`."""
    with open(shell.folder / "out", "wb") as out:
        driver = subprocess.Popen(["nohup", ABLATE, *WORDS], cwd=shell.folder, stdout=out)
    wait_for(lambda: [*shell.folder.glob("runs/runs/*/metrics.jsonl")])
    kill([*workers(shell.folder), driver.pid], signal.SIGHUP)
    assert driver.wait(240) == 0
    check(shell, calm)


def said(shell: Shell, file: str, text: str) -> None:
    """Wait until a command has said that."""
    file = shell.folder / file
    wait_for(lambda: file.exists() and text in file.read_text())


def test_a_second_signal_kills_at_once(shell):
    driver = shell.start(*WORDS)
    freeze_workers(shell)  # workers that will not answer
    driver.send_signal(signal.SIGINT)
    said(shell, f"{shell.number}.out", "(a second signal kills them)")  # two at once are one
    assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    assert shell.end(driver).code == 130
    assert workers(shell.folder) == []


def test_a_hanging_worker_is_killed_and_its_run_started_once_more(shell, calm):
    (shell.folder / "runs" / "cache" / "costs.json").unlink()
    # Whom it asks for costs has torch loaded when it starts workers, which takes no seconds then.
    driver = shell.start(*WORDS, "launcher.hang_s=4")
    victim, *others = freeze_workers(shell)
    thaw(others)
    assert "no sign of life for 4 s" in succeeded(shell.end(driver)).out
    assert not Path(f"/proc/{victim}").exists()
    assert shell("table", "killed", "--format", "tidy").out == calm
    assert [kind for _, kind in events(shell)].count("hung") == 1


def test_a_worker_that_keeps_dying_without_progress_is_given_up_and_retried_when_asked(shell):
    words, killed = (*SWEEP, "seeds=1", "launcher.attempts=2"), 0
    driver = shell.start(*words)
    deadline = time.monotonic() + 200
    while driver.poll() is None and time.monotonic() < deadline:
        victims = workers(shell.folder)
        kill(victims)
        killed += len(victims)
        time.sleep(0.01)
    done = shell.end(driver)
    assert done.code == 1
    assert "2 failed of 2 runs" in done.err
    assert "signal SIGKILL" in done.out
    assert killed >= 4
    assert "planned" not in shell("status", "killed").out
    assert "finished:" not in shell(*words, code=1).out  # left alone
    assert shell(*words, INLINE, "--retry", "failed").out.count("finished:") == 2


def test_a_second_driver_says_who_drives_watches_and_takes_over(shell, calm):
    driver = shell.start(*WORDS)
    pids = freeze_workers(shell)
    others = Shell(shell.folder, number=10), Shell(shell.folder, number=20)
    watching = [other.start(*WORDS) for other in others]
    for number in (11, 21):
        said(shell, f"{number}.out", f"process {driver.pid} drives runs already (killed)")
    watching[1].send_signal(signal.SIGINT)  # one that looked long enough
    assert others[1].end(watching[1]).code == 130
    die(driver)
    thaw(pids)
    assert "the other process has ended" in succeeded(others[0].end(watching[0])).out
    check(shell, calm)


def test_stop_from_another_shell_and_of_workers_without_a_driver(shell, calm):
    driver = shell.start(*WORDS)
    pids = freeze_workers(shell)
    other = Shell(shell.folder, number=10)
    assert "'killed' is driven now, not 'else'" in other("stop", "else", code=2).err
    freeze([driver.pid])
    gave_up = other("stop", "--timeout", "0.5", code=75).err
    assert (
        f"process {driver.pid} is frozen; `kill -CONT {driver.pid}` resumes it, and then it stops; "
        "Ctrl-C ends the waiting\n"
    ) in gave_up
    assert gave_up.splitlines()[-1].startswith("ablate: stop: gave up after 0.5 s: process ")
    for pid in pids:
        assert re.search(rf"^process {pid} \((pre|post)#\d\) is frozen; ", gave_up, re.M)
    thaw([driver.pid, *pids])  # they were told
    assert shell.end(driver).code == 128 + signal.SIGTERM
    assert workers(shell.folder) == []
    driver = shell.start(*WORDS)
    pids = freeze_workers(shell)
    die(driver)
    given_up = other.start("stop")
    said(shell, f"{other.number}.err", " is frozen; ")
    given_up.send_signal(signal.SIGINT)
    assert other.end(given_up).code == 130
    assert "stopped killed after" in other("stop", "killed").out  # the second ends them
    assert workers(shell.folder) == []
    assert "nothing trains in the store runs" in other("stop").out
    shell(*WORDS, INLINE)
    check(shell, calm)


def test_stop_returns_although_another_sweep_takes_its_turn(shell):
    driver = shell.start(*WORDS)
    pids = freeze_workers(shell)
    waiting, other = Shell(shell.folder, number=20), Shell(shell.folder, number=10)
    second = waiting.start(*SWEEP[:-1], "after", "seeds=50")
    said(shell, "21.out", "drives runs already")
    stopping = other.start("stop")
    for pid in pids:  # whom the living driver waits for
        said(shell, "11.err", f"process {pid} (")
    thaw(pids)
    assert re.match(r"stopped killed after \d of 4; the s", other.end(stopping).out)
    assert shell.end(driver).code == 128 + signal.SIGTERM
    wait_for(lambda: workers(shell.folder))  # it has its turn, and its drive hears signals
    assert second.poll() is None
    assert "stopped after after" in other("stop").out
    assert waiting.end(second).code == 128 + signal.SIGTERM


def test_the_fork_server_dies_and_its_workers_are_kept(shell, calm):
    driver = shell.start(*WORDS)
    found = freeze_workers(shell)
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    of_server = b"ablate.running.launchers.server"
    (server,) = (p for p in children if of_server in Path(f"/proc/{p}/cmdline").read_bytes())
    kill([int(server)])
    assert set(found) <= set(workers(shell.folder))
    thaw(found)
    succeeded(shell.end(driver))
    check(shell, calm)
