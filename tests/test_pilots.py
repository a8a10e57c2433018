"""Pilots, on an engine of processes: the launchers' contract, and what is only theirs: hosts that
die, drivers that come back, limits, and workers that wake up after they were given up."""

import contextlib
import errno
import itertools
import mmap
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvidia
import process_engine
import pytest
from conftest import contents
from launcher_contract import end, settings, until
from support.pilots import CPUS, PilotContract, offer_slots
from support.plans import small_plan

from ablate.run import decoded
from ablate.run.rundir import RunDir
from ablate.running import attempts
from ablate.running.launchers import jobs, pilot_steps, pilots
from ablate.running.launchers.pilot import NodeCache
from ablate.running.launchers.pilots import PilotLauncher
from ablate.shared.errors import Failure, UserError
from ablate.store import pilots as exchange
from ablate.store.ledger import Ledger
from ablate.store.pilots import check_proof, read_beat, write_proof
from ablate.store.store import Store

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True, scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BEAT_S", "LOOK_S"):
            patch.setattr(pilots, name, 0.1)
        patch.setattr(jobs, "ASK_S", 0.1)
        patch.setattr(pilot_steps, "GONE_S", 0.5)
        yield


@contextlib.contextmanager
def flown(root: Path, given: dict[str, Any], jobs: int | None = 1) -> Iterator[PilotLauncher]:
    """A launcher whose so many jobs end by themselves when it does; None: any number, of which it
    may cancel those that have no pilot yet, but not the first."""
    (root / "cache").mkdir(parents=True)
    made, engine = process_engine.launcher(given, root)
    yield made
    made.free()
    exit_codes = {name: job.wait(60) for name, job in engine.jobs.items()}
    own_end = [code for name, code in exit_codes.items() if name not in engine.cancelled]
    if jobs is None:
        assert "0" not in engine.cancelled
        assert {*own_end} == {0}
        assert {*exit_codes.values()} <= {0, -signal.SIGKILL}
    else:
        assert [*exit_codes.values()] == [0] * jobs


class TestPilots(PilotContract):
    name = "slurm"

    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls, store) -> Iterator[PilotLauncher]:
        made, engine = process_engine.launcher(CPUS, store.root)
        yield offer_slots(made)
        made.free()
        assert [job.wait(60) for job in engine.jobs.values()] == [0]

    def test_a_worker_that_was_given_up_writes_where_nobody_reads(self, launcher, folder):
        """Stopped through its successor's whole run, it then goes on to a result of its own."""
        first = folder("train.steps=120")
        launcher.start(first, launcher.slots[0])
        until(lambda: (first.lock.notes().step or 0) > 0, pause=0.001)
        until(lambda: first.lock.notes().pid, pause=0.001)  # a read during a write finds nothing
        pid = first.lock.notes().pid
        os.kill(pid, signal.SIGSTOP)
        assert not first.has_result()
        second = self.again(first)
        launcher.start(second, launcher.slots[1])
        assert end(launcher, second) == [0]
        attempts.publish(self.store, first.id)
        published = self.store.rundir(first.id)
        before = contents(published.path)
        assert "result.json" in before
        assert not published.path.is_symlink()
        assert not second.path.exists()

        os.kill(pid, signal.SIGCONT)
        assert end(launcher, first) == [0]
        assert first.has_result()
        assert contents(published.path) == before


@pytest.fixture
def machine(tmp_path, monkeypatch) -> nvidia.Machine:
    """Of all jobs; GPUs and CUDA are a stand-in."""
    made = nvidia.Machine(tmp_path / "machine")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in made.stand_in.items():
        monkeypatch.setenv(name, value)
    return made


PAIRS = settings("slurm", gpus=4, gpus_per_run=2, jobs=3, nodes=2)


def test_groups_of_a_jobs_gpus_are_its_slots(tmp_path, machine):
    machine.has([nvidia.gpu(n) for n in range(5)])
    with flown(tmp_path / "runs", PAIRS) as made:
        assert made.most == 2 * 2 * 3  # of jobs, nodes and pairs
        names = [slot.name.partition("/")[2] for slot in offer_slots(made).slots]
        assert names == ["gpu:0+1", "gpu:2+3"]


def test_where_the_number_is_open_a_job_has_groups_of_every_size(tmp_path, machine):
    machine.has([nvidia.gpu(n) for n in range(4)])
    given = {**PAIRS, "gpus_per_run": "auto", "nodes": 1}
    with flown(tmp_path / "runs", given, jobs=2) as made:
        assert (made.worlds, made.most) == ([1, 2, 4], 4 * 3)
        slots = {slot.name.partition("/")[2]: slot for slot in offer_slots(made).slots}
        assert [*slots] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3", "gpu:0+1", "gpu:2+3", "gpu:0+1+2+3"]
        beside = {(a, b) for a in slots for b in slots if slots[a].takes.isdisjoint(slots[b].takes)}
        assert ("gpu:0+1", "gpu:2+3") in beside
        whole = {("gpu:0+1+2+3", "gpu:2"), ("gpu:0+1+2+3", "gpu:0+1")}
        assert not {("gpu:0+1", "gpu:1"), *whole} & beside
        made.offer(5, ())  # devices are waited for: five are two jobs of four
        until(lambda: not made.poll(0.1) and not made.offer(5, ()) and len(made.slots) == 14)


def test_a_node_with_fewer_gpus_than_a_run_takes_is_not_used(tmp_path, machine):
    machine.has([nvidia.gpu(0)])
    with flown(tmp_path / "runs", PAIRS, jobs=None) as made:  # the next may be asked for
        said: list[str] = []
        until(lambda: made.poll(0.1) or said.extend(made.offer(1, ())) or said)
        why = "launcher.gpus_per_run: 2, and 1 GPU is used here; give at most 1, or auto"
        assert said[0] == f"host0: not used: {why}"
        assert not made.slots


