"""What a sweep declares: its printed words, and the values of Python."""

import pytest
from support.declared import declare

from ablate.planning.declared import Change, Declared, Options, word_of, words_of

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


@pytest.mark.parametrize("value", AWKWARD)
def test_printed_words_declare_the_same_value(value):
    declared = Declared(None, tuple(words_of({"data": {"name": value}, "stem": ("none", value)})))
    assert declare(*declared.texts) == declared


def test_printed_options_declare_the_same():
    changes = (Change("dpn", (word_of("stem", "dpn"), word_of("data.path", "a b"))),)
    declared = Declared("mine", (), Options("digits", ("a.b",), True, changes, "both", "x", 8, 0.5))
    assert declare(*declared.texts) == declared
