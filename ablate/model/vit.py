"""The Vision Transformer of big_vision/models/vit.py (at 26c7bc8), every norm of it a choice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ablate import spec
from ablate.keyed import Step
from ablate.model.block import Layer
from ablate.model.dense import Dense, Representation
from ablate.model.drop import Drop
from ablate.model.norm import LayerNorm, MakeNorm, Shape
from ablate.model.stem import Patches


def first_token(x: Tensor) -> Tensor:
    """(B, N, D) -> (B, D): the class token."""
    return x[:, 0]


def mean_token(x: Tensor) -> Tensor:
    """(B, N, D) -> (B, D): the mean over all tokens."""
    return x.mean(1)


POOLS = {"tok": first_token, "gap": mean_token}


class ClassToken(nn.Module):
    """Joins a learned token before the others; it has no position."""

    roles = {"token": "cls"}  # noqa: RUF012

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, 1+N, D)
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1)


def sincos2d(grid: tuple[int, int], width: int) -> Tensor:
    """(1, h*w, D): [sin xf, cos xf, sin yf, cos yf], f_j = 10000^(-j / (D/4 - 1)).

    MoCo v3's (Chen et al. 2021), as in S/16+ (Beyer et al. 2022, arXiv 2205.01580).
    """
    quarter = width // 4
    frequency = 10_000 ** -(torch.arange(quarter, dtype=torch.float64) / (quarter - 1))
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    y, x = (place.reshape(-1, 1) * frequency for place in (y, x))  # (N, D/4)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], 1).float()[None]


class ViT(nn.Module):
    """Images (B, H, W, C) in [-1, 1] -> logits (B, classes).

    `stem`, `block` and `norm` make the chosen ones. The final norm is a LayerNorm whatever the
    block's norm is: only what is ablated changes.
    """

    roles = {"posemb": "posemb"}  # noqa: RUF012
    posemb: Tensor  # (1, N, D): a parameter or a buffer

    def __init__(
        self,
        model: spec.Model,
        patches: Patches,
        classes: int,
        *,
        norm: MakeNorm,
        stem: Callable[[Patches, int], nn.Module],
        block: Callable[[Layer], nn.Module],
    ) -> None:
        super().__init__()
        width, has_cls = model.width, model.pool == "tok"
        self.head_bias = model.head_bias
        self.stem = stem(patches, width)
        if model.posemb == "learn":
            self.posemb = nn.Parameter(torch.empty(1, patches.number, width))
        else:
            self.register_buffer("posemb", sincos2d(patches.grid, width), persistent=False)
        self.cls = ClassToken(width) if has_cls else nn.Identity()
        self.dropout = Drop(model.dropout)
        shape = Shape(width, model.heads, patches.grid, cls=int(has_cls))
        hidden = int(width * model.mlp_ratio)
        # Stochastic depth grows linearly from 0 in the first block to its full rate in the last.
        rates = [model.drop_path * i / max(model.depth - 1, 1) for i in range(model.depth)]
        self.blocks = nn.Sequential(
            *(
                block(Layer(shape, model.head_dim, hidden, model.dropout, rate, norm))
                for rate in rates
            )
        )
        final = {"keep": True, "auto": not self.blocks[-1].ends_normed, "drop": False}
        self.norm = LayerNorm(shape) if final[model.final_norm] else nn.Identity()
        self.pool = POOLS[model.pool]
        self.rep = Representation(width) if model.rep else nn.Identity()
        self.head = Dense(width, classes, role="head")
        for path, module in self.named_modules():
            if isinstance(module, Drop):
                module.site = path

    def bind(self, step: Step) -> None:
        """Draw every mask at `step` from now on: the training loop moves it, the model reads it."""
        for module in self.modules():
            if isinstance(module, Drop):
                module.step = step

    def forward(self, images: Tensor) -> Tensor:  # (B, H, W, C) -> (B, classes)
        x = self.stem(images) + self.posemb  # (B, h*w, D)
        x = self.dropout(self.cls(x))  # (B, N, D)
        x = self.norm(self.blocks(x))
        return self.head(self.rep(self.pool(x)))
