"""What follows from a pilot's beat: a table of cases, and histories of every kind."""

import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.run.rundir import EXIT_AWAY
from ablate.running.launchers.jobs import JobEnd
from ablate.running.launchers.pilot_steps import (
    GONE_S,
    Fleet,
    Orders,
    PilotBeat,
    PilotState,
    PilotStep,
    pilot_step,
)
from ablate.store.pilots import STALE_S

KILLED = -int(signal.SIGKILL)
ORDERS = Orders({"1/x": "a", "1/y": "b"}, {"1/y": False})
GONE = Orders(close=True)
AWAY = {"1/x": EXIT_AWAY, "1/y": EXIT_AWAY}
ENDED = {"ended": {"1/y": 0, "0/z": 5}}  # the second was read before
SHORT, LONG = GONE_S + 1, STALE_S + 1
FAILED = JobEnd("OUT_OF_MEMORY", "failed")


def case(silent_s: float, is_listed: bool | None, end: JobEnd | None = None, **content: Any) -> Any:
    return PilotBeat({"job": "7", **content}, -silent_s, is_listed, end)


CASES = {
    "it beats": (case(0, True), PilotStep(ORDERS, {})),
    "it has reported an end": (
        case(0, True, **ENDED),
        PilotStep(Orders({"1/x": "a"}), {"1/y": 0}),
    ),
    "it is over": (case(0, True, over=True), PilotStep(GONE, AWAY, is_gone=True)),
    "it is over, with an end": (
        case(0, False, **ENDED, over=True),
        PilotStep(GONE, {"1/y": 0, "1/x": EXIT_AWAY}, is_gone=True),
    ),
    "its job is not listed, but it beats": (case(1, False), PilotStep(ORDERS, {})),
    "it is silent for a while": (case(SHORT, True), PilotStep(ORDERS, {})),
    "it is silent, and nobody answers": (case(SHORT, None), PilotStep(ORDERS, {})),
    "it is silent and not listed": (case(SHORT, False), PilotStep(ORDERS, {}, asks=True)),
    "its job was taken away": (
        case(SHORT, False, JobEnd("CANCELLED by 0", "lost")),
        PilotStep(GONE, AWAY, True, reason="its job 7 has ended (CANCELLED by 0)"),
    ),
    "its job has failed": (
        case(SHORT, False, FAILED),
        PilotStep(
            GONE, dict.fromkeys(AWAY, KILLED), True, reason="its job 7 has ended (OUT_OF_MEMORY)"
        ),
    ),
    "its job has failed, and a run had ended before": (
        case(SHORT, False, FAILED, **ENDED),
        PilotStep(
            GONE, {"1/x": KILLED, "1/y": 0}, True, reason="its job 7 has ended (OUT_OF_MEMORY)"
        ),
    ),
    "it is silent for long, and listed": (
        case(LONG, True),
        PilotStep(GONE, AWAY, True, cancels=True, reason="no sign of life"),
    ),
    "it is silent for long, and nobody answers": (
        case(LONG, None),
        PilotStep(GONE, AWAY, True, cancels=True, reason="no sign of life"),
    ),
    "it is silent for long, and nobody knows how its job ended": (
        case(LONG, False),
        PilotStep(GONE, AWAY, True, asks=True, reason="its job 7 has ended"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_follows_from_a_beat(name):
    beat, step = CASES[name]
    assert pilot_step(beat, ORDERS, 0.0) == step


EVENTS = st.one_of(
    st.tuples(st.just("passes"), st.sampled_from([0.5, 2.0, GONE_S, STALE_S + 1])),
    st.tuples(st.just("given"), st.integers(0, 5)),
    st.tuples(st.just("stopped"), st.integers(0, 5)),
    st.tuples(st.just("ends"), st.integers(0, 5)),  # in the pilot
    st.tuples(st.just("beats"), st.booleans()),  # and is over
    st.tuples(st.just("listed"), st.sampled_from([True, False, None])),
    st.tuples(st.just("end"), st.sampled_from([None, FAILED, JobEnd("X", "lost"), JobEnd()])),
)


@pytest.mark.whole
@settings(max_examples=400)
@given(st.lists(EVENTS, max_size=60))
def test_every_attempt_ends_once_whatever_happens(events):
    """A pilot that beats is kept while its job is listed; one that is gone has no run any more."""
    fleet = Fleet("token").put(PilotState("p", Orders(), heard_at=0.0))
    now, number = 0.0, 0
    is_listed: bool | None = None
    end: JobEnd | None = None
    running: set[str] = set()  # in the pilot
    ended: dict[str, int] = {}
    ordered: list[str] = []
    exit_codes: dict[str, int] = {}
    for event, value in [*events, ("passes", STALE_S + 1)]:
        pilot = fleet.pilots["p"]
        orders = pilot.orders
        attempt = f"{number}/r{value}"
        if event == "passes":
            now += value
        elif event == "given" and attempt not in ordered:
            ordered.append(attempt)
            running.add(attempt)
            orders = Orders({**orders.runs, attempt: "a"}, orders.stop)
        elif event == "stopped" and ordered and ordered[-1] in orders.runs:
            orders = Orders(orders.runs, {**orders.stop, ordered[-1]: bool(value)})
        elif event == "ends" and running:
            ended[running.pop()] = value
        elif event == "beats":
            number += 1
            tree = {"beat": number, "job": "7", "ended": dict(ended), "over": value, "slots": []}
            pilot = pilot.hear(tree, True, now)
        elif event == "listed":
            is_listed = value
        elif event == "end":
            end = value
        pilot = PilotState("p", orders, pilot.heard_at, pilot.beat)
        fleet = fleet.put(pilot)
        step = pilot_step(PilotBeat(pilot.beat, pilot.heard_at, is_listed, end), orders, now)
        assert not exit_codes.keys() & step.exit_codes.keys()
        assert step.exit_codes.keys() <= orders.runs.keys()
        assert step.orders.stop.keys() <= step.orders.runs.keys()
        reported = pilot.beat.get("ended", {})
        assert all(step.exit_codes[a] == reported[a] for a in step.exit_codes if a in reported)
        if now - pilot.heard_at <= GONE_S and not pilot.beat.get("over"):
            assert not step.is_gone
        exit_codes |= step.exit_codes
        fleet = fleet.advance(pilot, step)
        assert fleet.holders.keys() == set(ordered) - exit_codes.keys()
        if step.is_gone:
            assert exit_codes.keys() == set(ordered)
            assert not fleet.pilots
            return
    assert now - fleet.pilots["p"].heard_at <= STALE_S, "it should have been given up"
