"""The local and the inline launcher: their contract, and what is the local one's alone."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launcher_contract import (
    LONG,
    BesideContract,
    LauncherContract,
    end,
    ended,
    settings,
    trains,
    until,
)

from ablate.planning.compose import resolve_run
from ablate.run.rundir import STOPPED, RunDir
from ablate.running import launchers
from ablate.running.launchers import Slot
from ablate.running.launchers.fork import ForkServer
from ablate.running.launchers.local import MALLOC, Inline, Local, slots
from ablate.running.launchers.server import importing
from ablate.shared.errors import Failure, UserError
from ablate.store.folder import HostLock
from ablate.training.attempt import EXIT_STOPPED


class TestInline(LauncherContract):
    name = "inline"


def pid(run: RunDir) -> int:
    return run.lock.notes().pid


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def environ(pid: int) -> dict[str, str]:
    """With which the process was started."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


def open_files(pid: int) -> dict[int, str]:
    folder = Path(f"/proc/{pid}/fd")
    return {int(entry): os.readlink(folder / entry) for entry in os.listdir(folder)}


class TestLocal(BesideContract):
    name = "local"

    def test_a_worker_is_a_session_of_its_own_and_inherits_no_pipe(self, launcher, training):
        run, worker = training, pid(training)
        server = int(status(worker)["PPid"])
        assert int(status(server)["PPid"]) == os.getpid()
        # the terminal's signals don't reach it
        assert (os.getsid(worker), os.getsid(server)) == (worker, server)
        files = open_files(worker)
        assert (files[0], files[1], files[2]) == (os.devnull, str(run.log), str(run.log))
        theirs = {name for name in open_files(server).values() if name.startswith("socket:")}
        assert theirs  # the driver's line
        assert not theirs & set(files.values())
        assert str(run.lock.path) in files.values()

        # malloc and OpenMP read theirs when a process starts: the server must have had them.
        expected = {**MALLOC, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        assert expected.items() <= environ(server).items()
        assert expected.items() <= environ(worker).items()

        launcher.stop(run, now=True)
        assert end(launcher, run) == [-signal.SIGKILL]

    def test_a_stranger_with_the_workers_number_is_not_killed(self, launcher, folder):
        run = folder()
        with run.lock.hold():
            run.lock.note(pid=os.getpid())
        HostLock().stop(run, now=True)  # or this test would not go on

    def test_a_stop_right_behind_the_start_is_a_stop(self, launcher, training, folder):
        server = int(status(pid(training))["PPid"])
        run = folder(*LONG, "seed=2")
        os.kill(server, signal.SIGSTOP)  # as if it loaded torch: both requests wait for it
        try:
            launcher.start(run, launcher.slots[-1])
            launcher.stop(run)
        finally:
            os.kill(server, signal.SIGCONT)
        launcher.stop(training, now=True)
        assert end(launcher, run, training) == [EXIT_STOPPED, -signal.SIGKILL]
        assert run.lock.notes().exit == STOPPED

    def test_the_log_has_the_traceback_of_a_run_that_raised(self, launcher, folder):
        run = folder()
        run.run.write_text("torn")
        assert ended(launcher, run) == 1
        assert "Traceback" in run.log.read_text()
        assert "run.json: missing or not whole" in str(run.lock.notes().error)

    def test_inline_trains_to_the_same_bits(self, launcher, folder, cache, tmp_path):
        run = folder("model.dropout=0.1", "seed=3")
        assert ended(launcher, run) == 0
        other = RunDir(tmp_path / "inline" / run.id)
        other.create(run.read_spec())
        inline = Inline(settings("inline"), cache)
        inline.start(other, inline.slots[0])
        assert other.lock.notes().beat  # a look at the data of an hour is no hang
        ours, theirs = run.read_result(), other.read_result()
        assert ours["threads"] == theirs["threads"] == 1
        for key in ("weights_sha256", "predictions_sha256", "test"):
            assert ours[key] == theirs[key]

    @pytest.mark.faults
    def test_free_leaves_workers_alive_and_a_dead_server_is_replaced(self, folder, cache):
        """Last, since its servers are its own."""
        first, second = both = folder(*LONG), folder(*LONG, "seed=1")
        launcher = Local(settings("local"), cache)
        launcher.start(first, launcher.slots[0])
        until(lambda: trains(launcher, first))
        server = int(status(pid(first))["PPid"])
        os.kill(server, signal.SIGKILL)
        until(lambda: status(server)["State"].startswith("Z"))
        launcher.start(second, launcher.slots[-1])  # finds the server dead
        assert end(launcher, first) == [255]  # no proof of death, and it is not dead
        assert trains(launcher, first)

        until(lambda: trains(launcher, second))
        launcher.free()
        launcher.free()
        assert all(trains(launcher, run) for run in both)
        for run in both:
            launcher.stop(run)
        until(lambda: not any(launcher.alive(run) for run in both))
        for run in both:
            assert launcher.notes(run).exit == STOPPED
            assert len(run.checkpoints()) == 1


# --- A fork that may use CUDA -------------------------------------------------------------------

# What would start CUDA, or NVML, in the process that forks: whoever is forked then can't use it.
SPY = """
import ctypes, sys, traceback

import torch

def spy(place, name):
    real = getattr(place, name)
    def spied(*args, **more):
        if place is not ctypes or any(part in str(args) for part in ("libcuda", "nvidia", "nvml")):
            traceback.print_stack()
            sys.exit(f"{name} was called")
        return real(*args, **more)
    setattr(place, name, spied)

STARTS = (
    "is_available", "device_count", "init", "current_device", "get_device_name", "current_stream",
    "get_device_capability", "get_device_properties", "is_bf16_supported", "mem_get_info",
    "set_device", "synchronize", "_lazy_init", "_raw_device_count_nvml", "_device_count_nvml",
)
for name in STARTS:
    spy(torch.cuda, name)
for name in ("is_available", "device_count", "current_accelerator", "synchronize"):
    spy(torch.accelerator, name)
for name in dir(torch._C):
    if name.startswith("_cuda_") and name not in ("_cuda_isInBadFork", "_cuda_setDevice"):
        spy(torch._C, name)
spy(ctypes, "CDLL")

from ablate.training import worker

worker.preload()
print("nothing was called", torch.cuda.is_initialized())
"""


@pytest.mark.whole
def test_what_the_server_loads_starts_neither_cuda_nor_nvml():
    said = subprocess.run([sys.executable, "-c", SPY], capture_output=True, text=True, check=False)
    assert said.stdout == "nothing was called False\n", said.stderr


# Libraries in the driver's place, which note what is called. Of the driver's own the server maps
# libcuda at most: libcublasLt opens it as it is loaded, and calls nothing (CUDA 13.0).
STUB = r"""
#include <stdio.h>
#include <stdlib.h>

static int note(const char *name)
{
    FILE *file = fopen(getenv("CALLED"), "a");
    fprintf(file, "%s\n", name);
    fclose(file);
    return 100;  /* no device */
}
#define F(name) int name(void) { return note(#name); }
F(cuInit) F(cuDriverGetVersion) F(cuGetProcAddress) F(cuGetProcAddress_v2) F(cuGetExportTable)
F(cuDeviceGetCount) F(cuDeviceGet) F(cuCtxGetCurrent) F(cuDevicePrimaryCtxGetState)
F(nvmlInit) F(nvmlInit_v2) F(nvmlInitWithFlags) F(nvmlDeviceGetCount_v2)
"""


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_server_of_the_cuda_build_calls_nothing_before_it_forks(tmp_path, monkeypatch):
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        build = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-xc", "-", "-o", soname]
        subprocess.run(build, input=STUB.encode(), cwd=tmp_path, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CALLED", str(tmp_path / "called"))
    (tmp_path / "called").touch()
    launcher, run = Local(settings("local", devices="cpu"), tmp_path), RunDir(tmp_path / "run")
    run.create({})
    run.result.write_text("{}")  # no training: the server loads all that one needs
    launcher.start(run, launcher.slots[0])
    assert end(launcher, run) == [0]
    maps = Path(f"/proc/{launcher._server.process.pid}/maps").read_text()
    assert "libtorch_cuda" in maps
    assert not re.search(r"libnvidia-ml|/dev/nvidia", maps)
    assert (tmp_path / "called").read_text() == ""
    answer = launcher._server.ask("kernel", {"device": "cuda"}, environment={})
    assert "driver" in answer["why"] or "device" in answer["why"]
    assert (tmp_path / "called").read_text() != ""  # by the process that was forked
    launcher.free()


# --- Questions ----------------------------------------------------------------------------------

ODD = """
import os, signal, sys, time
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent

class Odd(nn.Module):
    mixes_tokens = False

    def __init__(self, shape):
        super().__init__()
        (HERE / "pid").write_text(str(os.getpid()))
        while not (HERE / "go").exists():
            time.sleep(0.01)
        if last := (HERE / "go").read_text():
            print(last, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        for stream in (sys.stdout, sys.stderr):
            print("many words\\n" * 20_000, file=stream)

    def forward(self, x):
        return x
"""


@pytest.fixture(scope="module")
def server():
    with ForkServer() as made:
        yield made


def described(norm: str, folder: Path) -> tuple[str, dict]:
    """The question what a model with that norm is."""
    spec, _ = resolve_run([f"norm={norm}"], folder)
    question = {
        "specs": {"a": spec},
        "calibrate": [],
        "peaks": [],
        "cache": str(folder),
        "device": "cpu",
    }
    return "describe", question


@pytest.fixture
def odd(here):
    """`describe` of a model that says more than a pipe holds and waits for the file `go`."""
    Path("odd.py").write_text(ODD)
    return described("odd:Odd", here)


def meanwhile(do: Callable[[int], None]) -> threading.Thread:
    """`do(pid)`, once the process `pid` works on the odd question."""

    def watch() -> None:
        until(lambda: Path("pid").exists() and Path("pid").read_text())
        do(int(Path("pid").read_text()))

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.whole
def test_what_is_printed_meanwhile_is_no_answer_and_fills_no_pipe(server, odd):
    Path("go").touch()
    assert server.ask(*odd)["a"]["parameters"] > 1000


@pytest.mark.whole
@pytest.mark.parametrize(("words", "told"), [("sorry", "sorry"), (" ", "no word")])
def test_who_dies_over_a_question_is_a_failure_with_its_last_words(server, odd, words, told):
    Path("go").write_text(words)
    with pytest.raises(Failure, match=f"^worker describe: {told}$"):
        server.ask(*odd)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("os._exit(3)", "exits.py: its import ends the process; what does more than define"),
        ("os.kill(os.getpid(), 11)", "exits.py: its import ends the process"),
        ("os.closerange(0, 99)", "exits.py: its import ends the process"),
        ("raise SystemExit(0)", "exits.py, line 3: SystemExit: 0"),
    ],
)
def test_a_part_whose_import_ends_the_process_is_named(server, here, line, said):
    text = f"import os\nfrom torch import nn\n{line}\nclass N(nn.Module): ...\n"
    (here / "exits.py").write_text(text)
    with pytest.raises(UserError, match=f"^norm: exits:N: {re.escape(f'{here}/{said}')}"):
        server.ask(*described("exits:N", here))


