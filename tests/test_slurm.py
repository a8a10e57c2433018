"""A sweep on a real Slurm: whatever dies meanwhile, nothing is lost, doubled or changed.

The cluster is this host's own (see `slurm_cluster`): three nodes with fake GPUs. Runs take long
because their norm sleeps, not because they compute.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nvidia
import pytest
import slurm_cluster
from conftest import Shell, wait_for
from slurm_cluster import SlurmCluster
from support.far_sweeps import CPU, OFTEN, ROWS, SELDOM, check, share_data, train, train_here
from support.programs import TRAIN, attempts, declare, expected_loss, results
from support.ranks import GROUP, QUICK, children, predictions, results_by_run, train_on_ranks

from ablate.store.ledger import Ledger
from ablate.store.pilots import read_beat, store_token
from ablate.store.store import Store

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(slurm_cluster.lacks()), reason=slurm_cluster.lacks() or "-"),
]
SLURM = ("launcher=slurm", *CPU, "launcher.jobs=2", "launcher.grace_s=15")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    base = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    made = SlurmCluster(base)
    yield made
    made.end()
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    """The sweep, trained here."""
    return train_here(Shell(tmp_path_factory.mktemp("calm")))


def start(shell: Shell, cluster: SlurmCluster, calm: Shell, *words: str, sleep=0.06, limits=OFTEN):
    """The sweep, on the cluster."""
    share_data(shell, calm)
    environment = {**cluster.environment, "SLEEP": str(sleep)}
    return shell.start("sweep", *ROWS, *limits, *SLURM, *words, **environment)


@pytest.fixture(scope="module", autouse=True)
def long(cluster, calm, tmp_path_factory) -> Iterator[tuple[Shell, subprocess.Popen]]:
    """Runs of three minutes in jobs of one, beside all other tests and what happens there."""
    shell = Shell(tmp_path_factory.mktemp("long"))
    words = ("seeds=1", "launcher.time=1")
    process = start(shell, cluster, calm, *words, sleep=1.0, limits=SELDOM)
    yield shell, process
    process.kill()
    process.wait()


@pytest.fixture
def sweep(shell, cluster, calm) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts the sweep, of four runs; in the end its jobs are gone."""
    started = []

    def begin(*words: str, **more: Any) -> subprocess.Popen:
        words = ("seeds=2", "launcher.time=10", *words)
        started.append(start(shell, cluster, calm, *words, **more))
        return started[-1]

    yield begin
    print(cluster.state())  # which is shown where the test failed
    for path in sorted(shell.folder.glob("*.out")):
        print(path.read_text()[-4000:])
    for process in started:
        process.kill()
        process.wait()
    name = f"ablate-{store_token(shell.folder / 'runs')}"
    cluster.output("scancel", "-n", name)
    wait_for(lambda: not cluster.output("squeue", "-h", "-n", name))


def all_stopped(shell: Shell, may_die: bool = False) -> None:
    """Every attempt but the last of its run left a checkpoint, since it was asked to. `may_die`:
    some were killed with their node, and wrote none."""
    store, exits = Store(shell.folder / "runs"), []
    with Ledger.reading(store) as ledger:
        for run in store.read_plan("s").runs():
            events = ledger.events(run.id)
            assert {kind for _, kind, _ in events} <= (
                {"planned", "started", "interrupted", "finished"}
            )
            steps = [detail["step"] for _, kind, detail in events if kind == "started"]
            assert steps == sorted(steps)
            *before, last = store.rundir(run.id).read_attempts()
            assert last.get("from_step", 0) == steps[-1]
            assert not before or steps[-1] > 0
            exits += [attempt.get("exit") for attempt in before]
    assert {"stopped"} <= {*exits} <= {"stopped", *([None] if may_die else [])}


def test_a_sweep_with_data_on_the_nodes_has_the_bytes_of_the_local_one(
    shell, sweep, calm, tmp_path
):
    process = sweep(f"launcher.cache={tmp_path}/node", sleep=0)
    assert check(shell, process, calm) == [1, 1, 1, 1]
    (shared,) = (shell.folder / "runs" / "cache").glob("*/meta.json")
    (copied,) = (tmp_path / "node").glob("*/meta.json")
    assert copied.read_bytes() == shared.read_bytes()


