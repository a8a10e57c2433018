"""The convolutional stem of Xiao et al. 2021 (arXiv 2106.14881), pycls/models/vit.py."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ablate.shared.errors import UserError
from ablate.training.model.dense import Dense
from ablate.training.model.norm import BatchNorm, Shape
from ablate.training.model.stem import Patches


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
    """The convolutions whose strides multiply to `patch`.

    As published for patches of 16. Assumed: for larger ones more of the last with stride 2 (Dual
    PatchNorm has such hosts and does not say how), for smaller ones without the first. Raises
    UserError where there are none.
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
        """Nothing: `init.initialise` fills it."""

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
