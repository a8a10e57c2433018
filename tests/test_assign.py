"""Which run starts on which slot: a table, row by row."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ablate.running.board import PlaceHealth, PlaceRecord, blame, gives_up
from ablate.running.launchers import Slot, usable
from ablate.running.next_step import assign
from ablate.store.events import RunState

SLOTS = [Slot(name, name.partition(".")[0], "cuda") for name in ("g0.0", "g0.1", "g1.0", "g1.1")]
BY_NAME = {slot.name: slot for slot in SLOTS}
OOM, AGAIN = RunState("oom", oom=1), RunState("started", oom=1)  # waiting, and at work once more
NOTHING = None


def record(lost, retired, undivided=()):
    return PlaceRecord(lost, dict.fromkeys(retired), {*undivided})


def assigned(pending="", slots=SLOTS, lost=(), retired=(), undivided=(), states=(), **working):
    """`pending`: a run a letter; `working`: run=slot, with _ for the dot of its name."""
    at = {run: name and BY_NAME[name.replace("_", ".")] for run, name in working.items()}
    known = {run: RunState() for run in (*pending, *at)} | dict(states)
    lost = {place: frozenset(runs) for place, runs in dict(lost).items()}
    found = assign([*pending], at, slots, known, record(lost, retired, undivided))
    return found and (found[0], found[1].name)


TABLE = [
    # the first run goes on the first slot that is free
    (dict(pending="ab"), ("a", "g0.0")),
    (dict(pending="b", a="g0_0"), ("b", "g0.1")),
    (dict(pending="c", a="g0_0", b="g1_0"), ("c", "g0.1")),
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
    # a place whose device takes one process has one run at a time
    (dict(pending="a", undivided=["g0"]), ("a", "g0.0")),
    (dict(pending="b", a="g0_0", undivided=["g0"]), ("b", "g1.0")),
    (dict(pending="c", a="g0_1", b="g1_0", undivided=["g0"]), ("c", "g1.1")),
    (dict(pending="c", a="g0_1", b="g1_0", undivided=["g0", "g1"]), NOTHING),
]


@pytest.mark.parametrize(("given", "expected"), TABLE)
def test_each_row(given, expected):
    assert assigned(**given) == expected


def group(*numbers: int) -> Slot:
    names = [f"g{n}" for n in numbers]
    name = "g" + "+".join(map(str, numbers))
    return Slot(name, name, "cuda", None, len(numbers), names if len(names) > 1 else ())


FOUR = [group(n) for n in range(4)]
PAIRS = [group(0, 1), group(2, 3)]
ALL = group(0, 1, 2, 3)
GROUPS = {slot.name: slot for slot in (*FOUR, *PAIRS, ALL)}


@pytest.mark.parametrize(
    ("pending", "working", "expected", "more"),
    [
        # a run has as many devices as its column gets, and those on more come first
        ("a1 b2 c4", {}, ("c", "g0+1+2+3"), {}),
        ("a1 b2", {}, ("b", "g0+1"), {}),
        ("a1", {"b": "g0+1"}, ("a", "g2"), {}),
        ("a2", {"b": "g2"}, ("a", "g0+1"), {}),
        # a group that waits for its devices keeps those that are free; the others are given away
        ("a4 b1", {"c": "g3"}, NOTHING, {}),
        ("a2 b1", {"c": "g0", "d": "g2", "e": "g3"}, NOTHING, {}),
        ("a2 b1", {"c": "g0+1", "d": "g3"}, NOTHING, {}),
        ("a2 b1", {"c": "g0", "d": "g1", "e": "g2"}, NOTHING, {}),
        ("a2 b1 c1", {"d": "g0", "e": "g2", "f": "g3"}, NOTHING, {}),
        ("a2 b2", {"c": "g0", "d": "g2"}, NOTHING, {}),
        ("a2 b1", {"c": "g0", "d": "g2+3"}, NOTHING, {}),
        # where a device was given up, there are fewer in a group
        ("a4", {}, ("a", "g2+3"), {"retired": ["g0"]}),
        ("a4 b1", {"c": "g2"}, ("b", "g1"), {"retired": ["g0"]}),
        ("a2", {}, ("a", "g0"), {"retired": ["g1", "g2"]}),
        ("a4 b1", {}, NOTHING, {"retired": ["g0", "g1", "g2", "g3"]}),
        # lost its device in a group: in another one of the size, if there is one
        ("a2", {}, ("a", "g2+3"), {"lost": {"g0+1": frozenset("a")}}),
        ("a4", {}, ("a", "g0+1+2+3"), {"lost": {"g0+1+2+3": frozenset("a")}}),
    ],
)
def test_groups(pending, working, expected, more):
    worlds = {word[0]: int(word[1]) for word in pending.split()}
    at = {run: GROUPS[name] for run, name in working.items()}
    states = {run: RunState() for run in (*worlds, *at)}
    places = record(**{"lost": {}, "retired": [], **more})
    found = assign([*worlds], at, [*GROUPS.values()], states, places, worlds)
    assert (found and (found[0], found[1].name)) == expected


def test_nothing_is_left_of_groups_whose_devices_were_all_given_up():
    """Or a drive would wait for ever; on a host of a cluster names and places differ."""
    slots = [*GROUPS.values()]
    assert usable(slots, ["g0", "g2"]) == [GROUPS["g1"], GROUPS["g3"]]
    assert usable(slots, ["g0+1"]) == [*FOUR, PAIRS[1], ALL]
    for prefix in ("", "pilot/"):
        far = []
        for slot in slots:
            name, names = f"{prefix}{slot.name}", [f"{prefix}{name}" for name in slot.group]
            far.append(replace(slot, name=name, place=f"host/{slot.name}", group=names))
        given_up = [f"host/{slot.name}" for slot in FOUR]
        assert usable(far, given_up) == []
        assert [slot.ranks for slot in usable(far, given_up[:2])] == [1, 1, 2]


def test_groups_never_share_a_device_and_the_largest_waits_for_no_smaller_one():
    """Runs of random lengths on one, two and four of four devices, to their end."""
    draw = random.Random(0)
    for _ in range(200):
        worlds = {f"r{n}": draw.choice([1, 2, 4]) for n in range(draw.randint(1, 12))}
        left, working = dict(worlds), dict[str, tuple[Slot, int]]()
        states = {run: RunState() for run in worlds}
        while left or working:
            at = {run: slot for run, (slot, _) in working.items()}
            found = assign([*left], at, [*GROUPS.values()], states, PlaceRecord(), worlds)
            if found is None:
                assert working, "no run is at work, and none is started"
                working = {run: (slot, t - 1) for run, (slot, t) in working.items() if t > 1}
                continue
            run, slot = found
            assert slot.ranks == worlds[run]
            assert slot.ranks == 4 or 4 not in left.values()
            del left[run]
            working[run] = slot, draw.randint(1, 9)
            devices = [name for slot, _ in working.values() for name in slot.takes]
            assert len(devices) == len({*devices})


def test_whatever_is_given_only_a_pending_run_goes_and_only_on_a_slot_that_is_free():
    draw = random.Random(0)
    kinds, places = (RunState(), RunState("interrupted"), OOM), ("g0", "g1")
    for _ in range(3000):
        slots = draw.sample(SLOTS, draw.randint(0, 4))
        working = {f"w{slot.name}": slot for slot in SLOTS if draw.random() < 0.3}
        states = {run: draw.choice((RunState("started"), AGAIN)) for run in working}
        pending = [f"p{n}" for n in range(draw.randint(0, 3))]
        states |= {run: draw.choice(kinds) for run in pending}
        lost = {place: frozenset(p for p in pending if draw.random() < 0.3) for place in places}
        retired = [place for place in places if draw.random() < 0.2]
        found = assign(pending, working, slots, states, record(lost, retired))
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
    health = PlaceHealth(pytest.fail, SimpleNamespace(runs={}))
    health.note_lost_device("a", "g0")
    assert health.lost == {"g0": {"a"}}
    health.note_lost_device("a", "g0")  # again on the same place says no more
    assert health.lost == {"g0": {"a"}}
    for place in ("g1", "g2", "g0"):  # on two places: it is the run, however often it comes back
        health.note_lost_device("a", place)
        assert not any(health.lost.values())
    health.note_lost_device("b", "g1")
    assert health.lost["g1"] == {"b"}
    lost, culprits = {"g0": frozenset("a")}, frozenset()
    assert blame(lost, culprits, "b", "g0") == ({"g0": {"a", "b"}}, culprits)


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
