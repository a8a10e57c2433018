"""Initial weights: each is drawn by its name, by the rule for its role.

A weight depends on (seed, name) alone, so a norm added elsewhere changes no other weight, and all
variants of a seed start from the same shared weights.

A class of the user's own may fill its parameters in its constructor. Its values then depend on the
seed and on the instance's place in the model, which is known only once the model is built. So an
instance remembers how it was made and is made once more, under a seed of its own: a norm added
elsewhere doesn't change these values either.

Used by `build` (model/__init__.py), and by training/answers.py before `ablate sweep` starts. A new
role needs a rule in every scheme; a new scheme also needs its name in run/sections.py
(`Model.init`) and run/choices.py (`Arch.init`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import log, sqrt
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import init

from ablate.data import draw_key
from ablate.shared import UserError
from ablate.training.model.host import Host
from ablate.training.model.traits import Traits, traits

CONSTRUCTOR = "made_again_by"  # an attribute: makes an instance like this one


def remember(cls: Any, settings: Mapping[str, Any], *arguments: Any) -> Any:
    """Return `cls(*arguments, **settings)`, an instance that remembers how it was made."""
    constructor = partial(cls, *arguments, **settings)
    instance = constructor()
    if isinstance(instance, nn.Module):
        object.__setattr__(instance, CONSTRUCTOR, constructor)
    return instance


class Constructed:
    """The initial values that constructors give the parameters below each instance made by
    `remember`."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.paths = {}
        for path, module in model.named_modules():
            if hasattr(module, CONSTRUCTOR):
                self.paths[path] = getattr(module, CONSTRUCTOR)
        self._seed = seed
        self._fresh: dict[str, dict[str, Tensor]] = {}

    def value(self, name: str) -> Tensor | None:
        """Return the values that the constructor of the innermost such instance gives a parameter
        or buffer; None where no such instance holds it, or where the constructor leaves some of its
        memory unfilled."""
        inside = [path for path in self.paths if name.startswith(f"{path}.")]
        if not inside:
            return None
        path = max(inside, key=len)
        if path not in self._fresh:
            self._fresh[path] = state(self.paths[path], draw_key(self._seed, "init", path))
        value = self._fresh[path].get(name.removeprefix(f"{path}."))
        if value is None or bool(value.isnan().any()):
            return None
        return value


def state(constructor: Any, seed: int) -> dict[str, Tensor]:
    """Return the parameters and buffers of a new instance, on the CPU, after `reset_parameters()`
    if the class has one of its own. Values that nothing fills are NaN."""
    with torch.random.fork_rng([]), torch.device("cpu"), nan_where_empty():
        torch.manual_seed(seed)
        instance = constructor()
        if _resets_by_itself(type(instance)):
            torch.manual_seed(seed)
            instance.reset_parameters()
    tensors = (*instance.named_parameters(), *instance.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors}


def _resets_by_itself(instance_class: type) -> bool:
    """Return whether a class of the user's own, this one or one that it derives from, defines
    `reset_parameters`."""
    for cls in instance_class.__mro__:
        package, _, _ = cls.__module__.partition(".")
        if package not in ("torch", "ablate") and "reset_parameters" in vars(cls):
            return True
    return False


@contextmanager
def nan_where_empty() -> Iterator[None]:
    """Make `torch.empty` give NaN within the block, by torch's own aid for finding unfilled
    memory."""
    mode, switches = torch.get_deterministic_debug_mode(), torch.utils.deterministic
    fills = switches.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("warn")  # see numerics.deterministic_algorithms
    switches.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        switches.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


# Fills the values of a parameter; what their shape does not say, the parameter's module does.
Rule = Callable[[Tensor, Generator, nn.Module], object]

# The standard deviation of a standard normal truncated at +-2.
TRUNCATED = 0.87962566103423978


def constant(value: float) -> Rule:
    """Return a rule that fills with `value`."""
    return lambda values, generator, owner: values.fill_(value)


def normal(std: float) -> Rule:
    """Return a rule that draws from a normal distribution, not truncated."""
    return lambda values, generator, owner: values.normal_(0, std, generator=generator)


def trunc_normal(std: float) -> Rule:
    """Return a rule that draws from a normal distribution truncated at +-2, whatever the deviation:
    timm's and torch's trunc_normal_."""
    return lambda values, generator, owner: init.trunc_normal_(values, 0, std, generator=generator)


