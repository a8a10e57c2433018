"""One training from its run.json to its result, top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ablate.data.batches import Augment, order
from ablate.data.cache import prepare
from ablate.keyed import Draws, Step
from ablate.model import build
from ablate.model.attention import kernel
from ablate.rundir import RunDir
from ablate.spec import Run, UserError
from ablate.task.classify import Classification, save_predictions
from ablate.train.checkpoint import load_checkpoint, save_checkpoint
from ablate.train.optim import adamw, learning_rate

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
CHECK_EVERY = 50  # steps between looks at the device for a non-finite loss
BEAT_S = 0.5  # between signs of life


class Stopped(Exception):
    """Asked to stop; the checkpoint is written."""


@dataclass(frozen=True)
class Machine:
    """What the machine and the launcher decide: nothing here changes a result on one device."""

    device: torch.device
    cache: Path
    checkpoint_s: float
    stopping: Callable[[], bool]
    beat: Callable[..., None]  # notes for whoever watches: step=, total=, phase=


def train(run: Run, rundir: RunDir, machine: Machine) -> dict[str, Any]:
    """Train `run`, from its newest checkpoint if it has one; returns what `result.json` holds.

    Writes checkpoints, `metrics.jsonl` and `predictions.npy`. Raises Stopped when asked to stop,
    UserError where the data does not fit the spec, OSError where the disk is full.
    """
    device = machine.device
    dtype = DTYPES[run.train.precision]
    torch.use_deterministic_algorithms(run.train.deterministic)

    # --- Data -----------------------------------------------------------------------------------
    machine.beat(phase="data")
    data = prepare(run.data, machine.cache)
    split = data.split("train").to(device)
    validation, test = data.split("validation"), data.split("test")
    batch = run.train.batch
    steps_per_epoch = len(split) // batch
    if steps_per_epoch == 0:
        raise UserError(
            f"train.batch: {batch} is more than the {len(split)} training images of "
            f"data={run.data.name}"
        )

    # --- Model and optimiser --------------------------------------------------------------------
    model = build(run, device)
    if run.train.precision == "fp64":
        model = model.double()
    task = Classification(run.data.classes, run.train.label_smoothing)
    optimizer = adamw(model, run.optim)
    total = run.train.steps or max(1, round(run.train.epochs * steps_per_epoch))
    warmup = min(round(run.optim.warmup_epochs * steps_per_epoch), total)
    every = run.eval.every * steps_per_epoch
    micro = run.train.micro_batch or batch

    # --- Randomness: keyed, nothing to restore --------------------------------------------------
    # Order and augmentation are drawn on the CPU: the same batches on every device.
    draws = Draws(run.seed)
    masks = Step(Draws(run.seed, device))
    masks.batch = batch
    model.bind(masks)
    augment = Augment(run.augment)

    # --- Resume ---------------------------------------------------------------------------------
    progress = load_checkpoint(rundir, model, optimizer)
    rundir.rewind_metrics(lambda line: line.get("step", math.inf) <= progress.step)
    loss_sum = torch.tensor(progress.loss_sum, dtype=torch.float64, device=device)
    bad_step = torch.tensor(progress.bad_step, device=device)
    clock = Clock(progress.seconds)
    last_checkpoint = last_beat = time.monotonic()
    start, permutation, epoch = progress.step, torch.empty(0), -1

    def checkpoint() -> None:
        progress.loss_sum, progress.bad_step = loss_sum.item(), int(bad_step.item())
        progress.seconds = clock.seconds()
        save_checkpoint(rundir, model, optimizer, progress)

    # --- Train loop -----------------------------------------------------------------------------
    model.train()
    for step in range(start, total):
        if step // steps_per_epoch != epoch:
            epoch = step // steps_per_epoch
            permutation = order(draws, epoch, len(split)).to(device)
        first = step % steps_per_epoch * batch
        rows = permutation[first : first + batch]
        images, labels = augment(split.images[rows], draws, step), split.labels[rows]
        images = images.to(torch.float64 if dtype == torch.float64 else torch.float32)

        rate = learning_rate(run.optim, step, warmup, total)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        masks.step = step
        loss = torch.zeros((), dtype=torch.float64, device=device)
        for low in range(0, batch, micro):
            masks.rows = slice(low, low + micro)
            with arithmetic(device, dtype):
                part = task.loss(model(images[masks.rows]), labels[masks.rows]) * (micro / batch)
            part.backward()
            loss += part.detach()
        if run.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip)
        optimizer.step()

        # A non-finite loss is noted on the device, where it happens; to look at it is to wait.
        bad_step = torch.where((bad_step < 0) & ~loss.isfinite(), step, bad_step)
        loss_sum += loss
        progress.step, progress.loss_steps = step + 1, progress.loss_steps + 1
        finished, epoch_over = progress.step == total, progress.step % every == 0

        if (progress.step % CHECK_EVERY == 0 or epoch_over or finished) and bad_step >= 0:
            return diverged(int(bad_step.item()), clock)
        if epoch_over or finished:
            machine.beat(step=progress.step, total=total, phase="validation")
            measured, _ = evaluate(run, model, task, validation, machine)
            rundir.append_metrics(
                {
                    "step": progress.step,
                    "epoch": progress.step / steps_per_epoch,
                    "lr": rate,
                    "train_loss": loss_sum.item() / progress.loss_steps,
                    **{f"val_{key}": finite(value) for key, value in measured.items()},
                }
            )
            final_loss = loss_sum.item() / progress.loss_steps
            loss_sum.zero_()
            progress.loss_steps = 0
            model.train()
        if machine.stopping():
            checkpoint()
            raise Stopped
        now = time.monotonic()
        if now - last_beat >= BEAT_S:
            last_beat = now
            machine.beat(step=progress.step, total=total, phase="train")
        if now - last_checkpoint >= machine.checkpoint_s:
            checkpoint()
            last_checkpoint = time.monotonic()

    # --- Test, once -----------------------------------------------------------------------------
    # Resumed after the last step, the last validation and training loss are in metrics.jsonl.
    machine.beat(step=total, total=total, phase="test")
    last = rundir.read_metrics()[-1]
    assert last["step"] == total
    measured, predictions = evaluate(run, model, task, test, machine)
    if not math.isfinite(measured["loss"]):
        return diverged(total, clock)  # the very last step broke it
    save_predictions(rundir.predictions, predictions)
    prior = task.prior_loss(split.labels)
    return {
        "status": "finished",
        "step": total,
        "epochs": total / steps_per_epoch,
        "train_loss": last["train_loss"],
        "prior_loss": prior,
        "collapsed": last["train_loss"] >= prior,
        "validation": {key[4:]: value for key, value in last.items() if key.startswith("val_")},
        "test": measured,
        "micro_batch": micro,
        "kernel": kernel(device, dtype),
        "seconds": clock.seconds(),
    }


def evaluate(
    run: Run, model: torch.nn.Module, task: Classification, split: Any, machine: Machine
) -> tuple[dict[str, Any], Any]:
    """(metrics, predictions) of the model on a split, in the run's arithmetic."""
    device, dtype = machine.device, DTYPES[run.train.precision]
    model.eval()
    score = task.score()
    with torch.inference_mode(), arithmetic(device, dtype):
        for low in range(0, len(split), run.eval.batch):
            images = split.images[low : low + run.eval.batch].to(device)
            ...
    return score.metrics(), score.predictions()


def arithmetic(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast for bfloat16; float32 and float64 compute in what the weights are."""
    if dtype == torch.bfloat16:
        return torch.autocast(device.type, dtype)
    return nullcontext()
