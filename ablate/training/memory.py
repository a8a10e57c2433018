"""How many images fit into memory at once: `train.micro_batch=auto`."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import floor, log2
from pathlib import Path

import torch
from torch import Tensor, nn

from ablate.shared.ranks import divisors
from ablate.shared.rundir import OOM
from ablate.training import faults
from ablate.training.training import Training

SPARE = 0.8  # of the free memory: what is counted is not all that is taken
MARGIN = 0.9  # of a GPU's memory: blocks are cut otherwise in a run's thousandth step
SHARED = 0.95  # of a GPU's memory: each process on it takes some that is not counted
ENOUGH = 1e9  # bytes kept for a backward pass, beyond which a CPU is no faster

Forward = Callable[[Tensor], Tensor]  # images -> their part of the loss


def limit(device: torch.device, share: float) -> None:
    """Take at most this share of a GPU's memory from now on, where others have theirs of it."""
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(SHARED * share, device)


def part(batch: int, at_most: int) -> int:
    """The first of `divisors` of a batch that is at most so large."""
    return next(size for size in divisors(batch) if size <= at_most)


def micro_batch(training: Training, at_most: int | None = None) -> int:
    """The first of `divisors` of its batch that fits, `at_most` so large; the training is as it was
    before.

    On a GPU two steps are tried, in a little less memory than there is. On a CPU, where too much is
    not refused but kills, it is computed: from what the backward pass of two images keeps, and a
    core's share of the memory that is free, of which it takes no more than `ENOUGH`. One image is
    not tried: where it does not fit the first step raises torch.OutOfMemoryError.
    """
    fits = _tried if training.device.type == "cuda" else _computed
    batch = training.run.train.batch
    *larger, one = (size for size in divisors(batch) if size <= (at_most or batch))
    return next((size for size in larger if fits(size, training)), one)


def _tried(size: int, training: Training) -> bool:
    tensors, state = training.state()
    before = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    training.micro_batch = size
    device = training.device
    share = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction(MARGIN * share, device)
    try:
        for _ in range(min(2, training.lengths.total)):  # from the second on there are moments
            training.step()
        training.bad_step()  # waits for the device
    except Exception as error:
        if faults.whose(error, training.device.type) != OOM:
            raise
        return False
    else:
        return True
    finally:
        torch.cuda.set_per_process_memory_fraction(share, device)
        training.load(before, state)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # what a trial took is no peak of the run's


def _computed(size: int, training: Training) -> bool:
    images, target = training.inputs()

    def forward(some: Tensor) -> Tensor:
        return training.part(some, target, slice(0, len(some)))

    kept = size * kept_bytes(images[:2].clone(), training.model, forward)
    # Of micro-batches the sums of a tree are kept, one a level: see `MicroBatches`.
    gradients = sum(p.nbytes for p in training.model.parameters() if p.requires_grad)
    sums = gradients * floor(log2(training.batches.size / size))
    return kept <= ENOUGH and kept + sums <= SPARE * free_bytes()


def kept_bytes(images: Tensor, model: nn.Module, forward: Forward) -> float:
    """What the backward pass of one of the images needs from its forward pass, in bytes."""
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by address: several operators keep the same tensor

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(images)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / len(images)


def free_bytes() -> float:
    """A core's share of the machine's free memory: as many workers run as there are cores."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return 1024 * free / (os.cpu_count() or 1)
