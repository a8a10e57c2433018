"""Rotary positions: queries and keys of the patches, rotated by where their patch is.

Su et al. 2021 (RoPE, arXiv 2104.09864), for two axes as in EVA-02 (Fang et al. 2023, arXiv
2303.11331).

Used by model/vit.py for `model.posemb=rope2d`; model/sublayers.py calls it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """Channels 2j and 2j + 1 of a patch rotated by the angle a_j: (a, b) -> (a cos - b sin,
    b cos + a sin).

    The first half of the d/2 angles is y f_i, the second x f_i, where y and x are the patch's row
    and column and f_i = 10000^(-i / (d/4)). These are the angles, and the order of channels, of
    timm's RotaryEmbeddingCat with `in_pixels=False`. The tokens before the patches are not rotated.
    Nothing is learned.
    """

    sines: Tensor  # (h*w, d/2)
    cosines: Tensor

    def __init__(self, grid: tuple[int, int], head_dim: int) -> None:
        super().__init__()
        quarter = head_dim // 4
        frequencies = 10_000 ** -(torch.arange(quarter, dtype=torch.float64) / quarter)
        rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
        places = torch.cartesian_prod(rows, columns)  # (h*w, 2)
        angles = (places[:, :, None] * frequencies).flatten(1)
        self.register_buffer("sines", angles.sin().float(), persistent=False)
        self.register_buffer("cosines", angles.cos().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, R+h*w, d) -> the same, in float32 at least
        unplaced = x.shape[2] - len(self.sines)
        even, odd = x[:, :, unplaced:].unflatten(-1, (-1, 2)).unbind(-1)
        pairs = (even * self.cosines - odd * self.sines, odd * self.cosines + even * self.sines)
        patches = torch.cat([part[..., None] for part in pairs], -1).flatten(-2)
        return torch.cat([x[:, :, :unplaced], patches], 2) if unplaced else patches
