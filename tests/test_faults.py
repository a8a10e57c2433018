"""A full disk, a device that falls off, memory that runs out, a ledger that is gone: the real
filesystem, real processes; errors of a GPU are raised on a CPU by a class of the user's own."""

import contextlib
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import ABLATE, Shell, wait_for
from support.drivers import Quiet
from support.processes import workers

from ablate.planning.expand import plan_from_words as make_plan
from ablate.running.driver import Drive
from ablate.running.driver_lock import driver_session
from ablate.running.launchers import Slot
from ablate.running.launchers.local import Local
from ablate.store.ledger import Ledger
from ablate.store.repair import repair_ledger
from ablate.store.store import Store

pytestmark = pytest.mark.faults

TINY = ("model.depth=1", "train.epochs=3", "launcher.checkpoint_s=0.1", "--as", "faults")
WORDS = ("sweep", "block.attn=pre,post", "seeds=2", *TINY)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("calm"))
    shell(*WORDS, "launcher=inline")
    return shell


@pytest.fixture
def calm(undisturbed) -> str:
    return undisturbed("table", "faults", "--format", "tidy").out


# --- A full disk --------------------------------------------------------------------------------

ON_A_SMALL_DISK = """
mount -t tmpfs -o size=20m none runs && cp -r "$1" runs/cache && shift
head -c 20m /dev/zero > runs/ballast 2> /dev/null || true
"$@" && ablate table faults --format tidy > table.csv
"""


