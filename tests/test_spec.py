"""What a key says of itself, and what must hold between keys. Composition is test_config's."""

import dataclasses
import math
import typing

import pytest
from support.runs import GOLDEN_RUN

from ablate.planning.analysis_keys import Analysis
from ablate.planning.cell import Tune
from ablate.planning.launcher import DRIVER_KEYS, launcher_settings
from ablate.run import choices, sections
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.run.schema import Bounds, field_keys, field_types, read_field
from ablate.shared.errors import UserError

SECTIONS = {
    name: cls
    for name, cls in field_types(Run).items()
    if dataclasses.is_dataclass(cls) and name not in choices.CHOICES
} | {"analysis": Analysis}
KEYS = [f"{name}.{key}" for name, cls in SECTIONS.items() for key in field_types(cls)]


TUNE = [f"tune.{key}" for key in field_keys(Tune)]  # the rest is no key of its own


@pytest.mark.parametrize("key", [*KEYS, *TUNE, "run.seed", "run.probe"])
def test_every_key_says_what_it_does_in_a_line(key: str) -> None:
    name, _, field = key.partition(".")
    line = field_keys({**SECTIONS, "run": Run, "tune": Tune}[name])[field].line
    assert 0 < len(line) < 90
    assert line.isprintable()


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "said"),
    [
        (Bounds(above=0), [1e-9, math.inf], [0, -1], "more than 0"),
        (Bounds(least=0), [0, 5], [-1e-9], "at least 0"),
        (Bounds(least=0, below=1), [0, 0.99], [1, -0.1], "at least 0 and less than 1"),
        (Bounds(above=0, most=1), [0.1, 1], [0, 1.1], "more than 0 and at most 1"),
        (Bounds(most=65_536), [-1, 65_536], [65_537], "at most 65,536"),
        (Bounds(above=5), [None, "train", True], [5], "more than 5"),  # of numbers alone
    ],
)
def test_bounds(bounds: Bounds, inside: list[object], outside: list[object], said: str) -> None:
    for value in inside:
        bounds.check(value, "a.key")
    for value in outside:
        with pytest.raises(UserError) as caught:
            bounds.check(value, "a.key")
        assert str(caught.value) == f"a.key: must be {said}, got {value!r}"


@pytest.mark.parametrize("key", [key for key in KEYS if key.partition(".")[0] in GOLDEN_RUN])
def test_a_number_out_of_bounds_is_refused_by_its_key(key: str) -> None:
    """In the whole tree: every section asks its keys."""
    name, _, field = key.partition(".")
    bounds = field_keys(SECTIONS[name]).get(field, Bounds())
    for bound, out in ((bounds.above, 0), (bounds.least, -1), (bounds.below, 0), (bounds.most, 1)):
        if bound is not None:
            tree = {**GOLDEN_RUN, name: {**GOLDEN_RUN[name], field: bound + out}}
            with pytest.raises(UserError, match=f"^{key}: must be {bounds}, got "):
                build_run(tree)


def test_the_launchers_keys_are_bounded_too() -> None:
    for key in (*DRIVER_KEYS, "runs_per_gpu"):
        with pytest.raises(UserError, match=rf"^launcher\.{key}: must be more than 0, got 0"):
            launcher_settings({"name": "local", key: 0})


def test_a_settings_bounds_hold_for_every_choice_that_has_it() -> None:
    for kind, table in choices.CHOICES.items():
        for name, choice in table.items():
            if "eps" in choice.params:
                tree = {**GOLDEN_RUN, kind: {"name": name, **defaults(choice), "eps": -1.0}}
                with pytest.raises(UserError, match=f"^{kind}.eps: must be at least 0, got -1.0"):
                    build_run(tree)


def defaults(choice: choices.Choice) -> dict[str, object]:
    return {key: param.default for key, param in choice.params.items()}


def test_a_thousand_is_read_where_the_arch_is_spelled_out() -> None:
    model = {**GOLDEN_RUN["model"], "width": "1k", "heads": "1k", "head_dim": None}
    assert build_run({**GOLDEN_RUN, "model": model}).model.head_dim == 1


def test_a_literal_of_numbers_takes_no_other_type() -> None:
    assert read_field(sections.Data, "channels", 3, "data.channels") == 3
    for wrong in (3.0, True, "3", 2):
        with pytest.raises(UserError, match=r"data\.channels: expected one of 1, 3, got "):
            read_field(sections.Data, "channels", wrong, "data.channels")


def test_what_a_key_may_say_is_read_from_its_type() -> None:
    """`hints` has the types alone: what else stands in an annotation is no part of them."""
    for cls in SECTIONS.values():
        for hint in field_types(cls).values():
            assert typing.get_origin(hint) is not typing.Annotated
