"""Kernels and biases in bfloat16: rounded once a step, all at once.

Autocast would round each of them separately, and again for every micro-batch: at Ti/4 that is 100
kernels forward and 100 backward, of 730. The results are the same bit for bit.
"""

from __future__ import annotations

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
        pairs = zip(copies, ctx.needs_input_grad[1:], strict=True)
        ctx.mark_non_differentiable(*(copy for copy, trains in pairs if not trains))
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(copies)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        wide = [
            None if grad is None else torch.empty_like(grad, dtype=dtype)
            for grad, dtype in zip(grads, ctx.dtypes, strict=True)
        ]
        sources = [grad for grad in grads if grad is not None]
        torch._foreach_copy_([grad for grad in wide if grad is not None], sources)
        return None, *wide


def round_weights(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return, by name, a rounded copy of each weight that autocast would round to `dtype`, for
    `functional_call`. The graph of the copies saves no tensors, so micro-batches share it."""
    names = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, Conv) or (isinstance(module, Dense) and module.rounds)
        for name, _ in module.named_parameters(recurse=False)
    ]
    if not names:  # of a whole model: autocast rounds its own
        return {}
    weights = (model.get_parameter(name) for name in names)
    return dict(zip(names, RoundWeights.apply(dtype, *weights), strict=True))
