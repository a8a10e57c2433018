"""Norms on tokens. Each is built as `Norm(shape, **settings)`; its settings stand in spec.NORMS.

`group` is how many values are normalised together: `ablate plan` warns where they are too few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Of the tokens that a norm will see: (B, cls + h*w, width), the patches in rows of a grid."""

    width: int
    heads: int
    grid: tuple[int, int]
    cls: int


MakeNorm = Callable[[Shape], nn.Module]


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) over the channels of a token, var biased; then scale and bias.

    Ba, Kiros, Hinton 2016 (arXiv 1607.06450); eps as in flax.
    """

    roles = {"weight": "scale", "bias": "offset"}  # noqa: RUF012
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, shape: Shape, *, eps: float = 1e-6, affine: bool = True) -> None:
        super().__init__()
        self.group = shape.width
        self.eps = eps
        for name in self.roles:
            value = nn.Parameter(torch.empty(shape.width)) if affine else None
            self.register_parameter(name, value)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        return F.layer_norm(x, (self.group,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.group}, eps={self.eps}, affine={self.weight is not None}"


class Identity(nn.Module):
    """x itself, where a norm is expected."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
