"""Dynamic Token Normalization: a token's own statistics mixed with those of the tokens around it.

Shao et al. 2022 (arXiv 2112.02624), wqshao126/DTN dtn.py.

Used by `norm=dtn`, `dtn_var` and `dtn_pool`, through run/choices.py `NORMS`. A new setting or norm
also needs its entry there.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ablate.shared import UserError
from ablate.training.model.dense import Dense
from ablate.training.model.norm.shape import Norm, Shape, precise, rms, unrounded


class Positions(Dense):
    """The attention of each head from a token b to a token a by their places alone: P_h(a -> b).

    P_h(. -> b) = softmax over a of w_h . (dx, dy, dx^2 + dy^2) + c_h, where (dx, dy) are the
    columns and rows from a to b; c_h cancels. It depends on parameters only and is computed once a
    forward pass, for all images; w decays with the other dense kernels, as in the released code.
    """

    rounds = False
    offsets: Tensor  # (n, n, 2, 3): [b, a], along rows or columns, of w

    def __init__(self, side: int, heads: int, locality: bool) -> None:
        super().__init__(3, heads, role="position")
        self.locality = locality
        place = torch.arange(side, dtype=torch.float32)
        along = place[:, None] - place
        zeros, far = torch.zeros_like(along), along.square()
        rows, columns = torch.stack([zeros, along, far], -1), torch.stack([along, zeros, far], -1)
        self.register_buffer("offsets", torch.stack([rows, columns], 2), persistent=False)

    def shares(self) -> tuple[Tensor, Tensor]:
        """Return P of rows and of columns, each (H, n, n), [h, b, a].

        A score is a sum of one for rows and one for columns, so P is the product of their
        softmaxes.
        """
        rows, columns = self(self.offsets).permute(2, 3, 0, 1).softmax(-1)
        return rows, columns

    def initialise(self, name: str, values: Tensor, generator: Generator) -> bool:
        """Fill w from a normal distribution of std 0.02 (dtn.py truncates at +-100 std), and c with
        0.

        Locality: of the H heads the first k*k, k = floor(sqrt(H)), start with a bump of variance
        1/2 at the tokens a = b - (h2 - m, h1 - m), head h = h1 + k*h2, m = (k - 1)/2.
        """
        if name == "bias":
            values.zero_()
            return True
        values.normal_(0, 0.02, generator=generator)
        if self.locality:
            k = isqrt(len(values))
            centred = torch.arange(k) - (k - 1) / 2
            column, row = centred.repeat_interleave(k), centred.repeat(k)
            values[: k * k] = torch.stack([2 * column, 2 * row, -torch.ones(k * k)], 1)
        return True


class Mix(torch.autograd.Function):
    """y = w z + b, z = (x - mean) / sqrt(var + eps), with mixed statistics.

    mean = f mean_t + (1 - f) m and var = g var_t + (1 - g) (q - m^2); mean_t and var_t (unbiased)
    are those of a token over all H*d channels, f = sigmoid(u), g = sigmoid(v). u = None: f = 1. x,
    m, q (H, N, B, d); u, v (H,); w, b (H*d,) -> y (B, N, H*d). The backward pass is written by
    hand: autograd's would go over memory twice as often.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        m: Tensor,
        q: Tensor,
        u: Tensor | None,
        v: Tensor,
        w: Tensor,
        b: Tensor,
        eps: float,
    ) -> Tensor:
        width = w.numel()
        f = torch.ones_like(v) if u is None else u.sigmoid()
        f = f.view(-1, 1, 1, 1)
        g = v.sigmoid().view(-1, 1, 1, 1)
        w = w.view(len(x), 1, 1, -1)
        b = b.view(len(x), 1, 1, -1)
        mean = x.sum(-1, keepdim=True).sum(0, keepdim=True) / width  # (1, N, B, 1)
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square().sum(0, keepdim=True)
        var = (squares - width * mean.square()) / (width - 1)
        inverse = torch.addcmul(q, m, m, value=-1).mul_(1 - g).add_(g * var + eps)
        inverse.clamp_(min=eps).rsqrt_()  # q - m^2 may round to less than 0
        z = torch.addcmul(x, m, f - 1).sub_(f * mean).mul_(inverse)
        ctx.save_for_backward(x, m, z, inverse, mean, var, f, g, w)
        ctx.eps, ctx.gates = eps, u is not None
        return torch.addcmul(b, z, w).permute(2, 1, 0, 3).flatten(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, m, z, inverse, mean, var, f, g, w = ctx.saved_tensors
        width = w.numel()
        dy = heads_first(dy, w.shape[-1])  # where strides differ each pass would cost five
        db, dw = dy.sum((1, 2)), (dy * z).sum((1, 2))  # (H, d)
        dx = (dy * w).mul_(inverse)
        dmean = -dx.sum(-1, keepdim=True)  # (H, N, B, 1), of the mixed mean
        dq = (dx * z).mul_(inverse)
        dvar = dq.sum(-1, keepdim=True) / -2  # (H, N, B, 1), of the mixed variance
        # For dv: dvar (q - m^2) (1 - g) sums to what dvar (var + eps), that is dz z / -2, leaves.
        dv = (dvar * (var + ctx.eps)).sum((1, 2, 3)) + (dw * w.view(dw.shape)).sum(-1) / 2
        du = (dmean * mean).sum((1, 2, 3)) + (dx * m).sum((1, 2, 3))
        dq.mul_((g - 1) / 2)
        dm = (dx * (f - 1)).addcmul_(m, dq, value=-2)
        slope = (g * dvar).sum(0, keepdim=True) * (2 / (width - 1))
        level = (f * dmean).sum(0, keepdim=True) / width - slope * mean
        dx.addcmul_(x, slope).add_(level)
        f, g = f.flatten(), g.flatten()
        du = f * (1 - f) * du if ctx.gates else None
        return dx, dm, dq, du, g * dv, dw.flatten(), db.flatten(), None


def heads_first(x: Tensor, channels: int) -> Tensor:
    """Return x with heads first: (B, N, H*d) -> (H, N, B, d)."""
    return x.unflatten(-1, (-1, channels)).permute(2, 1, 0, 3).contiguous()


class DTN(Norm):
    """scale * (x' - mean) / sqrt(var + eps) + bias, mean and var mixed from a token and its grid.

    x' = x / sqrt(mean(x^2) + eps) over the channels of a head of a token. For a token b, with the
    mean and (unbiased) variance of its D values of x' and, for each channel of head h,
    m = sum_a P_h(a -> b) x'_a and s = sum_a P_h(a -> b) x'_a^2 - m^2:
    mean = g mean_b + (1 - g) m and var = g' var_b + (1 - g') s, gates g, g' = sigmoids of a learned
    number for each head, which starts at 0. `locality_init`: see Positions; false is what the
    released code amounts to, whose host fills w anew.
    """

    mixes_tokens = True
    mixes_means = True
    name = "dtn"

    def __init__(self, shape: Shape, *, eps: float = 1e-5, locality_init: bool = True) -> None:
        super().__init__(shape.width)
        rows, columns = shape.grid
        if shape.cls:
            raise UserError(
                f"norm={self.name}: treats tokens as a grid, in which the class token has no "
                f"place; set model.cls=late or model.cls=exclude (or model.pool=gap). Registers "
                f"have no place either: with them set model.cls=exclude"
            )
        if rows != columns:
            raise UserError(
                f"norm={self.name}: needs a square grid of patches, got {rows}x{columns}: "
                f"use square images, or another norm"
            )
        self.head_dim = shape.head_dim(shape.heads, "model.heads")
        self.group = self.head_dim
        self.eps = eps
        self.positions = Positions(rows, shape.heads, locality_init)
        self.var_gate = nn.Parameter(torch.empty(shape.heads))
        mean_gate = nn.Parameter(torch.empty(shape.heads)) if self.mixes_means else None
        self.register_parameter("mean_gate", mean_gate)
        self.starts = {"mean_gate": 0, "var_gate": 0}

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        with unrounded(x.device):
            x = rms(heads_first(precise(x), self.head_dim), self.eps)  # (H, N, B, d)
            gates = self.mean_gate, self.var_gate
            return Mix.apply(x, *self.surroundings(x), *gates, self.weight, self.bias, self.eps)

    def surroundings(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of x and x^2 over the tokens, weighted by position. All (H, N, B, d)."""
        rows, columns = self.positions.shares()
        return around(x, rows, columns), around(x.square(), rows, columns)


def around(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return sum_a P_h(a -> b) x_a, summed first along the columns of the grid, then along its
    rows.

    (H, n*n, B, d) -> the same: 2 n products for each value instead of n^2.
    """
    side = rows.shape[-1]
    values = x.view(len(x), side, side, -1)  # (H, y, x, B*d)
    values = (columns[:, None] @ values).flatten(2)  # (H, y, x'*B*d)
    return (rows @ values).view(x.shape)


class DTNVar(DTN):
    """DTN that mixes variances only: the mean is the token's."""

    mixes_means = False
    name = "dtn_var"


class DTNPool(DTN):
    """DTN whose m and s are those of a coarse grid, `pool` x `pool`, where the grid is finer.

    x' is averaged over squares of tokens before its moments are taken; all tokens of a square have
    its m and s.
    """

    name = "dtn_pool"

    def __init__(
        self, shape: Shape, *, eps: float = 1e-5, locality_init: bool = True, pool: int = 14
    ) -> None:
        super().__init__(shape, eps=eps, locality_init=locality_init)
        side = shape.grid[0]
        self.pool = min(pool, side)
        if pool < 1 or side % self.pool:
            fits = [str(p) for p in range(1, side + 1) if side % p == 0]
            raise UserError(
                f"norm.pool: {pool} does not divide the grid's side {side}; "
                f"sides that do: {', '.join(fits)}"
            )
        self.positions = Positions(self.pool, shape.heads, locality_init)

    def surroundings(self, x: Tensor) -> tuple[Tensor, Tensor]:
        side = isqrt(x.shape[1]) // self.pool
        squares = x.unflatten(1, (self.pool, side, self.pool, side))  # (H, p, s, p, s, B, d)
        coarse = squares.mean((2, 4)).flatten(1, 2)  # (H, p*p, B, d)
        mean, square = (
            moment.unflatten(1, (self.pool, 1, self.pool, 1)).expand_as(squares).reshape(x.shape)
            for moment in super().surroundings(coarse)
        )
        return mean, square
