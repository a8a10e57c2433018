"""Stems: from images to tokens. Each is built as `Stem(patches, width, **settings)`.

A stem may declare the traits in `traits.StemTraits`. The convolutional stem is that of Xiao et al.
2021 (arXiv 2106.14881), pycls/models/vit.py.

Used by `stem=NAME`, through run/choices.py `STEMS`, where a new stem or setting also needs its
entry; `Patches` by model/vit.py. A stem's `blocks_saved` must equal `saves_blocks` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.shared import UserError
from ablate.training.model.dense import Dense
from ablate.training.model.norm import (
    Affine,
    BatchNorm,
    LayerNorm,
    MakeNorm,
    OneChannelBatchNorm,
    RMSNorm,
    Shape,
)


@dataclass(frozen=True)
class Patches:
    """The cut of an image, a square with sides of `size` pixels, into squares with sides of `patch`
    pixels."""

    size: int
    patch: int
    channels: int

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of patches in a column and in a row."""
        return self.size // self.patch, self.size // self.patch

    @property
    def number(self) -> int:
        """The number of patches in an image."""
        return self.grid[0] * self.grid[1]

    @property
    def values(self) -> int:
        """K, the number of values of a patch."""
        return self.patch**2 * self.channels

    def shape(self, channels: int) -> Shape:
        """Return the shape for a norm of `channels` values of each patch."""
        return Shape(channels, heads=1, grid=self.grid, cls=0)

    def cut(self, images: Tensor) -> Tensor:
        """Cut images, (B, h*P, w*P, C) -> (B, h*w, K), K in the order (row * P + column) * C +
        channel.

        big_vision/models/vit.py at 26c7bc8: "b (ht hp) (wt wp) c -> b (ht wt) (hp wp c)".
        """
        (h, w), side = self.grid, self.patch
        pieces = images.reshape(len(images), h, side, w, side, self.channels)
        return pieces.transpose(2, 3).reshape(len(images), self.number, self.values)


