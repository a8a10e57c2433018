"""How long a training step takes on this machine: a few steps, measured."""

from __future__ import annotations

import time
from statistics import median

import torch

from ablate.shared.spec import Run
from ablate.training.data.batches import Batches, View
from ablate.training.data.cached import Split
from ablate.training.keyed import Draws, Step
from ablate.training.loop import DTYPES, arithmetic, inputs
from ablate.training.model import build
from ablate.training.optim import Average, make_optimizer
from ablate.training.task import classify

ENOUGH = 2e9  # multiply-adds of a forward that tell the rate; a whole batch may not fit
LONGEST_S = 1.5


def seconds_per_step(run: Run, device: torch.device, multiply_adds: int) -> float:
    """Seconds of one step at the run's batch, augmentation included: the median of a few on random
    images of the size that the model sees.

    Measured on as many images as take about `ENOUGH` multiply-adds and scaled to the batch; the
    first two steps warm up, where they are short.
    """
    dtype = DTYPES[run.train.precision]
    images = int(min(run.train.batch, max(1, ENOUGH // max(multiply_adds, 1))))
    model = build(run, device).to(torch.float64 if dtype == torch.float64 else torch.float32)
    draws = Draws(run.seed, device)
    masks = Step(draws)
    masks.batch = images
    model.bind(masks)
    optimizer = make_optimizer(model, run.optim)
    average = Average(model, run.train.ema)
    shape = (images, run.data.size, run.data.size, run.data.channels)
    random = Split(
        torch.randint(256, shape, dtype=torch.uint8, device=device),
        torch.randint(run.data.classes, (images,), device=device),
        torch.ones(images, device=device),
    )
    batches = Batches(random, images, run.augment, draws, View.of(run))
    weights = next(model.parameters()).dtype

    times: list[float] = []
    least = 3
    begun = time.perf_counter()
    while len(times) < 12 and (len(times) < least or time.perf_counter() - begun < LONGEST_S):
        start = time.perf_counter()
        x, y = inputs(run, batches, len(times), weights)
        optimizer.zero_grad(set_to_none=True)
        with arithmetic(device, dtype):
            logits = model(x)
        loss = classify.loss(logits, y, run.train.label_smoothing, run.train.loss)
        loss.backward()
        if run.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip)
        optimizer.step()
        average.update()
        loss.item()  # waits for the device
        times.append(time.perf_counter() - start)
        least = 3 if times[0] < LONGEST_S else 1  # so long a step tells enough by itself
    return median(times[2:] or times) * run.train.batch / images
