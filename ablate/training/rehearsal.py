"""The rehearsal of a run: its first steps, taken before it is planned, and what they show.

A row of a sweep is compared with its baseline. Both take the same few steps at the full rate from
the same initial weights, on the same images, with a head that is not zero: so a row whose weights
are those of the baseline has changed nothing. A parameter that no gradient reaches is named with
the reason. Parts of the user's own take the steps again, with a stop between them. The cost of a
step is given relative to the baseline's; both are timed in turns.

Used by training/answers.py, which running/rehearse.py asks for `ablate plan` and `ablate sweep`. A
new key or reason also needs a change of `_is_answer`, `IDLE` or `DIFFERS` there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ablate.data import AnySplit, draw_key, open_cached, resident_split
from ablate.run import Run, is_plugin
from ablate.training.calibrate import random_split, smaller
from ablate.training.model.host import Host
from ablate.training.model.vit import ViT, first_token
from ablate.training.plugin import by_path
from ablate.training.training import Training

STEPS = 4
IMAGES = 4
LARGE = 1e9  # multiply-adds of an image: of such models two images do
# Multiply-adds of a batch, at most, that is tried where a few images don't work.
FULL_BATCH_LIMIT = 1e11
# Why no gradient reaches a parameter: the forward pass does not use it; its gradient is 0 in every
# step; or it acts only on tokens that the head does not read, where that reads the class token
# alone, or the patches alone.
UNUSED, ZERO, READS_CLS, READS_PATCHES = "unused", "zero", "class token", "patches"
REPEATED, RESUMED = "again", "resumed"  # what gives other weights
PAIRS, PAIRS_S = 8, 0.25  # steps of baseline and row in turns, at most, and seconds of them


@dataclass
class Rehearsal:
    """A training that has taken `STEPS` steps, and its state after them."""

    training: Training
    tensors: dict[str, Tensor]  # weights and buffers
    logits: Tensor  # of the model as it is evaluated
    idle: dict[str, str]  # parameters that no gradient has reached -> the reason
    bad: int | None  # the first of the steps whose loss is not finite; STEPS: what comes out then
    differs: str  # where the same steps give other weights: "" nowhere, see `_differs`


def rehearse(run: Run, multiply_adds: int, cache: Path, device: torch.device) -> Rehearsal:
    """Take the steps, on a few images of the run's own data where these are decoded in `cache`,
    else on random ones.

    A class of the user's own may need more than a few images: if it fails, it gets a whole batch.
    Raises whatever the run raises with that.
    """
    few = min(run.train.batch, IMAGES if multiply_adds < LARGE else IMAGES // 2)
    try:
        return _rehearse(run, few, cache, device)
    except Exception:
        if few == run.train.batch or multiply_adds * run.train.batch > FULL_BATCH_LIMIT:
            raise
        return _rehearse(run, run.train.batch, cache, device)


def compare_rows(row: Rehearsal, baseline: Rehearsal) -> dict[str, Any]:
    """Return {"same": whether the row has changed nothing, "idle": its parameters without a
    gradient, each with the reason, "step": the time of a step relative to the baseline's; "bad",
    "differs": see `Rehearsal`}."""
    ratios: list[float] = []
    if row is baseline:
        ratios.append(1.0)
    spent = 0.0
    while row is not baseline and len(ratios) < PAIRS and spent < PAIRS_S:
        theirs, ours = _step_s(baseline.training), _step_s(row.training)
        ratios.append(ours / theirs)
        spent += theirs + ours
    return {
        "same": _is_unchanged(row, baseline),
        "step": median(ratios),
        "idle": row.idle,
        "bad": row.bad,
        "differs": row.differs,
    }


def _step_s(training: Training) -> float:
    """Return the seconds of the training's next step; on a CPU the process's CPU time, which other
    processes don't change."""
    clock = time.process_time if training.device.type == "cpu" else time.perf_counter
    start = clock()
    training.step()
    training.bad_step()  # waits for the device
    return clock() - start


def _rehearse(run: Run, images: int, cache: Path, device: torch.device) -> Rehearsal:
    some = at_full_rate(run, images, device)
    split = _images(some, images, cache, device)
    training = _begin(some, split, device)
    model = training.model
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    idle = list(trained)
    for _ in range(STEPS):
        training.step()
        idle = [name for name in idle if not _has_gradient(trained[name])]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.eval()
    with torch.inference_mode():
        logits = model(training.inputs()[0])
    reasons = _reasons(model, training.inputs()[0], {name: trained[name] for name in idle})
    model.train()
    bad = training.bad_step()
    if bad is None and not logits.isfinite().all():
        bad = STEPS
    training.probes.end({"validation": split, "test": split}, training.measure)
    training.probes.measured(STEPS)
    differs = ""
    if by_path(run) and bad is None and device.type == "cpu":  # a GPU adds up in any order
        differs = _differs(some, split, device, state)
    return Rehearsal(training, state, logits, reasons, bad, differs)


