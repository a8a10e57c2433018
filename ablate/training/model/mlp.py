"""The MLP of a block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.training.model.dense import Dense
from ablate.training.model.drop import Drop

# flax's default, so big_vision's, is the tanh approximation; torch's is exact, so DeiT's.
GELU = {"tanh": "tanh", "erf": "none"}


class MLP(nn.Module):
    """dense -> pre_act -> GELU -> dropout -> post_act -> dense, for each token by itself.

    `pre_act` and `post_act` are inner norms, or nothing (post_act after the dropout, as in
    fairseq's transformer_layer.py and torchscale's feedforward_network.py). `gain`: see Dense.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        dropout: float,
        *,
        gelu: str = "tanh",
        pre_act: nn.Module | None = None,
        post_act: nn.Module | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.fc1 = Dense(width, hidden, role="mlp", gains=(gain,))
        self.pre_act = pre_act or nn.Identity()
        self.gelu = GELU[gelu]
        self.dropout = Drop(dropout)
        self.post_act = post_act or nn.Identity()
        self.fc2 = Dense(hidden, width, role="mlp", gains=(gain,))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, M) -> (B, N, D)
        x = F.gelu(self.pre_act(self.fc1(x)), approximate=self.gelu)
        return self.fc2(self.post_act(self.dropout(x)))
