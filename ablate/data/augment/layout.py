"""Layouts of images that let a CPU work on many values at once.

A value for each channel, spread over (B, H, W, C), is applied to C values at a time: 10 times
slower than over planes (B, C, H, W), or than over lines (B, H, W C) when it is repeated along them.

Used by the other files of this folder, and by `training/own_augment.py`.
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
    """Return the values as a tensor (n,), kept on the device, since sending a number there means
    waiting for it."""
    return torch.tensor(values, dtype=dtype, device=device)


@functools.cache
def count(n: int, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return 0 to n - 1 as a tensor (n,), kept on the device."""
    return torch.arange(n, dtype=dtype, device=device)


def planes(images: Tensor) -> Tensor:
    """Copy (B, H, W, C) to (B, C, H, W)."""
    return images.permute(0, 3, 1, 2).contiguous()


def pixels(planes: Tensor) -> Tensor:
    """Copy (B, C, H, W) to (B, H, W, C), by stack: twice as fast as permute and contiguous."""
    return torch.stack(planes.unbind(1), 3)


def lines(images: Tensor) -> Tensor:
    """View (B, H, W, C) as (B, H, W C), in the same memory."""
    return images.flatten(2)


def along_lines(values: Tensor, width: int) -> Tensor:
    """Repeat the values (B, C), or (C,) for all images, for each pixel of a line: (B, 1, W C)."""
    return values.view(-1, 1, values.shape[-1]).repeat(1, 1, width)


def by_groups(images: Tensor) -> bool:
    """Return whether each operator takes only the images that drew it, as on a CPU.

    A GPU would have to be waited for, to learn how many these are; there all images go through
    every operator, and a mask picks the results. The bits are the same.
    """
    return images.device.type == "cpu"


# --- Quantiles ------------------------------------------------------------------------------------

# Laws with an exp() or an erf() in them, by a table that the CPU works out once: a GPU's exp() is
# not a CPU's to the last bit, an entry of a table is. What is drawn is one of 65,536 quantiles, by
# the upper 16 bits of a uniform number, each at the middle of its share.

QUANTILES = 1 << 16


def quantiles_at(quantiles: Tensor, uniform: Tensor) -> Tensor:
    """Return the quantiles at `uniform` in [0, 1), in its shape."""
    place = (uniform * QUANTILES).int()
    return quantiles.index_select(0, place.view(-1)).view(uniform.shape)


@functools.cache
def log_uniform(low: float, high: float, device: torch.device) -> Tensor:
    """Return the float32 quantiles of a log-uniform distribution from `low` to `high`."""
    values = (math.log(low) + _middles() * math.log(high / low)).exp()
    return values.float().to(device)


def normal_of(lanes: Tensor) -> Tensor:
    """Return float32 from N(0, 1), within +-4.33, for 16 random bits each: int16, from -32,768
    on."""
    place = lanes.int().add_(QUANTILES // 2)
    quantiles = normals(lanes.device, torch.float32)
    return quantiles.index_select(0, place.view(-1)).view(lanes.shape)


@functools.cache
def normals(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the quantiles of N(0, 1)."""
    return torch.special.ndtri(_middles()).to(dtype).to(device)


def _middles() -> Tensor:
    return (torch.arange(QUANTILES, dtype=torch.float64, device="cpu") + 0.5) / QUANTILES