@pytest.fixture
def paired(shell, cluster, tmp_path, monkeypatch):
    """`paired(words, *more)`: starts a sweep with two GPUs for each run; what runs touch. GPUs and
    CUDA are a stand-in; Slurm hands out two of each node."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = nvidia.Machine(tmp_path / "machine", nvidia.gpu(0), nvidia.gpu(1))
    given = ("launcher=slurm", "launcher.gpus=2", "launcher.cpus=1", "launcher.gpus_per_run=2")
    environment = {**cluster.environment, **machine.stand_in}

    def begin(words: Sequence[str], *more: str) -> tuple[subprocess.Popen, nvidia.Machine]:
        words = (*words, *given, "launcher.time=10", "--yes", *more)
        return shell.start("sweep", *words, **environment), machine

    return begin


def ended_as_alone(shell: Shell, driver: subprocess.Popen, folder: Path, words) -> str:
    """With the predictions of runs on one rank; what it said."""
    done = shell.end(driver, timeout=400)
    assert done.code == 0, done.out + done.err
    assert predictions(results_by_run(shell)) == predictions(
        train_on_ranks(1, folder / "alone", *words)
    )
    return done.out + done.err


def test_runs_on_pairs_of_a_nodes_gpus_have_the_bits_of_one(shell, paired, tmp_path):
    words = (*QUICK[:-1], "stem=none,dpn", "train.micro_batch=16", "seeds=2")
    driver, machine = paired(words, "launcher.jobs=3")
    ended_as_alone(shell, driver, tmp_path, words)
    assert [visible for what, visible, _ in machine.touched() if what == "run"] == [GROUP] * 4
    ran = (shell.folder / "runs" / "runs").glob("*/result.json")
    assert [json.loads(path.read_text())["ranks"] for path in ran] == [2] * 4


@pytest.mark.slow
def test_a_rank_that_dies_on_a_pilot_is_named_and_its_run_goes_on(shell, paired, tmp_path):
    words = (*QUICK[:3], "stem=none,dpn", "train.micro_batch=16", "train.steps=500", "seeds=1")
    driver, _ = paired(words, "launcher.checkpoint_s=0.2")
    os.kill(*wait_for(lambda: children(shell), 200), signal.SIGKILL)
    said = ended_as_alone(shell, driver, tmp_path, words)
    assert "rank 1 of 2 died (signal SIGKILL)" in said


def test_programs_are_stopped_killed_and_resumed_as_here(shell, cluster, monkeypatch):
    """Each attempt elsewhere goes on from a copy of the folder of the one before."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (shell.folder / "train.py").write_text(TRAIN)
    declare(shell.folder, resume="--resume {folder}/last.json")
    words = ("sweep", "trainer=toy", "trainer.lr=0.1,0.2", "trainer.steps=20", "seeds=1")
    words = (*words, "trainer.pause=0.4", *SLURM, "launcher.time=10", "launcher.attempts=9")
    process = shell.start(*words, **cluster.environment)

    def with_saved() -> list[int]:
        """Pilots whose program has saved: one of the others has nothing to go on from."""
        beats = map(read_beat, shell.folder.glob("runs/pilots/*/beat.json"))
        saved = shell.folder / "runs" / "attempts"
        return [
            beat["pid"]
            for beat in beats
            if any((saved / one / "scratch" / "last.json").exists() for one in beat.get("runs", {}))
        ]

    os.kill(wait_for(with_saved)[0], signal.SIGKILL)
    assert shell.end(process).code == 0
    found = [each["test"]["loss"] for each in results(shell.folder).values()]
    assert sorted(found) == sorted(expected_loss(lr, 0, 20) for lr in (0.1, 0.2))
    assert any(each["resumed"] for each in attempts(shell.folder))


def test_a_killed_pilot(shell, sweep, calm):
    process = sweep()
    os.kill(train(shell)[0]["pid"], signal.SIGKILL)
    assert 5 <= sum(check(shell, process, calm)) <= 6


