"""A plain multilayer perceptron, to study a norm without a transformer around it."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.shared import sections
from ablate.training.model.dense import Dense
from ablate.training.model.host import Host
from ablate.training.model.norm import MakeNorm, Shape


class Perceptron(Host):
    """sigmoid(norm(dense(x))) some times, then dense: an image is one token of all its values.

    BatchNorm_in_Transformers_CV, model/dnn.py: DNN with norm=identity, DNNBN with norm=batchnorm.
    """

    def __init__(self, model: sections.Model, values: int, classes: int, *, norm: MakeNorm) -> None:
        super().__init__(model)
        inputs = [values, *[model.width] * (model.depth - 1)]
        shape = Shape(model.width, heads=1, grid=(1, 1), cls=0)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(Dense(size, model.width, role="mlp"), norm(shape), nn.Sigmoid())
                for size in inputs
            )
        )
        self.head = Dense(model.width, classes, role="head")

    def features(self, images: Tensor) -> Tensor:
        return self.layers(images.flatten(1)[:, None])[:, 0]
