"""When a sweep stops by itself: a table of endings, row by row; then a real sweep."""

import random
from types import SimpleNamespace

import pytest

from ablate.run.rundir import RANK_KILLED, RANK_LOST
from ablate.running.board import (
    ALIKE_ANYWAY,
    AT_ONCE_S,
    ActiveRun,
    Board,
    Ending,
    PlaceHealth,
    failure_kind,
    failures_alike,
)
from ablate.running.launchers import Slot
from ablate.shared.notes import Notes
from ablate.store.events import RunState

FEW = "abcdef"


def add(endings: list[Ending], ending: Ending, variants=FEW, proven=(), works=False) -> int:
    endings.append(ending)
    return failures_alike(endings, len(variants), [(v, "") for v in proven], works)


def ending(run: str, kind: str = "!", **more) -> Ending:
    """Of a run whose variant is its first letter."""
    return Ending(run, (run[0], ""), kind, **more)


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
    """`a1!` is a run of variant a, seed 1, that failed at once with the error "!", `a1` worked."""
    endings = []
    heard = [add(endings, ending(name[:2], name[2:]), **more) for name in text.split()]
    assert heard[-1] == said


def test_deaths_by_a_signal_end_no_sweep_while_attempts_are_left():
    endings, runs = [], [(run, attempt < 3) for attempt in (1, 2, 3) for run in ("a1", "b1", "c1")]
    said = [add(endings, ending(run, spared=spared)) for run, spared in runs]
    assert said == [0] * 8 + [3]


def test_never_more_than_so_many_fail_alike_in_a_row_whatever_has_worked():
    draw = random.Random(0)
    for _ in range(200):
        endings = [ending("x", "")]
        runs = [f"{draw.choice(FEW)}{n:03}" for n in range(1, ALIKE_ANYWAY + 1)]
        said = [add(endings, ending(run), works=True) for run in runs]
        assert said == [0] * (ALIKE_ANYWAY - 1) + [ALIKE_ANYWAY]


def test_one_variant_that_fails_with_each_of_its_seeds_stops_no_sweep():
    endings = [ending("x", "")]
    for seed in range(3 * ALIKE_ANYWAY):
        assert add(endings, ending(f"a{seed}"), works=True) == 0
    assert add(endings, ending("b1"), works=True) == 0
    assert add(endings, ending("c1"), works=True) == 3 * ALIKE_ANYWAY + 2


def test_places_are_apart():
    runs = {f"{v}{n}": planned(v, n) for v in "abc" for n in "12"}
    states = dict.fromkeys(runs, RunState())
    health = PlaceHealth(print, SimpleNamespace(runs=runs, states=states, active={}))
    for place, run in zip(
        ("gpu:0", "gpu:1", "gpu:2", "gpu:0"), ("a1", "b1", "c1", "b2"), strict=True
    ):
        health.judge(failed(runs[run], cuda(place)), "failed", died=False, has_attempts=False)
        assert health.stopped is None
    health.judge(failed(runs["c2"], cuda("gpu:0")), "failed", died=False, has_attempts=False)
    assert health.stopped is not None
    assert health.stopped.startswith("3 runs in a row failed at once on gpu:0, all alike (!)")


@pytest.mark.parametrize(
    ("exit", "more", "stops"), [(RANK_KILLED, True, False), (RANK_LOST, True, True)]
)
def test_ranks_that_were_killed_end_no_sweep_whose_runs_have_attempts_left(exit, more, stops):
    runs = {f"{v}1": planned(v, 1) for v in "abc"}
    states = dict.fromkeys(runs, RunState())
    health = PlaceHealth(print, SimpleNamespace(runs=runs, states=states, active={}))
    for run in runs.values():
        health.judge(failed(run, cuda("cpu")), exit, died=True, has_attempts=more)
    assert (health.stopped is not None) is stops


@pytest.mark.parametrize(
    ("place", "undivided"),
    [
        ("gpu:0", {"gpu:0"}),  # a run that leaves its GPU, say, while its data is checked
        ("gpu:0+1", {"gpu:0", "gpu:0+1"}),
        ("gpu:1", set()),
    ],
)
def test_a_place_without_a_device_is_given_up_unless_another_run_has_it(place, undivided):
    """CUDA's compute mode may let one process use a GPU."""
    runs = {f"{v}1": planned(v, 1) for v in "ab"}
    group = ["gpu:0", "gpu:1"] if "+" in place else ()
    other = failed(runs["a1"], Slot(place, place, "cuda", group=group))
    board = Board(None, None, ())
    board.active["a1"] = other
    health = PlaceHealth(print, board)
    slot = cuda("gpu:0")
    health.note_no_device(failed(runs["b1"], slot), slot, "busy")
    assert health.undivided == undivided
    assert [*health.retired] == ([] if undivided else ["gpu:0"])
    board.active.clear()
    health.note_no_device(failed(runs["b1"], slot), slot, "busy")  # alone
    assert [*health.retired] == ["gpu:0"]
    ended = failed(runs["b1"], slot)
    ended.neighbours = {"gpu:0"}  # that has ended since
    health.note_no_device(ended, slot, "busy")
    assert "gpu:0" in health.undivided


def planned(variant, seed):
    return SimpleNamespace(id=f"{variant}{seed}", cell=SimpleNamespace(row=variant, column=""))


def cuda(place):
    return Slot(place, place, "cuda")


def failed(run, slot):
    """A worker that left no result, and an error."""
    notes = SimpleNamespace(notes=lambda folder: Notes(error="!"))
    folder = SimpleNamespace(has_result=lambda: False)
    return ActiveRun(run, folder, slot, notes, child=True)


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
