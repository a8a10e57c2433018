"""The class token beside norms that mix tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ExcludeCls(nn.Module):
    """`patches` normalises the patches and never sees the class token, which has a norm of its own.

    ::

        cls     -> token   ->
        patches -> patches ->
    """

    def __init__(self, patches: nn.Module, token: nn.Module) -> None:
        super().__init__()
        self.patches = patches
        self.token = token

    def forward(self, x: Tensor) -> Tensor:  # (B, 1 + h*w, D) -> the same
        return torch.cat([self.token(x[:, :1]), self.patches(x[:, 1:])], 1)