def lecun_normal(values: Tensor, generator: Generator, owner: nn.Module) -> None:
    """Draw with variance 1 / fan_in *after* truncation at two (untruncated) deviations, as in
    flax."""
    std = values.shape[1] ** -0.5 / TRUNCATED
    init.trunc_normal_(values, 0, std, -2 * std, 2 * std, generator=generator)


def xavier_uniform(values: Tensor, generator: Generator, owner: nn.Module, parts: int = 1) -> None:
    """Draw uniformly within sqrt(6 / (fan_in + fan_out)); `parts` matrices are fused in the
    parameter."""
    fan_out, fan_in = values.shape
    limit = sqrt(6 / (fan_in + fan_out // parts))
    values.uniform_(-limit, limit, generator=generator)


def by_width(values: Tensor, generator: Generator, owner: nn.Module) -> None:
    """Draw from a normal distribution of std D^-0.5."""
    values.normal_(0, values.shape[-1] ** -0.5, generator=generator)


def one_row(values: Tensor, generator: Generator, owner: nn.Module) -> None:
    """Draw uniformly within sqrt(6 / (1 + D)): flax's xavier_uniform of (1, 1, D)."""
    limit = sqrt(6 / (1 + values.shape[-1]))
    values.uniform_(-limit, limit, generator=generator)


def uniform_fan_in(values: Tensor, generator: Generator, owner: nn.Module) -> None:
    """Draw uniformly within fan_in^-0.5, kernels and biases: torch's default for nn.Linear and
    convs."""
    limit = owner.get_parameter("weight")[0].numel() ** -0.5
    values.uniform_(-limit, limit, generator=generator)


DENSE = [
    f"{layer}.{part}"
    for layer in ("patch", "qkv", "q", "kv", "out", "mlp", "glu", "rep", "head")
    for part in ("kernel", "bias")
]

# Roles that no scheme sets, or that all set alike. pycls/models/vit.py and deit/models_v2.py leave
# the convolutions of their stems as torch has them.
EVERYWHERE: dict[str, Rule] = {
    "scale": constant(1),
    "offset": constant(0),
    **dict.fromkeys(("conv.kernel", "conv.bias"), uniform_fan_in),
    "decoder.kernel": trunc_normal(0.02),  # Segmenter's segm/model/decoder.py
    "decoder.bias": constant(0),
    "probe": one_row,  # of big_vision's MAPHead
    "registers": normal(1e-6),  # DINOv2's vision_transformer.py, and timm's
    # For texts: flax's nn.Embed and nn.Dense, and the temperature of two_towers.py.
    "embedding": by_width,
    "readout.kernel": lecun_normal,
    "readout.bias": constant(0),
    "temperature": constant(log(10)),
}

# big_vision/models/vit.py (at 26c7bc8) and flax's defaults. It has no cls.posemb.
BIG_VISION: dict[str, Rule] = EVERYWHERE | {
    **dict.fromkeys((role for role in DENSE if role.endswith("bias")), constant(0)),
    **dict.fromkeys(("mlp.bias", "glu.bias"), normal(1e-6)),
    **dict.fromkeys(("patch.kernel", "rep.kernel"), lecun_normal),
    **dict.fromkeys(("q.kernel", "out.kernel", "mlp.kernel"), xavier_uniform),
    "qkv.kernel": partial(xavier_uniform, parts=3),
    "kv.kernel": partial(xavier_uniform, parts=2),
    "glu.kernel": partial(xavier_uniform, parts=2),  # each of the two as if it were alone
    **dict.fromkeys(("posemb", "cls.posemb"), by_width),
    **dict.fromkeys(("cls", "head.kernel"), constant(0)),
}

# deit/models.py (timm's vision_transformer.py): also of DTN.
DEIT: dict[str, Rule] = (
    EVERYWHERE
    | {role: constant(0) if role.endswith("bias") else trunc_normal(0.02) for role in DENSE}
    | dict.fromkeys(("posemb", "cls", "cls.posemb"), trunc_normal(0.02))
)

# torch's defaults, as in BatchNorm_in_Transformers_CV (model/vit_org.py, dnn.py).
TORCH: dict[str, Rule] = (
    EVERYWHERE
    | dict.fromkeys(DENSE, uniform_fan_in)
    | dict.fromkeys(("posemb", "cls", "cls.posemb"), normal(1))
)

SCHEMES = {"big_vision": BIG_VISION, "deit": DEIT, "torch": TORCH}


def as_torch(owner: nn.Module, name: str, seed: int) -> Tensor:
    """Return the initial values that a layer's `reset_parameters()` gives a parameter, for a layer
    whose constructor does not fill it.

    Raises UserError where the layer has no `reset_parameters()`.
    """
    reset = getattr(owner, "reset_parameters", None)
    if reset is None:
        raise UserError(
            f"{type(owner).__name__}: nothing says how its parameter {name!r} starts; fill it in "
            f"the constructor, or give the class roles = {{{name!r}: 'scale'}} (1) or 'offset' (0)"
        )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        reset()
    return owner.get_parameter(name).detach().clone()


def by_part(values: Tensor, owner: nn.Module, name: str, scheme: str, seed: int) -> str:
    """Fill a parameter's initial values as its module declares. Return in words what filled them,
    or "" where the module declares nothing."""
    declaration, generator = traits(owner, Traits), Generator().manual_seed(seed)
    if declaration.initialise(name, values, generator):
        return "its initialise()"
    role = declaration.roles.get(name)
    if role not in SCHEMES[scheme]:
        return ""
    SCHEMES[scheme][role](values, generator, owner)
    return f"its role {role!r}"


@torch.no_grad()
def initialise(model: Host, seed: int) -> None:
    """Fill every parameter of the model, on the CPU and in float32 whatever type the model has.

    A module may fill a parameter by itself, or declare its role: see `Traits`. A parameter with
    neither has the values of its constructor, see `Constructed`, or else of `as_torch`.
    `model.head_bias` is added to the head's bias.
    """
    constructed = Constructed(model, seed)
    for name, parameter in model.named_parameters():
        path, _, own_name = name.rpartition(".")
        owner = model.get_submodule(path)
        values = torch.empty(parameter.shape, device="cpu", dtype=torch.float32)
        declaration = traits(owner, Traits)
        if not by_part(values, owner, own_name, model.init, draw_key(seed, "init", name)):
            value = constructed.value(name)
            if value is not None:
                values.copy_(value)
            else:
                values = as_torch(owner, own_name, draw_key(seed, "init", path))
        if declaration.roles.get(own_name) == "head.bias":
            values += model.head_bias
        parts = torch.atleast_1d(values).chunk(len(declaration.gains))
        for part, gain in zip(parts, declaration.gains, strict=True):
            part *= gain
        parameter.copy_(values)
    for name, buffer in model.named_buffers():
        value = constructed.value(name)
        if value is not None:
            buffer.copy_(value)


@torch.no_grad()
def overruled(model: Host, seed: int) -> list[str]:
    """Return a line on each parameter that its role fills in another way than its constructor does,
    once for each class of the user's own. `model` may be without weights.

    Raises UserError where nothing fills a parameter, or where a constructor gives other values each
    time.
    """
    lines: dict[tuple[type, str], str | None] = {}
    constructed, reconstructed = Constructed(model, seed), Constructed(model, seed)
    for name, parameter in model.named_parameters():
        path, _, own_name = name.rpartition(".")
        owner = model.get_submodule(path)
        cls = type(owner)
        if (cls, own_name) in lines or cls.__module__.startswith(("ablate.", "torch.")):
            continue
        lines[cls, own_name] = None
        value, values = constructed.value(name), torch.empty(parameter.shape, device="cpu")
        filler = by_part(values, owner, own_name, model.init, draw_key(seed, "init", name))
        if filler:
            if value is not None and not torch.equal(values, value.float()):
                lines[cls, own_name] = (
                    f"{cls.__name__}: {own_name!r} starts by {filler}, not as its constructor "
                    f"fills it; leave that out where the constructor shall count"
                )
        elif value is None:
            as_torch(owner, own_name, seed)
        elif (second_value := reconstructed.value(name)) is None or not torch.equal(
            value, second_value
        ):
            raise UserError(
                f"{cls.__name__}: its constructor gives {own_name!r} other values each time; "
                f"draw them by torch's functions, without a generator"
            )
    return [line for line in lines.values() if line]
