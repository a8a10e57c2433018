"""GPUs: found by `nvidia-smi`, chosen by words, tried before the first run, given up when they go.

The tool is a stand-in that prints what NVIDIA's does; commands and workers are real processes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Shell
from launcher_contract import settings
from nvidia import EIGHT, Machine, gpu

from ablate.planning.compose import Composer
from ablate.planning.settings import parse_word, single_values
from ablate.report import status
from ablate.running import gpus, launchers, preflight
from ablate.running.gpus import NoAnswer, busy, figures, find
from ablate.running.launchers import Slot, fork
from ablate.running.launchers.local import worker_environment
from ablate.shared.errors import UserError
from ablate.shared.notes import Notes
from ablate.store.ledger import Ledger
from ablate.store.progress import Worker
from ablate.store.store import Store


@pytest.fixture
def nvidia(tmp_path, monkeypatch) -> Machine:
    """Eight GPUs, two of them in slices."""
    made = Machine(tmp_path / "nvidia", *EIGHT)
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpus, "NODES", tmp_path)
    return made


UUID = {f"{row['index']}": row["uuid"] for row in EIGHT}
UUID |= {f"{r['index']}:{n}": uuid for r in EIGHT for n, (_, uuid) in enumerate(r["slices"])}
ALL = ["0", "1", "2", "3", "4", "5", "6:0", "6:1", "7:0", "7:1"]


@pytest.mark.parametrize(
    ("devices", "outer", "expected"),
    [
        ("auto", None, ALL),
        *(("cpu", outer, []) for outer in (None, "0,1")),
        ("0,2", None, ["0", "2"]),
        ("2, 0,2", None, ["2", "0"]),
        *((devices, None, ["6:0", "6:1"]) for devices in ("6", UUID["6"])),  # all its slices
        ("6:1,5", None, ["6:1", "5"]),
        # CUDA takes the beginning of one, too
        *((devices, None, ["3"]) for devices in (UUID["3"], UUID["3"][:9])),
        (f"{UUID['7:1']},{UUID['0']}", None, ["7:1", "0"]),
        # an outer CUDA_VISIBLE_DEVICES: its GPUs, in its order, and no others
        ("auto", " 3, 1", ["3", "1"]),
        # to CUDA what follows an invalid one is not visible; the beginning of several is none
        *(("auto", outer, []) for outer in ("", "-1", "-1,0", "GPU-")),
        *(("auto", outer, ["0"]) for outer in ("0,-1,1", "0,12,1")),
        ("auto", f"{UUID['7:0']},{UUID['2']}", ["7:0", "2"]),
        ("auto", "6", ["6:0"]),  # of a GPU in slices CUDA sees the first
        *((devices, "3,1", ["1"]) for devices in ("1", UUID["1"])),
    ],
)
def test_which_gpus_are_used(nvidia, devices, outer, expected):
    found = find(devices, outer)
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [(n, UUID[n]) for n in expected]
    assert bool(found.remarks) == (outer == "GPU-")
    if devices == "cpu" or outer in ("", "-1"):
        assert nvidia.asked() == []


@pytest.mark.parametrize(
    ("devices", "outer", "line"),
    [
        ("9", None, "expected one of auto, cpu, 0, 1, .*, 7:1, got '9'"),
        ("0,GPU-ffff", None, "expected one of .*, got 'GPU-ffff'"),
        ("gpus", None, "expected one of .*, got 'gpus'"),
        ("0,cpu", None, "expected one of .*, got 'cpu'"),
        ("2", "0,1", "2 is hidden by CUDA_VISIBLE_DEVICES=0,1"),
        ("0", "", "0 is hidden by CUDA_VISIBLE_DEVICES="),
    ],
)
def test_a_gpu_that_there_is_not_is_a_mistake(nvidia, devices, outer, line):
    with pytest.raises(UserError, match=f"^launcher.devices: {line}$"):
        find(devices, outer)


# --- A tool that fails ---------------------------------------------------------------------------

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
LOST = "Unable to determine the device handle for GPU1: 0000:05:00.0: GPU is lost."


@pytest.mark.whole
@pytest.mark.parametrize(
    ("state", "line"),
    [
        (dict(says=MISMATCH, code=18), rf"nvidia-smi: {MISMATCH} \(exit code 18\)"),
        (dict(says="", code=9), r"nvidia-smi: no word \(exit code 9\)"),
        (dict(says="<html>"), r"nvidia-smi -L: <html>"),
        (dict(hang=60), r"nvidia-smi gave no answer in 0.5 s"),
    ],
)
def test_a_tool_that_fails_is_said_before_the_cpu_is_used(nvidia, monkeypatch, state, line):
    monkeypatch.setattr(gpus, "PATIENCE_S", 0.5 if "hang" in state else 30)
    nvidia.has(EIGHT, **state)
    found = find("auto", None)
    assert found.gpus == ()
    assert re.fullmatch(f"{line}: runs train on the CPU; .*=cpu accepts that", found.remarks[0])
    # names mean something to CUDA, too
    assert [gpu.uuid for gpu in find("auto", "1,GPU-8932f937").gpus] == ["1", "GPU-8932f937"]
    assert [gpu.uuid for gpu in find("0,2", None).gpus] == ["0", "2"]
    with pytest.raises(UserError, match="hidden by CUDA_VISIBLE_DEVICES=0,1"):
        find("2", "0,1")
    with pytest.raises(UserError, match="expected auto, cpu, indices or UUIDs, got 'gpus'"):
        find("gpus", None)


def test_gpus_without_the_tool_are_said_and_no_gpus_are_not(nvidia, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    assert find("auto", None) == gpus.GpuSet()
    (tmp_path / "nvidiactl").touch()  # is there without a GPU, too
    assert find("auto", None) == gpus.GpuSet()
    (tmp_path / "nvidia0").touch()
    assert find("auto", None).remarks == (
        f"there is no nvidia-smi, but {tmp_path}/nvidia0 is there: runs train on the CPU; "
        "launcher.devices=cpu accepts that, launcher.devices=0 uses the first GPU",
    )
    assert [gpu.uuid for gpu in find("auto", "0,1").gpus] == ["0", "1"]


@pytest.mark.parametrize("code", [0, 6])
def test_a_machine_without_gpus_has_a_tool_that_says_so(nvidia, code):
    nvidia.has([], says="No devices were found", code=code)
    assert find("auto", None) == gpus.GpuSet()
    with pytest.raises(UserError, match="expected one of auto, cpu, got '0'"):
        find("0", None)
    assert find("auto", "0").remarks[0].startswith("CUDA_VISIBLE_DEVICES=0 names no GPU")


def test_one_lost_gpu_leaves_the_others_and_is_said(nvidia):
    nvidia.has([gpu(0), gpu(2)], strays=LOST, code=15)
    found = find("auto", None)
    assert [gpu.index for gpu in found.gpus] == ["0", "2"]
    assert found.remarks == (f"nvidia-smi: {LOST}",)


# --- Launchers -----------------------------------------------------------------------------------


@pytest.fixture
def made(nvidia, tmp_path):
    """`made("local", devices="0")`: that launcher."""
    return lambda name, **own: launchers.make_launcher(settings(name, **own), tmp_path)


def test_a_worker_gets_one_device_by_its_uuid_in_the_order_of_pci(made):
    slots = made("local").slots
    assert [(slot.name, slot.environment) for slot in slots] == [
        (f"gpu:{index}", {"CUDA_VISIBLE_DEVICES": UUID[index]}) for index in ALL
    ]
    order = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert worker_environment(slots) == order
    cpu = made("local", devices="cpu")
    assert {slot.device for slot in cpu.slots} == {"cpu"}
    assert cpu.unfit(cpu.slots) == {}


def test_runs_that_share_a_gpu_are_slots_of_one_place(made, tmp_path):
    two = made("local", runs_per_gpu=2, devices="5,6:0")
    names = ["gpu:5.0", "gpu:6:0.0", "gpu:5.1", "gpu:6:0.1"]
    assert [slot.name for slot in two.slots] == names
    assert [slot.place for slot in two.slots] == ["gpu:5", "gpu:6:0"] * 2
    options = launchers.worker_options(two.slots[0], settings("local"), tmp_path)
    assert (options["device"], options["slot"]) == ("cuda", "gpu:5.0")
    assert options["share"] == 0.5


def test_a_run_on_several_gpus_has_a_group_of_them(made, tmp_path):
    pairs = made("local", gpus_per_run=2, devices="0,1,2,3,4")
    assert [slot.name for slot in pairs.slots] == ["gpu:0+1", "gpu:2+3"]
    assert pairs.slots[1].visible == f"{UUID['2']},{UUID['3']}"
    options = launchers.worker_options(pairs.slots[0], settings("local"), tmp_path)
    assert (options["device"], options["ranks"]) == ("cuda", 2)
    every = made("local", gpus_per_run="auto", devices="0,1,2")
    assert [slot.name for slot in every.slots] == ["gpu:0", "gpu:1", "gpu:2", "gpu:0+1"]
    assert (every.worlds, every.most) == ([1, 2], 3)


def test_slices_have_no_groups(made):
    for devices in ("6,7", "0,1,6:0"):  # CUDA shows a process one slice, even among GPUs
        every = made("local", gpus_per_run="auto", devices=devices)
        assert every.worlds == [1]
        assert len(every.slots) == len(every.devices.gpus)
        with pytest.raises(UserError) as refused:
            made("local", gpus_per_run=2, devices=devices)
        assert "gpu:6:0" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gpus_per_run": 3}, "^launcher.gpus_per_run: expected one of auto, 1, 2, 4, 8, got 3$"),
        ({"gpus_per_run": 4}, "per_run: 4, and 2 GPUs are used here; give at most 2, or auto$"),
        ({"cores_per_run": 2}, "^launcher.cores_per_run: needs launcher.devices=cpu"),
        ({"gpus_per_run": 2, "runs_per_gpu": 2}, "leave runs_per_gpu out$"),
    ],
)
def test_groups_that_there_are_not_are_refused(made, given, why):
    with pytest.raises(UserError, match=why):
        made("local", devices="0,1", **given)


def test_inline_takes_one_device(made, monkeypatch):
    assert made("inline").slots == [Slot("inline", "cpu", "cpu")]
    with pytest.raises(UserError, match=r"^launcher.devices: launcher=inline .* one, got 0, 2$"):
        made("inline", devices="0,2")
    monkeypatch.setattr(os, "environ", dict(os.environ))  # CUDA reads it as it starts
    chosen = made("inline", devices="6:1")
    assert chosen.slots == [Slot("gpu:6:1", "gpu:6:1", "cuda", UUID["6:1"])]
    assert chosen.unfit(chosen.slots).keys() == {"gpu:6:1"}  # in this process, with this torch
    assert os.environ["CUDA_VISIBLE_DEVICES"] == UUID["6:1"]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("word", "devices"),
    [("cpu", "cpu"), ("0", "0"), ("0,2", "0,2"), ("[0,2]", "0,2"), ("6:1,0", "6:1,0")]
    + [(text, text) for text in (UUID["3"], f"{UUID['3']},{UUID['7:1']}")],
)
def test_devices_are_a_list_with_brackets_or_without(word, devices, tmp_path):
    composer = Composer(tmp_path)
    given = single_values([parse_word(f"launcher.devices={word}", composer.groups)])
    assert composer.launcher(given)["devices"] == devices


@pytest.mark.faults
def test_a_gpu_that_gives_no_answer_is_not_waited_for(nvidia, made, monkeypatch):
    for name, value in nvidia.stand_in.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fork, "KERNEL_S", 3.0)  # the others answer within
    lost = {f"kernel {UUID['0']}": "hang", f"kernel {UUID['2']}": "CUDA error: unknown error"}
    nvidia.breaks(lost)
    launcher = made("local", devices="0,1,2")
    assert launcher.unfit(launcher.slots) == {
        "gpu:0": "no answer in 3 s",
        "gpu:2": "AcceleratorError: CUDA error: unknown error",
    }
    launcher.free()
    groups = made("local", devices="1,2", gpus_per_run="auto")
    assert groups.unfit(groups.slots).keys() == {"gpu:2", "gpu:1+2"}  # each GPU of a group is tried
    groups.free()


# --- What they do now ----------------------------------------------------------------------------


def test_gpus_in_use_by_others_are_named(nvidia):
    users = (("1", 4242), ("1", 77), ("2", 77), ("4", 1421), ("6", 99))
    apps = [dict(gpu_uuid=UUID[n], pid=pid) for n, pid in users]
    # of slices the tool tells no memory; of processes outside its container nothing
    taken = [gpu(0), gpu(1, **{"memory.used": 40000}), gpu(2), gpu(3, **{"memory.used": 9000})]
    taken += [gpu(4, **{"memory.used": 0})]  # its process has just ended
    nvidia.has([*taken, gpu(6, "3g.40gb", **{"memory.used": "[N/A]"})], apps=apps)
    assert busy(find("auto", None).gpus, ours=[77]) == [
        "gpu:1 is in use by process 4242 (40000 of 81559 MiB)",
        "gpu:3 is in use (9000 of 81559 MiB)",
        "gpu:6 is in use by process 99 (memory unknown)",
    ]
    assert busy(find("0,2", None).gpus, ours=[77]) == busy((), ours=[]) == []


def test_what_a_worker_starts_and_its_ranks_are_no_others(nvidia, monkeypatch):
    words = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as worker:
        try:
            child = int(worker.stdout.readline())
            notes = [Notes(pid=worker.pid, ranks="777 778"), Notes()]
            monkeypatch.setattr(preflight, "living_notes", lambda store, states: notes)
            users = dict(enumerate((os.getpid(), worker.pid, 778, child, os.getppid())))
            apps = [dict(gpu_uuid=UUID[f"{n}"], pid=pid) for n, pid in users.items()]
            nvidia.has([gpu(n, **{"memory.used": 5}) for n in users], apps=apps)
            launcher = SimpleNamespace(devices=find("auto", None))
            lines = preflight.gpus_in_use(launcher, None, {})
            assert [line.partition(" ")[0] for line in lines] == ["gpu:4"]
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def test_figures_of_gpus_are_told_as_far_as_there_are_any(nvidia):
    busiest = gpu(0, **{"utilization.gpu": 97, "memory.used": 31744, "power.draw": 402.4})
    sliced = gpu(6, "3g.40gb", **{"utilization.gpu": "[N/A]", "memory.used": "[N/A]"})
    silent = gpu(1, **dict.fromkeys(("utilization.gpu", "memory.used", "power.draw"), "[N/A]"))
    nvidia.has([busiest, silent, gpu(2), sliced])
    said = ["gpu:0: 97 % busy, 31.0 of 79.6 GiB, 402 W", "gpu:6: 70 W"]
    assert figures({"0", "1", "6"}) == said
    nvidia.has([], says=MISMATCH, code=18)
    with pytest.raises(NoAnswer, match=MISMATCH):
        figures({"0"})


def test_who_watches_asks_for_figures_now_and_then_and_not_for_cpus(nvidia, monkeypatch):
    nvidia.has([gpu(0, **{"utilization.gpu": 50}), gpu(1)])
    meters = status.Meters()
    monkeypatch.setattr(status, "METERS_EVERY_S", 1e6)

    def lines(*slots: str) -> list[str]:
        return meters.lines([Worker(None, slot, Notes(), None) for slot in slots])  # type: ignore[arg-type]

    assert lines() == lines("cpu:0", "inline", "?") == []
    assert nvidia.asked() == []
    assert lines("gpu:0.1", "cpu:0") == ["gpu:0: 50 % busy, 0.0 of 79.6 GiB, 70 W"]
    nvidia.has([], says=MISMATCH, code=18)
    assert len(lines("gpu:0.1")) == len(nvidia.asked()) == 1
    meters._due = 0.0  # later
    assert lines("gpu:0.1") == lines("gpu:0.1") == []
    assert len(nvidia.asked()) == 2  # once that fails it is left alone


# --- Commands ------------------------------------------------------------------------------------

WORDS = ("norm=layernorm,identity", "seeds=5", "model.depth=1", "train.steps=3", "--as", "gpus")


@pytest.fixture(scope="module")
def decoded(tmp_path_factory) -> Path:
    """A cache with the digits."""
    shell = Shell(tmp_path_factory.mktemp("decoded"))
    shell("data", "prepare", "digits")
    return shell.folder / "runs" / "cache"


@pytest.fixture
def shell(nvidia, decoded, tmp_path) -> Shell:
    """A folder whose data is decoded, on a machine with GPUs."""
    shutil.copytree(decoded, tmp_path / "runs" / "cache")
    return Shell(tmp_path)


def events(shell: Shell) -> list[tuple[float, str, str, dict]]:
    """(when, norm of the run, what, detail) of all that was recorded of runs, in its order."""
    store = Store(shell.folder / "runs")
    found = []
    with Ledger.reading(store) as ledger:
        for run in ledger.states():
            norm = store.rundir(run).read_spec()["norm"]["name"]
            found += [(at, norm, kind, detail) for at, kind, detail in ledger.events(run)]
    return sorted(found, key=lambda event: event[0])


def record(shell: Shell) -> tuple[Counter, list[str]]:
    """(runs by state, sweeps) of the store."""
    with Ledger.reading(Store(shell.folder / "runs")) as ledger:
        return Counter(s.status for s in ledger.states().values()), ledger.sweeps()


@pytest.mark.faults
def test_where_no_device_works_the_command_ends_with_a_line_and_nothing_is_recorded(shell, nvidia):
    """With this torch, whatever it is: here there is no GPU."""
    (line,) = shell.process("sweep", *WORDS, code=1, PATH=nvidia.path).err.splitlines()
    assert line.startswith(f"ablate: no device can be used: {', '.join(f'gpu:{n}' for n in ALL)}: ")
    if torch.version.cuda is None:
        remedy = (
            "AssertionError: Torch not compiled with CUDA enabled; install a CUDA build of torch, "
            "or give launcher.devices=cpu"
        )
        assert line.endswith(remedy)
        done = shell.process("plan", *WORDS, code=1, PATH=nvidia.path)  # which times a step
        assert done.err == f"ablate: worker describe: {remedy}\n"
    assert record(shell) == ({}, [])
    assert not (shell.folder / "runs" / "runs").exists()
    assert not (shell.folder / "runs" / "sweeps").exists()


@pytest.mark.faults
def test_a_sweep_on_eight_gpus(shell, nvidia):
    """One that can't compute and one that hangs are not used, one is lost and one gone midway."""
    unavailable = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    nvidia.breaks(
        {
            f"kernel {UUID['3']}": unavailable,
            f"kernel {UUID['6:1']}": "crash",
            f"run {UUID['1']}": "CUDA error: uncorrectable ECC error encountered",
            f"run {UUID['7:0']}": "CUDA error: no CUDA-capable device is detected",
        }
    )
    nvidia.has(EIGHT, apps=[dict(gpu_uuid=UUID["4"], pid=4242)])
    done = shell.process("sweep", *WORDS, **nvidia.stand_in)
    for said in (
        "warning: gpu:4 is in use by process 4242 (4 of 81559 MiB)\n",
        f"warning: not used: gpu:3: AcceleratorError: {unavailable}; another process may have the "
        "GPU for itself",
        "warning: not used: gpu:6:1: the process died over it (",
        "gpu:7:0 is given up: ",
    ):
        assert said in done.out
    assert record(shell)[0] == {"finished": 10}
    touched = nvidia.touched()
    assert {order for _, _, order in touched} == {"PCI_BUS_ID"}
    tried = Counter(gpu for what, gpu, _ in touched if what == "kernel")
    assert tried == {UUID[index]: 1 for index in ALL}
    trained = Counter(gpu for what, gpu, _ in touched if what == "run")
    assert trained.keys() <= {UUID[n] for n in ALL} - {UUID["3"], UUID["6:1"]}
    assert trained[UUID["7:0"]] == 1  # it was given up at once, and its run counts no attempt
    told = events(shell)
    # given up with the second variant that it loses: seeds of one variant may be to blame
    lost = [norm for _, norm, kind, of in told if (kind, of.get("slot")) == ("started", "gpu:1")]
    assert trained[UUID["1"]] == len(lost) >= 1
    assert len({*lost[:-1]}) <= 1
    assert sum(detail.get("reason") == "no device" for *_, detail in told) == 1
    assert "failed" not in {kind for _, _, kind, _ in told}