def test_a_pilot_that_is_cancelled_by_hand(shell, sweep, calm, cluster):
    process = sweep()
    cluster.output("scancel", train(shell)[0]["job"])
    assert 5 <= sum(check(shell, process, calm)) <= 6


def test_a_killed_slurmd_takes_its_node_away_for_a_while(shell, sweep, calm, cluster):
    process = sweep()
    node = train(shell)[0]["host"]
    cluster.kill(f"slurmd.{node}")
    # sinfo calls a node "completing" for a minute that is down while a job of it is requeued.
    wait_for(lambda: "State=DOWN" in cluster.output("scontrol", "show", "node", node))
    cluster.start_node(node)
    check(shell, process, calm)
    cluster.wait_for_nodes()


@pytest.mark.slow
def test_a_killed_slurmctld_is_not_missed(shell, sweep, calm, cluster):
    process = sweep(sleep=0.15)
    train(shell)
    # Of jobs that it has forgotten it gives the numbers to others, and drains their nodes
    # ("Duplicate jobid"), until an administrator looks. It writes all at once, a job of now, too.
    cluster.output("sbatch", "-H", "-J", "written-by-now", "-o", "/dev/null", "--wrap", "true")
    state = cluster.base / "state" / "job_state"
    wait_for(lambda: state.exists() and b"written-by-now" in state.read_bytes())
    cluster.kill("slurmctld")
    time.sleep(10)
    cluster.start_controller()
    assert check(shell, process, calm) == [1, 1, 1, 1]
    cluster.output("scancel", "-n", "written-by-now")


def test_a_killed_driver_is_followed_by_one_that_adopts(shell, sweep, calm):
    process = sweep()
    train(shell)
    process.kill()
    process.wait()
    assert check(shell, sweep(), calm) == [1, 1, 1, 1]


@pytest.mark.slow
def test_preempted_pilots_leave_checkpoints_and_come_again(shell, sweep, calm, cluster):
    process = sweep(limits=SELDOM, sleep=0.15)  # Slurm may take half a minute to preempt
    train(shell)
    words = ("sbatch", "--parsable", "-p", "high", "-N", "3", "--exclusive", "-o", "/dev/null")
    wait_for(lambda: cluster.output(*words, "--wrap", "sleep 5"))
    wait_for(lambda: cluster.output("squeue", "-h", "-p", "high", "-t", "R,CG,CD"))
    assert 5 <= sum(check(shell, process, calm)) <= 6
    all_stopped(shell)


def test_the_signal_before_a_limit_reaches_every_process_of_a_job(shell, sweep, calm, cluster):
    process = sweep(limits=SELDOM)
    cluster.output("scancel", "--signal=USR2", train(shell)[0]["job"])
    assert 5 <= sum(check(shell, process, calm)) <= 6
    all_stopped(shell)


def test_stop_status_and_log_from_another_host(shell, sweep, calm, monkeypatch):
    process = sweep(sleep=1)
    train(shell)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "another")
        assert shell("status", "s").out.count("running: ") == 2
        run = next((shell.folder / "runs" / "runs").iterdir())
        assert shell("show", run.name, "--log").out == (run / "log.txt").read_text()
        assert "stopped s after 0 of 4" in shell("stop").out
    assert shell.end(process).code == 128 + signal.SIGTERM
    assert len(list((shell.folder / "runs" / "runs").glob("*/checkpoint-*"))) >= 2
    check(shell, sweep(sleep=0), calm)


