"""The Vision Transformer of big_vision/models/vit.py (at 26c7bc8), with a choice for every norm.

Used by model/__init__.py, which finds `ViT` or `Segmenter` through `host` of the run's task
(run/metrics/). A new pool also needs its name in run/sections.py (`Model.pool`) and run/choices.py
(`Arch.pool`), and timm's in model/export.py; a new parameter a role that
model/init.py has a rule for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.run import Model, own_part
from ablate.shared import UserError
from ablate.training.model.block import Layer
from ablate.training.model.dense import Dense, Representation
from ablate.training.model.drop import Drop
from ablate.training.model.host import Host
from ablate.training.model.norm import ExcludeCls, LayerNorm, MakeNorm, Shape
from ablate.training.model.rotary import ANGLES, Rotary
from ablate.training.model.stem import Patches
from ablate.training.model.sublayers import (
    MLP,
    activations,
    joined,
    shaped_part,
    softmax_attention,
)
from ablate.training.model.traits import BlockTraits, NormTraits, StemTraits, traits


class Registers(nn.Module):
    """Learned tokens that are put before the patches; they have no positions, and the head reads
    none.

    Darcet et al. 2023 (arXiv 2309.16588). They come after the class token, as in DINOv2's and
    timm's vision_transformer.py.
    """

    roles: ClassVar[dict[str, str]] = {"token": "registers"}

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, number, width))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, R+N, D)
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1)


class Behind(nn.Module):
    """All tokens but the first `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:  # (B, R+N, D) -> (B, N, D)
        return x[:, self.number :]


class ClassToken(Registers):
    """A learned token that is put before the others, and that the head reads; it has no
    position."""

    roles: ClassVar[dict[str, str]] = {"token": "cls"}

    def __init__(self, width: int) -> None:
        super().__init__(1, width)


class PlacedClassToken(ClassToken):
    """A class token with a position vector of its own, as in DeiT."""

    roles: ClassVar[dict[str, str]] = {"token": "cls", "posemb": "cls.posemb"}

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.posemb = nn.Parameter(torch.empty(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, 1+N, D)
        return torch.cat([(self.token + self.posemb).expand(len(x), -1, -1), x], 1)


def class_token(model: Model) -> nn.Module:
    """Return the model's class token, or the identity where it has none."""
    if model.pool != "tok":
        return nn.Identity()
    return (PlacedClassToken if model.cls_posemb else ClassToken)(model.width)


def past_cls(norm: MakeNorm, plain: MakeNorm) -> MakeNorm:
    """Return a maker of `norm`, except that a norm that mixes tokens gets the patches only, and the
    tokens before them get `plain`.

    A norm that does not declare whether it mixes tokens (`NormTraits`) is taken to do so.
    """

    def make(shape: Shape) -> nn.Module:
        patches = norm(replace(shape, cls=0))
        if not traits(patches, NormTraits).mixes_tokens:
            return norm(shape)
        return ExcludeCls(patches, plain(replace(shape, grid=(1, shape.cls), cls=0)), shape.cls)

    return make


def in_turn(modules: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Return x after each module in turn. Unlike nn.Sequential this owns none of the modules, which
    may belong to others."""
    for module in modules:
        x = module(x)
    return x


def sincos2d(grid: tuple[int, int], width: int) -> Tensor:
    """Return positions (1, h*w, D): [sin xf, cos xf, sin yf, cos yf], f_j = 10000^(-j / (D/4 - 1)).

    MoCo v3's (Chen et al. 2021), as in S/16+ (Beyer et al. 2022, arXiv 2205.01580).
    """
    quarter = width // 4
    frequency = 10_000 ** -(torch.arange(quarter, dtype=torch.float64) / (quarter - 1))
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    y, x = (place.reshape(-1, 1) * frequency for place in (y, x))  # (N, D/4)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], 1).float()[None]


# Settings of F.interpolate that resize positions as big_vision does (models/vit.py, by
# `scipy.ndimage.zoom(order=1)`), and as timm does (layers/pos_embed.py `resample_abs_pos_embed`).
BIG_VISIONS: Mapping[str, Any] = {"mode": "bilinear", "align_corners": True}
TIMMS: Mapping[str, Any] = {"mode": "bicubic", "antialias": True}


def resize(positions: Tensor, number: int, how: Mapping[str, Any] = BIG_VISIONS) -> Tensor:
    """Resize positions on the square grid: (1, h*h, D) -> (1, number, D)."""
    side, new = round(positions.shape[1] ** 0.5), round(number**0.5)
    grid = positions.unflatten(1, (side, side)).permute(0, 3, 1, 2)  # (1, D, h, h)
    grid = F.interpolate(grid, size=(new, new), **how)
    return grid.flatten(2).transpose(1, 2)


class ViT(Host):
    """Images (B, H, W, C) in [-1, 1] -> logits (B, classes).

    ::

        stem -> posemb -> after_posemb -> cls -> after_cls -> dropout -> blocks -> norm -> pool
                                             \\- cls=late: joins before block cls_at

    Registers join before the class token does, and so before the first block, but are placed after
    it; tokens that a stem has added come after the registers. `stem`, `block` and `norm` make the
    chosen modules. The final norm is a LayerNorm whatever the block's norm is, unless that is
    `everywhere` or the block brings one: only what is ablated changes. The norms after a class
    token that joins late are LayerNorms, too.
    """

    roles: ClassVar[dict[str, str]] = {"posemb": "posemb"}
    # (1, N, D), a parameter or a buffer, is added; a module is applied: (B, N, D) -> (B, N, D).
    posemb: Tensor | nn.Module

    def __init__(
        self,
        model: Model,
        patches: Patches,
        classes: int,
        *,
        norm: MakeNorm,
        stem: Callable[[Patches, int], nn.Module],
        block: Callable[[Layer], nn.Module],
        everywhere: bool = False,
    ) -> None:
        super().__init__(model)
        self.stem = stem(patches, model.width)
        make_positions = shaped_part(own_part("model.posemb", model))
        if make_positions is not None:
            self.posemb = make_positions(Shape(model.width, model.heads, patches.grid, cls=0))
        elif model.posemb == "learn":
            self.posemb = nn.Parameter(torch.empty(1, patches.number, model.width))
        elif model.posemb == "sincos2d":
            self.register_buffer("posemb", sincos2d(patches.grid, model.width), persistent=False)
        else:  # none, or rotary ones: attention has them
            self.posemb = nn.Identity()
        registers, stem_traits = model.registers, traits(self.stem, StemTraits)
        self.unplaced = stem_traits.tokens_added
        self.registers = Registers(registers, model.width) if registers else nn.Identity()
        self.cls = class_token(model)
        self.dropout = Drop(model.dropout)

        # --- Blocks, and which norm each has ---
        depth, joins = blocks_of(model, self.stem), model.cls_at or 0
        plain = partial(LayerNorm, eps=model.norm_eps)
        number = registers + stem_traits.tokens_added
        shape = Shape(model.width, model.heads, patches.grid, cls=number + (model.pool == "tok"))
        by_cls: dict[str, MakeNorm] = {
            "include": norm,
            "exclude": past_cls(norm, plain),
            "late": plain,
        }
        rotary = None
        if model.posemb in ANGLES:
            rotary = Rotary(patches.grid, model.head_dim, shape.cls, model.posemb)
        layer = Layer(
            shape,
            model.head_dim,
            int(model.width * model.mlp_ratio),
            model.dropout,
            drop_path=0.0,
            norm=by_cls[model.cls],
            final=norm if everywhere else plain,
            depth=depth,
            qkv_bias=model.qkv_bias,
            act=activations(model),
            layerscale=model.layerscale,
            qk_norm=plain if model.qk_norm else None,
            attention=shaped_part(own_part("model.attention", model)),
            rotary=rotary,
        )
        early_layer = replace(layer, norm=norm, shape=replace(shape, cls=number))
        # Stochastic depth grows linearly from 0 in the first block to its full rate in the last.
        rates = [model.drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.Sequential(
            *(
                block(replace(early_layer if i < joins else layer, drop_path=rate, index=i))
                for i, rate in enumerate(rates)
            )
        )

        # --- The end ---
        block_traits = traits(self.blocks[-1], BlockTraits)
        final = {"keep": True, "auto": not block_traits.ends_normed, "drop": False}[
            model.final_norm
        ]
        make_final = block_traits.final or layer.final
        self.norm = make_final(shape) if final else nn.Identity()
        # The class token stands before the registers, the patches behind them.
        self.behind = Behind(number) if number and model.pool != "tok" else nn.Identity()
        self.pool = POOLS[model.pool](layer, model.norm_eps)
        self.rep = Representation(model.width) if model.rep else nn.Identity()
        self.head = Dense(model.width, classes, role="head")

        # --- What sees the patches alone, and what sees all tokens ---
        blocks = tuple(self.blocks)
        early = (self.dropout, *blocks[:joins]) if joins else ()
        late = blocks[joins:] if joins else (self.dropout, *blocks)
        self.on_patches: tuple[nn.Module, ...] = (stem_traits.after_posemb, self.registers, *early)
        self.on_tokens: tuple[nn.Module, ...] = (stem_traits.after_cls, *late)
        self.name_sites()

    def placed(self, x: Tensor) -> Tensor:  # (B, R+N, D) -> (B, R+N, D)
        """Return the stem's tokens, of which the patches have got their positions. The first R,
        those that the stem has added, have none."""
        number, posemb = self.unplaced, self.posemb
        patches = x[:, number:] if number else x
        patches = patches + posemb if isinstance(posemb, Tensor) else posemb(patches)
        return torch.cat([x[:, :number], patches], 1) if number else patches

    def resize(self, name: str, values: Tensor) -> Tensor:
        """See `traits.Traits`: resize learned positions."""
        positions = getattr(self, name)
        return resize(values, positions.shape[1]) if name == "posemb" else values

    def tokens(self, images: Tensor) -> Tensor:
        """Return the tokens after the last block: (B, H, W, C) -> (B, N, D)."""
        # The sums of the blocks are in the precision of the images, whatever the stem computes in:
        # positions that are added would make them so, and rows without any would round each sum.
        x = self.placed(self.stem(images)).to(images.dtype)  # (B, R+h*w, D)
        x = in_turn(self.on_patches, x)
        x = self.cls(x)  # (B, N, D)
        return in_turn(self.on_tokens, x)

    def features(self, images: Tensor) -> Tensor:
        x = self.norm(self.tokens(images))
        x = self.pool(self.behind(x))  # (B, D)
        return self.rep(x)


def blocks_of(model: Model, stem: nn.Module) -> int:
    """Return the number of the encoder's blocks: `model.depth` less those that the stem saves.
    Raises UserError where too few are left."""
    saved = traits(stem, StemTraits).blocks_saved
    depth = model.depth - saved
    min_depth = (model.cls_at or 0) + 1
    if depth < min_depth:
        raise UserError(
            f"model.depth: {model.depth} less the {saved} that the stem saves leaves {depth} "
            f"blocks, and {min_depth} are needed; set model.depth or another stem"
        )
    return depth


class Segmenter(ViT):
    """Images (B, H, W, C) -> logits (B, classes, H, W): the linear decoder of Strudel et al. 2021
    (arXiv 2105.05633).

    Each patch's token as it leaves the last block, without the final norm, becomes one logit for
    each class; these are enlarged bilinearly (segm/model/decoder.py DecoderLinear, segmenter.py).
    The decoder ignores the class token and the registers, and the layers that a classifier has
    between the tokens and its head are absent.
    """

    def __init__(self, model: Model, patches: Patches, classes: int, **choices: Any) -> None:
        super().__init__(model, patches, classes, **choices)
        self._grid = patches.grid
        self.norm, self.rep = nn.Identity(), nn.Identity()
        self.pool = nn.Identity()
        self.head = Dense(model.width, classes, role="decoder")

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = self._grid
        patches = self.tokens(images)[:, -rows * columns :]
        logits = self.head(patches).to(images.dtype)  # of which autocast makes bfloat16
        planes = logits.unflatten(1, self._grid).permute(0, 3, 1, 2)
        return F.interpolate(planes, size=images.shape[1:3], mode="bilinear")


# --- From tokens to what the head reads: `model.pool` ---------------------------------------------


def first_token(x: Tensor) -> Tensor:
    """Return the class token: (B, N, D) -> (B, D)."""
    return x[:, 0]


def mean_token(x: Tensor) -> Tensor:
    """Return the mean over all tokens: (B, N, D) -> (B, D)."""
    return x.mean(1)


class MAPHead(nn.Module):
    """y + MLP(LN(y)), where y is the attention of a learned query, the probe, to the tokens.

    Multihead attention pooling: Set Transformer's (Lee et al. 2019, arXiv 1810.00825) as in Scaling
    Vision Transformers (Zhai et al. 2022, arXiv 2106.04560) and MAPHead of big_vision's
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
        y: Tensor = self.proj(joined(softmax_attention(q, k, v)))[:, 0]  # (B, 1, D) -> (B, D)
        return y + self.mlp(self.norm(y))


# Each is made from the blocks' Layer and the eps of LayerNorms.
POOLS: dict[str, Callable[[Layer, float], Callable[[Tensor], Tensor]]] = {
    "tok": lambda layer, eps: first_token,
    "gap": lambda layer, eps: mean_token,
    "map": MAPHead,
}
