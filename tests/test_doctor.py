"""`ablate doctor`: what is amiss it names, with what helps; and resuming is tried for real."""

import contextlib
import json
import os
import platform
import random
import re
import shutil
import sqlite3
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import torch
from conftest import ABLATE, REPOSITORY, Shell, contents
from safetensors.torch import load

from ablate.audit.doctor import check_store, machine, resume_check, stored
from ablate.cli import keeping
from ablate.data.cache import prepare_cache
from ablate.planning import compose
from ablate.run.build import build_run
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running.gpus import Gpu
from ablate.running.launchers import Slot
from ablate.running.launchers.local import slots
from ablate.shared.errors import Failure, UserError
from ablate.store.folder import WRITES_AGAIN
from ablate.store.store import Store
from ablate.training import resume_check as training
from ablate.training import sealed_file, worker
from ablate.version import FORMAT, __version__

GOLDEN = Path(__file__).parent / "golden" / "store"
TINY = ("model.arch=mu/4", "model.depth=1", "data=digits")
RICH = (*TINY, "norm=batchnorm", "model.dropout=0.1", "model.drop_path=0.1", "train.ema=0.9")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Shell:
    """A shell beside ./runs: 6 finished runs of the sweep "fixture", and the digits decoded."""
    shell = Shell(tmp_path_factory.mktemp("doctor"))
    store = Store(shutil.copytree(GOLDEN, shell.folder / "runs"))
    prepare_cache(build_run(spec_of(store).tree).data, store.cache)
    return shell


@pytest.fixture
def store(healthy, tmp_path) -> Store:
    """A copy of it that a test may damage."""
    return Store(shutil.copytree(healthy.folder / "runs", tmp_path / "runs"))


@pytest.fixture(autouse=True)
def torch_as_before():
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def amiss(store: Store) -> list[tuple[str, str, str]]:
    return [(f.level, f.check, f.text) for f in check_store(store) if f.level != "ok"]


def spec_of(store: Store, *words: str) -> RunSpec:
    return RunSpec.of(compose.resolve_run((*TINY, *words), store.root)[0])


# --- Resuming -----------------------------------------------------------------------------------


def test_a_healthy_store_and_a_resumable_config(healthy):
    """Dropout, drop-path, an average of the weights and batch statistics; nothing is changed."""
    before = contents(healthy.folder / "runs")
    done = healthy("doctor", *RICH)
    assert contents(healthy.folder / "runs") == before
    lines = done.out.splitlines()
    assert {line.split()[0] for line in lines} == {"ok", "..."}
    for line in (
        f"ok       versions  ablate {metadata.version('ablate-sweep')}, python ",
        "ok       slots     launcher=local trains ",
        "ok       workers   start with MALLOC_MMAP_THRESHOLD_=8589934592 ",
        "ok       disk      all of these work: flock, fsync and os.replace, posix_fallocate, ",
        f"ok       ledger    format {FORMAT}, integrity_check ok, 1 sweep",
        "ok       plans     1 plan",
        "ok       takes     runs ",
        "ok       driver    no driver, no worker",
        "ok       runs      6 runs: 6 finished",
        "ok       data      data=digits is decoded",
        "ok       resume    resume is bit-exact: ",
    ):
        assert any(found.startswith(line) for found in lines), line
    assert lines[-1].endswith(" equal after 6 steps, with and without a stop after step 3")
    assert int(lines[-1].split(": ")[1].split()[0]) > 80  # weights, buffers, moments, average


LAYER = """
import itertools
from torch import nn

number = itertools.count()

class Layer(nn.Module):
    mixes_tokens = False

    def __init__(self, shape):
        super().__init__()
        self.calls = 0
        self.own = 1 + 0.1 * next(number)  # as if it were drawn

    def forward(self, x):
        self.calls += 1
        return x * FACTOR
"""
FORGETFUL = LAYER.replace("FACTOR", "(1 + 0.01 * self.calls)")
RANDOM = LAYER.replace("FACTOR", "self.own")


