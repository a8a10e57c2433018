"""The same images laid out so that a CPU works on many values at once.

A value for each channel, spread over (B, H, W, C), meets C values at a time: 10 times slower than
over planes (B, C, H, W), or than over lines (B, H, W C) when it is repeated along them.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache
def constants(
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