@pytest.mark.faults
def test_a_gpu_that_takes_one_process_trains_one_run_at_a_time(shell, nvidia):
    """Both slots of the GPU start a run, and one of the two gets no context on it."""
    nvidia.breaks({f"run {UUID['0']}": "exclusive"})
    words = ("sweep", *WORDS, "launcher.devices=0", "launcher.runs_per_gpu=2")
    done = shell.process(*words, **nvidia.stand_in)
    assert "is given up" not in done.out
    assert done.out.count("gpu:0 trains one") == 1
    assert record(shell)[0] == {"finished": 10}
    refused = sum(detail.get("reason") == "no device" for *_, detail in events(shell))
    assert len(nvidia.touched()) == 10 + refused + 1  # and the kernel that was tried first
    assert refused in (1, 2)  # the other slot may have begun another one by then


@pytest.mark.faults
def test_a_sweep_without_a_device_left_ends_and_the_same_command_goes_on(shell, nvidia):
    """One GPU is gone with the first run on it; on the other two runs lose it."""
    devices = f"launcher.devices=0,{UUID['6:1']}"
    words = ("sweep", WORDS[0], "seeds=2", *WORDS[2:], devices)
    nvidia.breaks(
        {
            f"run {UUID['0']}": "CUDA error: no CUDA-capable device is detected",
            f"run {UUID['6:1']}": "CUDA error: uncorrectable ECC error encountered",
        }
    )
    done = shell.process(*words, code=1, **nvidia.stand_in)
    assert "gpu:6:1 is given up: 2 runs lost their device there" in done.out
    assert re.search(
        r"no device is left \((gpu:0, gpu:6:1|gpu:6:1, gpu:0)\); 0 of 4 runs done", done.err
    )
    assert record(shell)[0] == {"interrupted": 3, "planned": 1}
    nvidia.breaks({})
    assert shell.process(*words, **nvidia.stand_in).out.count("finished:") == 4
    assert {gpu for _, gpu, _ in nvidia.touched()} == {UUID["0"], UUID["6:1"]}


@pytest.mark.whole
def test_a_plan_names_gpus_in_use_and_what_else_the_tool_says(shell, nvidia):
    nvidia.has(EIGHT, apps=[dict(gpu_uuid=UUID["4"], pid=4242)], strays=LOST)
    said = [f"nvidia-smi: {LOST}", "gpu:4 is in use by process 4242 (4 of 81559 MiB)"]
    text = shell.process("plan", *WORDS, **nvidia.stand_in).out
    assert "on 10 slots" in text
    assert text.endswith("".join(f"warning: {line}\n" for line in said))
    done = shell.process("plan", *WORDS, "--format", "json", **nvidia.stand_in)
    assert json.loads(done.out)["warnings"] == said
