"""Stems: from images to tokens. Each is built as `Stem(patches, width, **settings)`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ablate.model.dense import Dense
from ablate.model.norm import LayerNorm, Shape


@dataclass(frozen=True)
class Patches:
    """How an image is cut: square, `size` pixels, into squares of `patch` pixels."""

    size: int
    patch: int
    channels: int

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in a column and in a row."""
        return self.size // self.patch, self.size // self.patch

    @property
    def number(self) -> int:
        """Patches in an image."""
        return self.grid[0] * self.grid[1]

    @property
    def values(self) -> int:
        """K, the values of a patch."""
        return self.patch**2 * self.channels

    def cut(self, images: Tensor) -> Tensor:
        """(B, h*P, w*P, C) -> (B, h*w, K), K in the order (row * P + column) * C + channel.

        big_vision/models/vit.py at 26c7bc8: "b (ht hp) (wt wp) c -> b (ht wt) (hp wp c)".
        """
        (h, w), side = self.grid, self.patch
        pieces = images.reshape(len(images), h, side, w, side, self.channels)
        return pieces.transpose(2, 3).reshape(len(images), self.number, self.values)


class Stem(nn.Module):
    """patches -> before -> dense -> after, each norm present or the identity."""

    def __init__(self, patches: Patches, width: int, before: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.patches = patches
        self.before = before
        self.dense = Dense(patches.values, width, role="patch")
        self.after = after

    def forward(self, images: Tensor) -> Tensor:  # (B, h*P, w*P, C) -> (B, N, K) -> (B, N, D)
        return self.after(self.dense(self.before(self.patches.cut(images))))


class Plain(Stem):
    """W p + b: the plain ViT (Dosovitskiy et al. 2021)."""

    def __init__(self, patches: Patches, width: int) -> None:
        super().__init__(patches, width, before=nn.Identity(), after=nn.Identity())


class DualPatchNorm(Stem):
    """LN(W LN(p) + b): Kumar, Dehghani, Houlsby 2023 (arXiv 2302.01327), Eq. 3-4.

    The first LN is over the K values of a patch, the second over the D channels of its token.
    """

    def __init__(self, patches: Patches, width: int, *, eps: float = 1e-6) -> None:
        before, after = (
            LayerNorm(Shape(channels, heads=1, grid=patches.grid, cls=0), eps=eps)
            for channels in (patches.values, width)
        )
        super().__init__(patches, width, before, after)
