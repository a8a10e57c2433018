"""The inputs of a step, which a GPU computes one step ahead.

To crop, mix and normalise images takes a GPU up to a quarter of a step (S/16 with the recipe
`deit`), and needs no weights. So the inputs of the next step are computed on a stream of their own
while the current step trains. They are the same operations in the same order: no bit changes.

Two rules keep the streams apart, and no tensor has to be recorded for a stream:

1. A step waits, on the device, for its own inputs.
2. The inputs of step k + 1 wait for all that came before step k. The memory of inputs is the
   stream's own; that of step k - 1 is free by then, and nothing that step k uses is freed.

Used by `Training` (training/training.py). tests/null_gpu/test_streams.py looks for accesses that
neither rule orders.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Inputs = tuple[Tensor, Tensor]  # of the model, and their target


class InputsAhead:
    """The inputs that `compute(step)` returns, on a CPU when they are needed, on a GPU one step
    ahead."""

    def __init__(self, compute: Callable[[int], Inputs], device: torch.device) -> None:
        self._compute = compute
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._step_began = torch.cuda.Event() if device.type == "cuda" else None
        self._current_inputs: Inputs | None = None  # kept while the step computes with them
        self._next_inputs: tuple[int, Inputs] | None = None

    def receive(self, step: int) -> Inputs:
        """Return the inputs of a step; the device waits for them before it runs later kernels. All
        of an earlier step must have been launched."""
        if self._stream is None or self._step_began is None:
            return self._compute(step)
        stream = torch.cuda.current_stream(self._device)
        self._step_began.record(stream)
        if self._next_inputs is None or self._next_inputs[0] != step:
            self.prepare(step)
        assert self._next_inputs is not None
        stream.wait_stream(self._stream)
        _, self._current_inputs = self._next_inputs
        self._next_inputs = None
        return self._current_inputs

    def prepare(self, step: int) -> None:
        """Begin to compute the inputs of a step, the next one, when all of the current step has
        been launched: what is launched first, starts first. On a CPU, do nothing."""
        if self._stream is None or self._step_began is None:
            return
        self._stream.wait_event(self._step_began)
        with torch.cuda.stream(self._stream):
            self._next_inputs = step, self._compute(step)

    def forget(self) -> None:
        """Drop all inputs, and with them their memory: another step may follow."""
        self._current_inputs = self._next_inputs = None