def test_a_full_disk_is_waited_for(shell, sweep, calm):
    runs = shell.folder / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(runs)], check=True)
    try:
        process = sweep()
        train(shell)
        with contextlib.suppress(OSError), open(runs / "fill", "wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        said = shell.folder / f"{shell.number}.out"
        wait_for(lambda: "is full; free some space" in said.read_text())
        (runs / "fill").unlink()
        check(shell, process, calm)
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


@pytest.mark.parametrize("where", ["here", "job"])
def test_a_driver_that_is_left_behind(shell, sweep, calm, where):
    setup = "launcher.setup='[[ -n bash ]] && touch by-$SLURM_JOB_NAME'"
    done = shell.end(sweep("--detach", where, setup, sleep=0))
    assert done.code == 0, done.err
    assert " drives " in done.out
    log = shell.folder / "runs" / "driver.log"
    wait_for(lambda: log.exists() and "**s. Trained on" in log.read_text())
    assert check(shell, sweep(sleep=0), calm) == [1, 1, 1, 1]
    ran = {path.name for path in shell.folder.glob("by-*")}
    pilots = f"by-ablate-{store_token(shell.folder / 'runs')}"
    assert ran == {pilots, *(["by-ablate-driver"] if where == "job" else [])}


@pytest.mark.parametrize("where", [(), ("--detach", "job")])
def test_what_sbatch_refuses_is_one_line_with_the_setting(shell, sweep, where):
    done = shell.end(sweep("launcher.partition=nowhere", *where))
    assert done.code == 1
    [line] = done.err.splitlines()
    place = " ".join(where) or "launcher=slurm"
    assert line.startswith(f"ablate: {place}: sbatch: invalid")
    assert "(asked with launcher.partition=nowhere " in line
    assert "launcher.sbatch=OPTION=null" in line


STRICT = """\
#!/bin/sh
for word in "$@"; do
  case "$word" in
    --gpus-per-node*|--mem=*)
      echo "sbatch: error: ${word%%=*} is not allowed here, use --gres and --mem-per-cpu" >&2
      exit 1;;
  esac
done
exec SBATCH "$@"
"""


def test_a_site_that_takes_only_its_own_options_is_served_by_keys(shell, cluster, calm, tmp_path):
    strict = tmp_path / "bin" / "sbatch"
    strict.parent.mkdir()
    strict.write_text(STRICT.replace("SBATCH", str(shutil.which("sbatch"))))
    strict.chmod(0o755)
    share_data(shell, calm)
    environment = {**cluster.environment, "PATH": f"{strict.parent}:{os.environ['PATH']}"}
    words = ("sweep", *ROWS, *OFTEN, *SLURM, "seeds=2", "launcher.time=10")
    done = shell.process(*words, code=1, **environment)
    [line] = done.err.splitlines()
    assert "--gpus-per-node is not" in line
    assert "launcher.sbatch=" in line
    keys = "launcher.sbatch='gpus-per-node=null gres=gpu:1 mem-per-cpu=100M'"
    assert check(shell, shell.start(*words, keys, **environment), calm) == [1, 1, 1, 1]


def test_a_node_that_does_not_see_the_store_is_not_used(shell, sweep, cluster):
    process = sweep("launcher.setup=mv runs/cache runs/hidden")
    done = shell.end(process)
    assert done.code == 1
    assert "no node can be used: job " in done.err
    assert "ended before its pilot was seen" in done.out
    log = Path(done.err.strip().rpartition(": see ")[2])
    assert log.parent == shell.folder / "runs" / "pilots" / "jobs"
    why = next(line for line in log.read_text().splitlines() if line.startswith("ablate: "))
    assert " does not see the data " in why
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    bool(slurm_cluster.lacks(accounting=True)), reason=slurm_cluster.lacks(accounting=True) or "-"
)
def test_a_killed_and_a_cancelled_pilot_where_slurm_keeps_accounts(shell, calm):
    base = Path(tempfile.mkdtemp(prefix="sa", dir="/tmp"))
    cluster = SlurmCluster(base, accounting=True)
    try:
        process = start(shell, cluster, calm, "seeds=2", "launcher.time=10")
        killed, cancelled = train(shell)
        os.kill(killed["pid"], signal.SIGKILL)
        cluster.output("scancel", cancelled["job"])
        assert 6 <= sum(check(shell, process, calm)) <= 7
        ends = (f"{killed['job']}|FAILED", f"{cancelled['job']}|CANCELLED")
        words = ("sacct", "-n", "-X", "-P", "-o", "JobID,State")
        wait_for(lambda: all(end in cluster.output(*words) for end in ends))
    finally:
        cluster.end()
        shutil.rmtree(base, ignore_errors=True)


def test_runs_of_three_minutes_in_jobs_of_one(long, calm):
    shell, process = long
    assert min(check(shell, process, calm, runs=2)) >= 3
    all_stopped(shell, may_die=True)  # other tests kill slurmd beside it
