"""Checks the data of a config, and that a stopped training resumes to the same bits.

Worker processes do the work: they decode the data and train the model. The training half's part is
`ablate.training.resume_check`.

A trainer of the user's own is killed after its first saved state and resumed. The check is whether
it ends with the same bits as one that was not killed.

Used by `ablate doctor` (audit/doctor/__init__.py). The questions that it asks are answered in
training/answers.py.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ablate.audit.doctor.machine import PROGRESS, Finding, Findings, Level, size
from ablate.report import progress_view
from ablate.run import (
    FOLDER_PLACE,
    PLACEHOLDERS,
    RUNS_FOLDER,
    OwnSpec,
    RunDir,
    RunSpec,
    program_of,
    resume_words,
)
from ablate.running import Ask, Slot, decode_data, worker_options
from ablate.shared import HostHardware, UserError, count_text
from ablate.store import Store

SAVES, HALFWAY = 6, 3  # states that are saved in all, and before the kill
POLL_S = 0.02  # between looks at a training
LEG_S = 60.0  # for so many, or the whole run
WRITTEN_S = 0.25  # for a program's file to be whole, once it is there
KILLED = -signal.SIGKILL


def _train(
    folder: RunDir, slot: Slot, saves: int | None = None, kill: Callable[[], bool] | None = None
) -> int | None:
    """Train in a new process; return its exit code, or None if it took longer than LEG_S.

    The process kills itself once it has saved `saves` states, and is killed as soon as `kill`
    returns True. With neither it trains to its end.
    """
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


def _leg(place: str, name: str, spec: OwnSpec) -> RunDir:
    rundir = RunDir(Path(place) / RUNS_FOLDER / name)
    rundir.create(spec.tree)
    return rundir


def resume_own(slot: Slot, label: str, spec: OwnSpec, ask: Ask) -> Findings:
    """Train a run of the user's own trainer with and without a kill; compare every bit.

    It trains until SAVES states are saved, or to its end where it saves fewer.
    """
    name = spec.trainer
    if spec.is_command:
        yield from _resume_program(slot, label, spec, ask)
        return
    yield Finding(PROGRESS, "resume", f"training {label} with {name}, with and without a kill -9")
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:
        straight, killed = _leg(place, "straight", spec), _leg(place, "killed", spec)
        end = _train(straight, slot, SAVES)
        if end not in (0, KILLED):
            yield _not_tried(name, straight, end)
            return
        first_end = _train(killed, slot, HALFWAY if end == KILLED else 1)
        if first_end == 0:
            text = f"{name} never calls run.save: a run that is stopped or killed starts again"
            yield Finding("warning", "resume", f"{text} from nothing")
            return
        last_end = _train(killed, slot, SAVES - HALFWAY if end == KILLED else None)
        if first_end != KILLED or last_end != end:
            yield _not_tried(name, killed, last_end if first_end == KILLED else first_end)
            return
        if not killed.read_attempts()[-1].get("from_step", 0):
            text = f"{name} calls run.save and never run.resume: a run that is stopped or killed"
            yield Finding("warning", "resume", f"{text} starts again from nothing")
            return
        repeat = _leg(place, "again", spec)
        comparison = _compared(ask, straight, killed)
        if not comparison["differing"]:
            text = (
                f"resume is bit-exact: {comparison['parts']} parts of state and metrics are equal, "
            )
            yield Finding("ok", "resume", f"{text}with and without a kill -9")
            return
        ended = _train(repeat, slot, SAVES)
        differs = ended == end and _compared(ask, straight, repeat)["differing"]
    text = (
        f"resume is not bit-exact: {comparison['differing'][0]} differs "
        f"({len(comparison['differing'])} "
    )
    text += f"of {comparison['parts']} parts): "
    text += (
        "a second training without a kill differs, too, so it draws from a generator without a "
        "seed, or computes in a random order; draw from run.rng and run.generator"
        if differs
        else "two trainings without a kill are equal, so what it saves lacks some state"
    )
    yield Finding("problem", "resume", text)


def _resume_program(slot: Slot, label: str, spec: OwnSpec, ask: Ask) -> Findings:
    """Train the run of a program to its end, once with a kill and once without; compare the
    results."""
    yield Finding(PROGRESS, "resume", f"training {label} twice, once with a kill -9 halfway")
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:
        straight, killed = _leg(place, "straight", spec), _leg(place, "killed", spec)
        began = time.monotonic()
        end = _train(straight, slot)
        if end != 0:
            yield _not_tried(spec.trainer, straight, end)
            return
        seconds, began = time.monotonic() - began, time.monotonic()
        saved: float | None = None  # when it was first seen

        def kill() -> bool:
            """Return whether to kill the program now: WRITTEN_S after a file to resume from exists.

            Without a declared `resume`, that is halfway through the time that the first training
            took. If such a file is declared but doesn't appear, it is at 90 % of that time, since
            the first training may have taken longer to load.
            """
            nonlocal saved
            moment = time.monotonic()
            if program.resume is not None and saved is None:
                saved = moment if resume_words(program, spec.tree["trainer"], places) else None
            if saved is not None:
                return moment > saved + WRITTEN_S
            return moment - began > seconds * (0.5 if program.resume is None else 0.9)

        program = program_of(spec)
        places = {**dict.fromkeys(PLACEHOLDERS, ""), FOLDER_PLACE: str(killed.scratch)}
        first_end, last_end = _train(killed, slot, kill=kill), _train(killed, slot)
        if first_end == 0:
            yield Finding("warning", "resume", "not checked: it ended before it could be killed")
            return
        if first_end != KILLED or last_end is None:
            yield _not_tried(spec.trainer, killed, last_end if first_end == KILLED else first_end)
            return
        if last_end != 0:
            text = (
                f"a run that is killed does not go on: {_error(killed)}; a kill cuts a file that "
            )
            text += "is being written: a program writes it under another name and then renames it"
            yield Finding("problem", "resume", text)
            return
        if killed.read_attempts()[-1]["resumed"]:
            manner = "goes on by the words of `resume`"
        elif program.resume is None:
            manner = (
                "starts its program again, in the folder that it left (no `resume` is declared)"
            )
        else:
            manner = "started again from nothing: no file that `resume` names was there"
        if not _compared(ask, straight, killed)["differing"]:
            text = f"a run that is killed {manner}; its result is that of one without a kill"
            yield Finding("ok", "resume", text)
            return
        repeat = _leg(place, "again", spec)
        differs = _train(repeat, slot) == 0 and _compared(ask, straight, repeat)["differing"]
    text = f"a run that is killed {manner}; its result is not that of one without a kill: "
    text += (
        "a second training without a kill differs, too, so the program is not decided by its seed"
        if differs
        else "two trainings without a kill are equal, so what it saves lacks some state"
    )
    yield Finding("problem", "resume", text)


def _compared(ask: Ask, straight: RunDir, candidate: RunDir) -> dict[str, Any]:
    return ask("compare_own", {"one": str(straight.path), "other": str(candidate.path)})


def _not_tried(name: str, leg: RunDir, end: int | None) -> Finding:
    if end is None:
        text = f"not checked: {name} did not end, nor save {SAVES} states, in {LEG_S:.0f} s"
        return Finding("warning", "resume", text)
    return Finding("problem", "resume", _error(leg))


def _error(leg: RunDir) -> str:
    return leg.lock.notes().error or "its process died without a message"


STEPS = 6


def data(store: Store, specs: Sequence[RunSpec], ask: Ask) -> Findings:
    """Check each dataset of the specs; decode that of the first spec if it is not decoded yet.

    Raises UserError or Failure where it can't be decoded.
    """
    if isinstance(specs[0], OwnSpec):
        yield Finding("ok", "data", f"{specs[0].trainer} reads its data by itself")
        return
    by_fingerprint = {spec.tree["data"]["fingerprint"]: spec for spec in specs}
    first_spec, *other_specs = by_fingerprint.values()
    name, cache = first_spec.tree["data"]["name"], str(store.cache)
    with progress_view() as watching:
        decode_data([first_spec], store.root, watching, ask)
    yield Finding("ok", "data", f"data={name} is decoded")
    for spec in other_specs:
        name = spec.tree["data"]["name"]
        try:
            answer = ask("prepare", {"data": spec.tree["data"], "cache": cache, "look": True})
        except UserError as error:
            yield Finding("problem", "data", str(error))
            continue
        if answer["whole"]:
            yield Finding("ok", "data", f"data={name} is decoded")
        elif answer["examples"] is None:
            yield Finding(
                "warning",
                "data",
                f"data={name} is not downloaded yet; run `ablate data prepare "
                f"{shlex.quote(name)}` with network, or give data.path=FOLDER",
            )
        else:
            images = sum(answer["examples"].values())
            text = f"data={name} is not decoded yet: {images:,} images, {answer['size']}"
            yield Finding("ok", "data", f"{text}; `ablate sweep` decodes it first")


def resume(store: Store, slots: Sequence[Slot], label: str, spec: RunSpec, ask: Ask) -> Findings:
    """Compare a few steps without a stop with the same steps stopped midway and resumed.

    Another process resumes them. Checkpoints and metrics must have the same bits. On a GPU only
    deterministic algorithms promise that, so these are compared and timed, too.
    """
    if isinstance(spec, OwnSpec):
        yield from resume_own(slots[0], label, spec, ask)
        return
    device = slots[0].device
    if not spec.trains:
        yield Finding("ok", "resume", f"not tried: {label} takes no steps")
        return
    yield Finding(
        PROGRESS,
        "resume",
        f"training {STEPS} steps of {label} on {device}, with and without a stop",
    )
    promised = device == "cpu" or spec.tree["train"]["deterministic"]
    yield from _compare_legs(store, slots, spec, ask, "problem" if promised else "warning")
    if device == "cpu":
        return
    strict = RunSpec.of({**spec.tree, "train": {**spec.tree["train"], "deterministic": True}})
    if not promised:
        yield Finding(PROGRESS, "resume", "training the same steps with train.deterministic=true")
        yield from _compare_legs(store, slots, strict, ask, "problem")
    ratio = ask("deterministic", {"spec": strict.tree, "device": device})["ratio"]
    text = f"with train.deterministic=true a step takes {ratio:.2f} times as long"
    yield Finding("ok", "resume", text)


def _compare_legs(
    store: Store, slots: Sequence[Slot], spec: RunSpec, ask: Ask, otherwise: Level
) -> Findings:
    """Compare training with and without a stop, and report the peak memory.

    `otherwise`: the level of the finding if the bits differ.
    """
    with tempfile.TemporaryDirectory(prefix="ablate-doctor-") as place:

        def leg(
            name: str, until: int, halfway: str | None = None, against: str | None = None
        ) -> dict[str, Any]:
            """Train in the folder `name` until the step `until`, in a process of its own."""
            question = {
                "spec": spec.tree,
                "cache": str(store.cache),
                "device": slots[0].device,
                "folder": os.path.join(place, name),
                "until": until,
                "halfway": halfway and os.path.join(place, halfway),
                "against": against and os.path.join(place, against),
            }
            return ask("check_resume", question)

        straight = leg("straight", STEPS, halfway="stopped")
        last_step = straight["step"]
        yield _memory(slots, straight["peak_bytes"])
        if straight["diverged"] or last_step == 1:
            reason = "diverges at once" if straight["diverged"] else "has one step"
            yield Finding("warning", "resume", f"not checked: this config {reason}")
            return
        comparison = leg("stopped", last_step, against="straight")["compared"]
        if not comparison["differing"]:
            text = (
                f"resume is bit-exact: {comparison['tensors']} tensors are equal after "
                f"{last_step} steps, "
            )
            text += f"with and without a stop after step {last_step // 2}"
            yield Finding("ok", "resume", text)
            return
        repeat_comparison = leg("again", last_step, against="straight")["compared"]
    difference = "" if comparison["by"] is None else f", by up to {comparison['by']:.3g}"
    text = (
        f"resume is not bit-exact: after {last_step} steps {comparison['first']} "
        f"differs{difference} "
    )
    parts, tensors = comparison["differing"], comparison["tensors"]
    text += f"({count_text(parts, 'differing part')}; {count_text(tensors, 'tensor')} in all): "
    text += (
        "a second training without a stop differs, too, so some layer draws random numbers or "
        "computes in a random order"
        if repeat_comparison["differing"]
        else "two trainings without a stop are equal, so the checkpoint lacks some state; keep it "
        "in a buffer (register_buffer)"
    )
    yield Finding(otherwise, "resume", text)


def _memory(slots: Sequence[Slot], peak: float) -> Finding:
    """Report the peak memory of a worker, and whether the machine has that much for every slot."""
    text = f"a worker of this config takes up to {size(peak)}"
    if slots[0].device == "cpu" and len(slots) * peak > HostHardware.read().free_bytes:
        text += (
            f", and {len(slots)} at once may not fit; give train.micro_batch=auto, or use fewer "
        )
        return Finding("warning", "memory", text + "cores (taskset)")
    return Finding("ok", "memory", text)
