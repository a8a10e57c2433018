"""`sweep --detach`: what it says is so, and what nobody could answer later is asked before."""

import json
import os
import re
import signal
import subprocess
from contextlib import nullcontext

import pytest
from launcher_contract import settings, until

from ablate.run.rundir import RunDir
from ablate.running import detach
from ablate.running.driver_lock import driver_session
from ablate.running.launchers.engine import FileEngine
from ablate.shared.errors import Failure
from ablate.store.progress import driver_of
from ablate.store.store import Store

pytestmark = pytest.mark.whole

SWEEP = ("sweep", "block.attn=pre,post", "model.depth=1")
INLINE = (*SWEEP, "launcher=inline")
LONG = (*INLINE, "train.epochs=100000000000", "--as", "long")
SHORT = (*INLINE, "--as", "short")
HERE = ("--detach", "here")


def test_a_sweep_is_asked_about_before_it_is_left_behind_to_drive_or_wait(shell, monkeypatch):
    monkeypatch.setattr(detach, "BEHIND_S", 2.0)
    store = Store(shell.folder / "runs")
    done = shell(*LONG, *HERE, code=2)
    assert "a sweep of this length needs a confirmation; add --yes" in done.err
    assert not (store.root / "driver.log").exists()

    said = shell(*LONG, *HERE, "--yes").out
    first = re.fullmatch(r"process (\d+) drives runs; log: .*/driver.log\n", said)
    assert first is not None, said
    assert driver_of(store).pid == int(first[1])
    assert store.read_plan("long") is not None

    said = shell(*SHORT, *HERE, "--yes").out
    behind = rf"process (\d+) waits behind process {first[1]}, which drives runs; log: "
    waits = re.match(behind, said)
    assert waits is not None, said
    assert waits[1] != first[1]
    shell("stop", "long")
    until(lambda: (driver := driver_of(store)) is not None and driver.pid == int(waits[1]))
    shell("stop")
    assert driver_of(store) is None


@pytest.mark.parametrize("where", ["here", "job"])
def test_the_cluster_is_asked_before_a_driver_is_left_behind(shell, tmp_path, where):
    words = (*SWEEP, "launcher=slurm", "--detach", where, "--yes")
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("sbatch", "squeue"):
        done = shell(*words, code=1, PATH=str(programs))
        assert done.err.startswith(f"ablate: launcher=slurm: {program}: not found on PATH; start")
        (programs / program).write_text("#!/bin/sh\nexit 1\n")
        (programs / program).chmod(0o755)
    done = shell(*words, code=1, PATH=str(programs))
    assert done.err.startswith("ablate: launcher=slurm: the cluster gives no answer; start ablate")
    assert not (shell.folder / "runs" / "driver.log").exists()


def test_status_tells_how_the_driver_ended_and_proposes_commands_of_its_store(shell):
    store, there = Store(shell.folder / "there"), ("--store", "there")
    goes_on = f"to go on: `ablate {' '.join(LONG)} --store there`"

    def trains(pid: int) -> bool:
        notes = [store.rundir(run).lock.notes() for run in store.folders()]
        return any(note.pid == pid and note.step for note in notes)

    for number, how in (
        (signal.SIGKILL, "died without a word: it was killed, or its host went down"),
        (signal.SIGTERM, "was stopped by SIGTERM"),
    ):
        process = shell.start(*LONG, *there, "--yes")
        until(lambda pid=process.pid: trains(pid), seconds=60)
        assert "its driver" not in (during := shell("status", *there).out)
        assert goes_on not in during
        process.send_signal(number)
        process.wait()
        shell("stop", *there)  # what the driver left
        said = shell("status", *there).out.splitlines()
        assert f"its driver, process {process.pid}, {how}" in said
        assert goes_on in said
    with pytest.raises(Failure), driver_session(store, "long", nullcontext):
        raise Failure("launcher=slurm: the cluster gives no answer")
    said = shell("status", *there).out
    assert f", process {os.getpid()}, ended: launcher=slurm: the cluster gives no answer\n" in said


def test_a_drivers_job_asks_for_what_the_site_requires_and_for_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sbatch, log = tmp_path / "sbatch", tmp_path / "driver.log"
    asked = {
        "mem": "4G",
        "constraint": "avx2",
        "account": "me",
        "gpus": 8,
        "setup": "module load x",
    }
    asked["sbatch"] = "reservation=vit gres=nvme:1 gpu-bind=none exclusive hold"
    own = settings("slurm", **asked)

    def submit(end: str) -> str:
        keeps = f"printf '%s\\n' \"$@\" >{tmp_path}/words\ncat >{tmp_path}/script"
        sbatch.write_text(f"#!/bin/sh\n{keeps}\n{end}\n")
        sbatch.chmod(0o755)
        return FileEngine(own, tmp_path, "token").submit_driver(["python", "a b"], log)

    assert submit("echo '7;cluster'") == "7"
    words = (tmp_path / "words").read_text()
    for option in ("account=me", "constraint=avx2", "mem=4G", "reservation=vit", "hold"):
        assert f"--{option}\n" in words
    assert not re.search("gpu|gres|exclusive", words)
    script = (tmp_path / "script").read_text().splitlines()
    assert script[0] == "#!/bin/bash"
    assert script[2:] == ["module load x", "exec python 'a b'"]
    for end, why in (
        ("echo 'sbatch: error: no account' >&2; exit 1", "no account"),
        ("exit 3", "ended with 3"),
    ):
        with pytest.raises(Failure) as refused:
            submit(end)
        line = str(refused.value)
        assert line.startswith(f"--detach job: sbatch: {why} (asked with ")
        for value in ("launcher.account=me", "'launcher.sbatch=reservation=vit gres=nvme:1 "):
            assert value in line
        assert "launcher.gpus" not in line  # it has none
        assert line.endswith("; change the setting that it refuses, or try again later")
    sbatch.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match=r"sbatch: No such file .*; start ablate on a host that can "):
        FileEngine(own, tmp_path, "token").submit_driver(["python"], log)


