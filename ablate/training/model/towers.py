"""An image and a text tower that embed in one space: Zhai et al. 2022 (LiT, arXiv 2111.07991).

As big_vision/models/proj/image_text/two_towers.py and text_transformer.py. In shape comments: B
pairs, L tokens of a text, E the width of embeddings.

Used by `build` (model/__init__.py) for runs with texts, and by task/contrastive.py. A new parameter
also needs a role that model/init.py has a rule for.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.run import Model, Text
from ablate.training.model.block import Block, Layer
from ablate.training.model.dense import Dense
from ablate.training.model.host import Host
from ablate.training.model.norm import LayerNorm, Shape
from ablate.training.model.vit import ViT

EPS = 1e-8  # added to the length of an embedding


class TextTower(nn.Module):
    """Tokens (B, L) -> (B, E): a pre-norm encoder with attention in both directions, read at its
    last token.

    It has learned positions, LayerNorms, a LayerNorm behind the last block, no class token and no
    dropout: whatever is ablated in the image tower, this tower is the same.
    """

    roles: ClassVar[dict[str, str]] = {"posemb": "posemb"}

    def __init__(self, text: Text, outputs: int) -> None:
        super().__init__()
        self.embedding = Embedding(text.vocab, text.width)
        self.posemb = nn.Parameter(torch.empty(1, text.length, text.width))
        shape = Shape(text.width, text.heads, (1, text.length), cls=0)
        layer = Layer(
            shape,
            text.width // text.heads,
            4 * text.width,
            dropout=0.0,
            drop_path=0.0,
            norm=LayerNorm,
            depth=text.depth,
        )
        self.blocks = nn.Sequential(*(Block(layer) for _ in range(text.depth)))
        self.norm = LayerNorm(shape)
        self.head = Dense(text.width, outputs, role="readout")

    def forward(self, tokens: Tensor) -> Tensor:  # (B, L) -> (B, E)
        x = self.embedding(tokens) + self.posemb
        x = self.norm(self.blocks(x))[:, -1]
        embedded: Tensor = self.head(x)
        return embedded


class Embedding(nn.Module):
    """A learned vector for each token."""

    roles: ClassVar[dict[str, str]] = {"token": "embedding"}

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(tokens, width))

    def forward(self, tokens: Tensor) -> Tensor:  # (B, L) -> (B, L, D)
        return F.embedding(tokens, self.token)


class Towers(Host):
    """Images (B, H, W, C) and tokens (B, L) -> their embeddings (B, E) each, and the temperature.

    The image tower has no head: the text tower's embeddings have its width. A tower in which no
    parameter trains runs as in evaluation: without dropout, and with fixed statistics.
    """

    roles: ClassVar[dict[str, str]] = {"theta": "temperature"}

    def __init__(self, image: ViT, model: Model, text: Text) -> None:
        super().__init__(model)
        image.head = nn.Identity()
        self.image = image
        self.text = TextTower(text, model.width)
        self.theta = nn.Parameter(torch.empty(1))  # the logarithm of the temperature
        self.name_sites()

    def forward(  # type: ignore[override]
        self, images: Tensor | None, tokens: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the embeddings of images and texts, and the temperature. Without images those of
        the texts alone, which is all that has to be computed again with a frozen image tower."""
        image_embeddings = None if images is None else self.features(images)
        return image_embeddings, self.texts(tokens), self.theta.exp()

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the logits (B, B) of embeddings (B, E) each."""
        return similarities(images, texts, self.theta.exp())

    def features(self, images: Tensor) -> Tensor:
        """Return the embeddings of images: (B, H, W, C) -> (B, E), of length 1."""
        return normalised(self.image(images))

    def texts(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of texts: (B, L) -> (B, E), of length 1."""
        return normalised(self.text(tokens))

    @property
    def learns_from_images(self) -> bool:
        """True where any of the image tower's parameters trains."""
        return any(part.requires_grad for part in self.image.parameters())

    def train(self, mode: bool = True) -> Towers:
        super().train(mode)
        for tower in (self.image, self.text):
            tower.train(mode and any(part.requires_grad for part in tower.parameters()))
        return self


def normalised(z: Tensor) -> Tensor:
    """Return z / (|z| + 1e-8), in float32 at least."""
    z = z.float() if z.dtype == torch.bfloat16 else z
    return z / (z.norm(dim=-1, keepdim=True) + EPS)


def similarities(images: Tensor, texts: Tensor, temperature: Tensor) -> Tensor:
    """Return t z_i z_t^T, image by text, (B, B). Call it outside of autocast, which would round the
    product."""
    return temperature * (images @ texts.T)
