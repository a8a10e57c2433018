"""What a step costs on this device: its time, inputs, host, rate and memory, in few seconds a case.

For `gpu.py`, whose part `steps` it is. A case is a run's words; its images are random.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.running.devices import PEAKS
from ablate.training.calibrate import random_split
from ablate.training.model.count import describe
from ablate.training.numerics import choose
from ablate.training.training import Training

CIFAR = "recipe=cifar data=cifar10 train.micro_batch=null"
IMAGENET = "data=imagenet1k train.micro_batch=null"
# Each with what its time is set against: an earlier case that differs in one thing.
CASES = {
    "mu/4": ("recipe=quick data=mnist5k model.arch=mu/4 train.batch=128", ""),
    "Ti/4": (f"{CIFAR} model.arch=Ti/4", ""),
    "Ti/4 deterministic": (f"{CIFAR} model.arch=Ti/4 train.deterministic=true", "Ti/4"),
    "S/16 augreg": (f"recipe=augreg {IMAGENET} model.arch=S/16 train.batch=512", ""),
    "B/16 augreg, no dropout": (
        f"recipe=augreg {IMAGENET} model.arch=B/16 train.batch=256 model.dropout=0",
        "",
    ),
    "B/16 augreg": (
        f"recipe=augreg {IMAGENET} model.arch=B/16 train.batch=256",
        "B/16 augreg, no dropout",
    ),
    "S/16 deit": (f"recipe=deit {IMAGENET} model.arch=S/16 train.batch=512", ""),
    "S/8": (f"{CIFAR} model.arch=S/8", ""),
    "S/4": (f"{CIFAR} model.arch=S/4", ""),
    "Ti/16 augreg": (f"recipe=augreg {IMAGENET} model.arch=Ti/16 train.batch=512", ""),
    "S/16 dtn": (f"recipe=dtn {IMAGENET} model.arch=S/16 train.batch=256", ""),
}
FEW = "recipe=quick data=digits model.arch=mu/4 train.batch=8"
TINY = {
    "mu/4": (FEW, ""),
    "mu/4 deterministic": (f"{FEW} train.deterministic=true", "mu/4"),
    "mu/4 dropout": (f"{FEW} model.dropout=0.1", "mu/4"),
}
WARM, ROUNDS, ROUND_S = 3, 5, 0.5  # steps; rounds; seconds of a round, in whole steps


@dataclass(frozen=True)
class Cost:
    """Of a step: seconds; seconds where the next inputs are computed after it and not beside it;
    seconds of its inputs alone, and of this process's CPU time; bytes of the device's memory at
    most (0: a CPU). `peak_share`: of the arithmetic of the data sheet; None: it isn't known."""

    step_s: float
    in_turn_s: float
    inputs_s: float
    host_s: float
    images: int
    peak_bytes: int
    peak_share: float | None

    def __str__(self) -> str:
        text = (
            f"step {1e3 * self.step_s:.2f} ms, with its inputs in turn "
            f"{1e3 * self.in_turn_s:.2f} ms, of which they take "
            f"{1e3 * self.inputs_s:.2f} ms, host {1e3 * self.host_s:.2f} ms, "
            f"{self.images / self.step_s:,.0f} images/s"
        )
        if self.peak_share is not None:
            text += f", MFU {100 * self.peak_share:.1f} %"
        return text + (f", peak {self.peak_bytes / 1e9:.1f} GB" if self.peak_bytes else "")


def step_costs(device: torch.device, tiny: bool) -> Iterator[str]:
    """Yield a line on each case as it is measured, and on what it is set against. A case that
    fails is named, and the others go on."""
    costs: dict[str, Cost] = {}
    for name, (words, other) in (TINY if tiny else CASES).items():
        try:
            costs[name] = cost = measured(words, device, tiny)
        except Exception as error:
            yield f"{name}: FAILED: {type(error).__name__}: {error}".splitlines()[0]
            continue
        finally:
            gc.collect()  # a training is in cycles: without this the next case's peak has it, too
            if device.type == "cuda":
                torch.cuda.empty_cache()
        line = f"{name}, batch {cost.images}: {cost}"
        if other in costs:
            line += f", {cost.step_s / costs[other].step_s:.2f} times {other}"
        yield line


def measured(words: str, device: torch.device, tiny: bool) -> Cost:
    """Measure a step of the run that the words make, as a worker would compute it."""
    tree, _ = resolve_run(words.split(), Path("runs"))
    run = build_run(tree)
    choose(run, device).use()
    batch = run.train.batch
    training = Training(run, random_split(run.data, max(batch, 1200), device), device)
    training.micro_batch = training.micro_batch or batch
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rounds, round_s = (1, 0.0) if tiny else (ROUNDS, ROUND_S)
    step_s = timed(training.step, device, rounds, round_s)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    in_turn_s = step_s
    if device.type == "cuda":
        training._inputs._stream = torch.cuda.current_stream(device)
        in_turn_s = timed(training.step, device, rounds, round_s)
    inputs_s = timed(training.inputs, device, rounds, round_s)
    host_s = host_time(training.step, device, rounds)
    work = 6 * describe(run)["multiply_adds"] * batch  # forward and two times that backward
    rate = peak_rate(device, run.train.precision)
    share = work / step_s / rate if rate else None
    return Cost(step_s, in_turn_s, inputs_s, host_s, batch, peak, share)


def timed(call: Callable[[], object], device: torch.device, rounds: int, round_s: float) -> float:
    """Median seconds of a call, over rounds of about `round_s`, after some that warm up."""

    def together(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        return (time.perf_counter() - began) / calls

    together(1)  # loads kernels
    calls = max(1, round(round_s / together(WARM - 1)))
    return statistics.median(together(calls) for _ in range(rounds))


def host_time(call: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Median seconds of this process's CPU time in a call that finds the device idle: behind a full
    queue it would spin."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
        wait(device)
    return statistics.median(taken)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_rate(device: torch.device, precision: str) -> float | None:
    """The data sheet's floating-point operations a second; None: there is none of it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    name = name.lower().replace(" ", "")
    peaks = [peak for key, peak in PEAKS.items() if key in name]
    return peaks[0].rates.get(precision) if peaks else None
