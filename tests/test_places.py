"""When a sweep stops by itself: a table of endings, row by row; then a real sweep."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from ablate.running.board import (
    AT_MOST,
    AT_ONCE_S,
    ActiveRun,
    Ending,
    PlaceHealth,
    failure_kind,
    failures_alike,
)
from ablate.running.launchers import Slot
from ablate.store.events import RunState

FEW = "abcdef"


def add(endings: list[Ending], ending: Ending, proven=(), works=False, variants=FEW) -> int:
    endings.append(ending)
    return failures_alike(endings, len(variants), proven, works)


def row(text: str, variants: str = FEW, proven: str = "", works: bool = False) -> int:
    """What a drive hears after these endings on a place: `a1!` is a run of variant a, seed 1, that
    failed at once with the error "!", `a1` one that worked."""
    endings, said = [], 0
    for name in text.split():
        ending = Ending(name[:2], (name[0], ""), name[2:])
        said = add(endings, ending, {(v, "") for v in proven}, works, variants)
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
    endings, said = [], []
    for attempt in (1, 2, 3):
        for run in ("a1", "b1", "c1"):
            ending = Ending(run, (run[0], ""), "!", spared=attempt < 3)
            said.append(add(endings, ending))
    assert said == [0] * 8 + [3]


def test_never_more_than_so_many_fail_alike_in_a_row_whatever_has_worked():
    draw = random.Random(0)
    for _ in range(200):
        runs = [f"{draw.choice(FEW)}{n:03}" for n in range(1, AT_MOST + 1)]
        endings = []
        add(endings, Ending("x", ("x", ""), ""), works=True)
        said = [add(endings, Ending(run, (run[0], ""), "!"), works=True) for run in runs]
        assert said == [0] * (AT_MOST - 1) + [AT_MOST]


def test_one_variant_that_fails_with_each_of_its_seeds_stops_no_sweep():
    endings = []
    add(endings, Ending("x", ("x", ""), ""), works=True)
    for seed in range(3 * AT_MOST):
        ending = Ending(f"a{seed}", ("a", ""), "!")
        assert add(endings, ending, works=True) == 0
    for name, said in (("b", 0), ("c", 3 * AT_MOST + 2)):
        ending = Ending(f"{name}1", (name, ""), "!")
        assert add(endings, ending, works=True) == said


def test_places_are_apart():
    runs = {f"{v}{n}": planned(v, n) for v in "abc" for n in "12"}
    states = dict.fromkeys(runs, RunState())
    health = PlaceHealth(print, SimpleNamespace(runs=runs, states=states, active={}))
    for place, run in zip(
        ("gpu:0", "gpu:1", "gpu:2", "gpu:0"), ("a1", "b1", "c1", "b2"), strict=True
    ):
        health.judge(failed(runs[run], place), "failed", died=False, more=False)
        assert health.stopped is None
    health.judge(failed(runs["c2"], "gpu:0"), "failed", died=False, more=False)
    assert health.stopped == "3 runs in a row failed at once on gpu:0, all alike (!)"


def planned(variant, seed):
    return SimpleNamespace(id=f"{variant}{seed}", cell=SimpleNamespace(row=variant, column=""))


def failed(run, place):
    """A worker that left no result, and an error."""
    notes = SimpleNamespace(notes=lambda folder: {"error": "!"})
    folder = SimpleNamespace(has_result=lambda: False)
    return ActiveRun(run, folder, Slot(place, place, "cuda"), notes, child=True)


def test_the_same_way_is_the_same_but_for_numbers():
    kind = failure_kind
    first = "OutOfMemoryError: Tried to allocate 20.00 MiB (GPU 0; 612.33 MiB free) at 0x7f3a"
    other = "OutOfMemoryError: Tried to allocate 1.50 MiB (GPU 1; 6.1 MiB free) at 0x99"
    assert kind("oom", first, 1.0, False) == kind("oom", other, 2.0, False) != ""
    assert kind("oom", first, 1.0, False) != kind("failed", first, 1.0, False)
    assert kind("failed", "ValueError: a", 1, False) != kind("failed", "ValueError: b", 1, False)
    # it worked for a while; a run that made no step did not, however long that took
    assert kind("failed", first, AT_ONCE_S, True) == ""
    assert kind("failed", first, AT_ONCE_S - 1, True) != ""
    assert kind("failed", first, 10 * AT_ONCE_S, False) != ""
