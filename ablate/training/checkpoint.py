"""The state of a training as bytes and back: weights, moments, average, sums; no generators.

Serialised to bytes and written by us: torch.save and safetensors' own writers hide a full disk.
A checkpoint is sealed, and seals what `metrics.jsonl` had by then. One that either does not fit is
taken for torn.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from ablate.shared.files import write_whole
from ablate.shared.rundir import Metrics, RunDir, sealed_part
from ablate.training import sealed_file
from ablate.training.training import Training, TrainState


def save_checkpoint(rundir: RunDir, training: Training, metrics: Metrics, before: int = 0) -> None:
    """Write `checkpoint-<step>.safetensors`. Raises OSError where the disk is full.

    `before`: the step of the checkpoint that is kept beside it; 0 for none.
    """
    tensors, state = training.state()
    content = sealed_file.to_bytes(
        {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()},
        progress=json.dumps(vars(state)),
        metrics=json.dumps(metrics.seal()),
        **training.task.notes(training.train),
    )
    rundir.write_checkpoint(state.step, before, *content)


def save_weights(rundir: RunDir, model: nn.Module) -> str:
    """Write the finished model to `weights.safetensors`; returns the file's sha256."""
    content = save({name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()})
    write_whole(rundir.weights, content)
    return hashlib.sha256(content).hexdigest()


def load_checkpoint(rundir: RunDir, training: Training) -> bytes:
    """Continue from the newest checkpoint that can be gone on from, or from the start.

    Returns what `metrics.jsonl` had by then. One that is torn, or no state of this model, or whose
    metrics are not in the file any more, gives way to the one before. Raises UserError where the
    task reads its data otherwise by now, see `Task.check_notes`.
    """
    content = rundir.metrics_content()
    for step, path in rundir.checkpoints():
        found = read_checkpoint(path, step)
        metrics = sealed_part(content, found.seal) if found is not None else None
        if found is None or metrics is None:
            continue
        training.task.check_notes(found.notes, training.train, path)
        with suppress(ValueError):
            training.load(found.tensors, found.state)
            return metrics
    return b""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds that is as it was written."""

    tensors: dict[str, Tensor]
    state: TrainState
    seal: dict[str, Any]  # see Metrics.seal
    notes: dict[str, str]  # see Task


def read_checkpoint(path: Path, step: int) -> Checkpoint | None:
    """What `path` holds; None where that is not what was written, or of another step."""
    try:
        tensors, told = sealed_file.read(path)
        state = TrainState(**json.loads(told["progress"]))
        seal = json.loads(told["metrics"])
    except (sealed_file.Rotten, OSError, ValueError, KeyError, TypeError):
        return None
    notes = {key: value for key, value in told.items() if key not in ("progress", "metrics")}
    return Checkpoint(tensors, state, seal, notes) if state.step == step else None
