"""The files that a training leaves in its run's folder: metrics, checkpoints, and in the end its
result.

A checkpoint is the state of a training as bytes: weights, moments, average, sums; no generators. We
serialise to bytes and write them ourselves, since torch.save and safetensors' own writers hide a
full disk. A checkpoint has a seal of its own and one of `metrics.jsonl` as it was then; where
either does not match, the checkpoint is taken to be torn.

Used by training/loop.py for every run of `ablate sweep`, and by training/resume_check.py for
`ablate doctor`. A new key of result.json should also get its type in run/rundir.py `_RESULT`, by
which it is checked.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from ablate.data import AnySplit
from ablate.run import (
    TASKS,
    Data,
    Metrics,
    RunDir,
    sealed_part,
)
from ablate.shared import count_text, write_whole
from ablate.training import sealed_file
from ablate.training.model.count import describe
from ablate.training.rates import matmul_rate
from ablate.training.training import Training, TrainState


def save_checkpoint(
    rundir: RunDir, training: Training, metrics: Metrics, previous_step: int = 0
) -> None:
    """Write `checkpoint-<step>.safetensors`. Raises OSError where the disk is full.

    `previous_step` is the step of the earlier checkpoint to keep; 0 for none.
    """
    tensors, state = training.state()
    host_tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    content = sealed_file.to_bytes(
        host_tensors,
        progress=json.dumps(vars(state)),
        metrics=json.dumps(metrics.seal()),
        **training.task.notes(training.train),
    )
    rundir.write_checkpoint(state.step, previous_step, *content)


def save_weights(rundir: RunDir, model: nn.Module) -> str:
    """Write the finished model to `weights.safetensors`; return the file's sha256."""
    weights = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
    content = save(weights)
    write_whole(rundir.weights, content)
    return hashlib.sha256(content).hexdigest()


