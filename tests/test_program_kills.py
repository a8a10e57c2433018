"""kill -9 of the driver, of a worker, of the program or of what it started, and `ablate stop`, at
random moments of a sweep of a program: the results are those that arithmetic gives, each once, and
no process is left. Real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import wait_for
from support.processes import kill, workers
from support.programs import COMMAND, RESUMES, TRAIN, YAML, declare, expected_loss, results

pytestmark = pytest.mark.faults

STEPS = 25
ACTS = ("gelu", "tanh")
# The program has a child, which outlives it where nobody ends it. With the last seed it ends only
# once all kills have happened, so the sweep doesn't end before.
PROGRAM = TRAIN.replace(
    'print("the loss is"',
    "while args.seed == LAST and not os.path.exists('killed'):\n"
    "    time.sleep(0.02)\n"
    'print("the loss is"',
)
FORKER = "import subprocess\nsubprocess.Popen(['sleep', '3600'])\n"


def processes_in(folder: Path) -> dict[int, bytes]:
    """List the living processes that work in a folder or below it, with their command lines."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(os.readlink(process / "cwd")).is_relative_to(folder):
                    found[int(process.name)] = (process / "cmdline").read_bytes()
    return found


def of_program(folder: Path) -> list[int]:
    """List the processes of programs, and of what these started."""
    return [
        pid
        for pid, line in processes_in(folder).items()
        if b"train.py\0" in line or line.startswith(b"sleep\0")
    ]


@pytest.mark.parametrize(
    "kills", [8, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_kills_of_driver_worker_and_program_and_stops_in_between(shell, kills):
    seeds = kills // 4
    (shell.folder / "train.py").write_text(f"{FORKER}LAST = {seeds - 1}\n{PROGRAM}")
    keys = {**YAML["keys"], "steps": STEPS, "pause": 0.05}
    command = COMMAND.replace("python", f"{sys.executable} -S", 1)
    declare(shell.folder, command=command, keys=keys, **RESUMES)
    words = ("sweep", "trainer=toy", f"trainer.act={','.join(ACTS)}", f"seeds={seeds}")
    words += ("--as", "killed", "launcher.attempts=1000")
    moment = random.Random(kills)
    acts = ["driver", "worker", "program", "stop"] * (kills // 4)
    moment.shuffle(acts)
    driver = shell.start(*words)
    places = {
        "driver": lambda: [driver.pid],
        "worker": lambda: workers(shell.folder),
        "program": lambda: of_program(shell.folder),
    }
    for act in acts:
        wait_for(lambda: of_program(shell.folder))
        time.sleep(moment.uniform(0, 1.5))
        if act == "stop":
            while driver.poll() is None:  # it may only be starting, and unknown to `stop`
                shell.end(shell.start("stop"))
        else:
            wait_for(places[act])  # a program that was killed has to start again
            kill(places[act]()[:1])
        if act in ("driver", "stop"):
            driver.wait()
            driver = shell.start(*words)
    (shell.folder / "killed").touch()
    driver.send_signal(signal.SIGTERM)
    driver.wait()
    shell.process(*words)
    found = results(shell.folder)
    losses = Counter(round(result["test"]["loss"], 9) for result in found.values())
    assert losses == Counter(
        round(expected_loss(0.1, seed, STEPS, act), 9) for seed in range(seeds) for act in ACTS
    )
    for run in found:
        lines = (shell.folder / "runs" / "runs" / run / "metrics.jsonl").read_text().splitlines()
        steps = [line["step"] for line in map(json.loads, lines) if "train_loss" in line]
        assert steps == [*range(1, STEPS + 1)]
    with contextlib.closing(sqlite3.connect(shell.folder / "runs" / "ledger.db")) as ledger:
        events = ledger.execute("SELECT run, kind FROM event").fetchall()
    finished = Counter(run for run, kind in events if kind == "finished")
    assert finished == dict.fromkeys(found, 1)
    assert not {"failed", "diverged"} & {kind for _, kind in events}
    wait_for(lambda: not processes_in(shell.folder), 30)
