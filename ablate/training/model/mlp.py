"""The MLP of a block."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.shared import sections
from ablate.training.model.act import Activation, activation
from ablate.training.model.dense import Dense
from ablate.training.model.drop import Drop
from ablate.training.model.host import Host
from ablate.training.model.norm import MakeNorm, Shape


class MLP(nn.Module):
    """dense -> pre_act -> act -> dropout -> post_act -> dense, for each token by itself.

    `pre_act` and `post_act` are inner norms, or nothing (post_act after the dropout, as in
    fairseq's transformer_layer.py and torchscale's feedforward_network.py). A gated `act`
    (`model.act=swiglu`) takes 2M values from the first dense, and pre_act is of all of them.
    `gain`: see Dense.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        dropout: float,
        *,
        act: Activation | None = None,
        pre_act: nn.Module | None = None,
        post_act: nn.Module | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.act = act or activation()
        self.fc1 = Dense(width, self.act.inputs * hidden, role=self.act.role, gains=(gain,))
        self.pre_act = pre_act or nn.Identity()
        self.dropout = Drop(dropout)
        self.post_act = post_act or nn.Identity()
        self.fc2 = Dense(hidden, width, role="mlp", gains=(gain,))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, M) -> (B, N, D)
        x = self.act(self.pre_act(self.fc1(x)))
        return self.fc2(self.post_act(self.dropout(x)))


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