def test_state_outside_the_checkpoint_is_found(shell, healthy):
    (shell.folder / "forgetful.py").write_text(FORGETFUL)
    store = healthy.folder / "runs"
    done = shell("doctor", *TINY, "norm=forgetful:Layer", "--store", store, code=1)
    last = done.out.splitlines()[-1]
    assert last.startswith(
        "problem  resume    resume is not bit-exact: after 6 steps model.blocks.0"
    )
    assert ".weight differs, by up to " in last or ".bias differs, by up to " in last
    assert "the checkpoint lacks some state" in last
    assert last.endswith("(register_buffer)")
    assert done.err == "ablate: doctor: 1 problem (resume)\n"


@pytest.fixture
def legs(tmp_path, store):
    """`legs("a", 6, words)`: the answer of a leg of the tiny run to that step, in a folder `a`."""

    def train(name: str, until: int, *words: str) -> dict:
        run = build_run(spec_of(store, *words).tree)
        return training.leg(run, tmp_path / name, store.cache, torch.device("cpu"), until)

    return train


def test_a_leg_ends_with_the_run_and_a_diverged_one_is_said_to_be(tmp_path, legs):
    short = legs("a", 6, "train.steps=2")
    assert (short["step"], short["total"], short["diverged"]) == (2, 2, False)
    assert [step for step, _ in RunDir(tmp_path / "a").checkpoints()] == [2]
    assert legs("b", 6, "optim.lr=1e30", "optim.warmup_epochs=0", "train.batch=512")["diverged"]
    compared = training.compare(tmp_path / "a", tmp_path / "b")
    assert compared["differing"] > compared["tensors"] > 50


def test_one_bit_is_a_difference_and_times_are_none(tmp_path, legs):
    legs("a", 2)
    path = RunDir(tmp_path / "a").checkpoints()[0][1]
    tensors, sums = load(path.read_bytes()), {"step": 2, "loss_sum": 4.5, "seconds": 1.0}
    name = "model.head.bias"

    def write(path: Path, tensors: dict, sums: dict) -> None:
        told = {"progress": json.dumps(sums), "metrics": json.dumps({"bytes": 0, "sha256": ""})}
        path.write_bytes(b"".join(sealed_file.to_bytes(tensors, **told)))

    def against(changed: dict, sums: dict) -> dict:
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        write(tmp_path / "b" / path.name, changed, sums)
        return training.compare(tmp_path / "a", tmp_path / "b")

    tensors[name][0] = 0.0
    nan = {**tensors, name: torch.full_like(tensors[name], torch.nan)}
    write(path, nan, sums)
    assert against(nan, sums | {"seconds": 2.0})["differing"] == 0
    differs = {"differing": 1, "first": "progress.loss_sum", "by": 0.25}
    assert against(nan, sums | {"loss_sum": 4.25}) == {"tensors": len(tensors), **differs}
    write(path, tensors, sums)
    signed = tensors[name].clone()
    signed[0] = -0.0
    said = against({**tensors, name: signed}, sums)
    assert (said["differing"], said["first"], said["by"]) == (1, name, 0.0)
    assert against(nan, sums)["by"] is None
    lacking = {n: tensor for n, tensor in tensors.items() if not n.startswith("optim.")}
    said = against(lacking, sums)
    assert said["differing"] == len(tensors) - len(lacking) > 0
    assert said["first"].startswith("optim.")
    with open(tmp_path / "b" / "metrics.jsonl", "a") as file:
        file.write('{"step": 1}\n')
    assert training.compare(tmp_path / "a", tmp_path / "b")["differing"] == said["differing"] + 1


def test_checkpoints_that_can_t_be_read_equal_nothing(tmp_path, legs):
    for name in ("a", "b"):
        legs(name, 2)
    assert training.compare(tmp_path / "a", tmp_path / "b")["differing"] == 0
    for name in ("a", "b"):
        RunDir(tmp_path / name).checkpoints()[0][1].write_bytes(b"torn")
    found = training.compare(tmp_path / "a", tmp_path / "b")
    assert found["differing"] == 2
    assert "which can't be read" in found["first"]


