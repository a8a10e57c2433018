"""A Vision Transformer whose head decodes every patch: Strudel et al. 2021 (arXiv 2105.05633)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.shared import sections
from ablate.training.model.dense import Dense
from ablate.training.model.stem import Patches
from ablate.training.model.vit import ViT


class Segmenter(ViT):
    """Images (B, H, W, C) -> logits (B, classes, H, W): Segmenter's linear decoder.

    Each patch's token as it leaves the last block, without the final norm, becomes a logit a class;
    these are enlarged bilinearly (segm/model/decoder.py DecoderLinear, segmenter.py). The class
    token and registers are read by nobody, and what a classifier has behind the tokens is not
    there.
    """

    def __init__(
        self, model: sections.Model, patches: Patches, classes: int, **choices: Any
    ) -> None:
        super().__init__(model, patches, classes, **choices)
        self._grid = patches.grid
        self.norm, self.rep = nn.Identity(), nn.Identity()
        self.pool = nn.Identity()
        self.head = Dense(model.width, classes, role="decoder")

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = self._grid
        patches = self.tokens(images)[:, -rows * columns :]
        logits = self.head(patches).to(images.dtype)  # of which autocast makes bfloat16
        planes = logits.unflatten(1, self._grid).permute(0, 3, 1, 2)
        return F.interpolate(planes, size=images.shape[1:3], mode="bilinear")
