"""How fast is a training step? Ours against timm's VisionTransformer of the same size, eager.

    python benchmarks/step.py [--arch Ti/4 --side 32 --batch 64] [--rounds 15]

From stored bytes: input, forward, loss, backward, AdamW, on the same random images; in float32 and,
ours, which is `Training.step`, in bfloat16. On the CPU one thread, as a worker has it; on a GPU
where there is one. They take turns; a ratio is the median over the rounds of timm's float32 step to
ours of the same round. Goals: never slower in float32; 1.7 in bfloat16 (on a CPU without bfloat16
instructions that can't be had).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from ablate.data.image_changes import normalise
from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.model.export import timm_arguments
from ablate.training.training import Training

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "34359738368"}
_kept: list[torch.library.Library] = []


def as_a_worker() -> None:
    """This process anew with what the launcher sets for a worker on a CPU, on one thread."""
    if not os.environ.keys() >= MALLOC.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})
    torch.set_num_threads(1)


def let_timm_load() -> None:
    """torchvision, which timm imports, misses two operators on CPU torch."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        _kept.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _kept[0].define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def has_bf16() -> bool:
    """Has this CPU instructions for it?"""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def timm_vit(run: Run) -> nn.Module:
    """timm's model of the run."""
    let_timm_load()
    from timm.models.vision_transformer import VisionTransformer

    norm = partial(nn.LayerNorm, eps=run.model.norm_eps)
    return VisionTransformer(**timm_arguments(run), norm_layer=norm)


def small(arch: str, side: int) -> Run:
    """A run of this architecture on colour images of this side."""
    words = [f"model.arch={arch}", "model.rep=false", "recipe=quick", f"data.size={side}"]
    tree, _ = resolve_run(words, Path("runs"))
    return build_run({**tree, "data": {**tree["data"], "channels": 3}})


def ours(run: Run, device: torch.device, precision: str, batch: int) -> Callable[[], None]:
    """`Training.step` on the same images again and again, neither changed nor clipped."""
    train = replace(run.train, batch=batch, steps=10_000, precision=precision)
    run = replace(run, train=train, optim=replace(run.optim, clip=None))
    return Training(run, random_split(run.data, batch, device), device).step


def theirs(run: Run, device: torch.device, batch: int) -> Callable[[], None]:
    model = timm_vit(run).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    split = random_split(run.data, batch, device)
    stored = split.images.permute(0, 3, 1, 2).contiguous()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(normalise(stored)), split.labels).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="Ti/4")
    for flag, default in (("side", 32), ("batch", 64), ("rounds", 15)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    asked = parser.parse_args()
    as_a_worker()
    run = small(asked.arch, asked.side)
    device = device_of("cuda" if torch.cuda.is_available() else "cpu")
    steps = {
        "timm fp32": theirs(run, device, asked.batch),
        "ours fp32": ours(run, device, "fp32", asked.batch),
    }
    if device.type == "cuda" or has_bf16():
        steps["ours bf16"] = ours(run, device, "bf16", asked.batch)
    else:
        print("bf16 is not measured: this CPU has no instructions for it")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-2, asked.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    print(f"{device.type}: {asked.arch} on {asked.side}x{asked.side} images, batch {asked.batch}")
    for name, goal in (("ours fp32", 1.0), ("ours bf16", 1.7)):
        if name not in seconds:
            continue
        pairs = zip(seconds["timm fp32"], seconds[name], strict=True)
        ratio = statistics.median(theirs / mine for theirs, mine in pairs)
        milliseconds = 1e3 * statistics.median(seconds[name])
        print(f"  {name}: {milliseconds:.1f} ms, timm's time / ours {ratio:.2f} (goal: {goal})")


if __name__ == "__main__":
    main()
