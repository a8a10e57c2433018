"""Multi-head self-attention (Vaswani et al. 2017), its kernel chosen by device and dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.training.model.dense import Dense


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, all (B, H, N, d).

    The softmax is in float32, as in flax: torch computes one of bfloat16 so, and rounds at the end.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, N, N)
    return scores.softmax(-1) @ v


KERNELS: dict[str, Callable[..., Tensor]] = {
    "explicit": explicit,
    "sdpa": F.scaled_dot_product_attention,
}


def kernel(device: torch.device, dtype: torch.dtype) -> str:
    """The kernel that attention computed in `dtype` uses on `device`: "explicit" or "sdpa".

    Under bfloat16 on a CPU torch's fused kernel makes training slower than float32 does.
    """
    return "explicit" if (device.type, dtype) == ("cpu", torch.bfloat16) else "sdpa"


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, H, N, d) each, where q may have another N -> the heads' contexts, (B, N, H*d)."""
    context: Tensor = KERNELS[kernel(q.device, q.dtype)](q, k, v)
    return context.transpose(1, 2).flatten(2)


class HeadScale(nn.Module):
    """Each head's context times a learned number of its own."""

    roles: ClassVar[dict[str, str]] = {"scale": "scale"}

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(heads))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, H*d) -> (B, N, H*d)
        return (x.unflatten(-1, (len(self.scale), -1)) * self.scale[:, None]).flatten(-2)


class Attention(nn.Module):
    """Every token looks at all. heads * head_dim may differ from width.

    `q_norm` and `k_norm` normalise the channels of every head's queries and keys, all heads by the
    same scales and offsets: Dehghani et al. 2023 (ViT-22B, arXiv 2302.05442, 2.1), whose norms have
    no offsets; timm's `qk_norm` has them, as here.

    `inner` stands between the heads' contexts and the output projection; `gain`: see Dense, of v
    and of the projection.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = True,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        inner: nn.Module | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        wide = heads * head_dim
        # Rows: q, k, v; in each, head by head.
        self.qkv = Dense(width, 3 * wide, role="qkv", bias=qkv_bias, gains=(1.0, 1.0, gain))
        self.q_norm = q_norm or nn.Identity()
        self.k_norm = k_norm or nn.Identity()
        self.inner = inner or nn.Identity()
        self.out = Dense(wide, width, role="out", gains=(gain,))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> q, k, v, each (B, H, N, d)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, N, 3, H, d)
        # Parted first: so a kernel joins their gradients where they lie.
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        # On a GPU autocast normalises in float32; a kernel takes all three in one type.
        return self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype), v

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        q, k, v = self.parts(x)
        return self.out(self.inner(attend(q, k, v)))
