"""The state of a training as bytes and back: weights, moments, average, sums; no generators.

Serialised to bytes and written by us: torch.save and safetensors' own writers hide a full disk.
A checkpoint is sealed, and seals what `metrics.jsonl` had by then. One that either does not fit is
taken for torn. Versions before wrote `progress` alone: taken as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ablate.shared.files import write_whole
from ablate.shared.rundir import Metrics, RunDir, parse_lines, up_to
from ablate.training import sealed
from ablate.training.optim import Average


@dataclass
class Progress:
    """What a training carries from step to step beside weights and moments."""

    step: int = 0
    loss_sum: float = 0.0  # of the steps since the last line of metrics.jsonl
    loss_steps: int = 0
    bad_step: int = -1  # first step with a non-finite loss
    seconds: float = 0.0
    micro_batch: int = 0  # images of a forward pass, once it was decided: kept, so bits are, too


def save_checkpoint(
    rundir: RunDir,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    progress: Progress,
    metrics: Metrics,
    before: int = 0,
    probes: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `checkpoint-<step>.safetensors`. Raises OSError where the disk is full.

    `before`: the step of the checkpoint that is kept beside it; 0 for none. `probes`: what probes
    have measured until now, by name.
    """
    tensors = _held(model, average, probes)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optim.{key}.{name}"] = value
    content = sealed.to_bytes(
        {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()},
        progress=json.dumps(vars(progress)),
        metrics=json.dumps(metrics.seal()),
    )
    rundir.write_checkpoint(progress.step, before, *content)


def save_weights(rundir: RunDir, model: nn.Module) -> str:
    """Write the finished model to `weights.safetensors`; returns the file's sha256."""
    content = save({name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()})
    write_whole(rundir.weights, content)
    return hashlib.sha256(content).hexdigest()


def load_checkpoint(
    rundir: RunDir,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    probes: Mapping[str, Tensor] | None = None,
) -> tuple[Progress, bytes]:
    """Continue from the newest checkpoint that can be gone on from, or from the start.

    Returns how far it got and what `metrics.jsonl` had by then. One that is torn, or no state of
    this model, or whose metrics are not in the file any more, gives way to the one before.
    """
    content, held = rundir.metrics_content(), _held(model, average, probes)
    for step, path in rundir.checkpoints():
        found = read_checkpoint(path, step)
        if found is None:
            continue
        metrics = found.metrics(content)
        if metrics is None or any(
            name not in found.tensors or found.tensors[name].shape != tensor.shape
            for name, tensor in held.items()
        ):
            continue
        with torch.no_grad():
            for name, tensor in held.items():
                tensor.copy_(found.tensors[name])
        _restore(optimizer, model, found.tensors)
        return found.progress, metrics
    return Progress(), b""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds that is as it was written."""

    tensors: dict[str, Tensor]
    progress: Progress
    seal: dict[str, Any] | None  # see Metrics.seal; None: written before metrics were sealed

    def metrics(self, content: bytes) -> bytes | None:
        """What `metrics.jsonl` had by then, of what it has now; None where that is damaged."""
        if self.seal is not None:
            content = content[: self.seal["bytes"]]
            whole = hashlib.sha256(content).hexdigest() == self.seal["sha256"]
            return content if whole else None
        content = up_to(content, self.progress.step)
        last = [0, *(line["step"] for line in parse_lines(content))][-1]
        return content if last == self.progress.step - self.progress.loss_steps else None


def read_checkpoint(path: Path, step: int) -> Checkpoint | None:
    """What `path` holds; None where that is not what was written, or of another step."""
    try:
        tensors, told = sealed.read(path, "progress")
        progress = Progress(**json.loads(told["progress"]))
        seal = json.loads(told["metrics"]) if "metrics" in told else None
    except (sealed.Rotten, OSError, ValueError, KeyError, TypeError):
        return None
    return Checkpoint(tensors, progress, seal) if progress.step == step else None


def _held(
    model: nn.Module, average: Average, probes: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """The tensors themselves that a training has from its first step on, by their names in files:
    all of a checkpoint but the moments."""
    return (
        {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        | {f"ema.{name}": tensor for name, tensor in average.weights.items()}
        | {f"probe.{name}": tensor for name, tensor in (probes or {}).items()}
    )


def _restore(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """The moments of its parameters."""
    moments: dict[str, dict[str, Any]] = {}
    for path, tensor in tensors.items():
        if path.startswith("optim."):
            _, key, name = path.split(".", 2)
            moments.setdefault(name, {})[key] = tensor
    for name, parameter in model.named_parameters():
        if name in moments:
            optimizer.state[parameter] = {
                key: value.to(parameter.device, copy=True) for key, value in moments[name].items()
            }
