"""A run that was asked to stop has no result, whatever its code does about it: real programs and
functions that end their loop early, evaluate, and end as if all were well; stopped in every way."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import process_engine
import pytest
from conftest import wait_for
from launcher_contract import settings
from support.drivers import Quiet
from support.processes import family

from ablate.planning import expand
from ablate.planning.plan import Plan
from ablate.run.rundir import RunDir
from ablate.running import launchers
from ablate.running.driver import Drive
from ablate.running.driver_lock import driver_session
from ablate.running.launchers import Launcher, jobs, pilots
from ablate.running.orders import carry_out
from ablate.store.ledger import Ledger
from ablate.store.store import Store

pytestmark = pytest.mark.faults

STEPS = 10

PROGRAM = f"""
import json, os, signal, sys, time
folder, rate = sys.argv[1], float(sys.argv[2])
ended = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda *_: ended.append(1))
slowly = os.path.exists("slowly")
steps = 0
while steps < {STEPS} and not ended:
    steps += 1
    open(f"{{folder}}/begun", "w").close()
    until = time.monotonic() + (60 if slowly and steps == {STEPS} else 0.05)
    while time.monotonic() < until and not ended:
        time.sleep(0.02)
json.dump({{"steps": steps}}, open(f"{{folder}}/result.json", "w"))
"""
FUNCTION = f"""
import os, signal, sys, time


class Asked(Exception):
    pass


def main(settings, run):
    ended, slowly, steps = [], os.path.exists({{slowly!r}}), 0

    def handle(*_):
        ended.append(1)
        if settings["how"] == "exits":
            sys.exit(0)
        if settings["how"] == "raises":
            raise Asked("to stop")

    if settings["how"] != "asks":
        before = signal.signal(signal.SIGTERM, handle)
    while steps < {STEPS} and not ended:
        steps += 1
        open("begun", "w").close()
        until = time.monotonic() + (60 if slowly and steps == {STEPS} else 0.05)
        while time.monotonic() < until and not ended:
            time.sleep(0.02)
            if settings["how"] == "asks" and run.should_stop():
                ended.append(1)
    if settings["how"] == "restores":
        signal.signal(signal.SIGTERM, before)
    run.result(steps=steps)
