"""Optimisers of torch.optim's kind, also by import path, and what one keeps, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ablate.shared.errors import UserError
from ablate.shared.parts import OPTIMIZER, Used
from ablate.shared.recipe import Optim
from ablate.training.fused import Fused
from ablate.training.plugin import blame, load, settings_of

_MOVES = {"params", "lr", "scale"}  # of a group: what is set from outside


class Wrapped:
    """An optimiser of torch.optim's, and ours for the parameters that it doesn't take. The first
    step loads all of torch.compile, which only runs that have asked for such a one pay for."""

    def __init__(self, own: torch.optim.Optimizer, rest: Fused | None = None) -> None:
        """`own`: its groups have a `scale`, too, as those of `rest` have."""
        self._own, self._rest = own, rest
        self.param_groups = [*own.param_groups, *(rest.param_groups if rest else ())]
        self.state: dict[Tensor, dict[str, Any]] = own.state
        self._began = deepcopy([_settings(group) for group in own.param_groups])
        if rest is not None:
            rest.state = self.state

    def set_rate(self, rate: float) -> None:
        """See `Fused`."""
        for group in self._own.param_groups:
            group["lr"] = rate * group["scale"]
        if self._rest is not None:
            self._rest.set_rate(rate)

    def zero_grad(self) -> None:
        self._own.zero_grad()
        if self._rest is not None:
            self._rest.zero_grad()

    def step(self) -> None:
        """See `Fused`."""
        self._own.step()
        if self._rest is not None:
            self._rest.step()

    def counts(self) -> list[dict[str, Any]]:
        """By group: what it keeps there that steps have changed."""
        return [
            {k: v for k, v in _settings(group).items() if not _equal(v, began.get(k, ...))}
            for group, began in zip(self._own.param_groups, self._began, strict=True)
        ]

    def recount(self, counts: Sequence[Mapping[str, Any]]) -> None:
        """Go on with these `counts`."""
        for n, (group, began) in enumerate(zip(self._own.param_groups, self._began, strict=True)):
            for key in group.keys() - began.keys() - _MOVES:
                del group[key]
            group.update(deepcopy(began), **(counts[n] if n < len(counts) else {}))


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimiser may change there itself."""
    return {key: value for key, value in group.items() if key not in _MOVES}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def construct(groups: list[dict[str, Any]], optim: Optim, used: Used) -> torch.optim.Optimizer:
    """The optimiser `module:Class` of these groups, with its settings. Raises UserError where it
    can't be imported or made, or is no torch.optim.Optimizer."""
    with blame(used):
        cls = load(used)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise UserError(
                f"{used.key}: {used.name}: is no torch.optim.Optimizer; name a class that is one"
            )
        make: Callable[..., torch.optim.Optimizer] = cls
        return make(groups, lr=optim.lr, **settings_of(used))


NUMBERS = {"bool": bool, "int": int, "float": float}
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
