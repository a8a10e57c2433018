"""LAMB: AdamW's step, rescaled for each weight to lr times the weight's length.

Used by `make_optimizer` (training/optim.py) for `optim.name=lamb`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """p <- p - lr r u, u = Adam + wd p, r = |p| / |u|: You et al. 2020 (arXiv 1904.00962).

    Adam is m' / (sqrt(v') + eps) with bias-corrected moments, the lengths are those of a whole
    parameter, and r is 1 where one of them is 0. Parameters that don't decay have r = 1, as in
    apex's FusedLAMB and timm's Lamb, and so are moved as by AdamW. No gradient is clipped here.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})
        self._betas, self._eps = betas, eps

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            alike: dict[Any, list[Tensor]] = {}  # a kernel takes what has one type, one history
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.device, p.dtype, self._count(p)), []).append(p)
            for (*_, number), parameters in alike.items():
                self._move(parameters, number, group["lr"], group["weight_decay"])

    def _count(self, p: Tensor) -> int:
        """Count a step of the parameter; return its number, from 1."""
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1
        return int(state["step"])

    def _move(self, parameters: list[Tensor], number: int, rate: float, decay: float) -> None:
        b1, b2 = self._betas
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages, squares = (
            [self.state[p][name] for p in parameters] for name in ("exp_avg", "exp_avg_sq")
        )
        torch._foreach_lerp_(averages, gradients, 1 - b1)
        torch._foreach_mul_(squares, b2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - b2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - b2**number) ** 0.5)
        torch._foreach_add_(roots, self._eps)
        updates = torch._foreach_div(averages, roots)
        torch._foreach_div_(updates, 1 - b1**number)
        if decay:
            torch._foreach_add_(updates, parameters, alpha=decay)
            for update, ratio in zip(updates, trust_ratios(parameters, updates), strict=True):
                update.mul_(ratio)  # torch has one kernel for all with numbers alone
        torch._foreach_add_(parameters, updates, alpha=-rate)


def trust_ratios(parameters: Sequence[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """Return |p| / |u| of each parameter and its update, 1 where either length is 0."""
    weight_lengths, update_lengths = (
        torch.stack(torch._foreach_norm(list(tensors))) for tensors in (parameters, updates)
    )
    ratios = weight_lengths / update_lengths
    is_defined = (weight_lengths > 0) & (update_lengths > 0)
    return list(torch.where(is_defined, ratios, 1.0).unbind())