def _has_gradient(parameter: Tensor) -> bool:
    """Return whether a gradient has reached the parameter, one that is not 0 throughout."""
    return parameter.grad is not None and bool(parameter.grad.any())


def _reasons(model: nn.Module, images: Tensor, idle: dict[str, nn.Parameter]) -> dict[str, str]:
    """Return the reason why no gradient reaches each of these parameters.

    Where the tokens after the last block depend on a parameter and the logits don't, the reason is
    the choice of the tokens that the head reads.
    """
    reasons = {name: UNUSED if p.grad is None else ZERO for name, p in idle.items()}
    if idle and isinstance(model, ViT):
        reads = READS_CLS if model.pool is first_token else READS_PATCHES
        for name in _moving(model.tokens(images), idle) - _moving(model(images), idle):
            reasons[name] = reads
    return reasons


def _moving(output: Tensor, parameters: dict[str, nn.Parameter]) -> set[str]:
    """Return the names of the parameters that move the output: a random sum of its values has a
    gradient in them."""
    weights = torch.randn(output.shape, generator=Generator().manual_seed(0)).to(output)
    total = (output * weights).sum()
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return {name for name, gradient in pairs if gradient is not None and gradient.any()}


def _begin(run: Run, split: AnySplit, device: torch.device) -> Training:
    training = Training(run, split, device)
    if isinstance(training.model, Host):  # a whole model begins as its class says
        training.model.fit([training.inputs()[0]])
        _wake(training.model.head, run.seed)
    return training


def _differs(run: Run, split: AnySplit, device: torch.device, expected: dict[str, Tensor]) -> str:
    """Return "" where a training that is stopped and resumed reaches the same weights; RESUMED
    where only one without a stop does, so something keeps a state that no checkpoint has;
    REPEATED where that one doesn't either, so something draws at random."""

    def gives_same_weights(stop: int) -> bool:
        training = _begin(run, split, device)
        for step in range(STEPS):
            if step == stop:
                tensors, state = training.state()
                snapshot = {name: tensor.clone() for name, tensor in tensors.items()}
                training = _begin(run, split, device)
                training.load(snapshot, state)
            training.step()
        final_state = training.model.state_dict()
        return all(torch.equal(tensor, final_state[name]) for name, tensor in expected.items())

    if gives_same_weights(stop=STEPS // 2):
        return ""
    return RESUMED if gives_same_weights(stop=STEPS) else REPEATED


def at_full_rate(run: Run, images: int, device: torch.device) -> Run:
    """Return the run with a batch of so many images and without what acts only after its first
    steps: warm-up, schedule, averages. It starts from its own initial weights."""
    some = smaller(run, images)
    optim = replace(
        some.optim,
        schedule="constant",
        schedule_settings=None,
        schedule_version=None,
        schedule_folder=None,
        min_lr=0.0,
        warmup_steps=0,
        cooldown_steps=0,
    )
    train = replace(some.train, ema=None)
    probe = tuple(name for name in run.probe if is_plugin(name))
    if device.type == "cpu" and train.precision in ("bf16", "tf32"):
        train = replace(train, precision="fp32")
    return replace(some, optim=optim, train=train, probe=probe, parent=None, weights=None)


def _images(run: Run, images: int, cache: Path, device: torch.device) -> AnySplit:
    """Return `images` training images, evenly spaced over the set and the same for all rows; random
    images where the set is not decoded."""
    cached = open_cached(run.data, cache)
    if cached is not None:
        split = cached.split("train")
        if len(split) >= images:
            stride = len(split) // images
            return resident_split(split.take(slice(0, stride * images, stride)), device)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return random_split(run.data, images, torch.device("cpu")).to(device)


@torch.no_grad()
def _wake(head: nn.Module, seed: int) -> None:
    """Give the kernel of a head that starts at zero small values: otherwise the first step changes
    nothing but the head."""
    for name, parameter in head.named_parameters():
        if parameter.ndim > 1 and not parameter.any():
            values = torch.empty(parameter.shape)
            values.normal_(0, 0.02, generator=Generator().manual_seed(draw_key(seed, "wake", name)))
            parameter.copy_(values)


def _is_unchanged(row: Rehearsal, baseline: Rehearsal) -> bool:
    """Return whether the weights that both have, and the outputs, are the same bit for bit. A
    weight that only one has is no change if the outputs are the same."""
    both = row.tensors.keys() & baseline.tensors.keys()
    return (
        bool(both)
        and torch.equal(row.logits, baseline.logits)
        and all(torch.equal(row.tensors[name], baseline.tensors[name]) for name in both)
    )
