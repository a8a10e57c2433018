"""Dropout, and stochastic depth.

Used by model/block.py, model/sublayers.py and model/vit.py; `Training` (training/training.py) sets
the step of a `StepKey`. Where the same settings would draw other masks, `DRAWS` in run/spec.py must
be raised.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ablate.data import Draws, uniform_of
from ablate.training.model.norm.shape import unrounded

LEVELS = 1 << 16
# A Triton kernel takes its numbers in float32: too short a scale for float64.
KERNEL_DTYPES = (torch.float32, torch.bfloat16)


class StepKey:
    """The place of training at which the model draws masks (dropout, stochastic depth): the `step`,
    and the `rows` of the global batch that a micro-batch has.

    The model reads tensors, so a captured step uses what they hold when it is replayed. The factors
    of stochastic depth are drawn for many steps at once, which a captured graph can't do, so they
    are drawn before it: when a step or rows are set.
    """

    def __init__(self, draws: Draws, batch: int, dtype: torch.dtype = torch.float32) -> None:
        """`dtype`: the type of what `kept` returns."""
        self.draws = draws
        self.batch = batch
        self._dtype = dtype
        self._secrets: dict[str, tuple[int, int]] = {}  # by site
        self._rates: dict[str, float] = {}
        self._kept: dict[str, Tensor] = {}  # of the step and the rows
        self._step, self._rows = 0, slice(None)
        self._places = torch.arange(batch, device=draws.device)
        self._at, self._row = torch.zeros_like(self._places[0]), self._places

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._at.fill_(step)
        self._draw()

    @property
    def rows(self) -> slice:
        return self._rows

    @rows.setter
    def rows(self, rows: slice) -> None:
        self._rows, self._row = rows, self._places[rows]
        self._draw()

    def meet(self, site: str, rate: float | None = None) -> None:
        """Register a site before a step is captured; one of stochastic depth gives its rate."""
        self._secrets[site] = self.draws.secret(f"mask {site}")
        if rate is not None:
            self._rates[site] = rate
            self._draw()

    def dropped(self, site: str, shape: tuple[int, ...], share: int) -> Tensor:
        """Return a bool mask of `shape`, first axis `rows`: True with probability share / 65536."""
        lanes = self.draws.lanes_at(self._secrets[site], self._at, self._row, prod(shape[1:]))
        return (lanes < share - 32768).view(shape)

    def dropout(self, site: str, x: Tensor, share: int) -> Tensor:
        """Return x (rows, ...) with 0 where `dropped` says so, and the rest scaled by
        65536 / (65536 - share)."""
        scale = LEVELS / (LEVELS - share)
        if x.dtype in KERNEL_DTYPES and (kernel := self.draws.kernel) is not None:
            place = self._secrets[site], self._at, self._row
            return Dropped.apply(x, kernel, *place, share - 32768, scale)
        return x.masked_fill(self.dropped(site, tuple(x.shape), share), 0) * scale

    def kept(self, site: str) -> Tensor:
        """Return the factors of the site, (rows,): 0 with probability rate, else 1 / (1 - rate)."""
        return self._kept[site]

    def _draw(self) -> None:
        def draw(steps: int) -> Tensor:
            words = self.draws.words(f"mask {site}", self._step, range(self.batch), 1, steps)
            return (uniform_of(words[:, 0]) >= rate).to(self._dtype).div_(1 - rate)

        for site, rate in self._rates.items():
            masks = self.draws.ahead((site, rate, self._dtype), self._step, self.batch, draw)
            self._kept[site] = masks[self._rows]


class Dropping(nn.Module):
    """The base of dropout and stochastic depth: drops with probability `rate` while training, and
    scales what survives by 1 / (1 - rate).

    Masks are keyed by the step, by the row of the global batch and by `site`, this module's path in
    the model; the host gives step and site.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.site = ""
        self.step: StepKey | None = None

    def bind(self, step: StepKey) -> None:
        """Draw masks at `step` from now on."""
        self.step = step
        if self.rate:
            self.meet(step)

    def meet(self, step: StepKey) -> None:
        """Register this site with `step`."""
        raise NotImplementedError

    @property
    def drawn(self) -> StepKey | None:
        """The key at which masks are drawn; None where nothing is dropped."""
        if self.rate == 0 or not self.training:
            return None
        assert self.step is not None, f"{self.site}: bind a Step before training (Host.bind)"
        return self.step

    def extra_repr(self) -> str:
        return f"{self.rate}"


class Drop(Dropping):
    """Dropout: one decision for each element, from 16 random bits. The rate is rounded to a
    multiple of 1 / 65,536 below 1."""

    def meet(self, step: StepKey) -> None:
        step.meet(self.site)

    def forward(self, x: Tensor) -> Tensor:  # (B, ...)
        step = self.drawn
        if step is None:
            return x
        share = min(round(self.rate * LEVELS), LEVELS - 1)
        return step.dropout(self.site, x, share)


class Dropped(torch.autograd.Function):
    """Dropout by a kernel each way. The backward pass draws the mask again, so none is kept: a
    ViT-B/16 at a batch of 256 takes 3 GB less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any, *arguments: Any) -> Tensor:
        """`arguments`: those of `kernel.drop`."""
        ctx.kernel, ctx.arguments = kernel, arguments
        return kernel.drop(x, *arguments)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = ctx.kernel.drop(dy, *ctx.arguments)
        return dx, None, *[None] * len(ctx.arguments)


class DropPath(Dropping):
    """x + branch, a residual whose branch is dropped for whole examples: stochastic depth."""

    def meet(self, step: StepKey) -> None:
        step.meet(self.site, self.rate)

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:  # both (B, ...)
        step = self.drawn
        if step is None:
            return x + branch
        other_axes = (1,) * (x.ndim - 1)
        return Added.apply(x, branch, step.kept(self.site).view(-1, *other_axes))


class Added(torch.autograd.Function):
    """x + branch * share, in one kernel each way, where autograd takes two or, in bfloat16, three.

    x and share are in float32 at least, and so is the sum (1 / 0.9 is 0.2 % off in bfloat16); the
    share has no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, share: Tensor) -> Tensor:
        ctx.save_for_backward(share)
        ctx.dtype = branch.dtype
        if x.device.type == "cpu":  # rounds once more than addcmul: so runs there are
            return x + branch * share
        with unrounded(x.device):  # autocast would widen the branch by a kernel of its own
            return torch.addcmul(x, branch, share)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        (share,) = ctx.saved_tensors
        return dy, torch.mul(dy, share, out=torch.empty_like(dy, dtype=ctx.dtype)), None
