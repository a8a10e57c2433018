"""Traits: what a norm, a stem or a block may declare about itself, and the defaults.

A class declares a trait by an attribute of that name, in its body or in `__init__`. No trait is
required, and no base class: our own parts declare theirs as a user's do, and the model reads all of
them by `traits`. One more, `version`, is read from the text of a class and enters `Run.id`: see
run/plugin.py.

Used by model/vit.py, model/init.py and training/starting_weights.py, which ask parts for their
traits. A new trait also needs a row in the table of docs/extending.md, with which
tests/test_traits.py compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from torch import Generator, Tensor, nn

from ablate.training.model.norm.shape import MakeNorm


def leaves_it(name: str, values: Tensor, generator: Generator) -> bool:
    """Fill nothing, and return False: the parameter's role fills it."""
    return False


def same_values(name: str, values: Tensor) -> Tensor:
    """Return the values as they are, for a parameter that does not depend on the grid."""
    return values


@dataclass(frozen=True)
class Traits:
    """The traits of any part, and of every module within one."""

    # {parameter: role}: by which rule of `init` it starts. A `scale` is 1, an `offset` is 0; a
    # dense layer's are `mlp.kernel`, `mlp.bias` and so on. A parameter without a role starts as
    # torch's own layers do, by the module's `reset_parameters()`.
    roles: Mapping[str, str] = field(default_factory=dict)
    # `initialise(name, values, generator)` fills the first values of a parameter by itself and
    # returns True; False: its role does. Draws come from `generator`, which is the parameter's own.
    initialise: Callable[[str, Tensor, Generator], bool] = leaves_it
    # Factors on the initial values: one number for each of as many equal parts of them.
    gains: tuple[float, ...] = (1.0,)
    # Does an image's output depend on the other images of the batch? Then `train.micro_batch=auto`
    # is refused: what comes out would depend on the machine. (Torch's batch norms needn't say it.)
    batch_statistics: bool = False
    # How many values are normalised together: `ablate plan` warns below 8. None: unknown.
    group: int | None = None
    # `resize(name, values)` returns the values of a parameter or buffer of another grid as this
    # grid has them: where a run starts from weights that were trained on images of another size.
    resize: Callable[[str, Tensor], Tensor] = same_values


@dataclass(frozen=True)
class NormTraits(Traits):
    """The traits of a norm, built as `Norm(shape, **settings)`: (B, N, D) -> (B, N, D)."""

    # Does a token's output depend on other tokens? Then `model.cls=exclude` leads the class token
    # past it. Who doesn't say is taken to.
    mixes_tokens: bool = True


@dataclass(frozen=True)
class StemTraits(Traits):
    """The traits of a stem, built as `Stem(patches, width, **settings)`:
    (B, H, W, C) -> (B, R+N, D)."""

    # Applied to the tokens when their positions are added, and when the class token has joined.
    after_posemb: nn.Module = field(default_factory=nn.Identity)
    after_cls: nn.Module = field(default_factory=nn.Identity)
    # How many blocks fewer the encoder has with this stem.
    blocks_saved: int = 0
    # R, tokens that its output has before the patches: registers, which have no positions and
    # which the head does not read.
    tokens_added: int = 0


@dataclass(frozen=True)
class BlockTraits(Traits):
    """The traits of a block, built as `Block(layer, **settings)`: (B, N, D) -> (B, N, D)."""

    # Is its output a norm's output? Then `model.final_norm=auto` leaves the final norm out.
    ends_normed: bool = False
    # Makes the norm behind the last block, given the tokens' Shape. None: the host's choice.
    final: MakeNorm | None = None


T = TypeVar("T", bound=Traits)


def traits(part: nn.Module, kind: type[T]) -> T:
    """Return the traits that the part declares, with the defaults above for all others."""
    names = [trait.name for trait in fields(kind)]
    return kind(**{name: getattr(part, name) for name in names if hasattr(part, name)})
