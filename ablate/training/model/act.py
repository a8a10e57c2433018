"""Activations of the MLP: `model.act`, by name or import path, and of its GELU `model.gelu`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ablate.shared import sections
from ablate.shared.parts import ACT
from ablate.training.model.constructor_values import remember
from ablate.training.plugin import blame, load, settings_of


class Activation(nn.Module):
    """(..., inputs * M) -> (..., M)."""

    inputs = 1  # dense layers side by side that it takes
    role = "mlp"  # of the layer in front of it: its initial values

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def hidden(self, width: int) -> int:
        """M, of an MLP whose inner width is said to be `width`."""
        return width

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(x)
        return y


class Gated(Activation):
    """act(gate) * value, x = [gate, value]: Shazeer 2020 (arXiv 2002.05202), Eq. 6.

    Three matrices take the place of two, so M is 2/3 of the MLP's width, as there: the nearest
    multiple of 8 (at least 8), on which GPUs' matrix products rely. For the published sizes the
    MLP's parameters are so equal to within 0.2 %.
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
    """The activation of that name; `gelu`: the form of its GELU, where it has one."""
    return ACTS[name](gelu)


MakeActivation = Callable[[], Activation]


def activations(model: sections.Model) -> MakeActivation:
    """Makes the activation of each MLP. One by import path is a class or a function of a tensor,
    (..., M) -> (..., M); with `gated = True` it is of the gate. Raises UserError where it can't be
    imported or made."""
    if (used := ACT.one(model)) is None:
        return partial(activation, model.act, model.gelu)
    part, settings = load(used), settings_of(used)
    frame = Gated if getattr(part, "gated", False) else Activation

    def make() -> Activation:
        with blame(used):
            is_class = isinstance(part, type)
            made = remember(part, settings) if is_class else partial(part, **settings)
            return frame(made if isinstance(made, nn.Module) else Function(made))

    return make


class Function(nn.Module):
    """A function of a tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