NO_GPU = "2, and runs train on CPUs; give at most 1, or auto$"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gpus": 2, "gpus_per_run": 4}, r"4, and a node's job has 2 GPUs \(launcher.gpus\); give"),
        ({"gpus": 0, "gpus_per_run": 2}, NO_GPU),
        ({"devices": "cpu", "gpus": 2, "gpus_per_run": 2}, NO_GPU),
        ({"gpus": 8, "gpus_per_run": 3}, "expected one of auto, 1, 2, 4, 8, got 3$"),
        ({"gpus": 2, "gpus_per_run": 2, "runs_per_gpu": 2}, "a run has its GPUs alone; "),
    ],
)
def test_groups_that_no_node_can_have_are_refused(given, why, tmp_path):
    with pytest.raises(UserError, match=f"^launcher.gpus_per_run: {why}"):
        process_engine.launcher(settings("slurm", **given), tmp_path)


def test_a_host_without_the_store_or_its_data_is_no_pilot(tmp_path):
    (tmp_path / "pilots").mkdir()
    meta = tmp_path / "cache" / "f" / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text("{}")
    write_proof(tmp_path, "token")
    check_proof(tmp_path, "token")
    with pytest.raises(Failure, match=r"does not see the driver's store in "):
        check_proof(tmp_path, "another")
    meta.write_text("{ }")
    with pytest.raises(Failure, match=r"does not see the data f in .*/cache"):
        check_proof(tmp_path, "token")
    with pytest.raises(Failure, match="does not see the driver's store"):
        check_proof(tmp_path / "elsewhere", "token")


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """Of a driver that says nothing, or a pilot without orders, nothing may be concluded."""
    stale = OSError(errno.ESTALE, "Stale file handle")
    answers = [stale, stale, stale, {"beat": 1}]

    def read(path: Path) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(exchange, "read_json", read)
    assert read_beat(tmp_path / "driver.json") == {"beat": 1}
    answers += [stale] * 100
    with pytest.raises(OSError, match="Stale file handle"):
        read_beat(tmp_path / "driver.json")
    answers[:] = [PermissionError(errno.EACCES, "no")]
    with pytest.raises(PermissionError):
        read_beat(tmp_path / "driver.json")


def test_every_set_of_a_run_is_copied_to_the_node_whenever_it_lacks(tmp_path, monkeypatch):
    shared, node = tmp_path / "runs" / "cache", tmp_path / "node"
    for name in ("own", "beside"):
        (shared / name).mkdir(parents=True)
        (shared / name / "meta.json").write_text(name)
    monkeypatch.setattr(decoded, "damage", lambda home: None)
    run = RunDir(tmp_path / "runs" / "attempts" / "1" / "a0")
    also = [{"fingerprint": "beside"}, {"fingerprint": "gone"}]
    run.create({"data": {"fingerprint": "own"}, "eval": {"also": also}})
    cache = NodeCache(shared, str(node))
    assert not cache.has(run)
    until(lambda: cache.has(run))
    assert sorted(path.parent.name for path in node.glob("*/meta.json")) == ["beside", "own"]
    shutil.rmtree(node / "beside")
    assert not cache.has(run)
    until(lambda: cache.has(run))
    assert (node / "beside" / "meta.json").read_text() == "beside"


def test_a_folder_of_a_node_may_be_below_the_home_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert NodeCache(tmp_path / "shared", "~/data").path == tmp_path / "data"


MOUNT = ("bindfs", "-o", "direct_io")  # a FUSE file system on which no memory can be shared


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which(MOUNT[0]) is None, reason=f"needs {MOUNT[0]}")
class TestPilotsOnFuse(TestPilots):
    """The same on a mount without shared memory; data lies elsewhere, since it is mapped."""

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory, cache) -> Iterator[Store]:
        behind, root = (tmp_path_factory.mktemp(name) for name in ("behind", "mounted"))
        subprocess.run([*MOUNT, str(behind), str(root)], check=True)
        try:
            cache.mkdir(exist_ok=True)
            (root / "cache").symlink_to(cache)
            yield Store(root)
        finally:
            subprocess.run(["fusermount3", "-u", str(root)], check=True)

    def test_no_memory_is_shared_here_and_the_ledger_works(self, store):
        with open(store.root / "file", "w+b") as file:
            file.write(b"one page" * 512)
            file.flush()
            with pytest.raises(OSError, match="No such device"):
                mmap.mmap(file.fileno(), 4096)
        with Ledger.driving(store) as ledger:
            assert ledger.rows((str,), "PRAGMA journal_mode") == [("delete",)]
            ledger.plan(small_plan())
            with Ledger.reading(store) as reader:
                ledger.record("a0", "started", step=0)
                assert reader.states()["a0"].status == "started"


@pytest.mark.parametrize("first", [None, {}])
def test_a_cluster_ends_the_sweep_where_it_never_answered(tmp_path, monkeypatch, first):
    monkeypatch.setattr(jobs, "ASK_S", 0.0)
    monkeypatch.setattr(pilots, "LOOK_S", 0.0)
    ends = pytest.raises(Failure, match=r"^launcher=slurm: the cluster gives no answer; ")
    with flown(tmp_path / "runs", CPUS, jobs=0) as made:
        answers = itertools.chain([first], itertools.repeat(None))
        monkeypatch.setattr(made._jobs._engine, "states", answers.__next__)
        said: list[str] = []
        with ends if first is None else contextlib.nullcontext():
            while not any("gives no answer" in line for line in said):
                said += made.offer(0, ())
                made.poll(0.05)
