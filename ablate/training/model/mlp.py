"""The MLP of a block."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.training.model.act import Activation, activation
from ablate.training.model.dense import Dense
from ablate.training.model.drop import Drop


class MLP(nn.Module):
    """dense -> pre_act -> act -> dropout -> post_act -> dense, for each token by itself.

    `pre_act` and `post_act` are inner norms, or nothing (post_act after the dropout, as in
    fairseq's transformer_layer.py and torchscale's feedforward_network.py). A gated `act`
    (`model.act=swiglu`) takes 2M values from the first dense, and pre_act is of all of them.
    `gain`: see Dense.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        dropout: float,
        *,
        act: Activation | None = None,
        pre_act: nn.Module | None = None,
        post_act: nn.Module | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.act = act or activation()
        self.fc1 = Dense(width, self.act.inputs * hidden, role=self.act.role, gains=(gain,))
        self.pre_act = pre_act or nn.Identity()
        self.dropout = Drop(dropout)
        self.post_act = post_act or nn.Identity()
        self.fc2 = Dense(hidden, width, role="mlp", gains=(gain,))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, M) -> (B, N, D)
        x = self.act(self.pre_act(self.fc1(x)))
        return self.fc2(self.post_act(self.dropout(x)))
