"""Train runs in this process, up to a step or to the end."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import tiny
import torch

from ablate.run.build import build_run
from ablate.run.fingerprint import data_fingerprint
from ablate.run.run import Run
from ablate.run.rundir import RunDir
from ablate.training import journal
from ablate.training.loop import Machine, TrainingStopped, train


def digits(**settings) -> Run:
    """Make a run of `tiny.run`'s model on the real 8x8 digits. Settings: `**{"train.x": 1}`."""
    data = {"data.channels": 1, "data.fingerprint": ""}
    run = tiny.run({**data, "train.batch": 64, "train.epochs": 6, "eval.every": 2, **settings})
    tree = run.spec.tree
    section = {key: value for key, value in tree["data"].items() if key != "fingerprint"}
    tree["data"]["fingerprint"] = data_fingerprint(section)
    tree["model"]["patch"] = None
    return build_run(tree)


def train_until(run: Run, folder: Path, cache: Path, stop_at: int | None = None) -> dict | None:
    """Train in `folder` until the step `stop_at`; return the result, None if it stopped there."""
    rundir, steps = RunDir(folder), itertools.count(1)
    rundir.create(run.spec.tree)

    def stopping() -> bool:
        return stop_at is not None and next(steps) == stop_at

    with contextlib.suppress(TrainingStopped):
        device = torch.device("cpu")
        machine = Machine(device, cache, 1e9, stopping, lambda **notes: None, lambda text: None)
        return train(run, rundir, machine)


COST = ("seconds", "images_per_s", "peak_bytes", "utilisation")


def answer(result: dict) -> dict:
    """Take what a training costs out of its result."""
    return {key: value for key, value in result.items() if key not in COST}


def outcome(folder: Path, result: dict) -> tuple:
    """Collect what an interruption must not change: the result, the curve, the predictions."""
    rundir = RunDir(folder)
    return answer(result), rundir.metrics.read_bytes(), rundir.predictions.read_bytes()


CPU = torch.device("cpu")


def train_to_end(tree: dict[str, Any], folder: str, after: Any = lambda steps: None) -> list[str]:
    """Train to the end with a checkpoint at each step, and return the lines that were printed.
    `after`: called after each step."""
    said, steps, cache = [], itertools.count(1), Path(folder).parent / "cache"

    def stopping():
        return bool(after(next(steps)))

    machine = Machine(CPU, cache, 0.0, stopping, lambda **notes: None, said.append)
    before, share = torch.get_num_threads(), journal.CHECKPOINT_SHARE
    torch.set_num_threads(1)
    journal.CHECKPOINT_SHARE = 1e9
    try:
        Path(folder).mkdir(exist_ok=True)
        train(build_run(tree), RunDir(Path(folder)), machine)
    finally:
        torch.set_num_threads(before)
        journal.CHECKPOINT_SHARE = share
    return said
