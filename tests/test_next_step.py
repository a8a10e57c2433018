"""The state table of docs/resume-and-store.md, row by row, and that nothing is left out of it."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from ablate.running.next_step import NextStep, next_step
from ablate.shared.result import FINAL
from ablate.store.events import RunState, Status

LIMIT = 3


def step(status: str, *, result=False, alive=False, exit=None, **counters) -> NextStep:
    state = RunState(status=status, **counters)
    return next_step(state, result=result, alive=alive, exit=exit, attempts=LIMIT)


TABLE = [
    # result there, alive: it is tearing down
    (dict(status="started", result=True, alive=True), NextStep(None, "wait")),
    (dict(status="finished", result=True, alive=True), NextStep(None, "wait")),
    # result there, not alive, status not final: record what it says
    (dict(status="planned", result=True), NextStep("result", "leave")),
    (dict(status="started", result=True), NextStep("result", "leave")),
    (dict(status="failed", result=True), NextStep("result", "leave")),
    # final, but no whole result in the folder
    (dict(status="finished"), NextStep("interrupted", "start")),
    (dict(status="diverged"), NextStep("interrupted", "start")),
    # alive: adopt, whatever the status
    (dict(status="finished", alive=True), NextStep(None, "adopt")),
    (dict(status="started", alive=True), NextStep(None, "adopt")),
    (dict(status="failed", alive=True), NextStep(None, "adopt")),
    (dict(status="planned", alive=True), NextStep(None, "adopt")),
    # planned, interrupted: start
    (dict(status="planned"), NextStep(None, "start")),
    (dict(status="interrupted"), NextStep(None, "start")),
    # started, attempts left / none left
    (dict(status="started", attempts=2), NextStep("interrupted", "start")),
    (dict(status="started", attempts=3), NextStep("failed", "leave")),
    # an exception fails at once; a stop, a full disk and a lack of devices never count
    (dict(status="started", exit="failed"), NextStep("failed", "leave")),
    (dict(status="started", exit="stopped", attempts=3), NextStep("interrupted", "start")),
    (dict(status="started", exit="disk full", attempts=3), NextStep("interrupted", "start")),
    (dict(status="started", exit="no device", attempts=3), NextStep("interrupted", "start")),
    # out of memory or hung: once more, then no more
    (dict(status="started", exit="oom"), NextStep("oom", "again")),
    (dict(status="oom", oom=1), NextStep(None, "start")),
    (dict(status="oom", oom=2), NextStep(None, "leave")),
    (dict(status="hung", hung=1), NextStep(None, "start")),
    (dict(status="hung", hung=2), NextStep(None, "leave")),
    # held by the user: left, but a worker that it still has is adopted, to be stopped
    (dict(status="skipped"), NextStep(None, "leave")),
    (dict(status="cancelled"), NextStep(None, "leave")),
    (dict(status="cancelled", alive=True), NextStep(None, "adopt")),
    (dict(status="cancelled", result=True), NextStep("result", "leave")),
    # failed: left alone; results: left alone
    (dict(status="failed"), NextStep(None, "leave")),
    (dict(status="finished", result=True), NextStep(None, "leave")),
    (dict(status="diverged", result=True), NextStep(None, "leave")),
    (dict(status="pruned", result=True), NextStep(None, "leave")),
]


@pytest.mark.parametrize(("given", "expected"), TABLE)
def test_each_row_of_the_state_table(given, expected):
    assert step(**given) == expected


def test_it_is_total_and_never_trains_what_has_a_result():
    exits = (None, "stopped", "failed", "oom", "disk full", "no device", "taken")
    for status, result, alive, exit, count in itertools.product(
        get_args(Status), (False, True), (False, True), exits, range(5)
    ):
        got = step(
            status, result=result, alive=alive, exit=exit, attempts=count, oom=count, hung=count
        )
        assert got.then in ("start", "adopt", "wait", "leave", "again")
        if result or alive:
            assert got.then not in ("start", "again")
        if alive:
            assert got.then in ("wait", "adopt")
        if status in FINAL and not result and not alive:
            assert got == NextStep("interrupted", "start")
