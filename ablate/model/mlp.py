"""The MLP of a block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.model.dense import Dense
from ablate.model.drop import Drop


class MLP(nn.Module):
    """dense, GELU, dropout, dense, for each token by itself.

    GELU in its tanh approximation: flax's default, so big_vision's.
    """

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = Dense(width, hidden, role="mlp")
        self.dropout = Drop(dropout)
        self.fc2 = Dense(hidden, width, role="mlp")

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, M) -> (B, N, D)
        return self.fc2(self.dropout(F.gelu(self.fc1(x), approximate="tanh")))
