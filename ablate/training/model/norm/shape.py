"""The `Shape` that a norm is built for, and the code that norms share.

Used by every norm in model/norm/; `Shape` also by model/stem.py and model/vit.py, and by norms of
the user's own. A new field of `Shape` also needs its value there, in model/sublayers.py and in
model/towers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from ablate.shared import UserError


@dataclass(frozen=True)
class Shape:
    """The shape of the tokens that a norm will see: (B, cls + h*w, width), the patches row by row.

    `cls` is the number of tokens before the patches: the class token, and the registers behind it.
    """

    width: int
    heads: int
    grid: tuple[int, int]
    cls: int

    @property
    def tokens(self) -> int:
        """N, including the tokens before the patches."""
        return self.grid[0] * self.grid[1] + self.cls

    def head_dim(self, groups: int, place: str) -> int:
        """Return the channels in each of `groups` equal groups. Raises UserError, naming `place`,
        where the width isn't a multiple of `groups`."""
        if groups < 1 or self.width % groups:
            fits = [str(g) for g in range(1, self.width + 1) if self.width % g == 0]
            raise UserError(
                f"{place}: {groups} groups do not divide width {self.width}; "
                f"numbers that do: {', '.join(fits)}"
            )
        return self.width // groups


MakeNorm = Callable[[Shape], nn.Module]


class Norm(nn.Module):
    """The base of our norms: for each channel a scale (weight), which starts at 1, and an offset
    (bias), which starts at 0.

    A norm with more parameters puts their initial values in `starts`.
    """

    roles: ClassVar[dict[str, str]] = {"weight": "scale", "bias": "offset"}
    mixes_tokens = batch_statistics = False  # see `traits`
    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.starts: dict[str, float] = {}

    def initialise(self, name: str, values: Tensor, generator: Generator) -> bool:
        """Fill the initial values of a parameter in `starts`; return False for any other, which its
        role fills."""
        if name in self.starts:
            values.fill_(self.starts[name])
        return name in self.starts


def precise(x: Tensor) -> Tensor:
    """Return x, in float32 if it is in half precision: statistics are never computed in less."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unrounded(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round the factors of a matrix product of
    statistics."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()  # the meta device knows of none


# --- x by a power of its own length ---------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """y = r x, r a function of the length of x along the last axis with dr/dx = -share r^3 x.

    dx = r (dy - share (dy . y) y).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, share: Tensor | float) -> Tensor:
        y = x * r
        ctx.save_for_backward(y, r)
        ctx.share = share
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        y, r = ctx.saved_tensors
        along = (dy * y).sum(-1, keepdim=True) * ctx.share
        return torch.addcmul(dy, y, along, value=-1).mul_(r), None, None


def rms(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps), the mean over the last axis."""
    share = 1 / x.shape[-1]
    length = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True)
    r = (length.square() * share + eps).rsqrt()
    return Scaled.apply(x, r, share)


def unit(x: Tensor, eps: float) -> Tensor:
    """Return x / max(||x||, eps), the norm over the last axis."""
    length = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True)
    return Scaled.apply(x, length.clamp(min=eps).reciprocal(), (length > eps).to(x.dtype))
