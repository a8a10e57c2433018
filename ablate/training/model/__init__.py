"""The model: one Vision Transformer whose norms, stem and block are chosen by name.

In shape comments: B batch, N tokens, D width, H heads, d head dim, M MLP width, P patch side,
C channels, K = P*P*C values of a patch; h and w are the sides of the grid of patches.

Used by training/training.py for every run, and by training/answers.py and model/count.py before
`ablate sweep` starts. A new kind in `HOSTS` also needs its name in run/sections.py (`Model.kind`)
and run/choices.py (`Arch.kind`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ablate.run import (
    CHOICES,
    TASKS,
    Run,
    ShippedRun,
    Text,
    UsedPart,
    Whole,
    choices,
    sections,
    shipped,
)
from ablate.shared import UserError
from ablate.training.model.host import Host
from ablate.training.model.init import initialise, remember
from ablate.training.model.stem import Patches
from ablate.training.model.sublayers import Perceptron
from ablate.training.model.towers import Towers
from ablate.training.model.traits import Traits, traits
from ablate.training.model.vit import Segmenter, ViT
from ablate.training.model.whole_model import Images, build_whole
from ablate.training.plugin import load, object_at

__all__ = ["Host", "Images", "Perceptron", "Segmenter", "Towers", "ViT", "build"]


def build(run: Run, device: torch.device | str = "cpu") -> nn.Module:
    """Return the run's model, a `Host` unless it is a whole model, with the weights of the run's
    seed; on the meta device without weights, for counting.

    Raises UserError for a combination of choices that cannot be built.
    """
    device = torch.device(device)
    if isinstance(run.model, Whole):
        images = Images(run.data.size, run.data.channels)
        return build_whole(run.model, images, _outputs(run), run.seed).to(device)
    with torch.device("meta" if device.type == "meta" else "cpu"):
        vision = shipped(run)
        model: Host = (
            HOSTS[run.model.kind](vision) if run.text is None else towers(vision, run.text)
        )
    if run.train.micro_batch == "auto":
        _check_splittable(model)
    if device.type == "meta":
        return model
    initialise(model, run.seed)  # on the CPU: the same weights on every device
    return model.to(device)


def _check_splittable(model: nn.Module) -> None:
    """Raise UserError where the output depends on how a batch is split: results would depend on the
    machine."""
    for path, module in model.named_modules():
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if batch_norm or traits(module, Traits).batch_statistics:
            raise UserError(
                f"train.micro_batch: auto splits a batch as the machine needs it, and "
                f"{type(module).__name__} ({path}) takes its statistics over a batch; "
                f"set train.micro_batch=N, or null, for all rows"
            )


def vit(run: ShippedRun) -> ViT:
    """Return a Vision Transformer, not yet initialised."""
    host: type[ViT] = object_at(TASKS[run.task].host)
    return host(
        run.model,
        Patches(run.data.size, run.model.patch, run.data.channels),
        _outputs(run),
        norm=_constructor("norm", run.norm),
        stem=_constructor("stem", run.stem),
        block=_constructor("block", run.block),
        everywhere=run.norm.plugin is None and choices.NORMS[run.norm.name].everywhere,
    )


def mlp(run: ShippedRun) -> Perceptron:
    """Return a multilayer perceptron, not yet initialised."""
    values = run.data.size**2 * run.data.channels
    norm = _constructor("norm", run.norm)
    return Perceptron(run.model, values, _outputs(run), norm=norm)


def towers(run: ShippedRun, text: Text) -> Towers:
    """Return an image and a text tower, not yet initialised."""
    return Towers(vit(run), run.model, text)


def _outputs(run: Run) -> int:
    """Return the number of values that the head gives."""
    return TASKS[run.task].outputs(run.data.classes)


HOSTS = {"vit": vit, "mlp": mlp}


def _constructor(kind: str, choice: sections.Chosen) -> partial[Any]:
    """Return the class that a choice names, with its settings filled in; the host gives the
    rest."""
    if (plugin := choice.plugin) is not None:
        used = UsedPart(kind, choice.name, choice.settings, plugin.version, plugin.folder)
        return partial(remember, load(used), choice.settings)
    return partial(object_at(CHOICES[kind][choice.name].path), **choice.settings)