def load_checkpoint(rundir: RunDir, training: Training) -> bytes:
    """Continue from the newest checkpoint that is usable, or from the start.

    Returns what `metrics.jsonl` held at that checkpoint. A checkpoint is passed over for the one
    before if it is torn, is no state of this model, or if its metrics are no longer in the file.
    Raises UserError where the task now reads its data differently, see `Task.check_notes`.
    """
    content = rundir.metrics_content()
    for step, path in rundir.checkpoints():
        checkpoint = read_checkpoint(path, step)
        if checkpoint is None:
            continue
        metrics = sealed_part(content, checkpoint.seal)
        if metrics is None:
            continue
        training.task.check_notes(checkpoint.notes, training.train, path)
        with suppress(ValueError):
            training.load(checkpoint.tensors, checkpoint.state)
            return metrics
    return b""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file that is intact."""

    tensors: dict[str, Tensor]
    state: TrainState
    seal: dict[str, Any]  # see Metrics.seal
    notes: dict[str, str]  # see Task


def read_checkpoint(path: Path, step: int) -> Checkpoint | None:
    """Return the content of the checkpoint file `path`; None where it is damaged or of another
    step."""
    try:
        tensors, metadata = sealed_file.read_tensors(path)
        state = TrainState(**json.loads(metadata["progress"]))
        seal = json.loads(metadata["metrics"])
    except (sealed_file.Rotten, OSError, ValueError, KeyError, TypeError):
        return None
    if state.step != step:
        return None
    notes = {key: value for key, value in metadata.items() if key not in ("progress", "metrics")}
    return Checkpoint(tensors, state, seal, notes)


BEAT_S = 0.5  # between signs of life
CHECKPOINT_SHARE = 0.02  # of the time, at most: large models are written less often


class Journal:
    """The writer of one training's files. A result's keys are in the order of its file."""

    def __init__(
        self,
        training: Training,
        rundir: RunDir,
        data_sha256: str,
        cache: Path,
        checkpoint_s: float,
        beat: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """Call `resume` before anything else. `checkpoint_s`: seconds between two checkpoints;
        `cache`: the store's, see `matmul_rate`."""
        self._training = training
        self._rundir = rundir
        self._checkpoint_s = checkpoint_s
        self._beat = beat
        self._say = say
        description = describe(training.run)
        self._size = {
            "parameters": description["parameters"],
            "multiply_adds": description["multiply_adds"],
            "data_sha256": data_sha256,
        }
        # Now, and not when the steps are done, which a failure here would lose.
        precision = training.run.train.precision
        self._rate = matmul_rate(precision, training.dtype, training.device, cache)
        self._beat_at = 0.0

    def resume(self) -> None:
        """Continue the training from its newest usable checkpoint, or from the start."""
        metrics_content = load_checkpoint(self._rundir, self._training)
        for step, path in self._rundir.checkpoints():
            if step > self._training.steps:
                self._say(
                    f"warning: {path.name} is passed over: it is damaged, or metrics.jsonl is"
                )
        self._metrics = Metrics(self._rundir.metrics, metrics_content)
        self._checkpoint_step = self._training.steps
        self._checkpoint_at = time.monotonic() + self._checkpoint_s

    # --- On the way -----------------------------------------------------------------------------

    def watched(self) -> int | None:
        """Give a sign of life from time to time; return the step after which the run is to end, if
        any."""
        if time.monotonic() < self._beat_at:
            return None
        training = self._training
        self._beat(step=training.steps, total=training.lengths.total, phase="train")
        self._beat_at = time.monotonic() + BEAT_S
        # One that it may have to come to again, after a crash. Any other is damage.
        enough = self._rundir.prune_step()
        measured_steps = [line["step"] for line in self._metrics.lines()]
        if enough not in measured_steps:
            return None
        return enough

    def measured(self, scores: Mapping[str, float]) -> bool:
        """Write a line of metrics.jsonl: the validation's scores, and the training loss since the
        last line. Return False, and write none, where one of them is not finite. A run without
        steps has no loss."""
        training = self._training
        step, epochs = training.steps, training.epochs
        train_loss = training.mean_loss()
        values = list(scores.values())
        if train_loss is not None:
            values.append(train_loss)
        # Broken by this very step; or each was finite, and their sum is not.
        if not all(math.isfinite(value) for value in values):
            return False
        line = {"step": step, "epoch": epochs, "lr": training.rate, "train_loss": train_loss}
        for name, score in scores.items():
            line[f"val_{name}"] = score
        self._metrics.append(line)
        score_text = self._score_text(scores)
        if train_loss is None:
            self._say(f"validation {score_text}")
            return True
        took = training.seconds
        images_per_s = step * training.run.train.batch / took
        self._say(
            f"epoch {epochs:.4g}, step {step}: train loss {train_loss:.4f}, validation "
            f"{score_text}; {images_per_s:,.0f} images/s, {took:.0f} s"
        )
        return True

    def _score_text(self, scores: Mapping[str, float]) -> str:
        """Return "loss 0.4321, top1 87.40 %": the declared scores, in the order of their
        measurement."""
        metrics = {metric.key: metric for metric in TASKS[self._training.run.task].metrics}
        texts = []
        for name, score in scores.items():
            if name in metrics:
                texts.append(f"{name} {metrics[name].printed(score)}")
        return ", ".join(texts)

    def is_due(self) -> bool:
        """Return whether a checkpoint is due."""
        return time.monotonic() >= self._checkpoint_at

    def checkpoint(self) -> None:
        """Write a checkpoint. The next is due after `checkpoint_s`, or later, so that writing takes
        at most `CHECKPOINT_SHARE` of the time."""
        start = time.monotonic()
        self._training.ranks.tell("compare")
        self._training.compare()
        save_checkpoint(self._rundir, self._training, self._metrics, self._checkpoint_step)
        self._checkpoint_step = self._training.steps
        took = time.monotonic() - start
        wait = max(self._checkpoint_s, took / CHECKPOINT_SHARE)
        self._checkpoint_at = time.monotonic() + wait

    def checkpoint_once(self) -> None:
        """Write a checkpoint, unless the newest is of this very step."""
        if self._checkpoint_step != self._training.steps:
            self.checkpoint()

    # --- At the end: what result.json holds -----------------------------------------------------

    def diverged(self, step: int, value: str = "the loss") -> dict[str, Any]:
        self._say(f"diverged: {value} is not finite at step {step}")
        return {
            "status": "diverged",
            "step": step,
            "metrics_sha256": self._metrics.seal()["sha256"],
            "probes_sha256": self._training.probes.write(self._rundir, step + 1),
            **self._used(step),
        }

    def pruned(self, step: int) -> dict[str, Any]:
        """Return the result of a pruned run. It counts up to `step`, however far the training got,
        so it can't depend on timing."""
        self._say(f"pruned: not worth going on after step {step}")
        self._metrics.rewind(step)
        row = self._training.run.spec.result_of(self._metrics.lines())
        return {
            "status": "pruned",
            "step": step,
            "train_loss": row["train_loss"],
            "validation": row["validation"],
            "metrics_sha256": self._metrics.seal()["sha256"],
            "probes_sha256": self._training.probes.write(self._rundir, step),
            **self._used(self._training.steps),
        }

    def finished(self, data: Mapping[str, AnySplit]) -> dict[str, Any]:
        """Test the model, once; write its weights and predictions; return the result."""
        training, total = self._training, self._training.steps
        training.ranks.tell("test")
        scores, predictions = training.evaluate(data["test"])
        if not all(map(math.isfinite, scores.values())):
            return self.diverged(total, "a test score")
        with training.average.applied():
            weights_sha256 = save_weights(self._rundir, training.model)
            training.probes.end(data, training.measure)
        predictions_sha256 = _write(self._rundir.predictions, predictions)
        row = self._training.run.spec.result_of(self._metrics.lines())
        prior = None
        if total:
            prior = training.task.prior_loss(data["train"])
        spent = self._used(total)
        collapsed = prior is not None and row["train_loss"] >= prior
        if collapsed:
            self._say(
                f"warning: collapsed: the last train loss {row['train_loss']:.4f} is no lower "
                f"than {prior:.4f}, that of {TASKS[training.run.task].prior}"
            )
        self._say(f"finished: {count_text(total, 'step')} in {spent['seconds']:.0f} s")
        used_share = None
        if spent["images_per_s"] is not None:
            device_rate = self._rate * training.ranks.world
            used_share = utilisation(spent["multiply_adds"], spent["images_per_s"], device_rate)
        return {
            "status": "finished",
            "step": total,
            "train_loss": row["train_loss"],
            "prior_loss": prior,
            "collapsed": collapsed,
            "validation": row["validation"],
            "test": scores,
            "train": {"n": len(data["train"])},
            "metrics_sha256": self._metrics.seal()["sha256"],
            "predictions_sha256": predictions_sha256,
            "weights_sha256": weights_sha256,
            **training.task.notes(training.train),
            "probes_sha256": training.probes.write(self._rundir, total),
            "micro_batch": training.micro_batch,
            "execution": "compiled" if training.compiled else "eager",
            **spent,
            "utilisation": used_share,
        }

    def tested(self, data: Data, split: AnySplit) -> dict[str, Any]:
        """Test the finished model on a set of `eval.also`; write the predictions, return the
        result's entry."""
        self._training.ranks.tell(f"test {data.name}")
        scores, predictions = self._training.evaluate(split, data)
        finite_scores = {
            key: value if math.isfinite(value) else None for key, value in scores.items()
        }
        if None in finite_scores.values():
            self._say(f"warning: scores on {data.name} are not finite, and are left out")
        path = self._rundir.predictions_on(data.name)
        return {"test": finite_scores, "predictions_sha256": _write(path, predictions)}

    def _used(self, steps: int) -> dict[str, Any]:
        training = self._training
        images = steps * training.run.train.batch
        return self._size | cost(training.seconds, images, training.device)


def _write(path: Path, predictions: np.ndarray) -> str:
    """Write the predictions to `path`; return the sha256 of the file."""
    content = io.BytesIO()
    np.save(content, predictions)
    write_whole(path, content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


# --- What it took: time, memory, and how much of the device it used -------------------------------


def cost(seconds: float, images: int, device: torch.device) -> dict[str, float | None]:
    """Return `seconds` over all attempts, `images_per_s`, evaluation included, and `peak_bytes`.
    `images`: those of all steps; without steps there is no rate."""
    return {
        "seconds": seconds,
        "images_per_s": images / seconds if images else None,
        "peak_bytes": peak_bytes(device),
    }


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes: of tensors on a GPU, of the process's pages on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def utilisation(multiply_adds: int, images_per_s: float, rate: float) -> float:
    """Return the model's multiply-adds a second, three times those of a forward pass, as a fraction
    of the `rate` of a matrix product on the same devices (PaLM, arXiv 2204.02311, appendix B)."""
    return 3 * multiply_adds * images_per_s / rate
