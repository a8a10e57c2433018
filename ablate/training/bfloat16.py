"""Kernels and biases in bfloat16: rounded once a step, all at once.

Autocast would round each of them separately, and again for every micro-batch: at Ti/4 that is 100
kernels forward and 100 backward, of 730. The results are the same bit for bit.

Used by `Training` (training/training.py) for runs with `train.precision=bf16`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ablate.training.model.dense import Dense
from ablate.training.model.stem import Conv


class RoundWeights(torch.autograd.Function):
    """Copies of weights in `dtype`, made by one kernel; another one converts their gradients
    back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(copies, list(weights))
        frozen = []
        for copy, trains in zip(copies, ctx.needs_input_grad[1:], strict=True):
            if not trains:
                frozen.append(copy)
        ctx.mark_non_differentiable(*frozen)
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(copies)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        wide_grads: list[Tensor | None] = []
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for grad, dtype in zip(grads, ctx.dtypes, strict=True):
            if grad is None:
                wide_grads.append(None)
                continue
            wide = torch.empty_like(grad, dtype=dtype)
            wide_grads.append(wide)
            targets.append(wide)
            sources.append(grad)
        torch._foreach_copy_(targets, sources)
        return None, *wide_grads


def rounded_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model that autocast would round, by name. A whole model has none
    here: autocast rounds its weights."""
    weights = {}
    for path, module in model.named_modules():
        rounds = isinstance(module, Conv) or (isinstance(module, Dense) and module.rounds)
        if rounds:
            for name, weight in module.named_parameters(recurse=False):
                weights[f"{path}.{name}".removeprefix(".")] = weight
    return weights


def round_weights(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return a copy of each weight in `dtype`, for `functional_call`. The graph of the copies saves
    no tensors, so micro-batches share it."""
    if not weights:
        return {}
    return dict(zip(weights, RoundWeights.apply(dtype, *weights.values()), strict=True))
