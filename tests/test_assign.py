"""Which run starts on which slot: a table, row by row."""

from __future__ import annotations

import itertools
import random

import pytest

from ablate.running.driver import assign
from ablate.running.launchers import Slot
from ablate.running.places import blame, gives_up
from ablate.store.events import RunState

SLOTS = [Slot(name, name.partition(".")[0], "cuda") for name in ("g0.0", "g0.1", "g1.0", "g1.1")]
BY_NAME = {slot.name: slot for slot in SLOTS}
OOM, AGAIN = RunState("oom", oom=1), RunState("started", oom=1)  # waiting, and at work once more
NOTHING = None


def assigned(pending="", slots=None, lost=(), retired=(), states=(), wanted="", **working):
    """`pending`: a run a letter; `working`: run=slot, with _ for the dot of its name."""
    at = {
        run: None if name is None else BY_NAME[name.replace("_", ".")]
        for run, name in working.items()
    }
    known = {run: RunState() for run in (*pending, *at)} | dict(states)
    lost = {place: frozenset(runs) for place, runs in dict(lost).items()}
    slots = SLOTS if slots is None else slots
    found = assign([*pending], at, slots, known, lost, retired, [*wanted])
    return found and (found[0], found[1].name)


TABLE = [
    # the first run goes on the first slot that is free
    (dict(pending="ab"), ("a", "g0.0")),
    (dict(pending="b", a="g0_0"), ("b", "g0.1")),
    (dict(pending="c", a="g0_0", b="g1_0"), ("c", "g0.1")),
    # what the user wants first, in that order; what has gone is passed over
    (dict(pending="abc", wanted="cb"), ("c", "g0.0")),
    (dict(pending="abc", wanted="xb"), ("b", "g0.0")),
    (dict(pending="abc", wanted="c", states={"c": OOM}), ("a", "g0.0")),
    (dict(pending="ac", wanted="c", lost={"g0": "c"}, b="g1_0", d="g1_1"), ("a", "g0.0")),
    # nothing to start, no slot, none free
    (dict(), NOTHING),
    (dict(pending="a", slots=[]), NOTHING),
    (dict(pending="e", a="g0_0", b="g0_1", c="g1_0", d="g1_1"), NOTHING),
    # a worker on a slot that is not offered any more takes the room of one that is
    (dict(pending="e", a="g0_0", b="g0_1", c="g1_0", d=None), NOTHING),
    (dict(pending="e", a="g0_0", b="g0_1", d=None), ("e", "g1.0")),
    # out of memory: last, and alone on its place
    (dict(pending="ab", states={"a": OOM}), ("b", "g0.0")),
    (dict(pending="a", states={"a": OOM}), ("a", "g0.0")),
    (dict(pending="a", b="g0_1", states={"a": OOM}), ("a", "g1.0")),
    (dict(pending="a", b="g0_1", c="g1_0", states={"a": OOM}), NOTHING),
    # nobody joins one that is there alone
    (dict(pending="b", a="g0_0", states={"a": AGAIN}), ("b", "g1.0")),
    (dict(pending="b", a="g0_0", c="g1_1", states={"a": AGAIN, "c": AGAIN}), NOTHING),
    # lost its device: elsewhere, if there is somewhere else; another run may still try there
    (dict(pending="a", lost={"g0": "a"}), ("a", "g1.0")),
    (dict(pending="ab", lost={"g0": "a"}, c="g1_0", d="g1_1"), ("b", "g0.0")),
    (dict(pending="a", lost={"g0": "a"}, c="g1_0", d="g1_1"), NOTHING),
    (dict(pending="a", lost={"g0": "a"}, retired=["g1"]), ("a", "g0.0")),
    (dict(pending="a", lost={"g0": "a"}, slots=SLOTS[:2]), ("a", "g0.0")),
    # a place that was given up takes nobody
    (dict(pending="a", retired=["g0"]), ("a", "g1.0")),
    (dict(pending="a", retired=["g0", "g1"]), NOTHING),
]


@pytest.mark.parametrize(("given", "expected"), TABLE)
def test_each_row(given, expected):
    assert assigned(**given) == expected


def test_whatever_is_given_only_a_pending_run_goes_and_only_on_a_slot_that_is_free():
    draw = random.Random(0)
    kinds = (RunState(), RunState("interrupted"), OOM)
    for _ in range(3000):
        slots = draw.sample(SLOTS, draw.randint(0, 4))
        working = {f"w{slot.name}": slot for slot in SLOTS if draw.random() < 0.3}
        states = {run: draw.choice((RunState("started"), AGAIN)) for run in working}
        pending = [f"p{n}" for n in range(draw.randint(0, 3))]
        states |= {run: draw.choice(kinds) for run in pending}
        lost = {
            place: frozenset(p for p in pending if draw.random() < 0.3) for place in ("g0", "g1")
        }
        retired = [place for place in ("g0", "g1") if draw.random() < 0.2]
        found = assign(pending, working, slots, states, lost, retired)
        if found is None:
            continue
        run, slot = found
        assert run in pending
        assert slot in slots
        assert slot not in working.values()
        assert slot.place not in retired
        beside = [other for other, at in working.items() if at.place == slot.place]
        assert not any(states[other].oom for other in beside)
        assert not (states[run] == OOM and beside)


def test_who_is_to_blame_for_a_lost_device():
    once = blame({}, "a", "g0")
    assert once == {"g0": {"a"}}
    assert blame(once, "b", "g0") == {"g0": {"a", "b"}}
    assert blame(once, "a", "g0") == once  # again on the same place says no more
    assert blame(once, "a", "g1") == {"g0": set()}  # on two places: it is the run
    for order in itertools.permutations(["a", "b", "c"]):
        lost = {}
        for run in order:
            lost = blame(lost, run, "g0")
        assert lost == {"g0": {"a", "b", "c"}}


@pytest.mark.parametrize(
    ("runs", "variants", "given_up"),
    [
        ("a1", "ab", False),
        ("a1 b1", "ab", True),
        ("a1 a2 a3 a4", "ab", False),  # its own code may be what breaks devices
        ("a1 a2 a3 b1", "abc", True),
        ("a1", "a", False),
        ("a1 a2", "a", True),  # there is no other to tell by
    ],
)
def test_a_place_is_not_given_up_for_one_variant(runs, variants, given_up):
    known = {f"{name}{seed}": name for name in variants for seed in range(1, 5)}
    assert gives_up(runs.split(), known) == given_up