class Stem(nn.Module):
    """image -> patches -> before -> dense -> after, each norm present or the identity."""

    def __init__(
        self,
        patches: Patches,
        width: int,
        *,
        image: nn.Module | None = None,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.patches = patches
        self.image = image or nn.Identity()
        self.before = before or nn.Identity()
        self.dense = Dense(patches.values, width, role="patch", bias=bias)
        self.after = after or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:  # (B, h*P, w*P, C) -> (B, N, K) -> (B, N, D)
        patches = self.patches.cut(self.image(images))
        return self.after(self.dense(self.before(patches)))


class Dual(Stem):
    """n(W m(p) + b): a norm of the values of a patch, and one of the channels of its token."""

    def __init__(self, patches: Patches, width: int, norm: MakeNorm) -> None:
        patch_norm, token_norm = (
            norm(patches.shape(channels)) for channels in (patches.values, width)
        )
        super().__init__(patches, width, before=patch_norm, after=token_norm)


class Plain(Stem):
    """W p + b: the plain ViT (Dosovitskiy et al. 2021)."""

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__(patches, width)


class DualPatchNorm(Dual):
    """LN(W LN(p) + b): Kumar, Dehghani, Houlsby 2023 (arXiv 2302.01327), Eq. 3-4.

    The first LN is over the K values of a patch, the second over the D channels of its token.
    """

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        super().__init__(patches, width, partial(LayerNorm, eps=eps))


class PreNorm(Stem):
    """W LN(p) + b."""

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        patch_norm = LayerNorm(patches.shape(patches.values), eps=eps)
        super().__init__(patches, width, before=patch_norm)


class PostNorm(Stem):
    """LN(W p + b). Without `bias` the scale of an image changes nothing: Kim et al. 2021."""

    def __init__(
        self, patches: Patches, width: int, *, eps: float = 1e-6, bias: bool = True
    ) -> None:
        token_norm = LayerNorm(patches.shape(width), eps=eps)
        super().__init__(patches, width, after=token_norm, bias=bias)


class PostPosembNorm(Stem):
    """LN(W p + b + e), e the positions; with `cls=include_cls` the class token is normed, too.

    CLIP's ln_pre (Radford et al. 2021) covers the class token; big_vision joins it later.
    """

    def __init__(
        self, patches: Patches, width: int, *, eps: float = 1e-6, cls: str = "patches"
    ) -> None:
        super().__init__(patches, width)
        norm = LayerNorm(patches.shape(width), eps=eps)
        setattr(self, {"patches": "after_posemb", "include_cls": "after_cls"}[cls], norm)


class OnlyLearnable(Dual):
    """g1 * (W (g0 * p + b0) + b) + b1: what Dual PatchNorm learns, without what it measures."""

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__(patches, width, Affine)


class NoLearnable(Dual):
    """n(W n(p) + b), n an LN without scale and bias."""

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        norm = partial(LayerNorm, eps=eps, affine=False)
        super().__init__(patches, width, norm)


class DualRMSNorm(Dual):
    """R(W R(p) + b), R(v) = g * v / sqrt(mean(v^2) + eps)."""

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        super().__init__(patches, width, partial(RMSNorm, eps=eps))


class DualBatchNorm(Dual):
    """N(W N(p) + b), N a BatchNorm of one channel: all values of all patches of the batch together.

    BatchNorm_in_Transformers_CV (model/vitbn.py).
    """

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__(patches, width, OneChannelBatchNorm)


class Standardise(nn.Module):
    """(x - mean) / sqrt(var + eps) over all values of an image."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, images: Tensor) -> Tensor:  # (B, H, W, C) -> the same
        return F.layer_norm(images, images.shape[1:], eps=self.eps)


class ImageNorm(Stem):
    """W p + b, the image standardised before it is cut. The definition is assumed."""

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        super().__init__(patches, width, image=Standardise(eps))


class PatchNorm(Stem):
    """W n(p) + b, n an LN without scale and bias. The definition is assumed."""

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        patch_norm = LayerNorm(patches.shape(patches.values), eps=eps, affine=False)
        super().__init__(patches, width, before=patch_norm)


class ConvStage(NamedTuple):
    """A 3x3 convolution."""

    channels: int
    stride: int


# From width 768; narrower hosts double their channels up to the width. For patches of 16.
WIDE = [
    ConvStage(64, 2),
    ConvStage(128, 2),
    ConvStage(128, 1),
    ConvStage(256, 2),
    ConvStage(256, 1),
    ConvStage(512, 2),
]


def stages(width: int, patch: int) -> Sequence[ConvStage]:
    """Return the convolutions whose strides multiply to `patch`.

    They are as published for patches of 16. Assumed: larger patches have more convolutions of
    stride 2 like the last (Dual PatchNorm has such hosts and does not say how), smaller ones omit
    the first. Raises UserError where there are none.
    """
    halvings = patch.bit_length() - 1
    if patch < 2 or patch != 2**halvings:
        raise UserError(
            f"stem: conv halves the image again and again and can't reach patches of {patch}: "
            f"set model.arch=SIZE/PATCH or model.patch to 2, 4, 8, 16 or 32, or another stem"
        )
    if width < 768 and width % 8:
        raise UserError(
            f"stem: conv starts from an eighth of the width, which 8 does not divide: set "
            f"model.width to a multiple of 8, got {width}"
        )
    chain = WIDE if width >= 768 else [ConvStage(width // n, 2) for n in (8, 4, 2, 1)]
    chain = [*chain, *[ConvStage(chain[-1].channels, 2)] * (halvings - 4)]
    while prod(stage.stride for stage in chain) > patch:
        chain = chain[1:]
    while chain[0].stride == 1:
        chain = chain[1:]
    return chain


class Conv(nn.Conv2d):
    """3x3, without bias, on images whose channels are last."""

    roles: ClassVar[dict[str, str]] = {"weight": "conv.kernel"}

    def __init__(self, inputs: int, stage: ConvStage) -> None:
        super().__init__(inputs, stage.channels, 3, stage.stride, padding=1, bias=False)

    def reset_parameters(self) -> None:
        """Do nothing: `init.initialise` fills the weight."""

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, C) -> (B, H/s, W/s, C')
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ConvStem(nn.Module):
    """3x3 convolution -> BatchNorm -> ReLU, some times; then dense (a 1x1 convolution)."""

    blocks_saved = 1  # to cost as many multiply-adds as the plain ViT

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__()
        self.patches = patches
        self.convs = nn.ModuleList()
        self.norms = nn.ModuleList()
        inputs, side = patches.channels, patches.size
        for stage in stages(width, patches.patch):
            side //= stage.stride
            self.convs.append(Conv(inputs, stage))
            self.norms.append(BatchNorm(Shape(stage.channels, 1, grid=(side, side), cls=0)))
            inputs = stage.channels
        self.dense = Dense(inputs, width, role="patch")

    def forward(self, images: Tensor) -> Tensor:  # (B, h*P, w*P, C) -> (B, h*w, D)
        x = images.reshape(len(images), *[self.patches.size] * 2, self.patches.channels)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x)))
        return self.dense(x.flatten(1, 2))


class HierarchicalMLP(nn.Module):
    """dense -> BatchNorm -> GELU, twice, then dense -> BatchNorm: Touvron et al. 2022, hMLP.

    arXiv 2203.09795, section 5; deit/models_v2.py. The first dense layer sees squares whose sides
    are a quarter of the patch's, the second 2 x 2 of its outputs, the third 2 x 2 of these: so no
    layer mixes patches, though the norms take their statistics over the batch. The first two have a
    quarter of the width. The paper has patches of 16 alone (4 x 4 pixels, 2 x 2, 2 x 2); for others
    the same split is assumed. Raises UserError where 4 does not divide the patch's side, or the
    width.
    """

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__()
        for key, value in (("model.patch", patches.patch), ("model.width", width)):
            if value % 4:
                raise UserError(
                    f"{key}: stem=hmlp splits patches and width in four, so it must be a multiple "
                    f"of 4, got {value}; set it, or another stem"
                )
        self.sides = patches.patch // 4, 2, 2
        self.patches = patches
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        inputs, side = patches.channels, patches.size
        for cells, outputs in zip(self.sides, (width // 4, width // 4, width), strict=True):
            side //= cells
            self.layers.append(Dense(cells**2 * inputs, outputs, role="conv"))
            self.norms.append(BatchNorm(Shape(outputs, 1, grid=(side, side), cls=0)))
            inputs = outputs

    def forward(self, images: Tensor) -> Tensor:  # (B, h*P, w*P, C) -> (B, h*w, D)
        x = images.reshape(len(images), *[self.patches.size] * 2, self.patches.channels)
        for number, side in enumerate(self.sides):
            x = F.gelu(x) if number else x
            x = self.norms[number](self.layers[number](in_squares(x, side)))
        return x.flatten(1, 2)


def in_squares(x: Tensor, side: int) -> Tensor:
    """Join squares of cells: (B, h*s, w*s, C) -> (B, h, w, s*s*C), row by row."""
    batch, height, width, channels = x.shape
    cells = x.reshape(batch, height // side, side, width // side, side, channels)
    return cells.transpose(2, 3).flatten(3)
