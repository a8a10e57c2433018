"""One training from its run.json to its result, top to bottom."""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate.shared.files import write_whole
from ablate.shared.rundir import Metrics, RunDir
from ablate.shared.spec import Run
from ablate.training.checkpoint import load_checkpoint, save_checkpoint, save_weights
from ablate.training.cost import cost, utilisation
from ablate.training.data.batches import Batches, View, evaluation_batches, resident, shaken_once
from ablate.training.data.cache import prepare
from ablate.training.data.cached import Split
from ablate.training.keyed import Draws, Step
from ablate.training.memory import micro_batch
from ablate.training.model import build
from ablate.training.model.attention import kernel
from ablate.training.model.count import describe
from ablate.training.optim import Average, learning_rate, lengths, make_optimizer
from ablate.training.probes import Probes
from ablate.training.task import classify

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
LOOK_EVERY = 50  # steps between looks at the device for a non-finite loss
BEAT_S = 0.5  # between signs of life
CHECKPOINT_SHARE = 0.02  # of the time, at most: large models are written less often


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
    say: Callable[[str], None]  # a line for whoever reads the run's log


def train(run: Run, rundir: RunDir, machine: Machine) -> dict[str, Any]:
    """Train `run`, from its newest checkpoint if it has one; returns what `result.json` holds.

    Writes checkpoints, `metrics.jsonl`, `predictions.npy` and what probes measure. Raises Stopped
    when asked to stop, UserError where the data does not fit the spec, OSError where the disk is
    full.
    """
    device, dtype = machine.device, DTYPES[run.train.precision]
    weights = torch.float64 if dtype == torch.float64 else torch.float32
    torch.use_deterministic_algorithms(run.train.deterministic)

    # --- Data -----------------------------------------------------------------------------------
    machine.beat(phase="data")
    cached = prepare(run.data, machine.cache, lambda done, _: machine.beat(images=done))
    data = {name: resident(cached.split(name), device) for name in ("train", "validation", "test")}
    if run.eval.augment:
        data |= {name: shaken_once(data[name], run.augment) for name in ("validation", "test")}
    batch = run.train.batch

    # --- Randomness: keyed, so there is nothing to save or restore ------------------------------
    draws = Draws(run.seed, device)
    masks = Step(draws)
    masks.batch = batch
    view = View.of(run)
    ahead = data["train"].images.device.type != device.type
    batches = Batches(data["train"], batch, run.augment, draws, view, ahead)

    # --- Model, optimiser, lengths in steps -----------------------------------------------------
    model = build(run, device).to(weights)
    model.bind(masks)
    seen = watched(evaluation_batches(data["train"], run.eval.batch, view, device), machine)
    model.fit(
        (images for images, _ in seen),
        machine.cache / f"{run.data.fingerprint}.{view.name}",
    )
    told = describe(run)
    size = {name: told[name] for name in ("parameters", "multiply_adds")}
    optimizer = make_optimizer(model, run.optim)
    average = Average(model, run.train.ema)
    epoch = batches.steps_per_epoch
    steps = lengths(run.optim, run.train, epoch)
    total = steps.total
    every = run.eval.every * epoch
    probes = Probes(run, model, total)

    # --- Resume ---------------------------------------------------------------------------------
    progress, written = load_checkpoint(rundir, model, optimizer, average, probes.kept())
    for newer in (path.name for step, path in rundir.checkpoints() if step > progress.step):
        machine.say(f"warning: {newer} is passed over: it is damaged, or metrics.jsonl is")
    metrics, kept = Metrics(rundir.metrics, written), progress.step
    if not progress.micro_batch:
        progress.micro_batch = split_of(run, model, masks, machine)
    micro = progress.micro_batch
    loss_sum = torch.tensor(progress.loss_sum, dtype=torch.float64, device=device)
    bad_step = torch.tensor(progress.bad_step, device=device)
    begun = time.monotonic() - progress.seconds  # as if it had run without a break
    checkpoint_at = time.monotonic() + machine.checkpoint_s
    beat_at = 0.0

    def checkpoint() -> None:
        nonlocal kept
        progress.loss_sum, progress.bad_step = loss_sum.item(), int(bad_step.item())
        progress.seconds = time.monotonic() - begun
        save_checkpoint(rundir, model, optimizer, average, progress, metrics, kept, probes.kept())
        kept = progress.step

    def used(steps: int) -> dict[str, Any]:
        return size | {"data_sha256": cached.sha256} | cost(begun, steps * batch, device)

    def diverged(step: int) -> dict[str, Any]:
        machine.say(f"diverged: the loss is not finite at step {step}")
        return {
            "status": "diverged",
            "step": step,
            "metrics_sha256": metrics.seal()["sha256"],
            "probes_sha256": probes.write(rundir, step + 1),
            **used(step),
        }

    def pruned(step: int) -> dict[str, Any]:
        """It counts up to there, wherever it has got to: so it can't depend on who was faster."""
        machine.say(f"pruned: not worth going on after step {step}")
        metrics.rewind(step)
        last = metrics.lines()[-1]
        return {
            "status": "pruned",
            "step": step,
            "train_loss": last["train_loss"],
            "validation": {name[4:]: last[name] for name in last if name.startswith("val_")},
            "metrics_sha256": metrics.seal()["sha256"],
            "probes_sha256": probes.write(rundir, step),
            **used(progress.step),
        }

    # --- Train loop -----------------------------------------------------------------------------
    machine.say(f"training from step {progress.step} of {total}, {epoch} an epoch, on {device}")
    model.train()
    while progress.step < total:
        step = progress.step
        if time.monotonic() >= beat_at:
            machine.beat(step=step, total=total, phase="train")
            beat_at = time.monotonic() + BEAT_S
            # One that it may have to come to again, after a crash. Any other is damage.
            enough = rundir.prune_step()
            if enough is not None and enough in [line["step"] for line in metrics.lines()]:
                return pruned(enough)

        images, target = inputs(run, batches, step, weights)
        rate = learning_rate(run.optim, step, steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        masks.step = step
        loss = torch.zeros((), dtype=torch.float64, device=device)
        for first in range(0, batch, micro):
            masks.rows = slice(first, first + micro)
            with arithmetic(device, dtype):
                logits = model(images[masks.rows])
            part = classify.loss(
                logits, target[masks.rows], run.train.label_smoothing, run.train.loss
            )
            part = part * (micro / batch)
            part.backward()
            loss += part.detach()
        probes.gradients(step)
        if run.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip)
        optimizer.step()
        average.update()
        # A non-finite loss is noted on the device, where it happens: to look at it is to wait.
        bad_step = torch.where((bad_step < 0) & ~loss.isfinite(), step, bad_step)
        loss_sum += loss
        progress.step += 1
        progress.loss_steps += 1

        measure = progress.step % every == 0 or progress.step == total
        if (measure or progress.step % LOOK_EVERY == 0) and bad_step >= 0:
            return diverged(int(bad_step.item()))
        if measure:
            machine.beat(step=progress.step, total=total, phase="validation")
            with average.shown():
                scores, _ = evaluate(run, model, data["validation"], machine)
            train_loss = loss_sum.item() / progress.loss_steps
            # Broken by this very step; or each was finite, and their sum is not.
            if not (math.isfinite(scores["loss"]) and math.isfinite(train_loss)):
                return diverged(step)
            metrics.append(
                {
                    "step": progress.step,
                    "epoch": progress.step / epoch,
                    "lr": rate,
                    "train_loss": train_loss,
                    **{f"val_{name}": score for name, score in scores.items()},
                }
            )
            took = time.monotonic() - begun
            machine.say(
                f"epoch {progress.step / epoch:.4g}, step {progress.step}: train loss "
                f"{train_loss:.4f}, validation {classify.told(scores)}; "
                f"{progress.step * batch / took:,.0f} images/s, {took:.0f} s"
            )
            loss_sum.zero_()
            progress.loss_steps = 0
            model.train()
        if machine.stopping():
            checkpoint()
            machine.say(f"stopped at step {progress.step}; its checkpoint is written")
            raise Stopped
        if time.monotonic() >= checkpoint_at:
            before = time.monotonic()
            checkpoint()
            took = time.monotonic() - before
            checkpoint_at = time.monotonic() + max(machine.checkpoint_s, took / CHECKPOINT_SHARE)

    # --- Test, once -----------------------------------------------------------------------------
    machine.beat(step=total, total=total, phase="test")
    with average.shown():
        scores, predictions = evaluate(run, model, data["test"], machine)
        weights_sha256 = save_weights(rundir, model)
        probes.end(data["validation"], lambda split: evaluate(run, model, split, machine))
    content = io.BytesIO()
    np.save(content, predictions)
    write_whole(rundir.predictions, content.getvalue())
    last = metrics.lines()[-1]  # of the last step, whoever trained it
    prior = classify.prior_loss(
        data["train"].labels, run.data.classes, run.train.label_smoothing, run.train.loss
    )
    spent = used(total)
    collapsed = last["train_loss"] >= prior
    if collapsed:
        machine.say(
            f"warning: collapsed: the last train loss {last['train_loss']:.4f} is no lower than "
            f"{prior:.4f}, that of guessing by the classes' frequencies"
        )
    machine.say(f"finished: {total} steps in {spent['seconds']:.0f} s")
    return {
        "status": "finished",
        "step": total,
        "train_loss": last["train_loss"],
        "prior_loss": prior,
        "collapsed": collapsed,
        "validation": {name[4:]: last[name] for name in last if name.startswith("val_")},
        "test": scores,
        "metrics_sha256": metrics.seal()["sha256"],
        "predictions_sha256": hashlib.sha256(content.getvalue()).hexdigest(),
        "weights_sha256": weights_sha256,
        "probes_sha256": probes.write(rundir, total),
        "kernel": kernel(device, dtype),
        "micro_batch": micro,
        **spent,
        "utilisation": utilisation(spent["multiply_adds"], spent["images_per_s"], device, dtype),
    }


