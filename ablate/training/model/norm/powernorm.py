"""PowerNorm: a batch norm by quadratic means, with a backward pass of its own.

Used by `norm=powernorm`, through run/choices.py `NORMS`. A new setting also needs its entry there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ablate.training.model.norm.shape import Norm, Shape, precise, rms

ALPHA = 0.9  # what the running averages, forward and backward, keep in a step


class Power(torch.autograd.Function):
    """z = x / sqrt(power + eps); backward corrects the gradient by its running mean with z.

    Given dz: g = dz - (1 - 0.9) nu z; nu <- nu + mean over (B, N) of g z; dx = g / sqrt(psi + eps),
    with the batch's psi even where the forward pass used the running one, as in mask_powernorm.py.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: Tensor, psi: Tensor, nu: Tensor, eps: float) -> Tensor:
        z = x * (power + eps).rsqrt()
        ctx.save_for_backward(z, (psi + eps).rsqrt())
        ctx.nu = nu
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, None, None, None, None]:
        z, inverse_root_psi = ctx.saved_tensors
        g = torch.addcmul(dz, z, ctx.nu, value=ALPHA - 1)
        ctx.nu += (g * z).mean((0, 1))
        return g.mul_(inverse_root_psi), None, None, None, None


class PowerNorm(Norm):
    """scale * x' / sqrt(power + eps) + bias, power the quadratic mean of a channel of x'.

    x' = x / sqrt(mean(x^2) + eps) over each group of channels of a token. `groups`: the number of
    groups; null: one for each head. psi is the power of the batch, over all its tokens; phi is its
    running value. Training divides by psi in the first `warmup` steps, and afterwards by phi as it
    was before the step; evaluation divides by phi. phi starts at 1. Each step makes it
    0.9 phi + 0.1 psi; in steps before `warmup`, phi first becomes phi + (psi - phi) / step.
    Gradients: see `Power`.
    Shen et al. 2020 (arXiv 2003.07845), sIncerass/powernorm mask_powernorm.py.
    """

    mixes_tokens = batch_statistics = True
    phi: Tensor  # (D,)
    nu: Tensor  # (D,)
    steps: Tensor  # (): how many have been trained

    def __init__(
        self,
        shape: Shape,
        *,
        eps: float = 1e-5,
        groups: int | None = None,
        warmup: int = 10_000,
    ) -> None:
        super().__init__(shape.width)
        self.groups = shape.heads if groups is None else groups
        self.group = shape.head_dim(self.groups, "norm.groups")
        self.eps = eps
        self.warmup = warmup
        self.register_buffer("phi", torch.ones(shape.width))
        self.register_buffer("nu", torch.zeros(shape.width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        x = rms(precise(x).unflatten(-1, (self.groups, -1)), self.eps).flatten(-2)
        if self.training:
            psi = x.detach().square().mean((0, 1))
            z = Power.apply(x, self._advance(psi), psi, self.nu, self.eps)
        else:
            z = x * (self.phi + self.eps).rsqrt()
        return torch.addcmul(self.bias, z, self.weight)

    @torch.no_grad()
    def _advance(self, psi: Tensor) -> Tensor:
        """Count a step and update phi; return the power to divide by. There is no branch, so
        nothing waits for a GPU."""
        self.steps += 1
        power = torch.where(self.steps <= self.warmup, psi, self.phi)
        mean = self.phi + (psi - self.phi) / self.steps
        phi = torch.where(self.steps < self.warmup, mean, self.phi)
        self.phi.copy_(ALPHA * phi + (1 - ALPHA) * psi)
        return power
