"""Trains a finished run once more from step 0, and compares the bits with its files.

Used by `ablate verify --rerun` (cli/keeping.py).
"""

from __future__ import annotations

import contextlib
import filecmp
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ablate.analysis import MACHINE_FACTS
from ablate.planning import PlannedRun
from ablate.run import NO_WORD, RunDir
from ablate.running import SETTLED_KEYS, Launcher, Slot
from ablate.shared import (
    ENDING_SIGNALS,
    Failure,
    Notes,
    TryAgain,
    noted_signals,
    sha256_of,
)
from ablate.store import Store

SAME_BITS = "the same bits"
Show = Callable[[Slot, RunDir, Notes], None]


class RerunStopped(Exception):
    """The second training was stopped by a signal, whose number is `number`; nothing of it is
    left."""

    def __init__(self, number: int) -> None:
        self.number = number


def retrain(
    store: Store, run: PlannedRun, launcher: Launcher, show: Show
) -> tuple[list[str], list[str]]:
    """Train `run` again in a folder of its own, which is removed at the end, and compare the two.

    Returns (lines, lines). The first are on differences of the machine, which explain other bits.
    The second say, for each file or number, that the bits are the same, or what differs. `show` is
    called several times a second with the worker's notes. Raises Failure where the run has no
    result, or the worker leaves none, and RerunStopped after SIGINT, SIGTERM or SIGHUP.
    """
    original = store.rundir(run.id)
    original_result = original.read_result()
    if original_result is None:
        raise Failure(f"{run.id}: has no result to compare with; finish the run first")
    if not store.rerunning.acquire():
        raise TryAgain(f"{store.reruns}: another process trains a run again; wait for its end")
    repeat = RunDir(store.reruns / run.id)
    try:
        while store.liveness.alive(repeat):  # the worker of a command that was killed
            store.liveness.stop(repeat, now=True)
            time.sleep(0.05)
        shutil.rmtree(repeat.path, ignore_errors=True)
        with noted_signals(*ENDING_SIGNALS) as heard:  # before anything of it is there
            repeat.create(run.spec.tree)
            _train(repeat, launcher, show, heard, original_result)
        repeat_result = repeat.read_result()
        if repeat_result is None:
            reason = launcher.notes(repeat).error or NO_WORD
            raise Failure(f"{run.id}: the second training left no result: {reason}")
        return _machine(original_result, repeat_result), list(
            _compare(original, original_result, repeat, repeat_result)
        )
    finally:
        shutil.rmtree(repeat.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another is left there: gc's
            store.reruns.rmdir()
        store.rerunning.release()


def _train(
    repeat: RunDir,
    launcher: Launcher,
    show: Show,
    heard: Sequence[int],
    original_result: Mapping[str, Any],
) -> None:
    """Train until the worker is gone, with the decided settings that `original_result` has.

    A signal kills the worker, since its state is not needed.
    """
    slot = launcher.slots[0]
    decided = {
        key: original_result[key] for key in SETTLED_KEYS if original_result.get(key) is not None
    }
    launcher.start(repeat, slot, decided)
    ended = False
    while not ended or launcher.alive(repeat):
        if heard:
            launcher.stop(repeat, now=True)
        ended |= repeat.id in launcher.poll(0.2)
        show(slot, repeat, launcher.notes(repeat))
    if heard:
        raise RerunStopped(heard[0])


def _machine(original_result: Mapping[str, Any], repeat_result: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: was {original_result.get(key)}, is {repeat_result.get(key)}"
        for key, name in {**MACHINE_FACTS, "plugins": "version of your own classes"}.items()
        if original_result.get(key) != repeat_result.get(key)
    ]


def _compare(
    original: RunDir,
    original_result: Mapping[str, Any],
    repeat: RunDir,
    repeat_result: Mapping[str, Any],
) -> Iterator[str]:
    """Yield a line for each number and file: the same bits, or the difference."""
    for key in ("status", "step", "test", "also"):
        old, new = original_result.get(key), repeat_result.get(key)
        if old is not None or new is not None:
            yield f"{key}: {SAME_BITS if old == new else f'was {old}, is {new}'}"
    lines = zip(original.read_metrics(), repeat.read_metrics(), strict=False)
    first_step = next((old.get("step") for old, new in lines if old != new), None)
    for old_file, new_file in (
        (original.weights, repeat.weights),
        (original.predictions, repeat.predictions),
        *(
            (original.predictions_on(n), repeat.predictions_on(n))
            for n in original_result.get("also", {})
        ),
        (original.metrics, repeat.metrics),
        *(
            (original.probe(name), repeat.probe(name))
            for name in original_result.get("probes_sha256", {})
        ),
    ):
        if not (old_file.exists() or new_file.exists()):
            continue  # of a diverged run
        # from a bundle: its hash is there
        if old_file == original.weights and not old_file.exists():
            is_same = original_result.get("weights_sha256") == repeat_result.get("weights_sha256")
            yield f"{old_file.name}: {SAME_BITS if is_same else 'differs'}"
        elif (whole_hash := original.whole_hash(old_file)) is not None:  # thinned by a lean bundle
            is_same = new_file.exists() and sha256_of(new_file) == whole_hash
            yield f"{old_file.name}: {SAME_BITS if is_same else 'differs'}"
        elif (
            old_file.exists()
            and new_file.exists()
            and filecmp.cmp(old_file, new_file, shallow=False)
        ):
            yield f"{old_file.name}: {SAME_BITS}"
        elif old_file == original.metrics and first_step is not None:
            yield f"{old_file.name}: differs from step {first_step} on"
        else:
            yield f"{old_file.name}: differs"
