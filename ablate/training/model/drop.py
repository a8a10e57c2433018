"""Dropout and stochastic depth: one module, two shapes of mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.training.keyed import StepKey

LEVELS = 1 << 16


class Drop(nn.Module):
    """Zeroes with probability `rate` and scales what survives by 1 / (1 - rate), while training.

    One decision an element (dropout), by 16 bits: there the rate is the nearest multiple of
    1 / 65,536, below 1. Or one an example (`per_example`: stochastic depth). Masks are keyed by the
    step, by the row of the global batch and by `site`, this module's path in the model; step and
    site are given by the ViT.
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
        if self.per_example:
            wide = torch.promote_types(x.dtype, torch.float32)  # 1 / 0.9 is 0.2 % off in bfloat16
            return x * self.step.kept(self.site, self.rate, wide).view(-1, *(1,) * (x.ndim - 1))
        share = min(round(self.rate * LEVELS), LEVELS - 1)
        dropped = self.step.dropped(self.site, tuple(x.shape), share)
        return x.masked_fill(dropped, 0) * (LEVELS / (LEVELS - share))

    def extra_repr(self) -> str:
        return f"{self.rate}, per_example={self.per_example}"
