"""From tokens to what the head reads: `model.pool`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ablate.training.model.attention import attend
from ablate.training.model.block import Layer
from ablate.training.model.dense import Dense
from ablate.training.model.mlp import MLP
from ablate.training.model.norm import LayerNorm


def first_token(x: Tensor) -> Tensor:
    """(B, N, D) -> (B, D): the class token."""
    return x[:, 0]


def mean_token(x: Tensor) -> Tensor:
    """(B, N, D) -> (B, D): the mean over all tokens."""
    return x.mean(1)


class MAPHead(nn.Module):
    """y + MLP(LN(y)), y the tokens' values as a learned query, the probe, attends to them.

    Multihead attention pooling: Set Transformer's (Lee et al. 2019, arXiv 1810.00825) as in
    Scaling Vision Transformers (Zhai et al. 2022, arXiv 2106.04560) and MAPHead of big_vision's
    models/vit.py (at 26c7bc8). Heads, activation and inner width are the blocks'; no dropout, as
    there. q, kv and proj have the names of timm's AttentionPoolLatent.
    """

    roles: ClassVar[dict[str, str]] = {"probe": "probe"}

    def __init__(self, layer: Layer, eps: float) -> None:
        super().__init__()
        width, wide = layer.shape.width, layer.shape.heads * layer.head_dim
        self.heads = layer.shape.heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.q = Dense(width, wide, role="q")
        self.kv = Dense(width, 2 * wide, role="kv")  # rows: k, v; in each, head by head
        self.proj = Dense(wide, width, role="out")
        self.norm = LayerNorm(layer.shape, eps=eps)
        act = layer.act()
        self.mlp = MLP(width, act.hidden(layer.hidden), 0.0, act=act)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, D)
        q = self.q(self.probe.expand(len(x), -1, -1)).unflatten(-1, (self.heads, -1))
        kv = self.kv(x).unflatten(-1, (2, self.heads, -1))  # (B, N, 2, H, d)
        q, k, v = (part.transpose(1, 2) for part in (q, *kv.unbind(2)))
        y: Tensor = self.proj(attend(q, k, v))[:, 0]  # (B, 1, D) -> (B, D)
        return y + self.mlp(self.norm(y))


# Each made given what the blocks are told, and eps of LayerNorms.
POOLS: dict[str, Callable[[Layer, float], Callable[[Tensor], Tensor]]] = {
    "tok": lambda layer, eps: first_token,
    "gap": lambda layer, eps: mean_token,
    "map": MAPHead,
}
