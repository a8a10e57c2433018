"""The encoder block: two residuals, whose norms stand where `PLACES` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ablate.model.attention import Attention
from ablate.model.drop import Drop
from ablate.model.mlp import MLP
from ablate.model.norm import MakeNorm, Shape


class Places(NamedTuple):
    """Which places of a residual hold a norm."""

    pre: bool
    branch: bool
    post: bool


# By placement and by what "post" means: after the addition (residual) or before it (branch).
# The nine placements are these three for attention times these three for the MLP.
PLACES = {
    ("pre", "residual"): Places(pre=True, branch=False, post=False),
    ("post", "residual"): Places(pre=False, branch=False, post=True),
    ("pre+post", "residual"): Places(pre=True, branch=False, post=True),
    ("pre", "branch"): Places(pre=True, branch=False, post=False),
    ("post", "branch"): Places(pre=False, branch=True, post=False),
    ("pre+post", "branch"): Places(pre=True, branch=True, post=False),
}


@dataclass(frozen=True)
class Layer:
    """What the host gives a block: the tokens it will see, sizes, rates, how to make a norm."""

    shape: Shape
    head_dim: int
    hidden: int
    dropout: float
    drop_path: float
    norm: MakeNorm

    def norm_if(self, present: bool) -> nn.Module:
        """A norm of its own, or nothing."""
        return self.norm(self.shape) if present else nn.Identity()


class Residual(nn.Module):
    """post(x + drop(branch(f(pre(x))))), each norm present or the identity.

    ::

        x -+-> pre -> f -> branch -> dropout -> drop_path -+- post ->
           |                                               |
           +-----------------------------------------------+

    f excludes its output dropout; a branch norm stands before it, as in fairseq's
    transformer_layer.py. Dropout before stochastic depth: scenic/projects/baselines/vit.py.
    """

    def __init__(self, f: nn.Module, places: Places, layer: Layer) -> None:
        super().__init__()
        self.pre = layer.norm_if(places.pre)
        self.f = f
        self.branch = layer.norm_if(places.branch)
        self.dropout = Drop(layer.dropout)
        self.drop_path = Drop(layer.drop_path, per_example=True)
        self.post = layer.norm_if(places.post)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        return self.post(x + self.drop_path(self.dropout(self.branch(self.f(self.pre(x))))))


class Block(nn.Module):
    """Self-attention and MLP, each with norms before, after, or both (arXiv 2302.01327, 4.1)."""

    def __init__(
        self, layer: Layer, *, attn: str = "pre", mlp: str = "pre", post: str = "residual"
    ) -> None:
        super().__init__()
        shape = layer.shape
        attention = Attention(shape.width, shape.heads, layer.head_dim)
        self.attn = Residual(attention, PLACES[attn, post], layer)
        self.mlp = Residual(MLP(shape.width, layer.hidden, layer.dropout), PLACES[mlp, post], layer)
        self.ends_normed = PLACES[mlp, post].post  # its output is a norm's output

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        x = self.attn(x)
        return self.mlp(x)
