"""Pilots that fall silent, jobs that end, drivers that follow: what is given up, and what is not.

Most on files alone, as the other side would have written them; what a signal does on processes.
"""

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import process_engine
import pytest
from launcher_contract import LONG, TINY, end, trains, until
from process_engine import Processes
from support.pilots import CPUS, offer_slots
from support.processes import family

from ablate.planning.compose import resolve_run
from ablate.run.rundir import EXIT_AWAY, STOPPED, RunDir
from ablate.running import attempts
from ablate.running.board import PlaceRecord
from ablate.running.launchers import Slot, jobs, pilot_steps, pilots
from ablate.running.launchers.jobs import JobEnd
from ablate.running.launchers.local import Inline
from ablate.running.launchers.pilot import _Pilot
from ablate.running.launchers.pilots import PilotLauncher
from ablate.running.next_step import assign
from ablate.shared.errors import Failure
from ablate.shared.notes import Notes
from ablate.store.events import RunState
from ablate.store.pilots import PilotDir, put, store_token, write_proof
from ablate.store.store import Store
from ablate.training.attempt import EXIT_STOPPED

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("BEAT_S", "LOOK_S"):
        monkeypatch.setattr(pilots, name, 0.05)
    monkeypatch.setattr(jobs, "ASK_S", 0.05)
    monkeypatch.setattr(pilot_steps, "GONE_S", 0.3)


class Silent:
    """An engine that has these jobs, and does nothing."""

    silence = ""

    def __init__(self, *jobs: str, end: JobEnd | None = None) -> None:
        self.jobs, self.end = jobs, end or JobEnd()
        self.tokens: list[str] = []
        self.cancelled: list[str] = []

    def __call__(self, token: str) -> "Silent":
        self.tokens.append(token)
        return self

    def submit(self, count: int, excluded_hosts: object) -> list[str]:
        return []

    def states(self) -> dict[str, bool]:
        return dict.fromkeys(self.jobs, True)

    def ended(self, job: str) -> JobEnd:
        return self.end

    def cancel(self, jobs: Collection[str]) -> None:
        self.cancelled += jobs

    def log(self, job: str) -> str:
        return f"{job}.log"


def wrote(pilot: PilotDir, number: int, runs: dict[str, Any], **more: Any) -> None:
    """A pilot's beat."""
    slots = [{"name": f"{pilot.id}/cpu:0", "place": "host/cpu", "device": "cpu"}]
    tree = {"beat": number, "job": "1", "slots": slots, "open": True, "over": False}
    pilot.write_beat({**tree, "runs": runs, "ended": {}, **more})


def ordered(pilot: PilotDir, *given: str, **more: Any) -> dict[str, Any]:
    """What a driver has written."""
    runs = dict.fromkeys(given, f"{pilot.id}/cpu:0")
    tree = {"runs": runs, "stop": {}, "close": False, "shares": {}}
    tree |= {"settings": {"checkpoint_s": 5.0, "origin": "its"}, **more}
    pilot.write_orders(tree)
    return tree


@pytest.fixture
def shared(tmp_path) -> tuple[Store, PilotDir]:
    """A store with a pilot of job 1, and the first attempts of `x0`, which it trains, and `y0`."""
    store, pilot = Store(tmp_path / "runs"), PilotDir(tmp_path / "runs" / "pilots" / "p1")
    pilot.create()
    for run in ("x0", "y0"):
        attempts.attempt_folder(store, run, 1).create({})
        attempts.appoint(store, run, 1)
    ordered(pilot, "1/x0")
    wrote(pilot, 1, {"1/x0": {"step": 3}})
    return store, pilot


def test_who_waits_for_its_turn_begins_with_the_orders_of_that_moment(shared):
    """Made while another drives, which then ends one run, begins the next, and dies."""
    store, pilot = shared
    engine = Silent("1")
    waits = PilotLauncher(CPUS, store.cache, engine)
    write_proof(store.root, "of the other")
    before = ordered(pilot, "1/y0", stop={"1/y0": False}, close=True)
    wrote(pilot, 2, {"1/y0": {"step": 30}}, ended={"1/x0": 0})
    waits.poll(0.2)
    assert not waits.alive(store.rundir("y0"))
    assert pilot.orders() == before
    waits.offer(1, ())
    assert waits.alive(store.rundir("y0"))
    assert waits.notes(store.rundir("y0")) == Notes(step=30)
    assert not waits.alive(store.rundir("x0"))
    own = {"checkpoint_s": CPUS["checkpoint_s"], "origin": None}
    assert pilot.orders() == before | {"settings": own}
    assert engine.tokens[-1] == store_token(store.root) == "of the other"
    waits.free()


