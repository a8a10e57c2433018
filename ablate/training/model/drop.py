"""Dropout and stochastic depth: one module, two shapes of mask."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.training.keyed import StepKey


class Drop(nn.Module):
    """Zeroes with probability `rate` and scales what survives by 1 / (1 - rate), while training.

    One decision an element (dropout), or one an example (`per_example`: stochastic depth). Masks
    are keyed by the step and by `site`, this module's path in the model, both given by the ViT.
    """

    def __init__(self, rate: float, per_example: bool = False) -> None:
        super().__init__()
        self.rate = rate
        self.per_example = per_example
        self.site = ""
        self.step: StepKey | None = None

    def forward(self, x: Tensor) -> Tensor:  # (B, ...)
        if self.rate == 0 or not self.training:
            return x
        assert self.step is not None, f"{self.site}: bind a Step before training (ViT.bind)"
        shape = (len(x),) + (1,) * (x.ndim - 1) if self.per_example else tuple(x.shape)
        dropped = self.step.uniform(self.site, shape, x) < self.rate
        return x.masked_fill(dropped, 0) * (1 / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"{self.rate}, per_example={self.per_example}"
