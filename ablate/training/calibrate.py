"""How long a training step takes on this machine: a few steps, measured."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import torch

from ablate.shared.metrics import DEFAULT, TASKS
from ablate.shared.sections import Data
from ablate.shared.spec import Run
from ablate.training.data.cached import Split
from ablate.training.training import Training

ENOUGH = 2e9  # multiply-adds of a forward that tell the rate; a whole batch may not fit
LONGEST_S = 1.5
MOST = 12  # steps


def seconds_per_step(run: Run, device: torch.device, multiply_adds: int) -> float:
    """Seconds of one step at the run's batch, augmentation included: the median of a few on random
    images of the size that the model sees.

    Measured on as many images as take about `ENOUGH` multiply-adds and scaled to the batch; the
    first two steps warm up, where they are short.
    """
    images = int(min(run.train.batch, max(1, ENOUGH // max(multiply_adds, 1))))
    training = Training(smaller(run, images), random_split(run.data, images, device), device)
    times: list[float] = []
    least = 3
    begun = time.perf_counter()
    while len(times) < MOST and (len(times) < least or time.perf_counter() - begun < LONGEST_S):
        start = time.perf_counter()
        training.step()
        training.bad_step()  # waits for the device
        times.append(time.perf_counter() - start)
        least = 3 if times[0] < LONGEST_S else 1  # so long a step tells enough by itself
    return median(times[2:] or times) * run.train.batch / images


def smaller(run: Run, batch: int) -> Run:
    """The run, `MOST` steps long, with a batch of this size at once, and nothing measured; by the
    default task, where its own takes no steps."""
    train = replace(run.train, batch=batch, micro_batch=None, steps=MOST)
    repeats = min(run.augment.repeats, batch)
    task = run.task if TASKS[run.task].trains else DEFAULT
    augment = replace(run.augment, repeats=repeats)
    return replace(run, task=task, train=train, augment=augment, probe=())


def random_split(data: Data, images: int, device: torch.device) -> Split:
    """So many random images of the size that the model sees, with labels."""
    shape = (images, data.size, data.size, data.channels)
    return Split(
        torch.randint(256, shape, dtype=torch.uint8, device=device),
        torch.randint(data.classes, (images,), device=device),
        torch.ones(images, device=device),
    )
