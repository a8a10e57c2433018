"""Multi-head self-attention (Vaswani et al. 2017), its kernel chosen by device and dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.model.dense import Dense


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v with the softmax in float32, as in flax. All (B, H, N, d)."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, N, N)
    return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v


KERNELS: dict[str, Callable[..., Tensor]] = {
    "explicit": explicit,
    "sdpa": F.scaled_dot_product_attention,
}


def kernel(device: torch.device, dtype: torch.dtype) -> str:
    """The kernel that attention computed in `dtype` uses on `device`: "explicit" or "sdpa".

    Under bfloat16 on a CPU torch's fused kernel makes training slower than float32 does.
    """
    return "explicit" if (device.type, dtype) == ("cpu", torch.bfloat16) else "sdpa"


class Attention(nn.Module):
    """Every token looks at all. heads * head_dim may differ from width."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * head_dim
        self.qkv = Dense(width, 3 * inner, role="qkv")  # rows: q, k, v; in each, head by head
        self.out = Dense(inner, width, role="out")

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, N, d)
        context = KERNELS[kernel(q.device, q.dtype)](q, k, v)
        return self.out(context.transpose(1, 2).flatten(2))
