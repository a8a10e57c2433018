"""The sum of the gradients of a step's micro-batches, added in one order, whichever rank computes
them.

Used by `Training` (training/training.py) in every step. A norm with running statistics of a new
kind also needs a case in model/norm/mixing.py `running`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as _TorchBatchNorm

from ablate.run import ORDERED_FROM
from ablate.shared import UserError
from ablate.training.model.norm import SwitchNorm
from ablate.training.model.norm.mixing import running
from ablate.training.ranks import Ranks

Gradients = list[Tensor | None]


def most_sums(parts: int) -> int:
    """Return how many sums of gradients `MicroBatches.accumulate` holds at most while one of so
    many micro-batches is computed: where each level of its tree has one."""
    return parts.bit_length() - 1


class MicroBatches:
    """The micro-batches of a model: `for rows in micro_batches.accumulate(parts, total)` leaves the
    sum of their gradients."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self._gradient_mask: list[bool] = []  # by parameter: has it a gradient?
        self._parameters = list(model.parameters())
        self._statistics: Statistics | None = None

    def accumulate(self, parts: Iterable[slice], total: int) -> Iterator[slice]:
        """Yield this rank's parts, of `total` in all; the loop's body computes the gradients of
        each.

        The sum is a balanced binary tree, depth first, so only the logarithm of their number is
        kept; where the number is no power of two, what is left over is added from the right.
        Gradients that existed before, which each rank has, are added at the end.
        """
        buffers: dict[str, Tensor] = {}
        if self._ranks.world > 1 and not self._gradient_mask:  # the first step of several ranks
            buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        if total >= ORDERED_FROM and self._statistics is None:
            self._statistics = Statistics(self._model)
        if self._statistics is not None:
            self._statistics.begin(total)
        prior_gradients = self._take()
        sums: list[tuple[int, Gradients]] = []  # (level in the tree, sum)
        for part in parts:
            yield part
            level, sum = 0, self._take()
            while sums and sums[-1][0] == level:
                _, left_sum = sums.pop()
                sum = added(left_sum, sum)
                level += 1
            sums.append((level, sum))
            if self._statistics is not None:
                self._statistics.record()
        _, sum = sums.pop()
        while sums:
            _, left_sum = sums.pop()
            sum = added(left_sum, sum)
        if self._ranks.world > 1:
            sum = self._across(sum)
        gradients = added(sum, prior_gradients)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._statistics is not None:
            self._statistics.end(self._ranks)
        self._check(buffers)

    def _across(self, gradients: Gradients) -> Gradients:
        """Return the sum over the ranks, in tensors as autograd makes them. Raises UserError where
        not all ranks have gradients for the same parameters."""
        mask = [gradient is not None for gradient in gradients]
        if not self._gradient_mask:
            self._gradient_mask = mask
            masks = self._ranks.gathered([mask])
            is_equal = all(rank_mask == mask for rank_mask in masks)
        else:
            is_equal = mask == self._gradient_mask
        if not is_equal:
            raise UserError(
                "model: a parameter has a gradient in some micro-batches alone; give one rank"
            )
        vector = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
        sizes = []
        for parameter, has_gradient in zip(self._parameters, mask, strict=True):
            sizes.append(parameter.numel() if has_gradient else 0)
        parts = self._ranks.summed(vector).split(sizes)
        sums: Gradients = []
        for parameter, part, has_gradient in zip(self._parameters, parts, mask, strict=True):
            if has_gradient:
                sums.append(torch.empty_like(parameter).copy_(part.view(parameter.shape)))
            else:
                sums.append(None)
        return sums

    def _check(self, saved_buffers: Mapping[str, Tensor]) -> None:
        """Raise UserError where a forward pass has changed a buffer that is not gathered."""
        if not saved_buffers:
            return
        gathered_ids: set[int] = set()
        if self._statistics is not None:
            gathered_ids = {id(buffer) for buffer in self._statistics.moving}
        buffers = dict(self._model.named_buffers())
        for name, old in saved_buffers.items():
            if id(buffers[name]) not in gathered_ids and not torch.equal(buffers[name], old):
                part = self._model.get_submodule(name.rpartition(".")[0])
                raise UserError(
                    f"model: {type(part).__name__} ({name}) changes as it is called, and ranks "
                    f"can gather batch norms' statistics alone, of {ORDERED_FROM} micro-batches or "
                    f"more; give one rank"
                )

    def _take(self) -> Gradients:
        """Return the gradients, and remove them from the parameters."""
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients


def added(accumulator: Gradients, addend: Gradients) -> Gradients:
    """Return the sum of both, stored in `accumulator`'s tensors."""
    sums: Gradients = []
    increased: list[Tensor] = []
    increments: list[Tensor] = []
    for a, b in zip(accumulator, addend, strict=True):
        if a is not None and b is not None:
            increased.append(a)
            increments.append(b)
        sums.append(b if a is None else a)
    if increased:
        torch._foreach_add_(increased, increments)
    return sums


class Statistics:
    """The running statistics of a model's batch norms. Each micro-batch leaves its own; after the
    step they are averaged in, in the order of the micro-batches.

    In training no norm here reads them, except PowerNorm, which handles its own.
    """

    def __init__(self, model: nn.Module) -> None:
        self._norms: list[tuple[nn.Module, float, list[Tensor]]] = []
        for module in model.modules():
            statistics = running(module)
            if statistics is None:
                continue
            share, buffers = statistics
            self._norms.append((module, share, buffers))
            # From now on a forward pass leaves what it saw itself.
            momentum = 0.0 if isinstance(module, SwitchNorm) else 1.0
            module.momentum = momentum  # type: ignore[assignment]
        self._moving: list[Tensor] = []
        self._counts: list[tuple[Tensor, Tensor]] = []  # torch's own, and what they come to
        self._running_values = self._shares = torch.empty(0)
        self._moments: list[Tensor] = []

    @property
    def moving(self) -> list[Tensor]:
        """All buffers that are made the same on all ranks."""
        return self._moving + [count for count, _ in self._counts]

    def begin(self, total: int) -> None:
        """Begin a step of `total` micro-batches."""
        self._moving = []
        self._moments = []
        self._counts = []
        shares = []
        for module, share, buffers in self._norms:
            if not module.training:
                continue
            for buffer in buffers:
                self._moving.append(buffer)
                shares.append(torch.full_like(buffer, share))
            if isinstance(module, _TorchBatchNorm):
                count = module.num_batches_tracked
                if count is not None:
                    self._counts.append((count, count + total))
        if self._moving:
            self._shares, self._running_values = torch.cat(shares), torch.cat(self._moving)

    def record(self) -> None:
        """Keep the statistics of a micro-batch that has been computed."""
        if self._moving:
            self._moments.append(torch.cat(self._moving))

    def end(self, ranks: Ranks) -> None:
        """Average in those of all ranks: r <- r + share (moments - r) for each."""
        for count, total in self._counts:
            count.copy_(total)
        if not self._moving:
            return
        running = self._running_values
        for moments in ranks.gather_each(self._moments):
            running = torch.lerp(running, moments, self._shares)
        sizes = [len(buffer) for buffer in self._moving]
        for buffer, value in zip(self._moving, running.split(sizes), strict=True):
            buffer.copy_(value)
