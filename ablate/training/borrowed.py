"""Optimisers by import path, and what an optimiser of torch.optim's kind keeps, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ablate.shared.errors import UserError
from ablate.shared.parts import OPTIMIZER, Used
from ablate.shared.recipe import Optim
from ablate.training.plugin import blamed, found, settings_of

NUMBERS = {"bool": bool, "int": int, "float": float}


def construct(groups: list[dict[str, Any]], optim: Optim, used: Used) -> torch.optim.Optimizer:
    """The optimiser `module:Class` of these groups, with its settings. Raises UserError where it
    can't be imported or made, or is no torch.optim.Optimizer."""
    with blamed(used):
        cls = found(used)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise UserError(
                f"{used.key}: {used.name}: is no torch.optim.Optimizer; name a class that is one"
            )
        make: Callable[..., torch.optim.Optimizer] = cls
        return make(groups, lr=optim.lr, **settings_of(used))


HOST = "host"  # a tensor that is kept off the GPU of its parameter, such as torch's own `step`


def as_tensors(kept: Mapping[str, Any], optim: Optim, device: torch.device) -> dict[str, Tensor]:
    """What is kept of a parameter or a group on `device`, by names that say what is a number, and
    what is not on the device; None is left out. Raises UserError for what a checkpoint can't
    hold."""
    found = {}
    for key, value in kept.items():
        if isinstance(value, Tensor):
            found[key if value.device == device else f"{key}:{HOST}"] = value
        elif type(value) in NUMBERS.values():
            kind = torch.float64 if isinstance(value, float) else None
            found[f"{key}:{type(value).__name__}"] = torch.tensor(value, dtype=kind)
        elif value is not None:
            raise UserError(
                f"{OPTIMIZER.key}: {optim.name}: keeps {key}, a {type(value).__name__}, which no "
                f"checkpoint holds; keep tensors and numbers"
            )
    return found


def from_tensor(key: str, value: Tensor, device: torch.device) -> tuple[str, Any]:
    """The key and the value that `as_tensors` was given."""
    name, _, kind = key.partition(":")
    if kind in NUMBERS:
        return name, NUMBERS[kind](value.item())
    return name, value.to("cpu" if kind == HOST else device, copy=True)