def test_a_full_disk_pauses_the_sweep_which_goes_on_when_there_is_room(undisturbed, calm, tmp_path):
    (tmp_path / "runs").mkdir()
    cache = undisturbed.folder / "runs" / "cache"
    words = ["unshare", "-rm", "sh", "-ec", ON_A_SMALL_DISK, "sh", cache, ABLATE, *WORDS]
    path = f"{Path(ABLATE).parent}:{os.environ['PATH']}"
    with open(tmp_path / "out", "wb") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        driver = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PATH": path}, **streams)

    def said() -> str:
        return (tmp_path / "out").read_text()

    inside = Path(f"/proc/{driver.pid}/root{tmp_path}/runs")  # the mount is the process's own
    full = "is full; free some space, and the sweep goes on"
    wait_for(lambda: full in said())  # before the first run
    assert not (inside / "ledger.db").exists()
    (inside / "ballast").unlink()
    wait_for(lambda: list(inside.glob("runs/*/checkpoint-*")))
    ballast = os.open(inside / "ballast", os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while os.write(ballast, bytes(1 << 14)):
            pass
    os.close(ballast)
    wait_for(lambda: said().count(full) >= 2)
    assert driver.poll() is None
    (inside / "ballast").unlink()
    assert driver.wait(120) == 0, said()
    again = said().count("the disk has room again")
    assert again == said().count(full) >= 2  # room may come by bits
    assert "died" not in said()
    assert (tmp_path / "table.csv").read_text() == calm


# --- Devices ------------------------------------------------------------------------------------

BROKEN = '''
import builtins
import os
import pathlib
import time

import torch
from torch import nn


class Broken(nn.Identity):
    """Does what the file `fault` says, on the device that it names; others wait while there is a
    file `hold`."""

    def __init__(self, features: int) -> None:
        super().__init__()

    def forward(self, x):
        fault = pathlib.Path(__file__).with_name("fault")
        planned = x.device.type == "meta" or len(x) <= 4  # described, or rehearsed
        if not planned and fault.exists():
            error, device = fault.read_text().split()
            fails = os.environ.get("CUDA_VISIBLE_DEVICES", "") in (device, "")
            while not fails and fault.with_name("hold").exists():
                time.sleep(0.01)
            if fails:
                kind = getattr(torch, error, None) or getattr(builtins, error)
                raise kind("CUDA error: the device is gone")
        return x
'''


@pytest.fixture
def broken(here, undisturbed) -> Shell:
    """A folder with a norm that fails on demand, and a store whose data is decoded."""
    (here / "broken.py").write_text(BROKEN)
    shutil.copytree(undisturbed.folder / "runs" / "cache", here / "runs" / "cache")
    return Shell(here)


OWN = ("sweep", "norm=layernorm,broken:Broken", "seeds=2", *TINY)
ALL = ("sweep", "norm=broken:Broken", "block.attn=pre,post", "seeds=2", *TINY)


def test_every_device_lost_ends_the_sweep_and_the_same_command_goes_on(broken):
    (broken.folder / "fault").write_text("AcceleratorError any")
    done = broken(*ALL, code=1)
    assert "no device is left (cpu); 0 of 4 runs done; the same command goes on" in done.err
    assert done.out.count("device lost: ") >= 2
    (broken.folder / "fault").unlink()
    assert broken(*ALL, "launcher=inline").out.count("finished:") == 4


def test_out_of_memory_is_tried_alone_once_more_then_left_and_retried_when_asked(broken):
    (broken.folder / "fault").write_text("OutOfMemoryError any")
    done = broken(*OWN, code=1)
    assert done.out.count("oom: ") == 4  # each of two runs twice
    assert "2 oom of 4 runs" in done.err
    (broken.folder / "fault").unlink()
    assert broken(*OWN, "launcher=inline", "--retry", "oom").out.count("finished:") == 2


def test_variants_that_all_fail_alike_stop_the_sweep_and_no_more_are_marked_failed(broken):
    # Of 12 variants: which of two seeds of one fails first is chance, and one counts once.
    rates = ",".join(f"0.00{n:02}" for n in range(1, 13))
    (broken.folder / "fault").write_text("ValueError any")
    words = ("sweep", "norm=broken:Broken", f"optim.lr={rates}", "seeds=1", *TINY)
    assert re.search(
        r"faults: [34] runs in a row failed at once on cpu, all alike \(ValueError: CUDA error: "
        r"the device is gone\): no single variant is the cause; 0 of 12 runs done; mend it, and "
        r"`ablate sweep .* --retry failed` goes on",
        broken(*words, code=1).err,
    )
    with Ledger.reading(Store(broken.folder / "runs")) as ledger:
        states = Counter(state.status for state in ledger.states().values())
    assert 3 <= states["failed"] <= 3 + len(os.sched_getaffinity(0))  # others were at it, too
    assert states["planned"] >= 12 - states["failed"] - len(os.sched_getaffinity(0))


class Said(Quiet):
    """Once a place is given up it takes the file `hold` away."""

    def say(self, text: str) -> None:
        super().say(text)
        if " is given up: " in text:
            Path("hold").unlink()


def test_a_place_where_two_runs_lose_their_device_is_given_up_and_they_go_elsewhere(broken):
    (broken.folder / "fault").write_text("AcceleratorError 0")
    Path("hold").touch()  # else all may have finished elsewhere, before a second is lost
    store, said = Store(broken.folder / "runs"), Said()
    plan, settings = make_plan(ALL[1:-2], store=store.root, name="faults")
    launcher = Local(settings, store.cache)
    launcher.slots = [Slot(f"gpu:{n}", f"gpu:{n}", "cpu", visible=str(n)) for n in range(2)]
    with driver_session(store, plan.name, lambda: contextlib.nullcontext(said)) as ledger:
        outcome = Drive(plan, store, ledger, launcher, settings, said).run()
    launcher.free()
    assert outcome.progress.counts == {"finished": 4}
    assert outcome.retired == ("gpu:0",)
    (given_up,) = (line for line in said.lines if line.startswith("gpu:0 is given up"))
    # the third, where the first two are seeds of one variant
    assert re.fullmatch(r"gpu:0 is given up: [23] runs lost their device there", given_up)
    with Ledger.reading(store) as ledger:
        for run in plan.runs():
            kinds = [(kind, detail.get("slot")) for _, kind, detail in ledger.events(run.id)]
            assert kinds[-2:] == [("started", "gpu:1"), ("finished", None)]


# --- The ledger ---------------------------------------------------------------------------------


@pytest.fixture
def kept(undisturbed, tmp_path) -> Shell:
    """A copy of a whole sweep."""
    shutil.copytree(undisturbed.folder / "runs", tmp_path / "runs")
    return Shell(tmp_path)


@pytest.mark.parametrize("first", ["table", "sweep"])
def test_a_lost_ledger_is_made_again_from_the_folders(kept, calm, first):
    for path in (kept.folder / "runs").glob("ledger.db*"):
        path.unlink()
    if first == "sweep":
        assert "finished:" not in kept(*WORDS).out
    assert kept("table", "faults", "--format", "tidy").out == calm
    with Ledger.reading(Store(kept.folder / "runs")) as ledger:
        assert ledger.broken_seals() == []
        for run in ledger.states():
            assert [kind for _, kind, _ in ledger.events(run)] == ["planned", "finished"]
        ((kind, detail),) = ledger.plan_events("faults")
        # The same sweep has sealed anew what was taken from the file.
        assert (kind, "rebuilt" in detail) == ("plan", first == "table")


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(200)])
def test_a_broken_ledger_is_named_with_its_remedy_and_repaired(kept, calm, content):
    store = Store(kept.folder / "runs")
    store.ledger.write_bytes(content)
    if content:
        for words in (("table",), ("status",), WORDS):
            said = kept(*words, code=1).err
            assert re.fullmatch(".*ledger.db.*`ablate doctor --repair`.*\n", said)
        with store.driver.hold():
            assert repair_ledger(store).backup.read_bytes() == content
    assert kept("table", "faults", "--format", "tidy").out == calm