def test_who_only_asks_writes_no_orders(shared):
    store, pilot = shared
    before = ordered(pilot, "1/x0", close=True)
    wrote(pilot, 1, {}, ended={"1/x0": 0})
    asks = PilotLauncher(CPUS, store.cache, Silent("1"))
    assert asks.poll(0.2) == {}
    asks.free()
    assert pilot.orders() == before


def test_a_run_that_was_out_of_memory_has_all_of_its_device(shared):
    """From the driver's choice to the worker; its slot is one of two on a GPU."""
    store, folder = shared
    half = Slot(f"{folder.id}/gpu:0.0", "host/gpu:0", "cuda", share=0.5)
    wrote(folder, 2, {}, slots=[asdict(half)], ended={"1/x0": 0})
    made = PilotLauncher(CPUS, store.cache, Silent("1"))
    made.offer(1, ())
    assert made.poll(0.2) == {"x0": 0}
    chosen = assign(["y0"], {}, made.slots, {"y0": RunState("oom", oom=1)}, PlaceRecord())
    assert chosen is not None
    made.start(attempts.attempt_folder(store, "y0", 1), chosen[1])
    assert made.poll() == {}
    node = _Pilot(store.root, folder.id, {**CPUS}, "1", "host", None, {half.name: half})
    started: list[tuple[str, Slot]] = []
    node.local = SimpleNamespace(start=lambda run, slot: started.append((run.id, slot)))
    node._obey(folder.orders(), takes=True, refuses=False)
    assert started == [("y0", replace(half, share=1.0))]
    made.free()


# --- Given up ---------------------------------------------------------------------------------


def told(launcher: PilotLauncher) -> tuple[dict[str, int], list[str]]:
    """Exit codes and lines, once there are codes."""
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while not (exits := launcher.poll(0.05)):
        assert time.monotonic() < deadline, "told of nothing"
        lines += launcher.offer(0, ())
    return exits, [*lines, *launcher.offer(0, ())]


