"""Optimisers by import path, and what an optimiser of torch.optim's kind keeps, as tensors."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.shared.errors import UserError
from ablate.shared.sections import Optim
from ablate.training.model.plugin import load, own_line

NUMBERS = {"bool": bool, "int": int, "float": float}


@contextmanager
def blamed(optim: Optim) -> Iterator[None]:
    """What goes wrong in a class by import path is told in its file and line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = own_line(error, [optim.folder]) if optim.folder else None
        raise UserError(
            f"optim.name: {optim.name}: {type(error).__name__}: {' '.join(str(error).split())} "
            f"({where or f'{last.filename}, line {last.lineno}'})"
        ) from error


def construct(groups: list[dict[str, Any]], optim: Optim) -> torch.optim.Optimizer:
    """The optimiser `module:Class` of these groups, with its settings. Raises UserError where it
    can't be imported or made, or is no torch.optim.Optimizer."""
    with blamed(optim):
        if optim.folder is not None:
            cls: Any = load("optim.name", optim.name, Path(optim.folder))
        else:
            module, _, name = optim.name.partition(":")
            cls = getattr(importlib.import_module(module), name)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise UserError(
                f"optim.name: {optim.name}: is no torch.optim.Optimizer; name a class that is one"
            )
        given = optim.settings or {}
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        make: Callable[..., torch.optim.Optimizer] = cls
        return make(groups, lr=optim.lr, **settings)


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
                f"optim.name: {optim.name}: keeps {key}, a {type(value).__name__}, which no "
                f"checkpoint holds; keep tensors and numbers"
            )
    return found


def from_tensor(key: str, value: Tensor, device: torch.device) -> tuple[str, Any]:
    """The key and the value that `as_tensors` was given."""
    name, _, kind = key.partition(":")
    if kind in NUMBERS:
        return name, NUMBERS[kind](value.item())
    return name, value.to("cpu" if kind == HOST else device, copy=True)