@pytest.mark.whole
def test_on_a_gpu_deterministic_algorithms_are_tried_and_timed(store, monkeypatch, users):
    """The questions are answered here, on the CPU: what is made of the answers is the same."""
    monkeypatch.setattr(training, "ROUNDS", 1)  # of timings: what they say is not judged
    users({"own_random.py": RANDOM})
    asked = []

    def ask(verb: str, question: dict) -> dict:
        asked.append((verb, question["device"], question["spec"]["train"]["deterministic"]))
        return worker.answer(verb, {**question, "device": "cpu"}, lambda done, total: None)

    def findings(*words: str) -> list[tuple[str, str]]:
        asked.clear()
        gpu = [Slot("gpu:0", "gpu:0", "cuda", "0")]
        found = list(resume_check.resume(store, gpu, "config", spec_of(store, *words), ask))
        return [(f.level, f.text) for f in found if f.check == "resume"]

    (_, exact), (_, _), (_, strict), (level, cost) = findings()[1:]
    assert exact == strict
    assert exact.startswith("resume is bit-exact: ")
    assert level == "ok"
    assert cost.startswith("with train.deterministic=true a step takes ")
    assert 0.2 < float(cost.split()[-4]) < 5
    legs = [("check_resume", "cuda", False)] * 2 + [("check_resume", "cuda", True)] * 2
    assert asked == [*legs, ("deterministic", "cuda", True)]

    found = findings("norm=own_random:Layer")
    assert [level for level, _ in found] == ["...", "warning", "...", "problem", "ok"]
    assert "some layer draws random numbers" in found[1][1]
    assert [level for level, _ in findings("train.deterministic=true")] == ["...", "ok", "ok"]


# --- The store ----------------------------------------------------------------------------------

READ_ONLY = 'mount --bind runs runs && mount -o remount,ro,bind runs && exec "$@"'


@pytest.mark.whole
def test_a_read_only_store_is_named_and_still_looked_at(store):
    shutil.rmtree(store.cache)
    enter = ["unshare", "-rm", "sh", "-ec", READ_ONLY, "sh"]
    here = {"cwd": store.root.parent, "capture_output": True, "text": True, "check": False}
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], **here).returncode:
        pytest.skip("may not mount a folder read-only (unshare -rm)")
    done = subprocess.run([*enter, ABLATE, "doctor", *TINY], **here)
    assert (done.returncode, done.stderr) == (1, "ablate: doctor: 2 problems (disk, data)\n")
    for line in (
        r"problem  disk      runs .*; give --store DIR$",
        rf"ok       ledger    format {FORMAT}, integrity_check ok, 1 sweep$",
        r"ok       runs      6 runs: 6 finished$",
        r"problem  data      worker prepare: OSError: \[Errno 30\] Read-only file",
    ):
        assert re.search(f"^{line}", done.stdout, re.M), line
    assert "resume" not in done.stdout
    for command in ("status", "table"):
        done = subprocess.run([*enter, ABLATE, command], **here)
        assert done.returncode == 0, done.stderr


def alter(ledger: Path, statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(ledger)) as db, db:
        db.execute(statement, values)


def break_middle(ledger: Path) -> None:
    content = bytearray(ledger.read_bytes())
    content[4096 * 2 : 4096 * 3] = random.Random(0).randbytes(4096)
    ledger.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        break_middle,
        lambda ledger: os.truncate(ledger, 5000),
        lambda ledger: ledger.write_bytes(b"not a database, but a text that is long enough" * 99),
        lambda ledger: alter(ledger, "DROP TABLE run"),
        lambda ledger: alter(ledger, "DELETE FROM meta"),
        lambda ledger: alter(ledger, "UPDATE event SET at = at + 1 WHERE number = 3"),
        lambda ledger: alter(ledger, "DELETE FROM event WHERE kind = 'finished'"),
    ],
)
def test_a_broken_ledger_is_named_with_its_remedy(damage, store):
    damage(store.ledger)
    before = contents(store.root)
    ((level, what, text),) = amiss(store)
    assert (level, what) == ("problem", "ledger")
    assert text.startswith(f"{store.ledger}: ")
    assert "; `ablate doctor --repair --store " in text
    assert contents(store.root) == before


