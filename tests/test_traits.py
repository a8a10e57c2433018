"""What a part of the model may say of itself: one protocol, for shipped classes and for users'."""

import dataclasses
import importlib
import re

import pytest
import torch
from pages import PAGES
from torch import nn

from ablate.run import choices
from ablate.training.model.norm import LayerNorm, Shape
from ablate.training.model.traits import BlockTraits, NormTraits, StemTraits, Traits, traits

KINDS = {"norm": NormTraits, "stem": StemTraits, "block": BlockTraits}


def names(kind: type[Traits]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", [Traits, *KINDS.values()])
def test_who_says_nothing_has_every_default(kind):
    said = traits(nn.Module(), kind)
    for field in dataclasses.fields(kind):
        value = getattr(said, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        assert type(value) is type(default)
        assert value == default or isinstance(value, nn.Identity)
    assert said.initialise("weight", torch.empty(2), torch.Generator()) is False


def test_an_instance_says_more_than_its_class():
    class Stem(nn.Module):
        blocks_saved = 1
        roles = {"token": "cls"}  # noqa: RUF012

        def __init__(self, after: bool):
            super().__init__()
            if after:
                self.after_cls = LayerNorm(Shape(4, 1, (1, 1), 0))
                self.blocks_saved = 2

    plain, more = traits(Stem(False), StemTraits), traits(stem := Stem(True), StemTraits)
    assert (plain.blocks_saved, more.blocks_saved) == (1, 2)
    assert isinstance(plain.after_cls, nn.Identity)
    assert more.after_cls is stem.after_cls
    assert more.roles == {"token": "cls"}
    assert traits(LayerNorm(Shape(4, 1, (1, 1), 0)), NormTraits).group == 4


@pytest.mark.parametrize(
    ("kind", "choice"),
    [(kind, choice) for kind in KINDS for choice in choices.CHOICES[kind].values()],
)
def test_shipped_classes_say_nothing_that_is_not_in_the_protocol(kind, choice):
    """An attribute of a trait's name in another kind of part would be asked by nobody."""
    module, _, name = choice.path.partition(":")
    cls = getattr(importlib.import_module(module), name)
    others = set().union(*map(names, KINDS.values())) - names(KINDS[kind])
    assert not [name for name in others if hasattr(cls, name)]


def test_the_manual_names_every_trait_and_its_kind():
    rows = re.findall(r"^\| `(\w+)` \| (all|norm|stem|block) \|", PAGES["docs/extending.md"], re.M)
    told = {name: kind for name, kind in rows if name != "version"}
    meant = dict.fromkeys(names(Traits), "all")
    for kind, cls in KINDS.items():
        meant |= dict.fromkeys(names(cls) - names(Traits), kind)
    assert told == meant