def test_a_part_whose_import_hangs_is_named(tmp_path):
    """A process of its own, as it is one that gives up."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        with importing(lambda **told: os.write(write, f"{told}\n".encode()), "norm: N", 0.01):
            signal.pause()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    told = os.read(read, 1 << 12).decode().splitlines()
    assert told[0] == "{'importing': 'norm: N'}"
    assert told[1].startswith("{'mistake': 'norm: N: its import goes on for more than ")


def test_ctrl_c_ends_the_process_that_answers(server, odd):
    meanwhile(lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        server.ask(*odd)
    pid = Path("pid").read_text()
    until(lambda: not Path("/proc", pid).exists())  # reaped, too


@pytest.mark.whole
def test_a_server_that_is_killed_is_not_missed_by_who_answers_and_then_replaced(odd):
    with ForkServer() as server:

        def kill(_: int) -> None:
            server.process.kill()
            until(lambda: status(server.process.pid)["State"].startswith("Z"))
            Path("go").touch()

        thread = meanwhile(kill)
        first = server.ask(*odd)
        thread.join()
        dead = server.process
        assert server.ask(*odd) == first
        assert server.process is not dead


@pytest.mark.whole
def test_a_server_that_is_killed_while_it_loads_is_replaced_once(odd):
    Path("go").touch()
    launcher = Local(settings("local"), Path("cache"))
    launcher.warm()
    os.kill(launcher._server.process.pid, signal.SIGKILL)
    assert launcher.ask(*odd)["a"]["parameters"] > 1000
    launcher.free()
    died = "worker describe: the process that forks workers died"
    with ForkServer({"PYTHONHOME": "nowhere"}) as server, pytest.raises(Failure, match=died):
        server.ask(*odd)


@pytest.mark.whole
@pytest.mark.parametrize("spec", [{"trainer": {}}, {"trainer": {}, "code": 1}])
def test_a_run_that_was_edited_fails_alone(tmp_path, spec):
    (tmp_path / "run.json").write_text(json.dumps({"spec": spec}))
    request = {"run": str(tmp_path), "log": str(tmp_path / "log.txt")}
    with ForkServer() as server:
        for _ in range(2):
            server.tell({**request, "environment": {}, "options": {}})
            assert server.hear() == {"run": tmp_path.name, "exit": 1}


# --- Places -------------------------------------------------------------------------------------


def test_warming_starts_what_the_first_worker_is_forked_from(tmp_path):
    launcher = Local(settings("local"), tmp_path)
    launcher.warm()
    server = launcher._server.process
    assert server is not None
    launcher.warm()
    assert launcher._server.process is server
    assert server.poll() is None
    launcher.free()  # at once: it is still loading
    assert server.returncode == -signal.SIGKILL


def test_without_a_gpu_there_is_a_slot_a_core_that_we_may_use():
    mine = os.sched_getaffinity(0)
    assert len(slots([], 1)) == len(mine)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert slots([], 4) == [Slot("cpu:0", "cpu", "cpu")]  # never more threads than cores
    finally:
        os.sched_setaffinity(0, mine)


def test_an_unknown_launcher_is_told_with_the_choices(tmp_path):
    told = "launcher: expected one of local, inline, got 'ray'"
    with pytest.raises(UserError, match=told):
        launchers.make_launcher({"name": "ray"}, tmp_path)


def test_a_server_within_too_little_memory_ends_with_one_line():
    # Here the linker refuses a library of torch's. With twice as much the code of a library may be
    # refused memory first, and then ends the process with lines of its own.
    line = 'ulimit -v 300000; exec "$0" -P -m ablate.running.launchers.server'
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b'{"load": "torch"}')
        done = subprocess.run(
            ["bash", "-c", line, sys.executable],
            stdin=theirs.fileno(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    [said] = done.stderr.splitlines()
    assert "memory limit of this shell (0.3 GB)" in said
    assert "`ulimit -v unlimited`" in said
