"""How many kernels a step launches and how often it waits, by torch's profiler.

    python benchmarks/profiled.py ARCH SIDE BATCH

Needs a GPU. In bfloat16; beside the launches that `plan` counts. `gpu.py` runs it in a process of
its own: where the driver's counters are not there for us, the profiler may never end.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from gpu import DEVICE, compute_as_a_worker
from step import ours, small

from ablate.planning.compose import resolve_run
from ablate.run.spec import RunSpec
from ablate.running.work import launches_of_step
from ablate.training.model.count import describe

STEPS = 20


def main(arch: str, side: int, batch: int) -> None:
    torch.set_num_threads(1)
    run = small(arch, side)
    compute_as_a_worker(run, "bf16")
    step = ours(run, DEVICE, "bf16", batch)
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[*torch.profiler.supported_activities()]) as profile:
        for _ in range(STEPS):
            step()
    names = Counter(event.name for event in profile.events())
    kernels = sum(n for name, n in names.items() if "LaunchKernel" in name) / STEPS
    if not kernels:
        print("not done: torch's profiler counted no launch")
        return
    waits = sum(n for name, n in names.items() if "Synchronize" in name) - 1  # the profiler's
    tree, _ = resolve_run([f"model.arch={arch}", f"data.size={side}", "recipe=quick"], Path("runs"))
    counted = launches_of_step(RunSpec.of(tree), describe(run)["launches"])
    line = f"{arch} bf16: {kernels:.0f} launches a step (plan: {counted:.0f})"
    print(f"{line}, {max(waits, 0) / STEPS:.2f} waits (tests: 0)")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
