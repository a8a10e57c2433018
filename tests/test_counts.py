"""Counts and amounts with their nouns: no sentence says "1 runs"."""

import pytest

from ablate.shared.counts import amount_text, count_text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (1200, "run", "1,200 runs"),
        (1, "micro-batch", "1 micro-batch"),
        (2, "search", "2 searches"),
    ],
)
def test_a_count_has_the_form_of_its_noun(count, noun, text):
    assert count_text(count, noun) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        ("1", "points", "1 point"),
        ("1.0", "points", "1.0 points"),
        ("1 (1 to 2)", "points", "1 (1 to 2) points"),
        ("1", "kbps", "1 kbps"),  # a unit of the user's own is no plural
        ("1", "", "1"),
    ],
)
def test_an_amount_has_the_form_of_its_unit(number, unit, text):
    assert amount_text(number, unit) == text
