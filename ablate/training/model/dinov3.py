"""Weights of DINOv3 as timm has them (Simeoni et al. 2025, arXiv 2508.10104; timm models/eva.py,
vit_*_dinov3), under the names of timm's VisionTransformer.

Used by model/export.py. D width, H heads, d head dim, M inner width of the MLP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# Parts that are one in a VisionTransformer: of queries and values, of a gate and its values.
PAIRS = (("q_bias", "v_bias"), ("v_bias", "q_bias"), ("fc1_g", "fc1_x"), ("fc1_x", "fc1_g"))


def as_vision_transformer(state: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Return the weights of an Eva with DINOv3's rotary positions under the names of a
    VisionTransformer with the same features, given Rotary's order of channels.

    timm's Eva rotates channel j with channel j + d/2, Rotary 2j with 2j + 1: rows of queries and
    keys are put into that order, which changes no product of a query and a key. Biases of queries
    and values become one of all three, in which keys have zeros; a gate and its values one layer.
    Names that are not an Eva's stay.
    """
    renamed: dict[str, Tensor] = {}
    for name, values in state.items():
        partner = next((name.replace(*pair) for pair in PAIRS if pair[0] in name), "")
        if name.endswith(".attn.qkv.weight"):
            renamed[name] = _interleaved(values, head_dim)
        elif partner not in state:
            renamed[re.sub(r"gamma_([12])$", r"ls\1.gamma", name)] = values
        elif "q_bias" in name:
            bias = torch.cat([values, torch.zeros_like(values), state[partner]])
            renamed[name.replace("q_bias", "qkv.bias")] = _interleaved(bias, head_dim)
        elif "fc1_g" in name:
            renamed[name.replace("fc1_g", "fc1")] = torch.cat([values, state[partner]])
    return renamed


def _interleaved(qkv: Tensor, head_dim: int) -> Tensor:
    """Return rows of q, k and v, (3 * H * d, ...), with the channels of each head of q and k from
    halves, 0 ... d/2 - 1 and d/2 ... d - 1, to pairs, 0, d/2, 1, d/2 + 1, ..."""
    q, k, v = qkv.chunk(3)
    order = torch.arange(head_dim).view(2, -1).T.flatten()
    q, k = (rows.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1) for rows in (q, k))
    return torch.cat([q, k, v])
