"""What does a compiled step gain? `Training.step` eager against compiled, and what compiling costs.

    python benchmarks/compiled.py [--batch 32] [--rounds 9] [--only Ti/4]

On the CPU one thread, as a worker has it; on a GPU where there is one. Images of 32 x 32, from
stored bytes, neither changed nor clipped. They take turns; a ratio is the median over the rounds of
the eager step's time to the compiled one's of the same round. Compiling is timed in processes of
their own, as each run pays it: once with an empty cache, once with what that left there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import torch
from step import as_a_worker, small

from ablate.run.run import Run
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.training import Training

MODELS = {
    "mu/4, fp32": ("mu/4", {}, {}),
    "Ti/4, fp32": ("Ti/4", {}, {}),
    "Ti/4, bf16": ("Ti/4", {"precision": "bf16"}, {}),
    "Ti/4, drop-path, fp32": ("Ti/4", {}, {"drop_path": 0.1}),
    "Ti/4, dropout, fp32": ("Ti/4", {}, {"dropout": 0.1}),
}


def training(name: str, batch: int) -> Training:
    """On the same images again and again."""
    arch, train, model = MODELS[name]
    run: Run = small(arch, 32)
    run = replace(
        run,
        train=replace(run.train, batch=batch, steps=10_000, **train),
        model=replace(run.model, **model),
        optim=replace(run.optim, clip=None),
    )
    device = device_of("cuda" if torch.cuda.is_available() else "cpu")
    return Training(run, random_split(run.data, batch, device), device)


def timed(made: Training) -> float:
    start = time.perf_counter()
    made.step()
    made.bad_step()  # waits for the device
    return time.perf_counter() - start


def first_step(name: str, batch: int, cache: str) -> float:
    """Seconds of a process' first compiled step, less those of an eager one."""
    words = ["--first", "--only", name, "--batch", str(batch)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag, default in (("batch", 32), ("rounds", 9)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    as_a_worker()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    names = [name for name in MODELS if asked.only in name]
    if asked.first:
        eager, made = timed(training(names[0], asked.batch)), training(names[0], asked.batch)
        made.compile()
        print(timed(made) - eager)
        return
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (first_step(name, asked.batch, cache) for _ in range(2))
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            steps = [training(name, asked.batch) for _ in range(2)]
            steps[1].compile()
            rounds = [[timed(step) for step in steps] for _ in range(asked.rounds + 2)][2:]
        ratio = statistics.median(eager / compiled for eager, compiled in rounds)
        milliseconds = 1e3 * statistics.median(eager for eager, _ in rounds)
        print(
            f"{name}: eager {milliseconds:.1f} ms, eager / compiled {ratio:.2f}; compiling takes "
            f"{cold:.0f} s, from the cache {warm:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
