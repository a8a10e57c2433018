"""AdamW, SGD and Lion by torch's fused kernels.

Used by `make_optimizer` (training/optim.py) for `optim.name=adamw`, `sgd` and `lion`. A new
optimiser also needs its entry in run/choices.py `OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ablate.run import Optim


class Fused:
    """AdamW or SGD by torch's fused kernels, with the results of torch.optim under `fused=True` bit
    for bit and the same names of state; or Lion, which torch does not have.

    torch.optim's own optimisers load the whole of torch.compile with the first step, though no run
    uses it. That costs as much time and memory as torch itself, at every start.
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]], optim: Optim) -> None:
        """`groups`: each has `params`, its parameters, `scale`, a factor on the rate, and
        `weight_decay`."""
        self.param_groups = [dict(group) for group in groups]
        device = self.param_groups[0]["params"][0].device
        # Tensors, which a captured step reads, in the type that the kernels take.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self._rates: dict[float, Tensor] = {}  # by scale
        for group in self.param_groups:
            rate = torch.empty((), dtype=dtype, device=device)
            group["lr"] = self._rates.setdefault(group["scale"], rate)
        self.set_rate(optim.lr)
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # of those that have had a gradient
        self._optim = optim

    def set_rate(self, rate: float) -> None:
        """Use this learning rate from now on, multiplied by each group's scale."""
        for scale, tensor in self._rates.items():
            tensor.fill_(rate * scale)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update each parameter that has a gradient, at its group's `lr`."""
        moves = {"adamw": self._adamw, "sgd": self._sgd, "lion": self._lion}
        move = moves[self._optim.name]
        new_parameters = self._begin()
        for group in self.param_groups:
            alike: dict[Any, list[Tensor]] = {}  # a kernel takes what has one type, one history
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.device, p.dtype, p in new_parameters), []).append(p)
            for (*_, is_first), parameters in alike.items():
                move(group, parameters, is_first)

    def _begin(self) -> set[Tensor]:
        """Count the step of each parameter that has a gradient; return those that have their first
        one."""
        moved = []
        for group in self.param_groups:
            moved += [p for p in group["params"] if p.grad is not None]
        new_parameters = [p for p in moved if p not in self.state]
        for p in new_parameters:
            if self._optim.name == "adamw":
                self.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
            elif self._optim.name == "lion":
                self.state[p] = {"exp_avg": torch.zeros_like(p)}
            elif self._optim.b1:
                self.state[p] = {"momentum_buffer": torch.empty_like(p)}
        if self._optim.name == "adamw":
            torch._foreach_add_([self.state[p]["step"] for p in moved], 1)
        return set(new_parameters)

    def _adamw(
        self, group: Mapping[str, Any], parameters: list[Tensor], is_first_step: bool
    ) -> None:
        steps, averages, squares = self._state_lists(parameters, "step", "exp_avg", "exp_avg_sq")
        torch._fused_adamw_(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            averages,
            squares,
            [],  # of amsgrad
            steps,
            lr=group["lr"],
            beta1=self._optim.b1,
            beta2=self._optim.b2,
            weight_decay=group["weight_decay"],
            eps=self._optim.eps,
            amsgrad=False,
            maximize=False,
        )

    def _sgd(self, group: Mapping[str, Any], parameters: list[Tensor], is_first_step: bool) -> None:
        """Update by SGD. Without momentum nothing is kept, and each step is a first one."""
        keeps = self._optim.b1 != 0
        momenta: list[Tensor] = []
        if keeps:
            (momenta,) = self._state_lists(parameters, "momentum_buffer")
        torch._fused_sgd_(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            momenta,
            weight_decay=group["weight_decay"],
            momentum=self._optim.b1,
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=is_first_step and keeps,
        )

    def _lion(
        self, group: Mapping[str, Any], parameters: list[Tensor], is_first_step: bool
    ) -> None:
        (averages,) = self._state_lists(parameters, "exp_avg")
        gradients = [p.grad for p in parameters if p.grad is not None]
        moves = torch._foreach_lerp(averages, gradients, 1 - self._optim.b1)
        torch._foreach_sign_(moves)
        torch._foreach_mul_(moves, group["lr"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(parameters, moves)
        torch._foreach_lerp_(averages, gradients, 1 - self._optim.b2)

    def changed_settings(self) -> list[dict[str, Any]]:
        """See `Wrapped`: these groups keep nothing."""
        return []

    def restore_settings(self, changes: Sequence[Mapping[str, Any]]) -> None:
        pass

    def _state_lists(self, parameters: list[Tensor], *names: str) -> list[list[Tensor]]:
        """Return, for each name, that entry of each parameter's state."""
        lists = []
        for name in names:
            lists.append([self.state[p][name] for p in parameters])
        return lists