"""
METRICS = {"metrics": {"steps": {"direction": "more"}}}
HOWS = ("asks", "handles", "restores", "exits", "raises")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The folder with both trainers; that we are in."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "function.py").write_text(FUNCTION.format(slowly=str(tmp_path / "slowly")))
    (tmp_path / "conf" / "trainer").mkdir(parents=True)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "slowly").touch()
    trainers = {
        "program": {
            "command": [sys.executable, "-S", "program.py", "{folder}", "{rate}"],
            "keys": {"rate": 0.1},
            "result": {"file": "result.json"},
            "code": ["program.py"],
            **METRICS,
        },
        "function": {
            "name": "function:main",
            "keys": {"how": "asks", "rate": 0.1},
            "fork_safe": True,
            **METRICS,
        },
    }
    rows = {
        "program": [{f"r{n}": {"trainer.rate": n / 10}} for n in range(10)],
        "function": [
            {f"{how}{n}": {"trainer.how": how, "trainer.rate": n}} for how in HOWS for n in (1, 2)
        ],
    }
    for name, said in trainers.items():
        (tmp_path / "conf" / "trainer" / f"{name}.yaml").write_text(json.dumps(said))
        for sweep, of in ((name, rows[name]), (f"{name}-2", rows[name][1:3])):
            tree = {"base": {"trainer": name}, "variants": of, "seeds": 1}
            (tmp_path / "sweeps" / f"{sweep}.yaml").write_text(json.dumps(tree))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "cache").mkdir(parents=True)
    for module, name in ((pilots, "BEAT_S"), (pilots, "LOOK_S"), (jobs, "ASK_S")):
        monkeypatch.setattr(module, name, 0.2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(10)})  # a slot for each row
    return tmp_path


class Driven:
    """A sweep that is driven in this process, while a thread waits for its moment to act."""

    def __init__(self, folder: Path, sweep: str) -> None:
        self.store, self.view, self.folder = Store(folder / "runs"), Quiet(), folder
        self.plan: Plan = expand.plan_from_words([sweep], store=self.store.root)[0]

    def drive(self, launcher: Launcher, given, act: Callable[[], None] | None = None) -> None:
        acts = threading.Thread(target=self.at_last_step, args=(act,)) if act else None
        if acts:
            acts.start()
        with driver_session(self.store, self.plan.name, Quiet) as ledger:
            Drive(self.plan, self.store, ledger, launcher, given, self.view).run()
        if acts:
            acts.join()

    def folders(self) -> Iterator[RunDir]:
        for run in self.plan.runs():
            yield self.store.rundir(run.id)

    def at_last_step(self, act: Callable[[], None]) -> None:
        """Act once all runs are in the middle of it."""
        wait_for(lambda: all((run.scratch / "begun").exists() for run in self.folders()))
        time.sleep(1.5)
        act()

    def statuses(self) -> dict[str, int]:
        with Ledger.reading(self.store) as ledger:
            states = [ledger.states([run.id])[run.id].status for run in self.plan.runs()]
        return {status: states.count(status) for status in sorted({*states})}

    def tests(self) -> list[object]:
        results = (run.read_result() for run in self.folders())
        return [None if result is None else result["test"]["steps"] for result in results]


def own_signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def locally(driven: Driven, act=None) -> None:
    given = settings("local", devices="cpu")
    launcher = launchers.make_launcher(given, driven.store.cache)
    try:
        driven.drive(launcher, given, act and act(driven, None))
    finally:
        launcher.free()


def on_a_pilot(driven: Driven, act=None) -> None:
    given = settings("slurm", gpus=0, cpus=2, jobs=1)
    launcher, engine = process_engine.launcher(given, driven.store.root)
    try:
        driven.drive(launcher, given, act and act(driven, engine))
    finally:
        launcher.free()
        for job in engine.jobs.values():
            job.wait(60)


def interrupt(driven: Driven, engine) -> Callable[[], None]:
    return own_signal(signal.SIGINT)


def stop(driven: Driven, engine) -> Callable[[], None]:
    return own_signal(signal.SIGTERM)


def signal_job(number: int) -> Callable[..., Callable[[], None]]:
    """As Slurm does before a limit, and at preemption: to all processes of a job. Then the driver
    is stopped, which would go on with another job."""

    def act(driven: Driven, engine) -> Callable[[], None]:
        def all_of_it() -> None:
            for pid in [*family(engine.jobs["0"].pid)]:
                os.kill(pid, number)
            os.kill(os.getpid(), signal.SIGTERM)

        return all_of_it

    return act


def skip(driven: Driven, engine) -> Callable[[], None]:
    def order() -> None:
        driven.store.order("skip", [run.id for run in driven.plan.runs()])

    return order


WAYS = {
    "stop": (locally, stop),
    "Ctrl-C": (locally, interrupt),
    "skip": (locally, skip),
    "stop of a pilot": (on_a_pilot, stop),
    "limit": (on_a_pilot, signal_job(signal.SIGUSR2)),
    "preemption": (on_a_pilot, signal_job(signal.SIGTERM)),
}


OF_A_FUNCTION = [
    pytest.param("function", way, marks=[pytest.mark.slow] * (way not in ("stop", "Ctrl-C")))
    for way in WAYS
]


@pytest.mark.parametrize(("sweep", "way"), [*(("program", way) for way in WAYS), *OF_A_FUNCTION])
def test_runs_that_are_stopped_halfway_have_no_result_and_then_whole_ones(here, sweep, way):
    where, act = WAYS[way]
    if where is on_a_pilot:
        sweep = f"{sweep}-2"  # a pilot has as many slots as the machine has cores
    first = Driven(here, sweep)
    runs = sum(1 for _ in first.plan.runs())
    where(first, act)
    assert first.tests() == [None] * runs, first.view.lines
    assert "finished" not in first.statuses()
    assert "failed" not in first.statuses()
    for run in first.folders():
        left = run.path / run.read_attempts()[-1].get("folder", "scratch")
        assert not (left / "result.json").exists()
    (here / "slowly").unlink()
    if way == "skip":
        with Ledger.driving(first.store) as ledger:
            for run in first.plan.runs():
                carry_out(first.store, ledger, "undo", run.id)
    again = Driven(here, sweep)
    locally(again)
    assert again.tests() == [STEPS] * runs, again.view.lines
    assert again.statuses() == {"finished": runs}
