"""The encoder block: two residuals, with norms at the places that `PLACES` says and inside them.

A block may declare the traits in `traits.BlockTraits`.

Used by model/vit.py and model/towers.py; `block=NAME` finds its class through run/choices.py
`BLOCKS`. A new block also needs its entry there, a new placement its word in `Placement` there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log, sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor, nn

from ablate.training.model.drop import Drop, DropPath
from ablate.training.model.norm import BatchNorm, LayerNorm, MakeNorm, OneChannelBatchNorm, Shape
from ablate.training.model.sublayers import (
    MLP,
    Attention,
    AttentionParts,
    HeadScale,
    MakeActivation,
    MakeShapedPart,
    activation,
)


class Places(NamedTuple):
    """The places of a residual that hold a norm: before the sublayer (pre), behind it (branch), and
    after the addition (post)."""

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
    ("none", "residual"): Places(pre=False, branch=False, post=False),
    ("none", "branch"): Places(pre=False, branch=False, post=False),
}


@dataclass(frozen=True)
class Layer:
    """The arguments that the host gives a block: the shape of its tokens, sizes, rates, and how to
    make its norms."""

    shape: Shape
    head_dim: int
    hidden: int
    dropout: float
    drop_path: float
    norm: MakeNorm
    final: MakeNorm = LayerNorm  # makes the norm behind the last block
    depth: int = 1
    index: int = 0  # of the block among the `depth`: 0, 1, ...
    qkv_bias: bool = True
    act: MakeActivation = activation
    layerscale: float | None = None
    qk_norm: MakeNorm | None = None  # makes those on queries and on keys
    attention: MakeShapedPart | None = None  # makes its core; None: softmax attention
    rotary: nn.Module | None = None  # rotates queries and keys by their places

    def scale(self) -> nn.Module:
        """Return a LayerScale for a residual branch, or the identity where `layerscale` is None."""
        start = self.layerscale
        return nn.Identity() if start is None else LayerScale(self.shape.width, start)

    def norm_if(self, present: bool) -> nn.Module:
        """Return a new norm where it is present, else the identity."""
        return self.norm(self.shape) if present else nn.Identity()

    def norm_of_heads(self, make: MakeNorm | None) -> nn.Module:
        """Return a new norm of the channels of one head, or the identity without `make`."""
        shape = replace(self.shape, width=self.head_dim, heads=1)
        return make(shape) if make else nn.Identity()

    def inside(self, make: MakeNorm | None, channels: int) -> nn.Module | None:
        """Return the module that `make` gives for tokens of `channels` channels; None without
        `make`."""
        return make and make(replace(self.shape, width=channels))


@dataclass(frozen=True)
class Inner:
    """The modules inside a block's sublayers and on their skip connections. Each maker is called
    with the shape that the tokens have at its place; None makes no module."""

    context: MakeNorm | None = None  # before attention's output projection
    pre_act: MakeNorm | None = None  # in the MLP, before its activation
    post_act: MakeNorm | None = None  # ... and after it
    values: MakeNorm | None = None  # of each head
    attn_skip: MakeNorm | None = None
    mlp_skip: MakeNorm | None = None
    gain: float = 1.0  # of the initial v, out and MLP


class Scale(nn.Module):
    """x times a learned number for each channel: ResScale of NormFormer."""

    roles: ClassVar[dict[str, str]] = {"scale": "scale"}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class LayerScale(nn.Module):
    """x times a learned number for each channel, from `start`: CaiT (Touvron et al. 2021, Eq. 3).

    arXiv 2103.17239; its name and its parameter's are timm's.
    """

    roles: ClassVar[dict[str, str]] = {"gamma": "scale"}

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))
        self.start = start

    def initialise(self, name: str, values: Tensor, generator: Generator) -> bool:
        """See `traits.Traits`."""
        values.fill_(self.start)
        return True

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        return x * self.gamma


class FixedScale(nn.Module):
    """x times a fixed number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor}"


class ScaledNorm(nn.Module):
    """A norm's output times a fixed number."""

    def __init__(self, norm: nn.Module, factor: float) -> None:
        super().__init__()
        self.norm = norm
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x) * self.factor
        return y


