"""The mean attention distance of heads (DTN, arXiv 2112.02624).

Used by `probe=[attention]`, through run/choices.py `PROBES`. The arrays are read in
run/metrics/probed.py for tables and in report/plot/probes.py for `ablate plot`, so a changed array
needs both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ablate.run import Run, shipped
from ablate.shared import UserError
from ablate.training.model import Host
from ablate.training.model.sublayers import Attention
from ablate.training.probes.probe import Probe, grid_of

AT_ONCE = 32  # images whose attention is in memory: (images, H, N, N)


class AttentionDistance(Probe):
    """sum_q sum_k A[q, k] ||place q - place k|| / N for each head of each layer, mean over images.

    In grid units: the distance of neighbours is 1. DTN's vit_norm.py get_attention_map has the
    division by N commented out. The class token is left out, and rows are normalised without it.
    The probabilities are computed again from the layer's input, in float32, so that the layer still
    uses its own kernel.

    Arrays: distance float32 (layers, heads); layers, their names; grid int64 (2,); images int64 ().
    """

    def __init__(self, run: Run, model: Host, total: int) -> None:
        self._layers = {
            name: module for name, module in model.named_modules() if isinstance(module, Attention)
        }
        if not self._layers:
            raise UserError(
                f"probe: attention: block={shipped(run).block.name} has none; leave it out"
            )
        self._grid = grid_of(run)
        places = torch.cartesian_prod(*(torch.arange(side) for side in self._grid)).double()
        self._distances = torch.cdist(places, places)  # (N, N)
        self._sums: dict[str, Tensor] = {}
        self._images = dict.fromkeys(self._layers, 0)

    def hooks(self) -> Iterator[RemovableHandle]:
        for name, layer in self._layers.items():

            def look(layer: nn.Module, inputs: tuple[Tensor], _: Tensor, name: str = name) -> None:
                assert isinstance(layer, Attention)
                self._look(name, layer, inputs[0])

            yield layer.register_forward_hook(look)

    def _look(self, name: str, layer: Attention, x: Tensor) -> None:
        distances = self._distances.to(x.device, torch.float32)
        for part in x.split(AT_ONCE):
            by_head = mean_distance(layer, part, distances).double().sum(0).cpu()
            self._sums[name] = self._sums.get(name, torch.zeros_like(by_head)) + by_head
        self._images[name] += len(x)

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        if not self._sums:  # it diverged before it could be shown anything
            return {}
        means = [self._sums[name] / self._images[name] for name in self._layers]
        return {
            "distance": torch.stack(means).float().numpy(),
            "layers": np.array(list(self._layers)),
            "grid": np.array(self._grid),
            "images": np.array(max(self._images.values())),
        }


def mean_distance(layer: Attention, x: Tensor, distances: Tensor) -> Tensor:
    """Return the mean distance of each image and head, float32 (B, H).

    x is a layer's input (B, N, D), whose last tokens are the patches; `distances` is (patches,
    patches).
    """
    q, k, _ = layer.parts(x)
    with torch.autocast(x.device.type, enabled=False):
        q, k = (part[:, :, -len(distances) :].float() for part in (q, k))  # (B, H, patches, d)
        attention = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return (attention * distances).sum(-1).mean(-1)
