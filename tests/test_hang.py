"""A run is hung when it gives no sign of life: real programs and functions that live three times as
long as `launcher.hang_s`, each with one sign of life only, here and on a pilot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import process_engine
import pytest
from launcher_contract import settings
from support.drivers import Quiet

from ablate.planning import expand
from ablate.running import driver, launchers
from ablate.running.driver import Drive
from ablate.running.driver_lock import driver_session
from ablate.running.launchers import jobs, pilots
from ablate.store.ledger import Ledger
from ablate.store.store import Store

pytestmark = pytest.mark.faults

HANG_S = 5.0
LIVES = int(3 * HANG_S)  # seconds

PROGRAM = f"""
import sys, time
how, folder = sys.argv[1:]
until = time.monotonic() + {LIVES}
curves = open(f"{{folder}}/log.csv", "w")
curves.write("step,train_loss\\n")
curves.flush()
step = 0
while time.monotonic() < until:
    step += 1
    if how == "prints":
        print(step, flush=True)
    if how == "curves":
        print(step, 0.5, sep=",", file=curves, flush=True)
    if how == "curves of one step":
        print(1, 0.5 / step, sep=",", file=curves, flush=True)
    began = time.monotonic()
    while how == "computes" and time.monotonic() - began < 1:
        pass
    time.sleep(600 if how == "stuck" else 0 if how == "computes" else 1)
open(f"{{folder}}/result.json", "w").write('{{"loss": 1}}')
"""
FUNCTION = f"""
import time


def main(settings, run):
    until = time.monotonic() + {LIVES}
    run.log(1, train_loss=0.5)
    while time.monotonic() < until:
        if settings["how"] == "asks":
            run.should_stop()
        if settings["how"] == "says the same":
            run.progress(1, 2)
        if settings["how"] == "saves":
            run.save({{"step": 1}})
        time.sleep(600 if settings["how"] == "stuck" else 0.2)
    run.result(loss=1)
"""
METRICS = {"metrics": {"loss": {"direction": "less"}}}
TRAINERS = {
    "program": {
        "command": [sys.executable, "-S", "program.py", "{how}", "{folder}"],
        "keys": {"how": "prints"},
        "result": {"file": "result.json"},
        "curves": {"file": "log.csv"},
        "code": ["program.py"],
        **METRICS,
    },
    "function": {"name": "function:main", "keys": {"how": "asks"}, "fork_safe": True, **METRICS},
}
ALIVE = {
    "program": ("prints", "curves", "curves of one step", "computes"),
    "function": ("asks", "says the same", "saves"),
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The folder with both trainers; that we are in."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "function.py").write_text(FUNCTION)
    (tmp_path / "conf" / "trainer").mkdir(parents=True)
    (tmp_path / "sweeps").mkdir()
    for name, said in TRAINERS.items():
        (tmp_path / "conf" / "trainer" / f"{name}.yaml").write_text(json.dumps(said))
        rows = [{how: {"trainer.how": how}} for how in (*ALIVE[name], "stuck")]
        sweep = {"base": {"trainer": name}, "variants": rows, "seeds": 1}
        (tmp_path / "sweeps" / f"{name}.yaml").write_text(json.dumps(sweep))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def locally(folder: Path, sweep: str, drive: Callable[..., None]) -> None:
    given = settings("local", devices="cpu", hang_s=HANG_S)
    launcher = launchers.make_launcher(given, folder / "runs" / "cache")
    try:
        drive(sweep, launcher, given)
    finally:
        launcher.free()


def on_a_pilot(folder: Path, sweep: str, drive: Callable[..., None]) -> None:
    given = settings("slurm", gpus=0, cpus=8, jobs=1, hang_s=HANG_S)
    launcher, engine = process_engine.launcher(given, folder / "runs")
    try:
        drive(sweep, launcher, given)
    finally:
        launcher.free()
        for job in engine.jobs.values():
            job.wait(60)


@pytest.mark.parametrize(
    ("sweep", "where"),
    [
        ("program", locally),
        pytest.param("program", on_a_pilot, marks=pytest.mark.slow),
        ("function", locally),
        pytest.param("function", on_a_pilot, marks=pytest.mark.slow),
    ],
)
def test_only_what_is_stuck_is_ended_as_hung(here, monkeypatch, sweep, where):
    for module, name in ((pilots, "BEAT_S"), (pilots, "LOOK_S"), (jobs, "ASK_S")):
        monkeypatch.setattr(module, name, 0.2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})  # slots for all rows
    store, view = Store(here / "runs"), Quiet()
    (here / "runs" / "cache").mkdir(parents=True)
    plan = expand.plan_from_words([sweep], store=store.root)[0]

    def drive(name: str, launcher, given) -> None:
        with driver_session(store, name, Quiet) as ledger:
            Drive(plan, store, ledger, launcher, given, view).run()

    where(here, sweep, drive)
    with Ledger.reading(store) as ledger:
        states = {run.cell.row: ledger.states([run.id])[run.id].status for run in plan.runs()}
        [stuck] = [run.id for run in plan.runs() if run.cell.row == "stuck"]
        times = [(kind, at) for at, kind, _ in ledger.events(stuck) if kind in ("started", "hung")]
    assert states == {**dict.fromkeys(ALIVE[sweep], "finished"), "stuck": "hung"}, view.lines
    assert "launcher.hang_s" in (store.liveness.notes(store.rundir(stuck)).error or "")
    assert [kind for kind, _ in times] == ["started", "hung"] * 2
    for (_, started), (_, hung) in zip(times[::2], times[1::2], strict=True):
        assert HANG_S < hung - started < 2.5 * HANG_S


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sweep_does_not_wait_for_a_process_that_no_signal_ends(here, monkeypatch, device):
    """As one that waits in the kernel for a GPU which fell off the bus: SIGKILL stays pending. The
    other runs end, and the sweep says what it left."""
    monkeypatch.setattr(driver, "UNENDING_S", 2.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})  # slots for all rows
    store, view = Store(here / "runs"), Quiet()
    (here / "runs" / "cache").mkdir(parents=True)
    plan = expand.plan_from_words(["function"], store=store.root)[0]
    given = settings("local", devices="cpu", hang_s=2 * HANG_S)
    launcher = launchers.make_launcher(given, here / "runs" / "cache")
    if device == "cuda":
        launcher.slots = [replace(slot, place=slot.name, device="cuda") for slot in launcher.slots]
    stop = launcher.stop
    monkeypatch.setattr(launcher, "stop", lambda run, now=False: None if now else stop(run))
    [stuck] = [run for run in plan.runs() if run.cell.row == "stuck"]
    try:
        with driver_session(store, "function", Quiet) as ledger:
            outcome = Drive(plan, store, ledger, launcher, given, view).run()
            states = {run.cell.row: ledger.states([run.id])[run.id].status for run in plan.runs()}
        assert store.rundir(stuck.id).lock.is_held()
    finally:
        stop(store.rundir(stuck.id), True)
        launcher.poll(HANG_S)
        launcher.free()
    assert states == {**dict.fromkeys(ALIVE["function"], "finished"), "stuck": "started"}
    assert outcome.stopped is not None
    assert outcome.stopped.startswith(f"{stuck.label}: ")
    assert len(outcome.retired) == (device == "cuda")
