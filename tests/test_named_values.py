"""What `ablate list` says of values without settings: every one that a key takes, and no other."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import pytest

from ablate.report.listing import CATALOGUE_KINDS
from ablate.run import PART_KINDS, TASKS, choices, field_keys, field_types
from ablate.run.named_values import AUGMENTATIONS, NAMED_VALUES
from ablate.run.sections import SECTIONS, Augment

# Fields of `augment` that turn nothing on by themselves.
QUALIFIERS = {"style", "randaug_magnitude"}


def literals(hint: Any) -> set[str]:
    """The names that an annotation allows besides import paths."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*map(literals, get_args(hint)))


@pytest.mark.parametrize("kind", sorted(NAMED_VALUES.keys() - {"optimizers", "augmentations"}))
def test_a_kind_lists_what_its_key_takes(kind):
    usage, values = NAMED_VALUES[kind]
    section, field = usage.removesuffix("=NAME").split(".")
    assert set(values) == literals(field_types(SECTIONS[section])[field])


def test_every_augmentation_is_listed():
    own = {name for name in field_keys(Augment) if name.startswith("extra")}
    assert AUGMENTATIONS.keys() == field_keys(Augment).keys() - own - QUALIFIERS


@pytest.mark.whole
def test_every_kind_of_part_of_the_users_own_has_its_list_of_shipped_ones(shell):
    """A new kind of part needs a list."""
    chosen = " ".join(usage for usage, _ in CATALOGUE_KINDS.values())
    for part_kind in PART_KINDS:
        assert f"{part_kind.key.removesuffix('extra')}" in chosen, part_kind.name
    text = shell("list").out
    for name in (*choices.OPTIMIZERS, *TASKS, *AUGMENTATIONS):
        assert f"\n  {name} " in text, name
    out = shell("list", "positions").out
    assert "model.posemb=NAME" in out.splitlines()[0]
    assert "arXiv 2104.09864" in out
    assert shell("list", "optimizers", "la").out.splitlines()[1].split()[0] == "lamb"