# --- The store itself ---------------------------------------------------------------------------

SLOW = """
import time

def main(settings, run):
    for step in range(10**6):
        run.log(step, score=0.5)
        run.save(step)
        time.sleep(0.01)
"""


def removed(store: Path) -> None:
    while store.exists():  # workers write meanwhile
        shutil.rmtree(store, ignore_errors=True)


def moved(store: Path) -> None:
    store.rename(store.with_name("elsewhere"))


def replaced(store: Path) -> None:
    """By what a backup has of it, while the driver looks away."""
    words = ["cp", "-r", store, store.with_name("copy")]
    subprocess.run(words, check=False, stderr=subprocess.DEVNULL)
    moved(store)
    store.with_name("copy").rename(store)


@pytest.mark.parametrize("lose", [removed, moved, replaced])
def test_a_store_that_is_lost_under_its_driver_ends_the_sweep_and_is_not_born_again(tmp_path, lose):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "conf" / "trainer").mkdir(parents=True)
    (tmp_path / "conf" / "trainer" / "slow.yaml").write_text(
        "name: slow:main\nkeys: {rate: 1}\nmetrics: {score: {direction: more}}\n"
    )
    shell, store = Shell(tmp_path), tmp_path / "runs"
    words = ("trainer=slow", "trainer.rate=1,2", "launcher.checkpoint_s=0.05", "seeds=1")
    driver = shell.start("sweep", *words, "--as", "lost")
    wait_for(lambda: list(store.glob("runs/*/checkpoint-*")) or driver.poll() is not None, 60)
    pids = workers(tmp_path)
    lose(store)
    done = shell.end(driver, 60)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("ablate: runs: was removed, moved or replaced while it was driven")
    assert pids
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)
    if lose is not replaced:
        assert not store.exists()
    if lose is not removed:
        kept = store if lose is replaced else store.with_name("elsewhere")
        told = shell("status", "lost", "--store", kept).out  # the last word is that of a crash
        assert re.search("2 runs: (2 started|1 started, 1 interrupted|2 interrupted)", told)
