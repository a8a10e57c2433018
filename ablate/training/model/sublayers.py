"""The sublayers of a block: multi-head self-attention (Vaswani et al. 2017), its kernel chosen by
device and dtype; and the MLP with its activation (`model.act`, by name or import path; the form of
its GELU is `model.gelu`).

Norms around a sublayer are those of `block.PLACES`; norms inside it come from `block.Inner`.

Used by model/block.py and model/vit.py; `Perceptron` by model/__init__.py. A new activation also
needs its name in run/sections.py (`Model.act`) and, where timm lacks it, a refusal in
model/export.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.run import Model, UsedPart, own_part
from ablate.shared import UserError
from ablate.training.model.dense import Dense
from ablate.training.model.drop import Drop
from ablate.training.model.host import Host
from ablate.training.model.init import remember
from ablate.training.model.norm import MakeNorm, Shape
from ablate.training.plugin import blame, load, settings_of


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v, all (B, H, N, d).

    The softmax is computed in float32, as in flax: torch does so for bfloat16, and rounds at the
    end.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, N, N)
    return scores.softmax(-1) @ v


KERNELS: dict[str, Callable[..., Tensor]] = {
    "explicit": explicit,
    "sdpa": F.scaled_dot_product_attention,
}


def kernel(device: torch.device, dtype: torch.dtype) -> str:
    """Return the kernel of attention computed in `dtype` on `device`: "explicit" or "sdpa".

    On a CPU, bfloat16 with torch's fused kernel trains slower than float32.
    """
    return "explicit" if (device.type, dtype) == ("cpu", torch.bfloat16) else "sdpa"


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v by the kernel for the device and the type: (B, H, N, d),
    given q, k, v (B, H, N, d), of which q may have another N."""
    contexts: Tensor = KERNELS[kernel(q.device, q.dtype)](q, k, v)
    return contexts


def joined(contexts: Tensor) -> Tensor:
    """Join the heads' contexts: (B, H, N, d) -> (B, N, H*d)."""
    return contexts.transpose(1, 2).flatten(2)


class HeadScale(nn.Module):
    """Each head's context times a learned number of its own."""

    roles: ClassVar[dict[str, str]] = {"scale": "scale"}

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(heads))

    def forward(self, x: Tensor) -> Tensor:  # (B, N, H*d) -> (B, N, H*d)
        return (x.unflatten(-1, (len(self.scale), -1)) * self.scale[:, None]).flatten(-2)


@dataclass(frozen=True)
class AttentionParts:
    """The exchangeable modules of an attention; each may be missing.

    `q_norm` and `k_norm` normalise the channels of every head's queries and keys, all heads by the
    same scales and offsets: Dehghani et al. 2023 (ViT-22B, arXiv 2302.05442, 2.1), whose norms have
    no offsets; timm's `qk_norm` has them, as here. `v_norm` does so with the values.

    `rotary` rotates queries and keys, behind these norms, by the places of their tokens. `core`
    computes the heads' contexts from queries, keys and values, each (B, H, N, d). `inner` is
    applied between the heads' contexts and the output projection.
    """

    q_norm: nn.Module | None = None
    k_norm: nn.Module | None = None
    v_norm: nn.Module | None = None
    rotary: nn.Module | None = None
    core: nn.Module | None = None
    inner: nn.Module | None = None


