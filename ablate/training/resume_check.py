"""A check for `ablate doctor`: whether a resumed training is the uninterrupted one, bit for bit, on
this machine.

A leg trains as a worker would and is stopped as a signal stops it, with a checkpoint; then the
contents of two folders after the same step are compared. Only the end of the run is changed, so
nothing is evaluated unless an epoch ends on the way.

Used by training/answers.py, which audit/doctor/resume_check.py asks for `ablate doctor`;
`deterministic_ratio` also by training/column_decision.py. The keys of `leg` and `compare` are read
in audit/doctor/resume_check.py.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ablate.run import Run, RunDir
from ablate.training.calibrate import step_s, unit
from ablate.training.device import device_of
from ablate.training.journal import peak_bytes, read_checkpoint
from ablate.training.loop import Machine, TrainingStopped, train
from ablate.training.model.count import describe
from ablate.training.numerics import choose

ROUNDS = 3  # of timings with and without deterministic algorithms, in turn


class _Until:
    """A condition that stops a training after a step, or at its last one if that comes earlier."""

    def __init__(self, step: int) -> None:
        self._until, self.step, self.total = step, 0, 0

    def beat(self, **notes: Any) -> None:
        if notes.get("phase") == "train":  # before the step of that number
            self.step, self.total = notes["step"], notes["total"]

    def stopping(self) -> bool:
        self.step += 1
        return self.step >= min(self._until, self.total)


def set_up(name: str) -> torch.device:
    """Return the device, after setting threads and cuBLAS as a worker has them."""
    device = device_of(name)
    torch.set_num_threads(1 if device.type == "cpu" else 4)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    return device


def leg(run: Run, folder: Path, cache: Path, device: torch.device, until: int) -> dict[str, Any]:
    """Train in `folder` from its newest checkpoint until `until` steps are done, or all there are.

    Return {"step": steps done, "total": the run's, "peak_bytes", "diverged"}. A checkpoint of that
    step is in the folder, unless the loss stopped being finite. Raises what `train` raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end, diverged = _Until(until), True
    machine = Machine(
        device=device,
        cache=cache,
        checkpoint_s=math.inf,
        stopping=end.stopping,
        beat=end.beat,
        say=lambda text: None,
    )
    try:
        train(run, RunDir(folder), machine)  # returns at once where the loss is not finite
    except TrainingStopped:
        diverged = False
    return {
        "step": end.step,
        "total": end.total,
        "peak_bytes": peak_bytes(device),
        "diverged": diverged,
    }


def compare(straight: Path, resumed: Path) -> dict[str, Any]:
    """Compare the newest checkpoints and the metrics of two folders bit by bit.

    Return {"tensors": how many there are, "differing": how many parts differ, "first": the name of
    one, weights before moments and sums, "by": its largest difference, null where that is no
    number}.
    """
    straight_state, resumed_state = _state(straight), _state(resumed)
    names = straight_state.keys() | resumed_state.keys()
    differing = []
    for name in sorted(names, key=lambda name: (not name.startswith("model."), name)):
        if not _equal_bits(straight_state.get(name), resumed_state.get(name)):
            differing.append(name)
    distance = None
    if differing:
        distance = _distance(straight_state.get(differing[0]), resumed_state.get(differing[0]))
    if RunDir(straight).read_metrics() != RunDir(resumed).read_metrics():
        differing.append("metrics.jsonl")
    return {
        "tensors": sum(not name.startswith("progress.") for name in straight_state),
        "differing": len(differing),
        "first": differing[0] if differing else None,
        "by": distance,
    }


def _state(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of the newest checkpoint, and its sums; times are no state."""
    for step, path in RunDir(folder).checkpoints()[:1]:
        checkpoint = read_checkpoint(path, step)
        if checkpoint is None:  # its disk rots: it equals nothing
            return {f"{path}, which can't be read,": torch.zeros(())}
        tensors = dict(checkpoint.tensors)
        for key, value in vars(checkpoint.state).items():
            if key != "seconds":
                tensors[f"progress.{key}"] = torch.tensor(value, dtype=torch.float64)
        return tensors
    return {}  # it diverged


def _equal_bits(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    a_bytes, b_bytes = a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)
    return torch.equal(a_bytes, b_bytes)  # of nan and -0, too


def _distance(a: Tensor | None, b: Tensor | None) -> float | None:
    if a is None or b is None or a.shape != b.shape:
        return None
    largest = float((a.double() - b.double()).abs().max())
    return largest if math.isfinite(largest) else None


def deterministic_ratio(run: Run, device: torch.device) -> float:
    """Return how many times as long a step takes with `train.deterministic=true`, by the medians of
    timings taken in turn."""
    times: dict[bool, list[float]] = {False: [], True: []}
    images = unit(run, device, describe(run)["multiply_adds"])
    for _ in range(ROUNDS):
        for deterministic in times:
            strict = replace(run, train=replace(run.train, deterministic=deterministic))
            choose(strict, device).use()
            times[deterministic].append(step_s(run, images, device))
    return median(times[True]) / median(times[False])
