"""Rotary positions: queries and keys of the patches, rotated by where their patch is.

Su et al. 2021 (RoPE, arXiv 2104.09864), for two axes as in RoPE-ViT (RoPE-Axial of Heo et al. 2024,
arXiv 2403.13298) and in DINOv3 (Simeoni et al. 2025, arXiv 2508.10104).

Used by model/vit.py for the values of `model.posemb` in `ANGLES`; model/sublayers.py calls it. A
new value also needs its name in run/sections.py (`Model.posemb`), run/checks.py and
run/named_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import torch
from torch import Tensor, nn


def angles_by_patch(grid: tuple[int, int], quarter: int) -> Tensor:
    """Return the angles of each patch, float64 (h*w, 2 * quarter): y f_i, then x f_i, where y and x
    are the patch's row and column and f_i = 10000^(-i / quarter).

    Those of timm's RotaryEmbeddingCat with `in_pixels=False` and no `ref_feat_shape`. EVA-02 (Fang
    et al. 2023, arXiv 2303.11331) has one of 16 x 16: its places are 16 y / h and 16 x / w.
    RoPE-ViT's base is 100.
    """
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    return _angles(rows, columns, 10_000.0, quarter)


def angles_by_share(grid: tuple[int, int], quarter: int) -> Tensor:
    """Return the angles of each patch, float64 (h*w, 2 * quarter): 2 pi y f_i, then 2 pi x f_i,
    where y and x are the middle of the patch in an image whose sides go from -1 to 1, and
    f_i = 100^(-i / quarter).

    Those of timm's RotaryEmbeddingDinoV3 at its defaults, without the random changes of places of
    DINOv3's own training.
    """
    rows, columns = (
        2 * pi * ((2 * torch.arange(side, dtype=torch.float64) + 1) / side - 1) for side in grid
    )
    return _angles(rows, columns, 100.0, quarter)


def _angles(rows: Tensor, columns: Tensor, base: float, quarter: int) -> Tensor:
    frequencies = base ** -(torch.arange(quarter, dtype=torch.float64) / quarter)
    places = torch.cartesian_prod(rows, columns)  # (h*w, 2)
    return (places[:, :, None] * frequencies).flatten(1)


# By the value of `model.posemb`: given the grid and d/4.
ANGLES: dict[str, Callable[[tuple[int, int], int], Tensor]] = {
    "rope2d": angles_by_patch,
    "rope2d_dinov3": angles_by_share,
}


class Rotary(nn.Module):
    """Channels 2j and 2j + 1 of a patch rotated by the patch's angle a_j: (a, b) ->
    (a cos - b sin, b cos + a sin).

    That is the product of a + ib and cos + i sin, and is computed as one: a GPU needs a kernel for
    it, and many for separate products and sums. The tokens before the patches, at most `unplaced`,
    are not rotated: their angles are 0. Nothing is learned.
    """

    turns: Tensor  # (unplaced + h*w, d/2, 2): cos, sin

    def __init__(
        self, grid: tuple[int, int], head_dim: int, unplaced: int, posemb: str = "rope2d"
    ) -> None:
        super().__init__()
        angles = ANGLES[posemb](grid, head_dim // 4)
        angles = torch.cat([angles.new_zeros(unplaced, angles.shape[1]), angles])
        turns = torch.stack([angles.cos(), angles.sin()], -1).float()
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, R+h*w, d) -> the same, in float32 at least
        turns = self.turns[len(self.turns) - x.shape[2] :]
        pairs = x.to(turns.dtype).unflatten(-1, (-1, 2))
        if torch.compiler.is_compiling():  # which makes one kernel of it, and has no complex ones
            (even, odd), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)
            return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
        rotated = torch.view_as_complex(pairs) * torch.view_as_complex(turns)
        return torch.view_as_real(rotated).flatten(-2)
