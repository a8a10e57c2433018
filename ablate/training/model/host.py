"""The base class of the shipped models: the methods that the training loop calls.

Used as the base class in model/vit.py, model/towers.py and model/sublayers.py; `Training`
(training/training.py) calls its methods. What gives the features of a whole model instead is in
model/whole_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, nn

from ablate.run import Model
from ablate.training.model.drop import Dropping, StepKey
from ablate.training.model.whiten import Whiten


class Host(nn.Module):
    """Images (B, H, W, C) in [-1, 1] -> logits (B, classes): a head on features."""

    head: nn.Module

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.init = model.init
        self.head_bias = model.head_bias

    def forward(self, images: Tensor) -> Tensor:  # (B, H, W, C) -> (B, classes)
        logits: Tensor = self.head(self.features(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Return what the head reads, `pre_logits` of big_vision: (B, H, W, C) -> (B, D)."""
        raise NotImplementedError

    def name_sites(self) -> None:
        """Set the `site` of every dropout, its path in the model, which keys its masks. Call this
        once the whole model is built."""
        for path, module in self.named_modules():
            if isinstance(module, Dropping):
                module.site = path

    def bind(self, step: StepKey) -> None:
        """Draw every mask at `step` from now on: the training loop advances it, the model reads
        it."""
        for module in self.modules():
            if isinstance(module, Dropping):
                module.bind(step)

    def fit(self, batches: Iterable[Tensor], memo: Path | None = None) -> None:
        """Fit what stays fixed from the first step on (whitening), on all training images.

        `batches`: (B, H, W, C) as the model sees them, not augmented; read only where needed.
        `memo`: the beginning of the path of files that keep what was measured; its name identifies
        the images, and all else on which bits depend. A checkpoint that is loaded afterwards
        overrides the fit.
        """
        for module in self.modules():
            if isinstance(module, Whiten):
                module.fit(batches, memo)