class Clock:
    """Its time passes while somebody sleeps, and however busy the machine is no other."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (JobEnd("OUT_OF_MEMORY", "failed"), -signal.SIGKILL),
        *((JobEnd("CANCELLED by 0", "lost"), EXIT_AWAY), (JobEnd(), EXIT_AWAY)),
    ],
)
def test_a_pilot_whose_job_is_gone_is_given_up_once_it_is_silent(shared, monkeypatch, how, code):
    monkeypatch.setattr(pilots, "time", Clock())
    store, pilot = shared
    made = PilotLauncher(CPUS, store.cache, Silent(end=how))
    made.offer(0, ())
    beats = itertools.count(2)

    def lives() -> bool:
        wrote(pilot, next(beats), {"1/x0": {"step": 3}})
        assert made.poll(pilots.LOOK_S) == {}
        assert made.alive(store.rundir("x0"))
        return made._jobs.running is not None

    until(lives)  # the engine lacks its job by now, and it beats
    for _ in range(int(2 * pilot_steps.GONE_S / pilots.LOOK_S)):
        lives()
    exits, lines = told(made)
    assert exits == {"x0": code}
    [line] = lines
    assert line.startswith("pilot p1 ")
    assert line.endswith(f" ({how.words})" if how.words else "ended")
    assert not made.alive(store.rundir("x0"))
    assert not pilot.path.exists()
    made.free()


def test_jobs_that_end_unseen_end_the_sweep_unless_they_were_taken_away(tmp_path):
    (tmp_path / "cache").mkdir()
    asked: list[str] = []
    engine = Silent(end=JobEnd("CANCELLED by 0", "lost"))
    engine.submit = lambda count, excluded_hosts: asked.append(f"{len(asked)}") or asked[-1:]
    made = PilotLauncher(CPUS | {"jobs": 1}, tmp_path / "cache", engine)

    def drive(said: list[str]) -> None:
        made.poll(0.02)
        said.extend(made.offer(1, ()))

    lines: list[str] = []
    until(
        lambda: drive(lines) or len(asked) > jobs.MOST_UNSEEN + 1
    )  # after the end of the one before
    assert lines == []
    engine.end = JobEnd("FAILED", "failed")
    no_node = r"^no node can be used: job \d+ ended before .*: see \d+.log$"
    with pytest.raises(Failure, match=no_node):
        until(lambda: drive(lines))
    made.free()


def test_the_host_of_a_pilot_without_a_slot_gets_no_further_job(shared):
    store, pilot = shared
    engine, excluded = Silent(), []
    engine.submit = lambda count, excluded_hosts: excluded.append({*excluded_hosts}) or []
    wrote(pilot, 1, {}, slots=[], open=False, host="n1", remarks=["n1/gpu:0: not used: a fault"])
    made = PilotLauncher(CPUS, store.cache, engine)
    until(lambda: (made.poll(0.02), made.offer(1, ["n2/gpu:0"])) and excluded)
    assert excluded[0] == {"n1", "n2"}
    made.free()


def test_a_slow_answer_on_a_jobs_end_holds_nobody_up(shared):
    store, _ = shared
    answered, engine = threading.Event(), Silent()
    engine.ended = lambda job: answered.wait(60) and JobEnd("FAILED", "failed")
    made = PilotLauncher(CPUS, store.cache, engine)
    since = time.monotonic()
    while time.monotonic() - since < 4 * pilot_steps.GONE_S:
        asked = time.monotonic()
        assert not made.offer(0, ())
        assert made.poll(0.02) == {}
        assert time.monotonic() - asked < 30  # the answer takes a minute
    answered.set()
    assert told(made)[0] == {"x0": -signal.SIGKILL}
    made.free()


def test_a_driver_beats_on_whatever_it_does_and_ends_where_another_took_its_place(shared):
    store, pilot = shared
    wrote(pilot, 1, {})
    engine = Silent("1", "queued")
    engine.states = lambda: {"1": True, "queued": False}
    made = PilotLauncher(CPUS, store.cache, engine)
    made.offer(0, ())
    until(lambda: made._jobs.running or made.poll(0.01))
    driver = store.pilots / "driver.json"
    first = json.loads(driver.read_text())
    until(lambda: json.loads(driver.read_text())["beat"] > first["beat"])
    assert not first["done"]

    other = first | {"pid": 1, "host": "another", "beat": 1}
    # It beats, too: what the first has read its own name for it may still replace.
    until(lambda: put(driver, other) or not made._beat._thread.is_alive())
    with pytest.raises(Failure, match=r"process 1 of another drives this store now, which had no"):
        made.poll(20)
    made.free()
    assert json.loads(driver.read_text()) == other
    assert engine.cancelled == []


def test_a_driver_beats_before_it_builds_models_and_decodes(shell, monkeypatch):
    def offer(launcher: object, waiting: int, excluded_places: object) -> list[str]:
        raise Failure(f"offered to {waiting}")

    monkeypatch.setattr(Inline, "offer", offer)
    monkeypatch.setattr(Inline, "warm", lambda launcher: pytest.fail("it prepares"))
    words = ("sweep", "block.attn=pre,post", *TINY, "launcher=inline")
    assert "offered to 0" in shell(*words, code=1).err


def test_nodes_must_see_the_data_that_was_there_when_the_first_run_began(tmp_path):
    """Decoded after the driver's first beat; what vanishes later is missed."""
    meta = tmp_path / "cache" / "f" / "meta.json"
    meta.parent.mkdir(parents=True)
    made = PilotLauncher(CPUS | {"jobs": 1}, tmp_path / "cache", engine := Silent())
    asked: list[int] = []
    engine.submit = lambda count, excluded_hosts: asked.append(count) or []
    made.offer(0, ())
    meta.write_text("{}")
    for count in (1, 2):
        until(lambda n=count: made.poll(0.02) or made.offer(1, ()) or len(asked) >= n)
        made._jobs.not_before = 0.0
        meta.unlink(missing_ok=True)
    assert [*json.loads((tmp_path / "pilots" / "store.json").read_text())["data"]] == ["f"]
    made.free()