def test_repair_makes_the_same_table(store):
    shell = Shell(store.root.parent)
    table = shell("table", "fixture", "--format", "tidy").out
    break_middle(store.ledger)
    first, *lost, last = shell("doctor", "--repair").out.partition("\nok ")[0].splitlines()
    kept = r"the old ledger is kept as runs/ledger.db.broken-\d{4}-\d\d-\d\dT[\d-]{8}"
    assert re.fullmatch(kept, first)
    assert all(line.startswith("runs/ledger.db: ") for line in lost)
    rebuilt = r"rebuilt from .*plans and run folders: sweeps: 1; runs: 6 finished"
    assert re.fullmatch(rebuilt, last)
    others = shell("doctor", "--repair").out.splitlines()[2:]
    assert {line.split()[0] for line in others} == {"ok"}
    assert shell("table", "fixture", "--format", "tidy").out == table


def test_repair_waits_for_no_driver_and_needs_a_store(store):
    def repair(words: list[str] | None, root: Path) -> None:
        keeping.doctor(words, None, True, store=root)

    with pytest.raises(UserError, match=r"^--repair: .*leave other words out"):
        repair(["quickstart"], store.root)
    with pytest.raises(UserError, match=r"no store at .*/none: .*--store DIR"):
        repair(None, store.root / "none")
    with store.driver.hold():
        store.driver.note(pid=4711)
        with pytest.raises(
            Failure, match=r"4711 drives this store; `ablate stop --store .*` stops"
        ):
            repair(None, store.root)
    assert not list(store.root.glob("*.broken*"))


def test_a_lost_and_a_newer_ledger_are_left_as_they_are(store):
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (store.root / name).unlink(missing_ok=True)
    ((level, what, text),) = amiss(store)
    assert (level, what) == ("warning", "ledger")
    assert text.endswith("ledger.db; the next `ablate sweep` makes it again")
    assert not store.ledger.exists()
    shutil.copy(GOLDEN / "ledger.db", store.ledger)
    assert amiss(store) == []
    alter(store.ledger, "UPDATE meta SET version = 99")
    assert "has format 99, " in amiss(store)[0][2]


def test_folders_and_ledger_are_held_against_each_other(store):
    a, b, c, d, *_ = (RunDir(path) for path in sorted((store.root / "runs").iterdir()))
    os.truncate(a.result, 30)
    shutil.rmtree(b.path)
    alter(store.ledger, "UPDATE run SET status = 'started' WHERE id IN (?, ?)", c.id, a.id)
    alter(store.ledger, "UPDATE run SET status = 'diverged' WHERE id = ?", d.id)
    shutil.copytree(c.path, c.path.with_name("0" * 16))
    dead = subprocess.Popen(["true"])
    dead.wait()
    (c.path / f".result.json.{dead.pid}.0").write_bytes(b"x")
    (d.path / f".result.json.{os.getpid()}.0").write_bytes(b"x")  # of a living process
    plan = store.plan_path("fixture")
    os.truncate(plan, 100)
    own = f"--store {store.root}"
    assert [f"{level} {what} {text}" for level, what, text in amiss(store)] == [
        f"problem plans {plan}: not whole; {WRITES_AGAIN}",
        f"problem runs 1 run ({b.id}) done in the ledger, but without a whole result; "
        f"{WRITES_AGAIN}",
        f"problem runs 1 run ({a.id}) with a torn result.json; {WRITES_AGAIN}",
        f"problem runs 1 run ({d.id}) whose status in result.json and in the ledger differ; "
        f"`ablate verify {own}` names edited files, `ablate doctor --repair {own}` mends the "
        f"ledger",
        f"warning runs 1 run ({c.id}) with a result that the ledger lacks; the same "
        f"`ablate sweep` or import records it",
        f"warning runs 1 run folder ({'0' * 16}) that no sweep of the ledger planned; "
        f"`ablate gc {own}` lists them",
        f"warning leftovers 1 temporary file (runs/{c.id}/.result.json.{dead.pid}.0) of dead "
        f"processes; `ablate gc {own}` removes them",
    ]
    plan.unlink()
    assert amiss(store)[0][2].startswith("sweep fixture: its plan is lost; ")


