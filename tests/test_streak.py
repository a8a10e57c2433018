"""When a sweep stops by itself: a table of endings, row by row; then a real sweep."""

from __future__ import annotations

import random

import pytest

from ablate.running.streak import AT_MOST, AT_ONCE_S, Ending, Endings, way

FEW = "abcdef"


def row(text: str, variants: str = FEW, proven: str = "", works: bool = False) -> int:
    """What a drive hears after these endings on a place: `a1!` is a run of variant a, seed 1, that
    failed at once with the error "!", `a1` one that worked."""
    endings, said = Endings(), 0
    for name in text.split():
        ending = Ending(name[:2], (name[0], ""), name[2:])
        said = endings.add(
            "gpu:0", ending, [(v, "") for v in variants], [(v, "") for v in proven], works
        )
    return said


TABLE = [
    # three runs, three variants, alike, one after another
    ("a1! b1! c1!", {}, 3),
    ("a1! b1!", {}, 0),
    ("a1! b1! c1?", {}, 0),
    ("a1? b1! c1! d1!", {}, 3),
    # a run that worked between them
    ("a1! b1! c1 d1!", {}, 0),
    # one variant that is broken, and its attempts
    ("a1! a2! a3! a4!", {}, 0),
    ("a1! a1! a1! b1!", {}, 0),
    ("a1! b1! a2! b2!", {}, 0),
    # where a sweep has no more variants than that they are all
    ("a1! b1! a2!", dict(variants="ab"), 3),
    ("a1! b1!", dict(variants="ab"), 0),
    ("a1! a2! a3!", dict(variants="a"), 3),
    # something works there: then variants that never have are suspects themselves
    ("x1 a1! b1! c1!", {}, 0),
    ("a1! b1! c1!", dict(works=True), 0),
    ("x1 a2! b2! c2!", dict(proven="abc"), 3),
    ("x1 a2! b2! c2!", dict(proven="ab"), 0),
    ("x1 a2! d1! b2! c2!", dict(proven="abc"), 4),
]


@pytest.mark.parametrize(("text", "more", "said"), TABLE)
def test_each_row(text, more, said):
    assert row(text, **more) == said


def test_deaths_by_a_signal_end_no_sweep_while_attempts_are_left():
    endings, said = Endings(), []
    for attempt in (1, 2, 3):
        for run in ("a1", "b1", "c1"):
            ending = Ending(run, (run[0], ""), "!", spared=attempt < 3)
            said.append(endings.add("cpu", ending, [(v, "") for v in FEW], [], False))
    assert said == [0] * 8 + [3]


def test_places_are_apart():
    endings = Endings()
    for place in ("gpu:0", "gpu:1", "gpu:2"):
        ending = Ending(place, (place, ""), "!")
        assert endings.add(place, ending, [(v, "") for v in FEW], [], False) == 0


def test_never_more_than_so_many_fail_alike_in_a_row_whatever_has_worked():
    draw = random.Random(0)
    for _ in range(200):
        runs = [f"{draw.choice(FEW)}{n:03}" for n in range(1, AT_MOST + 1)]
        endings = Endings()
        endings.add("cpu", Ending("x", ("x", ""), ""), [], [], True)
        said = [
            endings.add("cpu", Ending(run, (run[0], ""), "!"), [(v, "") for v in FEW], [], True)
            for run in runs
        ]
        assert said == [0] * (AT_MOST - 1) + [AT_MOST]


def test_one_variant_that_fails_with_each_of_its_seeds_stops_no_sweep():
    endings = Endings()
    endings.add("cpu", Ending("x", ("x", ""), ""), [], [], True)
    for seed in range(3 * AT_MOST):
        ending = Ending(f"a{seed}", ("a", ""), "!")
        assert endings.add("cpu", ending, [(v, "") for v in FEW], [], True) == 0
    for name, said in (("b", 0), ("c", 3 * AT_MOST + 2)):
        ending = Ending(f"{name}1", (name, ""), "!")
        assert endings.add("cpu", ending, [(v, "") for v in FEW], [], True) == said


def test_the_same_way_is_the_same_but_for_numbers():
    first = "OutOfMemoryError: Tried to allocate 20.00 MiB (GPU 0; 612.33 MiB free) at 0x7f3a"
    other = "OutOfMemoryError: Tried to allocate 1.50 MiB (GPU 1; 6.1 MiB free) at 0x99"
    assert way("oom", first, 1.0, False) == way("oom", other, 2.0, False) != ""
    assert way("oom", first, 1.0, False) != way("failed", first, 1.0, False)
    assert way("failed", "ValueError: a", 1, False) != way("failed", "ValueError: b", 1, False)
    # it worked for a while; a run that made no step did not, however long that took
    assert way("failed", first, AT_ONCE_S, True) == ""
    assert way("failed", first, AT_ONCE_S - 1, True) != ""
    assert way("failed", first, 10 * AT_ONCE_S, False) != ""