# --- On processes -----------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path, tmp_path_factory) -> Store:
    cache = tmp_path_factory.getbasetemp() / "contract-cache"
    cache.mkdir(exist_ok=True)
    made = Store(tmp_path / "runs")
    made.root.mkdir()
    made.cache.symlink_to(cache)
    return made


@pytest.fixture
def launched(store) -> Iterator[Callable[..., tuple[PilotLauncher, Processes]]]:
    """Makes a launcher and its engine; in the end its jobs are gone."""
    with contextlib.ExitStack() as stack:

        def launch(**own: Any) -> tuple[PilotLauncher, Processes]:
            made, engine = process_engine.launcher(CPUS | own, store.root)
            stack.callback(engine.end)
            stack.callback(made.free)
            return made, engine

        yield launch


def training(made: PilotLauncher, store: Store) -> RunDir:
    """The first attempt of a run that takes long, which a worker trains."""
    tree, run = resolve_run([TINY[0], *LONG], store.root)
    folder = attempts.attempt_folder(store, run, 1)
    folder.create(tree)
    attempts.appoint(store, run, 1)
    made.start(folder, offer_slots(made).slots[0])
    until(lambda: trains(made, folder))
    return folder


def test_an_adopted_worker_leaves_a_checkpoint_at_a_signal_to_its_job(store, launched):
    """Slurm's, before a limit: it reaches the workers, too, and the server that forks them."""
    first, engine = launched(checkpoint_s=1000)
    run = training(first, store)
    second = PilotLauncher(CPUS | {"checkpoint_s": 1000}, store.cache, lambda token: engine)
    second.offer(0, ())
    until(lambda: trains(second, run))
    processes = [*family(engine.jobs["0"].pid)]
    assert len(processes) == 3
    for process in processes:
        os.kill(process, signal.SIGUSR2)
    assert end(second, run) == [EXIT_STOPPED]
    assert run.lock.notes().exit == STOPPED
    assert len(run.checkpoints()) == 1
    assert engine.jobs["0"].wait(60) == 0
    second.free()


def test_a_pilot_that_was_cut_off_kills_its_workers_when_it_is_back(store, launched, monkeypatch):
    """Its node hears of no `scancel`."""
    made, engine = launched()
    cancelled: list[str] = []
    monkeypatch.setattr(engine, "cancel", cancelled.extend)
    run, job = training(made, store), engine.jobs["0"]
    os.kill(job.pid, signal.SIGSTOP)
    monkeypatch.setattr(pilot_steps, "STALE_S", 0.5)
    exits, (line,) = told(made)
    assert exits == {run.id: EXIT_AWAY}
    assert line.endswith("is gone: no sign of life")
    assert not made.alive(run)
    assert made.slots == []
    until(lambda: cancelled == ["0"])  # a thread asks the engine
    assert run.lock.is_held()
    os.kill(job.pid, signal.SIGCONT)
    assert job.wait(60) == 0
    until(lambda: not run.lock.is_held())
    assert run.lock.notes().exit is None


def test_a_pilot_whose_job_is_about_to_end_makes_way_for_another(store, launched):
    made, engine = launched(jobs=1)
    engine.limit = 3.0  # of which half is too short for a run
    (slot, *_) = offer_slots(made).slots
    assert engine.jobs.keys() == {"0"}
    run = RunDir(store.attempts / "1" / "a0")
    until(lambda: made.poll(0.05) or engine.jobs["0"].poll() == 0)
    made.start(run, slot)
    assert end(made, run) == [EXIT_AWAY]
    engine.limit = None
    until(lambda: made.offer(1, ()) or made.poll(0.05) or len(engine.jobs) > 1)
    offer_slots(made)  # a job whose pilot is not seen yet would be cancelled
    made.free()
    assert [job.wait(60) for job in engine.jobs.values()] == [0, 0]


def test_a_pilot_without_a_driver_ends(launched):
    made, engine = launched()
    engine.stale_s = 0.5
    offer_slots(made)._beat._end_event.set()  # as if it had died
    assert engine.jobs["0"].wait(60) == 0