def test_who_is_at_work_is_told_by_locks(store):
    a, *_ = (RunDir(path) for path in sorted((store.root / "runs").iterdir()))
    alter(store.ledger, "UPDATE run SET status = 'failed' WHERE id = ?", a.id)
    a.result.unlink()
    with a.lock.hold():
        (_, _, orphans), (level, _, runs) = amiss(store)
        adopts = f"no driver, but 1 worker ({a.id}); the same `ablate sweep` adopts "
        assert orphans.startswith(adopts)
        assert level == "warning"
        assert runs.startswith("6 runs: 1 failed, 5 finished; ")
        assert "`ablate sweep ... --retry failed`" in runs
        with store.driver.hold():
            store.driver.note(pid=os.getpid())
            text = f"process {os.getpid()} drives this store, 1 worker ({a.id})"
            assert text in [finding.text for finding in check_store(store)]


def test_the_file_system_is_that_of_the_longest_mount_point():
    points = ("/", "ext4"), ("/data", "xfs"), (r"/data/my\040runs", "nfs4"), ("/data", "fuse.sshfs")
    mounts = "\n".join(
        f"{n} 1 0:1 / {point} rw,relatime shared:{n} - {kind} source rw"
        for n, (point, kind) in enumerate(points)
    )
    places = ("/data/my runs/store", "/data/other", "/home")
    found = [stored.filesystem(Path(place), mounts) for place in places]
    assert found == ["nfs4", "fuse.sshfs", "ext4"]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_locks_over_a_network_are_warned_of(kind, store, monkeypatch):
    monkeypatch.setattr(stored, "filesystem", lambda place, mounts: kind)
    ((level, what, text),) = amiss(store)
    assert (level, what) == ("warning", "disk")
    assert f"{kind} is a network or FUSE file system: locks may fail silently" in text


def test_what_a_disk_can_not_do_is_a_problem_and_the_trial_leaves_nothing(store, monkeypatch):
    before = sorted(store.root.rglob("*"))

    def refused(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    monkeypatch.setattr("ablate.shared.files.fcntl.flock", lambda *_: None)  # which locks nothing
    said = [text.partition(" at ")[0] for level, _, text in amiss(store) if level == "problem"]
    fails = "posix_fallocate fails ([Errno 95] Operation not supported)"
    assert said == ["flock does not work", fails]
    assert sorted(store.root.rglob("*")) == before


def test_a_store_that_is_a_file_or_not_there(tmp_path):
    (tmp_path / "file").write_text("x")
    level, what, text = amiss(Store(tmp_path / "file"))[0]
    assert (level, what) == ("problem", "disk")
    assert text.endswith(" is not a folder; give --store DIR")
    assert amiss(Store(tmp_path / "new")) == []
    assert not (tmp_path / "new").exists()


# --- The machine --------------------------------------------------------------------------------


def test_a_version_that_does_not_satisfy_is_a_problem(monkeypatch):
    true = metadata.version

    def version(name: str) -> str:
        if name == "cmaes":
            raise metadata.PackageNotFoundError(name)
        return "2.5.0+cpu" if name == "torch" else true(name)

    monkeypatch.setattr(metadata, "version", version)
    wanted = next(need for need in metadata.requires("ablate-sweep") if need.startswith("torch"))
    said = [finding.text for finding in machine.versions() if finding.level == "problem"]
    assert f"torch 2.5.0+cpu does not satisfy {wanted}: pip install '{wanted}'" in said
    assert any(text.startswith("cmaes is not installed: pip install -c ") for text in said)
    assert len(said) == 2


@pytest.fixture
def not_installed(monkeypatch):
    """ablate has no metadata, as where its checkout is on PYTHONPATH."""
    true = metadata.Distribution.from_name

    def from_name(name: str) -> metadata.Distribution:
        if name == "ablate-sweep":
            raise metadata.PackageNotFoundError(name)
        return true(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", from_name)


def test_a_checkout_that_is_not_installed_is_checked_by_its_own_requirements(
    not_installed, monkeypatch, tmp_path
):
    [finding] = machine.versions()
    place = f"ablate {__version__} (not installed, from {REPOSITORY}), python "
    assert (finding.level, finding.text.startswith(place)) == ("ok", True)
    assert f"torch {metadata.version('torch')}" in finding.text
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "\ntorch==" in machine.write_constraints().read_text()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nrequires-python = ">=9"\ndependencies = ["nothing-like-it>1"]\n'
    )
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    said = [finding.text for finding in machine.versions() if finding.level == "problem"]
    assert [text.partition(" does not")[0] for text in said[:1]] == [
        f"python {platform.python_version()}"
    ]
    assert said[1].startswith("nothing-like-it is not installed: ")
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path / "none")
    [finding] = machine.versions()
    assert finding.text == (
        f"ablate {__version__} (not installed, from {tmp_path / 'none'}), "
        f"python {platform.python_version()}"
    )