def split_of(run: Run, model: torch.nn.Module, masks: Step, machine: Machine) -> int:
    """Of how many images each forward pass is: `train.micro_batch`, or what fits here (auto)."""
    batch, asked = run.train.batch, run.train.micro_batch
    if asked != "auto":
        return asked or batch
    machine.beat(phase="memory")
    parameter = next(model.parameters())
    side = run.data.size
    images = parameter.new_zeros((2, side, side, run.data.channels))

    def forward(part: torch.Tensor) -> torch.Tensor:
        masks.rows = slice(0, len(part))
        labels = torch.zeros(len(part), dtype=torch.int64, device=part.device)
        with arithmetic(part.device, DTYPES[run.train.precision]):
            logits = model(part)
        return classify.loss(logits, labels, run.train.label_smoothing, run.train.loss)

    model.train()
    return micro_batch(batch, images, model, forward)


def inputs(
    run: Run, batches: Batches, step: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, H, W, C) and labels of a step, int64 (B,), or where mixed soft (B, classes)."""
    images, labels = batches.at(step)
    images = images.to(dtype)
    if not (run.augment.mixup or run.augment.cutmix):
        return images, labels
    soft = classify.targets(labels, run.data.classes, run.train.label_smoothing, dtype)
    return batches.mixed(images, soft, step)


def watched(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], machine: Machine
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same batches, with signs of life: a long evaluation is no hanging."""
    for number, batch in enumerate(batches):
        machine.beat(batches=number)
        yield batch


def evaluate(
    run: Run, model: torch.nn.Module, split: Split, machine: Machine
) -> tuple[dict[str, float], np.ndarray]:
    """(metrics, predictions) of the model on a whole split, in the run's arithmetic.

    Leaves the model in evaluation mode.
    """
    parameter = next(model.parameters())
    shown = evaluation_batches(split, run.eval.batch, View.of(run), parameter.device)

    def logits() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in watched(shown, machine):
            with arithmetic(parameter.device, DTYPES[run.train.precision]):
                yield model(images.to(parameter.dtype)), labels

    model.eval()
    with torch.inference_mode():
        return classify.evaluate(logits(), run.train.loss)


def arithmetic(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast for bfloat16; float32 and float64 compute in what the weights are."""
    if dtype == torch.bfloat16:
        return torch.autocast(device.type, dtype)
    return nullcontext()
