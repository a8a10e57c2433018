"""The dense layer: torch's, but initialised by role instead of by shape.

Used by all of model/, such as model/stem.py, model/sublayers.py and model/vit.py. A new role also
needs its rules in model/init.py (`DENSE` and the schemes).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class Dense(nn.Linear):
    """x W^T + b. `role` says what the layer is for; `init` has a rule for each role.

    `gains` multiply the initial weights and biases: one number for each of as many equal parts of
    the outputs. `rounds`: the layer computes in the type of autocast, where that is on.
    """

    rounds: ClassVar[bool] = True

    def __init__(
        self,
        inputs: int,
        outputs: int,
        role: str,
        *,
        bias: bool = True,
        gains: tuple[float, ...] = (1.0,),
    ) -> None:
        super().__init__(inputs, outputs, bias)
        self.roles = {"weight": f"{role}.kernel", "bias": f"{role}.bias"}
        self.gains = gains

    def reset_parameters(self) -> None:
        """Do nothing: `init.initialise` fills every parameter, so drawing here would waste time."""


class Representation(Dense):
    """tanh(dense), the features that few-shot evaluation reads (`pre_logits` in
    big_vision/models/vit.py)."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, role="rep")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()