TOOL = """#!/bin/sh
case "$*" in
  *query-gpu=index,*) echo "0, NVIDIA H100 80GB HBM3, 81559, 81000, 550.54.15";;
  *) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6)";;
esac
"""


def test_gpus_are_told_as_nvidia_smi_tells_them(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = spec_of(Store(tmp_path))
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")

    def said(what: str, slots: list[Slot]) -> list[str]:
        found = machine.devices({"name": "local"}, slots, spec)
        return [f"{finding.level}: {finding.text}" for finding in found if finding.check == what]

    two = slots([Gpu("0", "GPU-8932f937", "", "")], 2)
    assert said("gpu", two) == [
        "problem: torch 2.13.0+cpu can't use the GPU; install a CUDA build of torch, or give "
        "launcher.devices=cpu",
        "ok: 0: NVIDIA H100 80GB HBM3, 81559 MiB, 81000 MiB free, driver 550.54.15",
    ]
    assert said("slots", two) == ["ok: launcher=local trains 2 runs at once: gpu:0.0, gpu:0.1"]
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in said("workers", two)[0]
    four = [Gpu(f"{n}", f"GPU-{n}", "", "") for n in range(4)]
    found = machine.kernels(slots(four, 2), lambda tried: {s.name: "no" for s in tried[1::2]})
    unused = [f"problem: gpu:{n} is not used: no" for n in (1, 3)]
    assert [f"{f.level}: {f.text}" for f in found] == [*unused, "ok: compute: gpu:0, gpu:2"]
    assert list(machine.kernels(slots([], 1), lambda tried: {"cpu:0": "never asked"})) == []
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'\nexit 9\n")
    assert said("gpu", slots([], 1)) == [
        "warning: nvidia-smi: NVIDIA-SMI has failed: no driver (exit code 9); runs train on the CPU"
    ]


def test_bf16_is_warned_of_where_the_cpu_has_no_instructions(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "FAST_BF16", {"no_such_flag"})

    def said(*words: str) -> str:
        slot, spec = Slot(f"{device}:0", device, device), spec_of(Store(tmp_path), *words)
        found = machine.devices({"name": "inline"}, [slot], spec)
        return next(f"{f.level}: {f.text}" for f in found if f.check == "cpu")

    device = "cuda"  # there the CPU trains nothing
    assert said("train.precision=bf16").endswith(" cores usable")
    device = "cpu"
    assert said().startswith("ok: ")
    half = said("train.precision=bf16")
    assert half.startswith("warning: ")
    assert half.endswith("give train.precision=fp32")
