"""What do probes cost? A step with gradnorm and scales on against the same step with none.

    python benchmarks/probes.py [--arch mu/4 --side 8 --batch 64] [--rounds 60]

`Training.step` on random images; on the CPU one thread,
as a worker has it. Ten steps a turn, of which a long run records one; they take turns, and the
ratio is the median over the rounds. Goal: 1.02. The default is a small model on 8x8 digits, where a
step is shortest and a probe weighs most; scales looks only at the end and costs no step anything.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from step import as_a_worker, small

from ablate.run.run import Run
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.probes.gradnorm import INTERVAL
from ablate.training.training import Training


def turns(run: Run, device: torch.device, batch: int) -> dict[str, Callable[[], None]]:
    """Ten steps of a training, one of which is recorded where probes are on (of the first ten
    each: they warm up)."""
    train = replace(run.train, batch=batch, steps=10_000)
    split = random_split(run.data, batch, device)

    def steps(training: Training) -> None:
        for _ in range(INTERVAL):
            training.step()

    asked = {"off": (), "on": ("gradnorm", "scales")}
    return {
        name: partial(steps, Training(replace(run, train=train, probe=probe), split, device))
        for name, probe in asked.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="mu/4")
    for flag, default in (("side", 8), ("batch", 64), ("rounds", 60)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    asked = parser.parse_args()
    as_a_worker()
    device = device_of("cuda" if torch.cuda.is_available() else "cpu")
    run = small(asked.arch, asked.side)
    tried = turns(run, device, asked.batch)
    seconds: dict[str, list[float]] = {name: [] for name in tried}
    for number in range(-2, asked.rounds):
        # who begins changes: what runs second finds caches warm
        for name in sorted(tried, reverse=number % 2 == 0):
            start = time.perf_counter()
            tried[name]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number >= 0:
                seconds[name].append((time.perf_counter() - start) / INTERVAL)
    pairs = zip(seconds["on"], seconds["off"], strict=True)
    ratio = statistics.median(on / off for on, off in pairs)
    print(f"{device.type}: {asked.arch} on {asked.side}x{asked.side} images, batch {asked.batch}")
    print(f"  off: {1e3 * statistics.median(seconds['off']):.2f} ms a step")
    print(f"  gradnorm, scales on / off: {ratio:.3f} (goal: 1.02)")


if __name__ == "__main__":
    main()
