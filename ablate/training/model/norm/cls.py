"""The class token and registers beside norms that mix tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ExcludeCls(nn.Module):
    """`patches` normalises the patches and never sees the tokens before them, which are `number`
    (class token, registers) and have a norm of their own.

    ::

        cls     -> token   ->
        patches -> patches ->
    """

    def __init__(self, patches: nn.Module, token: nn.Module, number: int = 1) -> None:
        super().__init__()
        self.number = number
        self.patches = patches
        self.token = token

    def forward(self, x: Tensor) -> Tensor:  # (B, number + h*w, D) -> the same
        return torch.cat([self.token(x[:, : self.number]), self.patches(x[:, self.number :])], 1)
