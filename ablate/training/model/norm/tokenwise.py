"""Norms over one token at a time. All (B, N, D) -> (B, N, D).

Used by `norm=layernorm`, `rmsnorm`, `scalenorm`, `dyt`, `derf`, `affine` and `identity`, through
run/choices.py `NORMS`; `LayerNorm` also by model/vit.py. A new setting or norm also needs its entry
in `NORMS`.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.training.model.norm.shape import Norm, Shape, precise, unit


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) over the channels of a token, var biased; then scale and bias.

    Ba, Kiros, Hinton 2016 (arXiv 1607.06450); eps as in flax.
    """

    roles: ClassVar[dict[str, str]] = {"weight": "scale", "bias": "offset"}
    mixes_tokens = batch_statistics = False
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, shape: Shape, *, eps: float = 1e-6, affine: bool = True) -> None:
        super().__init__()
        self.group = shape.width
        self.eps = eps
        for name in self.roles:
            value = nn.Parameter(torch.empty(shape.width)) if affine else None
            self.register_parameter(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.group,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.group}, eps={self.eps}, affine={self.weight is not None}"


class RMSNorm(Norm):
    """scale * x / sqrt(mean(x^2) + eps) over the channels of a token: no centring, no bias.

    Zhang, Sennrich 2019 (arXiv 1910.07467); eps as in flax.
    """

    def __init__(self, shape: Shape, *, eps: float = 1e-6) -> None:
        super().__init__(shape.width)
        self.register_parameter("bias", None)
        self.group = shape.width
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(precise(x), (self.group,), self.weight, self.eps)


class ScaleNorm(Norm):
    """gain * x / max(||x||_2, eps), the norm over the channels of a token; gain starts at sqrt(D).

    Nguyen, Salazar 2019 (arXiv 1910.05895) has one gain for all channels (`scalar`), DTN's
    us_scalenorm.py one for each (`vector`).
    """

    def __init__(self, shape: Shape, *, gain: str = "vector", eps: float = 1e-5) -> None:
        super().__init__({"vector": shape.width, "scalar": 1}[gain])
        self.register_parameter("bias", None)
        self.starts = {"weight": sqrt(shape.width)}
        self.group = shape.width
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return unit(precise(x), self.eps) * self.weight


class DynamicTanh(Norm):
    """scale * tanh(alpha * x) + bias, alpha one learned number: no statistics.

    Zhu, Chen, He, LeCun, Liu 2025 (arXiv 2503.10622), DyT/dynamic_tanh.py.
    """

    def __init__(self, shape: Shape, *, alpha: float = 0.5) -> None:
        super().__init__(shape.width)
        self.alpha = nn.Parameter(torch.empty(1))
        self.starts = {"alpha": alpha}

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, torch.tanh(self.alpha * precise(x)), self.weight)


class DynamicErf(Norm):
    """scale * erf(alpha * x + shift) + bias, alpha and shift one learned number each.

    Chen, Lu, Zhu, Sun, Liu 2025 (arXiv 2512.10938), Derf/ViT/dynamic_erf.py.
    """

    def __init__(self, shape: Shape, *, alpha: float = 0.5, shift: float = 0.0) -> None:
        super().__init__(shape.width)
        self.alpha = nn.Parameter(torch.empty(1))
        self.shift = nn.Parameter(torch.empty(1))
        self.starts = {"alpha": alpha, "shift": shift}

    def forward(self, x: Tensor) -> Tensor:
        squashed = torch.erf(torch.addcmul(self.shift, self.alpha, precise(x)))
        return torch.addcmul(self.bias, squashed, self.weight)


class Affine(Norm):
    """scale * x + bias: what a norm learns, without what it measures."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, precise(x), self.weight)


class Identity(nn.Module):
    """x itself, where a norm is expected."""

    mixes_tokens = batch_statistics = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


# --- Class tokens where norms mix tokens ----------------------------------------------------------


class ExcludeCls(nn.Module):
    """A norm `patches` for the patches alone, and a norm `token` for the first `number` tokens
    (class token, registers).

    ::

        cls     -> token   ->
        patches -> patches ->
    """

    def __init__(self, patches: nn.Module, token: nn.Module, number: int = 1) -> None:
        super().__init__()
        self.number = number
        self.patches = patches
        self.token = token

    def forward(self, x: Tensor) -> Tensor:  # (B, number + h*w, D) -> the same
        return torch.cat([self.token(x[:, : self.number]), self.patches(x[:, self.number :])], 1)