class Attention(nn.Module):
    """Multi-head self-attention: every token attends to all. heads * head_dim may differ from
    width. `gain` is the gain (see Dense) of v and of the output projection.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = True,
        parts: AttentionParts = AttentionParts(),
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        wide = heads * head_dim
        # Rows: q, k, v; in each, head by head.
        self.qkv = Dense(width, 3 * wide, role="qkv", bias=qkv_bias, gains=(1.0, 1.0, gain))
        self.q_norm = parts.q_norm or nn.Identity()
        self.k_norm = parts.k_norm or nn.Identity()
        self.v_norm = parts.v_norm or nn.Identity()
        self.rotary = parts.rotary or nn.Identity()
        self.core: Callable[..., Tensor] = parts.core or softmax_attention
        self.inner = parts.inner or nn.Identity()
        self.out = Dense(wide, width, role="out", gains=(gain,))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v of the tokens: (B, N, D) -> (B, H, N, d) each."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, N, 3, H, d)
        # Parted first: so a kernel joins their gradients where they lie.
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        q, k = self.rotary(self.q_norm(q)), self.rotary(self.k_norm(k))
        # On a GPU autocast normalises in float32, and rotations are computed in it; a kernel takes
        # all three in one type.
        return q.to(v.dtype), k.to(v.dtype), self.v_norm(v).to(v.dtype)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) -> (B, N, D)
        q, k, v = self.parts(x)
        return self.out(self.inner(joined(self.core(q, k, v))))


class Activation(nn.Module):
    """An activation, (..., inputs * M) -> (..., M)."""

    inputs = 1  # dense layers side by side that it takes
    role = "mlp"  # of the layer in front of it: its initial values

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def hidden(self, width: int) -> int:
        """Return M for an MLP whose inner width is set to `width`."""
        return width

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(x)
        return y


class Gated(Activation):
    """act(gate) * value, x = [gate, value]: Shazeer 2020 (arXiv 2002.05202), Eq. 6.

    There are three matrices instead of two, so M is 2/3 of the MLP's width, as there: the nearest
    multiple of 8 (at least 8), on which GPUs' matrix products rely. For the published sizes the MLP
    then has the same number of parameters to within 0.2 %.
    """

    inputs = 2
    role = "glu"

    def hidden(self, width: int) -> int:
        return max(8, 8 * round(width / 12))

    def forward(self, x: Tensor) -> Tensor:  # (..., 2M) -> (..., M)
        gate, value = x.chunk(2, -1)
        return super().forward(gate) * value


class SquaredReLU(nn.Module):
    """max(x, 0)^2: Primer (So et al. 2021, arXiv 2109.08668)."""

    def forward(self, x: Tensor) -> Tensor:
        positive = x.relu()
        return positive * positive


# flax's default, so big_vision's, is the tanh approximation; torch's is exact, so DeiT's.
GELU = {"tanh": "tanh", "erf": "none"}


def _gelu(form: str) -> nn.Module:
    return nn.GELU(approximate=GELU[form])


# By name, each made given the form of GELU. silu: Hendrycks, Gimpel 2016 (arXiv 1606.08415).
ACTS: dict[str, Callable[[str], Activation]] = {
    "gelu": lambda form: Activation(_gelu(form)),
    "relu": lambda form: Activation(nn.ReLU()),
    "relu2": lambda form: Activation(SquaredReLU()),
    "silu": lambda form: Activation(nn.SiLU()),
    "swiglu": lambda form: Gated(nn.SiLU()),
    "geglu": lambda form: Gated(_gelu(form)),
}


def activation(name: str = "gelu", gelu: str = "tanh") -> Activation:
    """Return the activation of this name; `gelu` is the form of its GELU, where it has one."""
    return ACTS[name](gelu)


MakeActivation = Callable[[], Activation]


def activations(model: Model) -> MakeActivation:
    """Return a maker of the activation of each MLP. An activation by import path is a class or a
    function of a tensor, (..., M) -> (..., M); with `gated = True` it is applied to the gate.
    Raises UserError where it can't be imported or made."""
    if (used := own_part("model.act", model)) is None:
        return partial(activation, model.act, model.gelu)
    part, settings = load(used), settings_of(used)
    frame = Gated if getattr(part, "gated", False) else Activation

    def make() -> Activation:
        with blame(used):
            is_class = isinstance(part, type)
            function = remember(part, settings) if is_class else partial(part, **settings)
            return frame(function if isinstance(function, nn.Module) else Function(function))

    return make


MakeShapedPart = Callable[[Shape], nn.Module]  # given the shape of the tokens that it gets


def shaped_part(used: UsedPart | None) -> MakeShapedPart | None:
    """Return a maker of a part by import path, which is given the `Shape` of its tokens; None
    without such a part. Raises UserError where it can't be imported, and, when it is called, where
    the part can't be made or is no module."""
    if used is None:
        return None
    part, settings = load(used), settings_of(used)

    def make(shape: Shape) -> nn.Module:
        with blame(used):
            module = remember(part, settings, shape)
        if not isinstance(module, nn.Module):
            raise UserError(
                f"{used.key}: {used.name}: is no torch.nn.Module, got {type(module).__name__}; "
                f"derive the class from torch.nn.Module"
            )
        return module

    return make


class Function(nn.Module):
    """A module that applies a function of a tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class MLP(nn.Module):
    """dense -> pre_act -> act -> dropout -> post_act -> dense, for each token by itself.

    `pre_act` and `post_act` are inner norms, or None (post_act comes after the dropout, as in
    fairseq's transformer_layer.py and torchscale's feedforward_network.py). A gated `act`
    (`model.act=swiglu`) takes 2M values from the first dense, and pre_act normalises all of them.
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
    """sigmoid(norm(dense(x))) `depth` times, then dense: an image is one token of all its values.

    BatchNorm_in_Transformers_CV, model/dnn.py: DNN with norm=identity, DNNBN with norm=batchnorm.
    """

    def __init__(self, model: Model, values: int, classes: int, *, norm: MakeNorm) -> None:
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
