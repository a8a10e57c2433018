"""What a sweep declares: its printed words, the values of Python, and the plan's file."""

import json
import shlex
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.declared import declare
from support.plans import small_plan

from ablate.planning.declared import (
    Change,
    Declared,
    DeclaredImport,
    Options,
    word_of,
    words_of,
)
from ablate.planning.plan import Plan
from ablate.planning.settings import Word
from ablate.shared.errors import UserError

AWKWARD = [
    *(
        "a b",
        "a,b",
        "it's",
        'a "b"',
        "x=1",
        "é中",
        "1e-3",
        "08",
        "null",
        "True",
        "",
        "[a]",
        "{a: 1}",
    ),
    *("a\\", "\\'", "glob(*)", "S/16", "timm:vit", "./a/b", "~/a", 1, 1e-5, True, None, []),
    ["a b", "1", 1, [None]],
]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "))
NUMBERS = st.integers() | st.floats(allow_nan=False)
VALUES = st.recursive(TEXTS | NUMBERS | st.booleans() | st.none(), st.lists, max_leaves=4)
CHANGES = (
    Change("dpn", (word_of("stem", "dpn"), word_of("data.path", "a b"))),
    Change("hot", (word_of("optim.lr", 0.01),)),
)
OPTIONS = Options("digits", ("a.b", "c"), True, CHANGES, "both", "x", 8, 0.1234567)
# Every field of a declaration has a value that is not its default.
FULL = Declared(
    "mine",
    (
        Word("stem", ("none", "dpn"), swept=True, glob=True),
        Word("probe", (["scales", ["gradnorm"]],)),
        Word("optim.lr", (1e-3, 1, True, None, "1e-3"), swept=True),
        Word("seeds", (4,)),
    ),
    OPTIONS,
)


@pytest.mark.parametrize("value", AWKWARD)
def test_printed_words_declare_the_same_value(value):
    declared = Declared(None, tuple(words_of({"data": {"name": value}, "stem": ("none", value)})))
    assert declare(*declared.texts) == declared


@pytest.mark.whole
@given(VALUES, VALUES)
def test_printed_words_of_any_value_declare_it(value, other):
    words = words_of({"data": {"name": value}, "stem": (value, other)})
    changes = (Change("a change", tuple(words_of({"data": {"name": value, "channels": other}}))),)
    declared = Declared(None, tuple(words), Options(change=changes))
    again = declare(*shlex.split(shlex.join(declared.texts)))
    # A number and a bool that are equal differ as text.
    assert (again, repr(again)) == (declared, repr(declared))


def test_a_label_of_several_words_needs_no_escaped_quotes_in_a_shell():
    assert shlex.join([Word("columns", ("patch 4",)).text]) == """'columns="patch 4"'"""


def test_printed_options_declare_the_same():
    declared = Declared("mine", (), OPTIONS)
    assert declare(*declared.texts) == declared


def defaults(value):
    """The fields of a value of a dataclass that are left at their defaults."""
    for part in fields(value):
        default = part.default if part.default_factory is MISSING else part.default_factory()
        if getattr(value, part.name) == default:
            yield part.name


@pytest.mark.parametrize(
    "declared",
    [FULL, DeclaredImport("runs/a b.csv", (("--as", "x"), ("--metric", "f1"), ("--metric", "f2")))],
)
def test_a_plan_file_keeps_every_field_of_a_declaration(declared):
    parts = [FULL, FULL.options, FULL.words[0], *CHANGES]
    assert [[*defaults(part)] for part in parts] == [[]] * len(parts)
    content = replace(small_plan(), declared=declared).to_bytes()
    again = Plan.from_tree(json.loads(content))
    assert again.declared == declared
    assert asdict(again.declared) == asdict(declared)  # `glob`, too, which `==` leaves out
    assert repr(again.declared) == repr(declared)  # True is not 1
    assert again.to_bytes() == content


@pytest.mark.parametrize("value", [{"a", "b"}, range(3), object(), 1j, b"x"])
def test_a_value_that_no_configuration_has_is_refused_with_its_key(value):
    with pytest.raises(UserError) as caught:
        words_of({"data": {"name": value}})
    (line,) = str(caught.value).splitlines()
    assert line.startswith("data.name: ")
    assert repr(value) in line
    assert "tuple" in line


def test_numbers_and_paths_of_other_packages_are_plain():
    values = word_of("x", (np.int64(3), np.float64(0.5), Path("a") / "b")).values
    assert (values, [*map(type, values)]) == ((3, 0.5, "a/b"), [int, float, str])
    with pytest.raises(UserError) as caught:
        word_of("x", np.array(["none", "dpn"]))
    assert str(caught.value).startswith("x: ")
