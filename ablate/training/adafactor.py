"""big_vision's Adafactor: `scale_by_adafactor` of its optax.py.

It has a momentum, and no clipped updates, rates that depend on a weight's size, or steps of its
own.

Used by `make_optimizer` (training/optim.py) for `optim.name=adafactor_bv`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ablate.training.model.stem import Plain
from ablate.training.model.sublayers import Attention
from ablate.training.model.vit import MAPHead

MIN_FACTORED = 32  # entries that both axes have where a mean square is kept by rows and columns
EPS = 1e-30  # added to a squared gradient


class AdafactorBV(torch.optim.Optimizer):
    """p <- p - lr (m + wd p), m <- b1 m + (1 - b1) g / sqrt(v), where m is kept in bfloat16.

    v <- b v + (1 - b) (g^2 + 1e-30) with b = min(b2, 1 - t^decay) at update t = 1, 2, ..., so the
    first v is g^2. Over the two largest axes, where both have at least `MIN_FACTORED` entries, v is
    r_i c_j / mean(r), r and c its means by rows and by columns; else v is kept in full. Shazeer,
    Stern 2018 (arXiv 1804.04235) with the changes of Zhai et al. 2022 (arXiv 2106.04560).
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
        """`views`: the shapes of parameters that hold several in one, see `flax_shapes`. `moment`:
        the type in which m is kept; the update is not rounded."""
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})
        self._b1, self._b2, self._decay = b1, b2, decay
        self._views, self._moment = dict(views or {}), moment

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update = self._update(p, p.grad)
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(update.view_as(p), alpha=group["lr"])

    def _update(self, p: Tensor, grad: Tensor) -> Tensor:
        state = self.state[p]
        g = grad.view(self._views.get(p, grad.shape))
        factored_axes = largest(g.shape)
        if not state:
            state["step"] = 0
            state["m"] = torch.zeros_like(g, dtype=self._moment)
            if factored_axes is None:
                state["v"] = torch.zeros_like(g)
            else:
                state["r"] = g.sum(factored_axes[0], keepdim=True).zero_()
                state["c"] = g.sum(factored_axes[1], keepdim=True).zero_()
        state["step"] += 1
        share = 1 - min(self._b2, 1 - state["step"] ** self._decay)
        square = g.square().add_(EPS)
        if factored_axes is None:
            v = state["v"].lerp_(square, share)
            u = g * v.rsqrt()
        else:
            r, c = state["r"], state["c"]
            r.lerp_(square.mean(factored_axes[0], keepdim=True), share)
            c.lerp_(square.mean(factored_axes[1], keepdim=True), share)
            relative_r = r / r.mean(factored_axes[1], keepdim=True)
            # Two roots: the product of two small means would be 0.
            u = g * relative_r.rsqrt() * c.rsqrt()
        m = state["m"].to(u.dtype).lerp_(u, 1 - self._b1)
        state["m"].copy_(m)
        return m


def largest(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the two largest axes, the last of equal ones; None where one has fewer than
    `MIN_FACTORED` entries."""
    order = sorted(range(len(shape)), key=lambda axis: shape[axis])
    if len(order) < 2 or shape[order[-2]] < MIN_FACTORED:
        return None
    return order[-1], order[-2]


def flax_shapes(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the shapes with the axes that flax has, of kernels and biases of attention: queries,
    keys and values apart, and each head by itself; (D, H d) would be factored over all heads at
    once. The kernel of the plain stem has the axes of big_vision's convolution, (P, P, C, D); other
    stems are dense there, too."""
    shapes: dict[Tensor, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            into, out = {3: module.qkv}, module.out
        elif isinstance(module, MAPHead):
            into, out = {1: module.q, 2: module.kv}, module.proj
        elif isinstance(module, Plain):
            side, kernel = module.patches.patch, module.dense.weight
            shapes[kernel] = (len(kernel), side, side, module.patches.channels)
            continue
        else:
            continue
        for parts, layer in into.items():
            for parameter in layer.parameters():
                head_dim = parameter.shape[0] // (parts * module.heads)
                shapes[parameter] = (parts, module.heads, head_dim, *parameter.shape[1:])
        width, wide = out.weight.shape
        shapes[out.weight] = (width, module.heads, wide // module.heads)
    return shapes