class NormOfHeads(nn.Module):
    """A norm of tokens, (B, N, D) -> (B, N, D), on each head's: (B, H, N, d) -> (B, H, N, d)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.flatten(0, 1))
        return y.unflatten(0, x.shape[:2])


class Residual(nn.Module):
    """post(skip(x) + drop(ls(branch(f(pre(x)))))), each norm present or the identity.

    ::

        x -+-> pre -> f -> branch -> ls -> dropout -> drop_path -+- post ->
           |                                                     |
           +------------------------ skip -----------------------+

    f has no output dropout; a branch norm comes before it, as in fairseq's transformer_layer.py.
    Dropout comes before stochastic depth: scenic/projects/baselines/vit.py. `ls` is
    `model.layerscale`, or the identity.
    """

    def __init__(
        self, f: nn.Module, places: Places, layer: Layer, skip: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.pre = layer.norm_if(places.pre)
        self.f = f
        self.branch = layer.norm_if(places.branch)
        self.ls = layer.scale()
        self.dropout = Drop(layer.dropout)
        self.drop_path = DropPath(layer.drop_path)
        self.skip = skip or nn.Identity()
        self.post = layer.norm_if(places.post)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        branch = self.dropout(self.ls(self.branch(self.f(self.pre(x)))))
        return self.post(self.drop_path(self.skip(x), branch))


class Block(nn.Module):
    """Self-attention and MLP, each with norms before, after, or both (arXiv 2302.01327, 4.1)."""

    def __init__(
        self,
        layer: Layer,
        inner: Inner | None = None,
        *,
        attn: str = "pre",
        mlp: str = "pre",
        post: str = "residual",
    ) -> None:
        super().__init__()
        inner, shape = inner or Inner(), layer.shape
        attention = Attention(
            shape.width,
            shape.heads,
            layer.head_dim,
            qkv_bias=layer.qkv_bias,
            parts=AttentionParts(
                q_norm=layer.norm_of_heads(layer.qk_norm),
                k_norm=layer.norm_of_heads(layer.qk_norm),
                v_norm=layer.norm_of_heads(inner.values),
                rotary=layer.rotary,
                core=layer.inside(layer.attention, layer.head_dim),
                inner=layer.inside(inner.context, shape.heads * layer.head_dim),
            ),
            gain=inner.gain,
        )
        act = layer.act()
        hidden = act.hidden(layer.hidden)
        perceptron = MLP(
            shape.width,
            hidden,
            layer.dropout,
            act=act,
            pre_act=layer.inside(inner.pre_act, act.inputs * hidden),
            post_act=layer.inside(inner.post_act, hidden),
            gain=inner.gain,
        )
        attn_skip, mlp_skip = (
            layer.inside(make, shape.width) for make in (inner.attn_skip, inner.mlp_skip)
        )
        self.attn = Residual(attention, PLACES[attn, post], layer, attn_skip)
        self.mlp = Residual(perceptron, PLACES[mlp, post], layer, mlp_skip)
        self.ends_normed = PLACES[mlp, post].post
        self.final = layer.final

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        x = self.attn(x)
        return self.mlp(x)


class NormFormer(Block):
    """x + N(SA(N x)), then s * x + W2 N(GELU(W1 N x)): Shleifer, Weston, Ott 2021, its norms only.

    arXiv 2110.09456, fairseq transformer_layer.py. `res_scale`: s is learned (D numbers, from 1);
    else it is 1.
    """

    def __init__(
        self, layer: Layer, context: MakeNorm | None = None, *, res_scale: bool = False
    ) -> None:
        skip: MakeNorm | None = (lambda shape: Scale(shape.width)) if res_scale else None
        inner = Inner(context=context, post_act=layer.norm, mlp_skip=skip)
        super().__init__(layer, inner, attn="pre+post", post="branch")


class NormFormerFull(NormFormer):
    """NormFormer with HeadScale: each head's context times a learned number, before W_O.

    As the paper defines it; fairseq scales equal slices of the projection's output instead.
    """

    def __init__(self, layer: Layer, *, res_scale: bool = False) -> None:
        super().__init__(layer, lambda shape: HeadScale(shape.heads), res_scale=res_scale)


def sub_ln_gain(layer: Layer) -> float:
    """Return sqrt(ln(2 L)) for an encoder of L blocks (torchscale encoder.py)."""
    return sqrt(log(2 * layer.depth))


class SubLN(Block):
    """x + W_O N(heads(N x)), then x + W2 N(GELU(W1 N x)): Wang et al. 2022 (arXiv 2210.06423).

    `init_gain`: v, out, fc1 and fc2 start `sub_ln_gain` times larger, weights and biases; q and k
    do not. `mlp_ln`: pre_act is the form in Dual PatchNorm (W2 GELU(N(W1 N x))), post_act that in
    torchscale's feedforward_network.py.
    """

    def __init__(self, layer: Layer, *, mlp_ln: str = "post_act", init_gain: bool = True) -> None:
        gain = sub_ln_gain(layer) if init_gain else 1.0
        inner = Inner(
            context=layer.norm,
            pre_act=layer.norm if mlp_ln == "pre_act" else None,
            post_act=layer.norm if mlp_ln == "post_act" else None,
            gain=gain,
        )
        super().__init__(layer, inner)


class LayerNormScaling(Block):
    """x + f(N(x) / sqrt(l)) for each sublayer f of block l = 1, 2, ...: Sun et al. 2025.

    By the equation of arXiv 2502.05795, section 4, and as in LayerNorm-Scaling's modeling_llama.py.
    The final norm is not scaled.
    """

    def __init__(self, layer: Layer) -> None:
        factor = (layer.index + 1) ** -0.5
        super().__init__(replace(layer, norm=lambda shape: ScaledNorm(layer.norm(shape), factor)))


class MixLN(Block):
    """N(x + f(x)) in the first floor(share L) of L blocks, x + f(N(x)) in the others: Li et al.
    2024.

    By the equations of arXiv 2412.13795 for Post-LN and Pre-LN and its rule for the blocks; 0.25 is
    its share.
    """

    def __init__(self, layer: Layer, *, share: float = 0.25) -> None:
        post_blocks = floor(round(share * layer.depth, 6))  # 0.29 * 100 is 28.999999999999996
        place = "post" if layer.index < post_blocks else "pre"
        super().__init__(layer, attn=place, mlp=place)


class HybridNorm(Block):
    """y = N(x + SA(x)), then y + MLP(y), with norms on the queries, keys and values of each head.

    By the equations of Zhuo et al. 2025 (arXiv 2503.04598), and as in HybridNorm's olmo/model.py.
    `pre_first`: the first block is x + SA(N(x)), then x + MLP(N(x)), with the same norms in SA: the
    paper's HybridNorm*.
    """

    def __init__(self, layer: Layer, *, pre_first: bool = False) -> None:
        def of_heads(shape: Shape) -> nn.Module:
            return NormOfHeads(layer.norm(shape))

        is_pre = pre_first and layer.index == 0
        super().__init__(
            replace(layer, qk_norm=of_heads),
            Inner(values=of_heads),
            attn="pre" if is_pre else "post",
            mlp="pre" if is_pre else "none",
        )


class DeepNorm(Block):
    """N(a x + f(x)) for each sublayer f, a = (2 L)^(1/4) for L blocks: Wang et al. 2022.

    By arXiv 2203.00555, figure 2, an encoder's, and as in torchscale's encoder.py. `init_gain`: v,
    out, fc1 and fc2 start (8 L)^(1/4) times smaller, weights and biases; q and k do not.
    """

    def __init__(self, layer: Layer, *, init_gain: bool = True) -> None:
        def skip(shape: Shape) -> nn.Module:
            return FixedScale((2 * layer.depth) ** 0.25)

        gain = (8 * layer.depth) ** -0.25 if init_gain else 1.0
        inner = Inner(attn_skip=skip, mlp_skip=skip, gain=gain)
        super().__init__(layer, inner, attn="post", mlp="post")


class BatchNormFFN(Block):
    """x + SA(N x), then x + W2 GELU(BN(W1 x)): ViTBNFFN, BatchNorm_in_Transformers_CV.

    BN has the MLP's width (model/vitbnffn.py), statistics over the batch and all its tokens.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer, Inner(pre_act=BatchNorm), mlp="none", post="branch")


class BatchNormBlock(Block):
    """x + SA(N x), then x + W2 GELU(N(W1 x)), N and the final norm of one channel: ViTBN.

    BatchNorm_in_Transformers_CV (model/vitbn.py). `mlp=pre`: x + W2 GELU(W1 N x) instead.
    """

    def __init__(self, layer: Layer, *, mlp: str = "inner") -> None:
        one_channel_layer = replace(layer, norm=OneChannelBatchNorm, final=OneChannelBatchNorm)
        if mlp == "inner":
            super().__init__(
                one_channel_layer, Inner(pre_act=one_channel_layer.norm), mlp="none", post="branch"
            )
        else:
            super().__init__(one_channel_layer)
