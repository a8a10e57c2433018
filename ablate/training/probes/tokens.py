"""Token norms by place (after DTN, arXiv 2112.02624).

Used by `probe=[tokens]`, through run/choices.py `PROBES`. The arrays are read in
report/plot/probes.py for `ablate plot`, so a changed array needs a change there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ablate.run import Run
from ablate.training.model import Host, ViT
from ablate.training.probes.probe import Probe, grid_of


class TokenNorms(Probe):
    """||token||_2 at each place of the grid, before the first block and after each, mean over
    images; without the class token.

    Arrays: norms float32 (blocks + 1, h, w); images int64 ().
    """

    def __init__(self, run: Run, model: Host, total: int) -> None:
        assert isinstance(model, ViT)  # spec refuses tokens of another
        self._blocks = list(model.blocks)
        self._grid = grid_of(run)
        self._sums = torch.zeros(len(self._blocks) + 1, *self._grid, dtype=torch.float64)
        self._images = 0

    def hooks(self) -> Iterator[RemovableHandle]:
        yield self._blocks[0].register_forward_pre_hook(self._add_inputs)
        for number, block in enumerate(self._blocks, 1):

            def behind(_: nn.Module, __: object, x: Tensor, number: int = number) -> None:
                self._add(number, x)

            yield block.register_forward_hook(behind)

    def _add_inputs(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        self._add(0, inputs[0])
        self._images += len(inputs[0])

    def _add(self, number: int, x: Tensor) -> None:
        (h, w), patches = self._grid, x[:, -self._grid[0] * self._grid[1] :].float()
        self._sums[number] += patches.norm(dim=-1).double().sum(0).reshape(h, w).cpu()

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        if not self._images:  # it diverged before it could be shown anything
            return {}
        means = self._sums / self._images
        return {"norms": means.float().numpy(), "images": np.array(self._images)}
