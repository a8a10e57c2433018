"""The same images laid out so that a CPU works on many values at once.

A value for each channel, spread over (B, H, W, C), meets C values at a time: 10 times slower than
over planes (B, C, H, W), or than over lines (B, H, W C) when it is repeated along them.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


@functools.cache
def constants_on(
    values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(n,), kept on the device: to send a number there is to wait for it."""
    return torch.tensor(values, dtype=dtype, device=device)


@functools.cache
def count(n: int, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """(n,), 0 to n - 1, kept on the device."""
    return torch.arange(n, dtype=dtype, device=device)


def planes(images: Tensor) -> Tensor:
    """(B, C, H, W) of (B, H, W, C)."""
    return images.permute(0, 3, 1, 2).contiguous()


def pixels(planes: Tensor) -> Tensor:
    """(B, H, W, C) of (B, C, H, W). stack: twice as fast as permute and contiguous."""
    return torch.stack(planes.unbind(1), 3)


def lines(images: Tensor) -> Tensor:
    """(B, H, W C) of (B, H, W, C), the same memory."""
    return images.flatten(2)


def along_lines(values: Tensor, width: int) -> Tensor:
    """(B, 1, W C): the values (B, C), or (C,) for all, of each pixel of a line."""
    return values.view(-1, 1, values.shape[-1]).repeat(1, 1, width)


def by_groups(images: Tensor) -> bool:
    """Do operators take only the images that drew them? So on a CPU. A GPU would be waited for, to
    hear how many there are: there all images go through, and a mask says whose result counts. The
    bits are the same."""
    return images.device.type == "cpu"


# --- Quantiles ------------------------------------------------------------------------------------

# Laws with an exp() or an erf() in them, by a table that the CPU works out once: a GPU's exp() is
# not a CPU's to the last bit, an entry of a table is. What is drawn is one of 65,536 quantiles, by
# the upper 16 bits of a uniform number, each at the middle of its share.

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


def normal_of(lanes: Tensor) -> Tensor:
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
