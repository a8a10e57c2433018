"""The state of a training as bytes and back: weights, moments, average, sums; no generators.

Serialised to bytes and written by us: torch.save and safetensors' own writers hide a full disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ablate.rundir import RunDir, write_whole
from ablate.train.optim import Average


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
    probes: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `checkpoint-<step>.safetensors`. Raises OSError where the disk is full.

    `probes`: what probes have measured until now, by name.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optim.{key}.{name}"] = value
    tensors |= {f"ema.{name}": tensor for name, tensor in average.weights.items()}
    tensors |= {f"probe.{name}": tensor for name, tensor in (probes or {}).items()}
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    rundir.write_checkpoint(progress.step, save(whole, {"progress": json.dumps(vars(progress))}))


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
) -> Progress:
    """Continue from the newest whole checkpoint; a torn one gives way to the one before."""
    for _, path in rundir.checkpoints():
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                progress = Progress(**json.loads(file.metadata()["progress"]))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            continue
        _restore(model, optimizer, average, tensors)
        for name, tensor in (probes or {}).items():
            tensor.copy_(tensors[f"probe.{name}"])
        return progress
    return Progress()


@torch.no_grad()
def _restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    tensors: dict[str, Tensor],
) -> None:
    for name, tensor in model.state_dict().items():
        tensor.copy_(tensors[f"model.{name}"])
    for name, tensor in average.weights.items():
        tensor.copy_(tensors[f"ema.{name}"])
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
