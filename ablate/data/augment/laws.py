"""Laws with an exp() or an erf() in them, by a table that the CPU works out once.

A GPU's exp() is not a CPU's to the last bit; an entry of a table is. What is drawn is one of 65,536
quantiles, by the upper 16 bits of a uniform number, each at the middle of its share.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

QUANTILES = 1 << 16


def chosen(quantiles: Tensor, uniform: Tensor) -> Tensor:
    """The quantiles at `uniform` in [0, 1), of any shape."""
    place = (uniform * QUANTILES).int()
    return quantiles.index_select(0, place.view(-1)).view(uniform.shape)


@functools.cache
def log_uniform(low: float, high: float, device: torch.device) -> Tensor:
    """float32 quantiles, between the two; the logarithm is uniform."""
    values = (math.log(low) + _middles() * math.log(high / low)).exp()
    return values.float().to(device)


def normal(lanes: Tensor) -> Tensor:
    """float32 N(0, 1), within +-4.33, by 16 bits each: int16, from -32,768 on."""
    place = lanes.int().add_(QUANTILES // 2)
    quantiles = normals(lanes.device, torch.float32)
    return quantiles.index_select(0, place.view(-1)).view(lanes.shape)


@functools.cache
def normals(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Quantiles of N(0, 1)."""
    return torch.special.ndtri(_middles()).to(dtype).to(device)


def _middles() -> Tensor:
    return (torch.arange(QUANTILES, dtype=torch.float64, device="cpu") + 0.5) / QUANTILES
