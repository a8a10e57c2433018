"""What a step's micro-batches leave: their gradients summed in one order, whoever computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ablate.training.model.norm import BatchNorm, SwitchNorm

Gradients = list[Tensor | None]
IN_ORDER = 4  # micro-batches from which on statistics are taken in behind all of them


class MicroBatches:
    """Of a model: `for rows in micro_batches.over(parts)` leaves the sum of their gradients."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters = [*model.parameters()]
        self._statistics: Statistics | None = None

    def over(self, parts: Iterable[slice], whole: int) -> Iterator[slice]:
        """The parts, of `whole` in all: the loop's body takes the gradients of each. Their sum is a
        balanced binary tree, depth first, so that the logarithm of their number is kept; beside a
        power of two what is left over is added from the right. Gradients that are there before
        are added in the end."""
        if whole >= IN_ORDER and self._statistics is None:
            self._statistics = Statistics(self._model)
        if self._statistics is not None:
            self._statistics.begin()
        before, sums = self._take(), list[tuple[int, Gradients]]()
        for part in parts:
            yield part
            level, sum = 0, self._take()
            while sums and sums[-1][0] == level:
                level, sum = level + 1, added(sums.pop()[1], sum)
            sums.append((level, sum))
            if self._statistics is not None:
                self._statistics.record()
        _, sum = sums.pop()
        while sums:
            sum = added(sums.pop()[1], sum)
        for parameter, gradient in zip(self._parameters, added(sum, before), strict=True):
            parameter.grad = gradient
        if self._statistics is not None:
            self._statistics.end()

    def _take(self) -> Gradients:
        """The gradients that are there now, and are no more."""
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients


def added(left: Gradients, right: Gradients) -> Gradients:
    """Their sum, in the place of the left."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_(*map(list, zip(*both, strict=True)))
    return [b if a is None else a for a, b in zip(left, right, strict=True)]


class Statistics:
    """The running statistics of a model's batch norms: each micro-batch leaves its own, and behind
    the step they are taken in, in the order of the micro-batches.

    In training no norm here reads them, PowerNorm aside, which keeps to itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self._each: list[tuple[nn.Module, float, list[Tensor]]] = []
        for module in model.modules():
            if (found := _running(module)) is None:
                continue
            self._each.append((module, *found))
            # From now on a forward pass leaves what it saw itself.
            module.momentum = 0.0 if isinstance(module, SwitchNorm) else 1.0  # type: ignore[assignment]
        self._moving: list[Tensor] = []
        self._before = self._shares = torch.empty(0)
        self._seen: list[Tensor] = []

    def begin(self) -> None:
        """A step begins."""
        trained = [(share, some) for module, share, some in self._each if module.training]
        self._moving = [buffer for _, some in trained for buffer in some]
        self._seen = []
        if self._moving:
            shares = [torch.full_like(each, share) for share, some in trained for each in some]
            self._shares, self._before = torch.cat(shares), torch.cat(self._moving)

    def record(self) -> None:
        """A micro-batch has gone through."""
        if self._moving:
            self._seen.append(torch.cat(self._moving))

    def end(self) -> None:
        """Take them in: r <- r + share (seen - r) for each."""
        if not self._moving:
            return
        running = self._before
        for seen in self._seen:
            running = torch.lerp(running, seen, self._shares)
        sizes = [len(buffer) for buffer in self._moving]
        for buffer, value in zip(self._moving, running.split(sizes), strict=True):
            buffer.copy_(value)


def _running(module: nn.Module) -> tuple[float, list[Tensor]] | None:
    """The share that a new value has in a module's running ones, and these."""
    if isinstance(module, BatchNorm):
        return module.momentum, [module.mean, module.var]
    if isinstance(module, SwitchNorm):
        return 1 - module.momentum, [module.mean, module.var]
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        assert module.running_var is not None
        if module.momentum is not None:  # else a mean over all steps, which torch counts itself
            return module.momentum, [module.running_mean, module.running_var]
    return None
