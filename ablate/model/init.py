"""Initial weights: each drawn by its name, by a rule for its role.

A weight depends on (seed, name) alone, so a norm added elsewhere moves no other weight and all
variants of a seed start from the same shared weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt

import torch
from torch import Generator, Tensor
from torch.nn import init

from ablate.keyed import Draws
from ablate.model.vit import ViT

Rule = Callable[[Tensor, Generator], object]

# The standard deviation of a standard normal truncated at +-2.
TRUNCATED = 0.87962566103423978


def constant(value: float) -> Rule:
    """`value` everywhere."""
    return lambda weight, _: weight.fill_(value)


def normal(std: float) -> Rule:
    """Normal, not truncated."""
    return lambda weight, generator: weight.normal_(0, std, generator=generator)


def lecun_normal(weight: Tensor, generator: Generator) -> None:
    """Variance 1 / fan_in *after* truncation at two (untruncated) deviations, as in flax."""
    std = weight.shape[1] ** -0.5 / TRUNCATED
    init.trunc_normal_(weight, 0, std, -2 * std, 2 * std, generator=generator)


def xavier_uniform(weight: Tensor, generator: Generator, parts: int = 1) -> None:
    """Uniform within sqrt(6 / (fan_in + fan_out)); `parts`: how many matrices are fused in it."""
    fan_out, fan_in = weight.shape
    limit = sqrt(6 / (fan_in + fan_out // parts))
    weight.uniform_(-limit, limit, generator=generator)


def by_width(weight: Tensor, generator: Generator) -> None:
    """Normal with std D^-0.5."""
    weight.normal_(0, weight.shape[-1] ** -0.5, generator=generator)


# big_vision/models/vit.py (at 26c7bc8) and flax's defaults. head.bias: `model.head_bias`.
BIG_VISION: dict[str, Rule] = {
    "patch.kernel": lecun_normal,
    "patch.bias": constant(0),
    "posemb": by_width,
    "cls": constant(0),
    "qkv.kernel": partial(xavier_uniform, parts=3),
    "qkv.bias": constant(0),
    "out.kernel": xavier_uniform,
    "out.bias": constant(0),
    "mlp.kernel": xavier_uniform,
    "mlp.bias": normal(1e-6),
    "scale": constant(1),
    "offset": constant(0),
    "rep.kernel": lecun_normal,
    "rep.bias": constant(0),
    "head.kernel": constant(0),
}


@torch.no_grad()
def initialise(model: ViT, seed: int) -> None:
    """Fill every parameter of the model, on the CPU and in float32 whatever the model is in."""
    rules = BIG_VISION | {"head.bias": constant(model.head_bias)}
    draws = Draws(seed)
    for name, parameter in model.named_parameters():
        owner, _, own_name = name.rpartition(".")
        role = getattr(model.get_submodule(owner), "roles", {}).get(own_name)
        assert role in rules, f"{name}: no initialiser for role {role!r}"
        values = torch.empty(parameter.shape, device="cpu", dtype=torch.float32)
        rules[role](values, draws.at("init", name))
        parameter.copy_(values)
