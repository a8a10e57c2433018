"""Checks a trainer of the user's own: killed after its first saved state and resumed, does it end
with the bits of one that was not killed?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablate.audit.doctor.finding import Finding, Findings
from ablate.running.launchers import Ask, Slot, worker_options
from ablate.shared.own import is_command, name_of
from ablate.shared.program import FOLDER, PLACES, of_tree, resume_words
from ablate.shared.rundir import RUNS, RunDir

SAVES, HALFWAY = 6, 3  # states that are saved in all, and before the kill
POLL_S = 0.02  # between looks at a training
LEG_S = 60.0  # for so many, or the whole run
WRITTEN_S = 0.25  # for a program's file to be whole, once it is there
KILLED = -signal.SIGKILL


def _train(
    folder: RunDir, slot: Slot, saves: int | None = None, kill: Callable[[], bool] | None = None
) -> int | None:
    """By a new process, until so many states are saved, when it kills itself; until `kill` says so;
    or to its end: the exit code. None: time ran out."""
    options = worker_options(slot, {"checkpoint_s": 0.0}, folder.path)
    words = [str(folder.path), json.dumps({**options, "saves": saves})]
    threads = {"OMP_NUM_THREADS": str(options["threads"]), "PYTHONHASHSEED": "0"}
    deadline = time.monotonic() + LEG_S
    with open(folder.log, "ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "ablate.training.own", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **threads, **slot.environment},
        )
        try:
            while worker.poll() is None:
                if kill is not None and kill():
                    worker.kill()
                if time.monotonic() > deadline:
                    return None
                time.sleep(POLL_S)
        finally:
            worker.kill()
            worker.wait()
    return worker.returncode


def _leg(place: str, name: str, spec: Mapping[str, Any]) -> RunDir:
    rundir = RunDir(Path(place) / RUNS / name)
    rundir.create(dict(spec))
    return rundir


def resume(slot: Slot, label: str, spec: Mapping[str, Any], ask: Ask) -> Findings:
    """Train the run until a few states are saved, or to its end where it saves fewer, without a
    kill and with one; compare every bit."""
    name = name_of(spec)
    if is_command(spec):
        yield from _resume_program(slot, label, spec, ask)
        return
    yield Finding("...", "resume", f"training {label} with {name}, with and without a kill -9")
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:
        straight, killed = _leg(place, "straight", spec), _leg(place, "killed", spec)
        end = _train(straight, slot, SAVES)
        if end not in (0, KILLED):
            yield _not_tried(name, straight, end)
            return
        first = _train(killed, slot, HALFWAY if end == KILLED else 1)
        if first == 0:
            text = f"{name} never calls run.save: a run that is stopped or killed starts again"
            yield Finding("warning", "resume", f"{text} from nothing")
            return
        last = _train(killed, slot, SAVES - HALFWAY if end == KILLED else None)
        if first != KILLED or last != end:
            yield _not_tried(name, killed, last if first == KILLED else first)
            return
        if not killed.read_attempts()[-1].get("from_step", 0):
            text = f"{name} calls run.save and never run.resume: a run that is stopped or killed"
            yield Finding("warning", "resume", f"{text} starts again from nothing")
            return
        again = _leg(place, "again", spec)
        found = _compared(ask, straight, killed)
        if not found["differing"]:
            text = f"resume is bit-exact: {found['parts']} parts of state and metrics are equal, "
            yield Finding("ok", "resume", f"{text}with and without a kill -9")
            return
        ended = _train(again, slot, SAVES)
        differs = ended == end and _compared(ask, straight, again)["differing"]
    text = f"resume is not bit-exact: {found['differing'][0]} differs ({len(found['differing'])} "
    text += f"of {found['parts']} parts): "
    text += (
        "a second training without a kill differs, too, so it draws from a generator without a "
        "seed, or computes in a random order; draw from run.rng and run.generator"
        if differs
        else "two trainings without a kill are equal, so what it saves lacks some state"
    )
    yield Finding("problem", "resume", text)


def _resume_program(slot: Slot, label: str, spec: Mapping[str, Any], ask: Ask) -> Findings:
    """Train the run to its end without a kill and with one halfway; compare the results."""
    yield Finding("...", "resume", f"training {label} twice, once with a kill -9 halfway")
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:
        straight, killed = _leg(place, "straight", spec), _leg(place, "killed", spec)
        began = time.monotonic()
        end = _train(straight, slot)
        if end != 0:
            yield _not_tried(name_of(spec), straight, end)
            return
        seconds, began = time.monotonic() - began, time.monotonic()
        saved: float | None = None  # when it was first seen

        def kill() -> bool:
            """Soon after it has saved what it can go on from; without that halfway, or late, by
            the time of the first, which may have taken longer to load."""
            nonlocal saved
            now = time.monotonic()
            if program.resume is not None and saved is None:
                saved = now if resume_words(program, spec["trainer"], places) else None
            if saved is not None:
                return now > saved + WRITTEN_S
            return now - began > seconds * (0.5 if program.resume is None else 0.9)

        program = of_tree(spec)
        places = {**dict.fromkeys(PLACES, ""), FOLDER: str(killed.scratch)}
        first, last = _train(killed, slot, kill=kill), _train(killed, slot)
        if first == 0:
            yield Finding("warning", "resume", "not checked: it ended before it could be killed")
            return
        if first != KILLED or last is None:
            yield _not_tried(name_of(spec), killed, last if first == KILLED else first)
            return
        if last != 0:
            text = (
                f"a run that is killed does not go on: {_error(killed)}; a kill cuts a file that "
            )
            text += "is being written: a program writes it under another name and then renames it"
            yield Finding("problem", "resume", text)
            return
        if killed.read_attempts()[-1]["resumed"]:
            how = "goes on by the words of `resume`"
        elif program.resume is None:
            how = "starts its program again, in the folder that it left (no `resume` is declared)"
        else:
            how = "started again from nothing: no file that `resume` names was there"
        if not _compared(ask, straight, killed)["differing"]:
            text = f"a run that is killed {how}; its result is that of one without a kill"
            yield Finding("ok", "resume", text)
            return
        again = _leg(place, "again", spec)
        differs = _train(again, slot) == 0 and _compared(ask, straight, again)["differing"]
    text = f"a run that is killed {how}; its result is not that of one without a kill: "
    text += (
        "a second training without a kill differs, too, so the program is not decided by its seed"
        if differs
        else "two trainings without a kill are equal, so what it saves lacks some state"
    )
    yield Finding("problem", "resume", text)


def _compared(ask: Ask, one: RunDir, other: RunDir) -> dict[str, Any]:
    return ask("compare_own", {"one": str(one.path), "other": str(other.path)})


def _not_tried(name: str, leg: RunDir, end: int | None) -> Finding:
    if end is None:
        text = f"not checked: {name} did not end, nor save {SAVES} states, in {LEG_S:.0f} s"
        return Finding("warning", "resume", text)
    return Finding("problem", "resume", _error(leg))


def _error(leg: RunDir) -> str:
    return str(leg.lock.notes().get("error") or "its process died without a message")
