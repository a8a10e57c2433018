"""The inputs of a step, which a GPU computes one step ahead.

To crop, mix and normalise images takes a GPU up to a quarter of a step (S/16 with the recipe
`deit`), and needs no weights. So the inputs of the next step are computed on a stream of their own
while the current step trains. They are the same operations in the same order: no bit changes.
Where inputs are large, as the 4,096 pictures of `augreg` are for 24 GB, they are computed in turn.

Two rules keep the streams apart, and no tensor that is computed here has to be recorded for a
stream. (Labels that a link has sent are in its memory: `CudaLink` of data/batches.py records them.)

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

# Of a GPU's memory, for the images of a step; their stream takes about four times that.
MOST_SHARE = 1 / 32

Inputs = tuple[Tensor, Tensor]  # of the model, and their target


class InputsAhead:
    """The inputs that `compute(step)` returns, on a GPU one step ahead. On a CPU, and where the
    images of a step, of `image_bytes`, are large for the GPU, they are computed when needed."""

    def __init__(
        self, compute: Callable[[int], Inputs], device: torch.device, image_bytes: int
    ) -> None:
        self._compute = compute
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and image_bytes <= MOST_SHARE * _memory_bytes(device):
            self._stream = torch.cuda.Stream(device)
            self._step_began = torch.cuda.Event()
        self._current_inputs: Inputs | None = None  # kept while the step computes with them
        self._next_inputs: tuple[int, Inputs] | None = None

    def receive(self, step: int) -> Inputs:
        """Return the inputs of a step; the device waits for them before it runs later kernels. All
        of an earlier step must have been launched."""
        if self._stream is None:
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
        been launched: what is launched first, starts first. Do nothing without a stream."""
        if self._stream is None:
            return
        self._stream.wait_event(self._step_began)
        with torch.cuda.stream(self._stream):
            self._next_inputs = step, self._compute(step)

    def forget(self) -> None:
        """Drop all inputs, and with them their memory: another step may follow."""
        self._current_inputs = self._next_inputs = None


def _memory_bytes(device: torch.device) -> float:
    """Return the memory of a GPU that this process may take."""
    _, total_bytes = torch.cuda.mem_get_info(device)
    return total_bytes * torch.cuda.get_per_process_memory_fraction(device)
