"""Checks a trainer of the user's own: killed after its first saved state and resumed, does it end
with the bits of one that was not killed?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.audit.doctor.finding import Finding, Findings
from ablate.running.launchers import Ask, Slot, worker_options
from ablate.shared.own import name_of
from ablate.shared.rundir import RunDir

SAVES, HALFWAY = 6, 3  # states that are saved in all, and before the kill
LEG_S = 60.0  # for so many, or the whole run
KILLED = -signal.SIGKILL


class _Leg:
    """A folder in which the run is trained, each time by a new process."""

    def __init__(self, folder: Path, spec: Mapping[str, Any], slot: Slot) -> None:
        self.folder = RunDir(folder)
        self.folder.create(dict(spec))
        self._slot = slot

    def train(self, saves: int | None) -> int | None:
        """Until so many states are saved, when it kills itself, or to its end: the exit code. None:
        time ran out."""
        options = worker_options(self._slot, {"checkpoint_s": 0.0}, self.folder.path)
        words = [str(self.folder.path), json.dumps({**options, "saves": saves})]
        threads = {"OMP_NUM_THREADS": str(options["threads"]), "PYTHONHASHSEED": "0"}
        with open(self.folder.log, "ab") as log:
            try:
                done = subprocess.run(
                    [sys.executable, "-P", "-m", "ablate.training.own", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **threads, **self._slot.environment},
                    timeout=LEG_S,
                )
            except subprocess.TimeoutExpired:
                return None
        return done.returncode

    @property
    def error(self) -> str:
        return str(self.folder.lock.notes().get("error") or "its process died without a message")

    @property
    def from_state(self) -> int:
        """The number of the state that the last process went on from, 0 for none."""
        attempts = self.folder.read_attempts()
        return int(attempts[-1].get("from_step", 0)) if attempts else 0


def resume(slot: Slot, label: str, spec: Mapping[str, Any], ask: Ask) -> Findings:
    """Train the run until a few states are saved, or to its end where it saves fewer, without a
    kill and with one; compare every bit."""
    name = name_of(spec)
    yield Finding("...", "resume", f"training {label} with {name}, with and without a kill -9")
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:

        def leg(name: str) -> _Leg:
            return _Leg(Path(place) / name, spec, slot)

        straight, killed = leg("straight"), leg("killed")
        end = straight.train(SAVES)
        if end not in (0, KILLED):
            yield _not_tried(name, straight, end)
            return
        first = killed.train(HALFWAY if end == KILLED else 1)
        if first == 0:
            text = f"{name} never calls run.save: a run that is stopped or killed starts again"
            yield Finding("warning", "resume", f"{text} from nothing")
            return
        last = killed.train(SAVES - HALFWAY if end == KILLED else None)
        if first != KILLED or last != end:
            yield _not_tried(name, killed, last if first == KILLED else first)
            return
        if not killed.from_state:
            text = f"{name} calls run.save and never run.resume: a run that is stopped or killed"
            yield Finding("warning", "resume", f"{text} starts again from nothing")
            return
        again = leg("again")
        found = _compared(ask, straight, killed)
        if not found["differing"]:
            text = f"resume is bit-exact: {found['parts']} parts of state and metrics are equal, "
            yield Finding("ok", "resume", f"{text}with and without a kill -9")
            return
        differs = again.train(SAVES) == end and _compared(ask, straight, again)["differing"]
    text = f"resume is not bit-exact: {found['differing'][0]} differs ({len(found['differing'])} "
    text += f"of {found['parts']} parts): "
    text += (
        "a second training without a kill differs, too, so it draws from a generator without a "
        "seed, or computes in a random order; draw from run.rng and run.generator"
        if differs
        else "two trainings without a kill are equal, so what it saves lacks some state"
    )
    yield Finding("problem", "resume", text)


def _compared(ask: Ask, one: _Leg, other: _Leg) -> dict[str, Any]:
    folders = {"one": str(one.folder.path), "other": str(other.folder.path)}
    return ask("compare_own", folders)


def _not_tried(name: str, leg: _Leg, end: int | None) -> Finding:
    if end is None:
        text = f"not checked: {name} neither saved {SAVES} states nor ended in {LEG_S:.0f} s"
        return Finding("warning", "resume", text)
    return Finding("problem", "resume", leg.error)
