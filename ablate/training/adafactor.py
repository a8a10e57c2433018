"""Adafactor as big_vision has it (`scale_by_adafactor` of its optax.py): with a momentum, without
clipped updates, rates that hang on a weight's size, or steps of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ablate.training.model.attention import Attention
from ablate.training.model.pool import MAPHead
from ablate.training.model.stem import Plain

LEAST = 32  # entries that both axes have where a mean square is kept by rows and columns
EPS = 1e-30  # added to a squared gradient


class AdafactorBV(torch.optim.Optimizer):
    """p <- p - lr (m + wd p), m <- b1 m + (1 - b1) g / sqrt(v), which is kept in bfloat16.

    v <- b v + (1 - b) (g^2 + 1e-30) with b = min(b2, 1 - t^decay) at update t = 1, 2, ...: the
    first is g^2. Over the two largest axes, where both have at least `LEAST` entries, v is
    r_i c_j / mean(r), r and c its means by rows and by columns; else it is whole. Shazeer, Stern
    2018 (arXiv 1804.04235) with the changes of Zhai et al. 2022 (arXiv 2106.04560).
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        *,
        b1: float = 0.9,
        b2: float = 0.999,
        decay: float = -0.8,
        views: Mapping[Tensor, tuple[int, ...]] | None = None,
        moment: torch.dtype = torch.bfloat16,
    ) -> None:
        """`views`: the axes of parameters in which several are stored as one, see `axes`.
        `moment`: in what m is kept; the update is not rounded."""
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})
        self._b1, self._b2, self._decay = b1, b2, decay
        self._views, self._moment = dict(views or {}), moment

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move each parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update = self._update(p, p.grad)
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(update.view_as(p), alpha=group["lr"])

    def _update(self, p: Tensor, grad: Tensor) -> Tensor:
        state = self.state[p]
        g = grad.view(self._views.get(p, grad.shape))
        two = largest(g.shape)
        if not state:
            state["step"] = 0
            state["m"] = torch.zeros_like(g, dtype=self._moment)
            if two is None:
                state["v"] = torch.zeros_like(g)
            else:
                state["r"], state["c"] = (g.sum(axis, keepdim=True).zero_() for axis in two)
        state["step"] += 1
        share = 1 - min(self._b2, 1 - state["step"] ** self._decay)
        square = g.square().add_(EPS)
        if two is None:
            v = state["v"].lerp_(square, share)
            u = g * v.rsqrt()
        else:
            for key, axis in zip("rc", two, strict=True):
                state[key].lerp_(square.mean(axis, keepdim=True), share)
            r, c = state["r"], state["c"]
            # Two roots: the product of two small means would be 0.
            u = g * (r / r.mean(two[1], keepdim=True)).rsqrt() * c.rsqrt()
        m = state["m"].to(u.dtype).lerp_(u, 1 - self._b1)
        state["m"].copy_(m)
        return m


def largest(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The two largest axes, of equal ones the last; None where one has fewer than `LEAST`."""
    order = sorted(range(len(shape)), key=lambda axis: shape[axis])
    if len(order) < 2 or shape[order[-2]] < LEAST:
        return None
    return order[-1], order[-2]


def axes(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Of kernels and biases of attention the axes that flax has: queries, keys and values apart,
    and each head by itself; (D, H d) would be factored over all heads at once. The kernel of the
    plain stem is big_vision's of a convolution, (P, P, C, D); other stems are dense there, too."""
    found: dict[Tensor, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            into, out = {3: module.qkv}, module.out
        elif isinstance(module, MAPHead):
            into, out = {1: module.q, 2: module.kv}, module.proj
        elif isinstance(module, Plain):
            side, kernel = module.patches.patch, module.dense.weight
            found[kernel] = (len(kernel), side, side, module.patches.channels)
            continue
        else:
            continue
        for parts, layer in into.items():
            for parameter in layer.parameters():
                each = parameter.shape[0] // (parts * module.heads)
                found[parameter] = (parts, module.heads, each, *parameter.shape[1:])
        width, wide = out.weight.shape
        found[out.weight] = (width, module.heads, wide // module.heads)
    return found