def test_a_stop_is_heard_while_torch_loads_for_a_run_in_the_drivers_process(shell):
    for _ in range(2):  # the second time data are decoded and measured, so torch loads for the run
        shell(*LONG, *HERE, "--yes")
        assert shell("stop", "--timeout", "60").out
    assert not [*(shell.folder / "runs" / "runs").glob("*/result.json")]


def test_the_runs_of_a_driver_left_behind_record_a_command_that_can_be_typed(shell):
    words = ("sweep", *INLINE[1:], "train.steps=1", "seeds=1", "--yes")
    shell(*words, *HERE)
    folders = shell.folder / "runs" / "runs"
    until(lambda: len([*folders.glob("*/result.json")]) == 2)
    for folder in folders.iterdir():
        (attempt,) = RunDir(folder).read_attempts()
        assert attempt["origin"]["command"] == ["ablate", *words]


# --- A driver that has not begun ------------------------------------------------------------------

# A git that answers once the file `go` is there; each plan asks it about the folder.
GIT = """#!/bin/sh
touch planning
while [ ! -e go ]; do sleep 0.02; done
exit 1
"""


@pytest.fixture
def slow_plan(shell, monkeypatch):
    """A folder with a store, where planning takes until the file `go` is there."""
    shell(*INLINE, "train.steps=1", "seeds=1", "--as", "old")
    (shell.folder / "git").write_text(GIT)
    (shell.folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shell.folder}:{os.environ['PATH']}")
    return shell


LATE = (*INLINE, "train.steps=2", "seeds=1", "--as", "late")


@pytest.mark.parametrize(
    ("named", "code", "how"),
    [
        ((), 0, ()),
        (("late",), 2, HERE),
        pytest.param(("old",), 0, (), marks=pytest.mark.slow),
        pytest.param((), 0, HERE, marks=pytest.mark.slow),
        pytest.param(("late",), 2, (), marks=pytest.mark.slow),
        pytest.param(("old",), 0, HERE, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_still_plans_hears_of_a_stop(slow_plan, how, named, code):
    folder = slow_plan.folder
    process = slow_plan.start(*LATE, *how)
    until((folder / "planning").exists)
    slow_plan("stop", *named, code=code)
    (folder / "go").touch()
    done = slow_plan.end(process)
    results = len([*(folder / "runs" / "runs").glob("*/result.json")])
    if named:  # another sweep, or one that the store does not know yet
        assert done.code == 0
        until(lambda: len([*(folder / "runs" / "runs").glob("*/result.json")]) == 4)
        return
    assert done.code == (1 if how else 128 + signal.SIGTERM)
    assert results == 2
    slow_plan(*LATE)  # the order was for those that had begun
    assert len([*(folder / "runs" / "runs").glob("*/result.json")]) == 4


@pytest.fixture
def run_stopped_job(shell, tmp_path, monkeypatch):
    """A Slurm whose job 7 starts when this is called: it ends by the stop, before its first run."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for program, body in (("sbatch", f"cat >{tmp_path}/script\necho 7"), ("squeue", "")):
        (programs / program).write_text(f"#!/bin/sh\n{body}\n")
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def run() -> None:
        words = ["bash", tmp_path / "script"]
        job = subprocess.run(words, capture_output=True, text=True, check=False)
        assert job.returncode == 128 + signal.SIGTERM, job.stderr
        assert not [*(shell.folder / "runs" / "pilots").glob("*/orders.json")]

    return run


def test_a_job_that_is_to_drive_is_awaited_and_stopped(shell, run_stopped_job):
    shell(*SWEEP, "launcher=slurm", "--detach", "job", "--yes", "--as", "queued")
    wait = ("status", "queued", "--wait", "--timeout", "4", "--format", "json")
    assert json.loads(shell(*wait, code=75).out)["retry"] is True  # it has no plan yet
    shell(*INLINE, "train.steps=1", "--as", "short")
    assert "job 7" not in shell("status", "short").out
    stopped = shell("stop", "--format", "json")
    assert json.loads(stopped.out)["sweep"] == "queued"
    assert "`scancel 7`" in stopped.err
    shell("status", "queued", code=2)
    run_stopped_job()


def test_a_stop_of_a_driven_sweep_reaches_its_job_in_the_queue(shell, run_stopped_job):
    words = [word for word in LONG if not word.startswith("launcher=")]
    shell(*words, "launcher=slurm", "--detach", "job", "--yes")
    shell(*LONG, *HERE, "--yes")  # the user did not wait
    assert shell("stop").out
    run_stopped_job()


def test_a_stop_leaves_folders_alone_that_are_no_store(shell):
    (shell.folder / "other").mkdir()
    shell("stop", "--store", "other", code=2)
    assert not [*(shell.folder / "other").iterdir()]


def test_a_job_that_is_to_drive_a_sweep_again_counts_as_its_driver(shell, tmp_path):
    shell(*LONG, *HERE, "--yes")
    shell("stop", "long")
    store = Store(shell.folder / "runs")
    store.note_submitted("long", "7", "scancel 7")
    wait = ("status", "long", "--wait", "--timeout", "4", "--format", "json")
    tree = json.loads(shell(*wait, code=75).out)
    assert (tree["driven"], tree["submitted"]) == (False, "7")
    assert "job 7" in shell("status", "long").out.splitlines()[0]
    with driver_session(store, "long", nullcontext):
        assert store.submitted_driver() is None
