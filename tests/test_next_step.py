"""The rules of `next_step`, row by row, and that nothing is left out of them; and that the driver
that goes by it starts no run for ever."""

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drivers import Elsewhere, Quiet
from support.plans import small_plan
from support.stores import leave_run

from ablate.run import rundir
from ablate.run.rundir import FINAL_STATUSES, RunDir
from ablate.running import disk
from ablate.running.driver import Drive
from ablate.running.launchers import Slot
from ablate.running.next_step import NextStep, closed_runs, next_step
from ablate.shared.notes import Notes
from ablate.store.events import RunState, Status
from ablate.store.ledger import Ledger
from ablate.store.store import Store

LIMIT = 3


def step(status, *, result=False, refused=False, alive=False, exit=None, **counters) -> NextStep:
    known = {"result": result, "refused": refused, "alive": alive, "exit_reason": exit}
    return next_step(RunState(status=status, **counters), **known, max_attempts=LIMIT)


TABLE = [
    # result there, alive: it is tearing down
    ("started finished", dict(result=True, alive=True), (None, "wait")),
    # result there, not alive, status not final: record what it says
    ("planned started failed skipped", dict(result=True), ("result", "leave")),
    # final, but no whole result in the folder
    ("finished diverged", {}, ("interrupted", "start")),
    # alive: adopt, whatever the status
    ("finished started failed planned", dict(alive=True), (None, "adopt")),
    # what lies there as its result is none: it goes, and counts unless it was recorded once
    ("started failed", dict(refused=True), ("died", "again")),
    ("finished", dict(refused=True), ("interrupted", "again")),
    ("started", dict(refused=True, alive=True), (None, "adopt")),
    # planned, interrupted: start
    ("planned interrupted", {}, (None, "start")),
    # started, attempts left / none left
    ("started", dict(attempts=2), ("interrupted", "start")),
    ("started", dict(attempts=3), ("failed", "leave")),
    # an exception fails at once; a stop, a full disk and a lack of devices never count
    ("started", dict(exit="failed"), ("failed", "leave")),
    ("started", dict(exit="stopped", attempts=3), ("interrupted", "start")),
    ("started", dict(exit="disk full", attempts=3), ("interrupted", "start")),
    ("started", dict(exit="no device", attempts=3), ("interrupted", "start")),
    # out of memory or hung: once more, then no more
    ("started", dict(exit="oom"), ("oom", "again")),
    ("oom", dict(oom=1), (None, "start")),
    ("oom", dict(oom=2), (None, "leave")),
    ("hung", dict(hung=1), (None, "start")),
    ("hung", dict(hung=2), (None, "leave")),
    # held by the user: left, but a worker that it still has is adopted, to be stopped
    ("skipped", {}, (None, "leave")),
    ("skipped", dict(alive=True), (None, "adopt")),
    # failed: left alone; results: left alone
    ("failed", {}, (None, "leave")),
    ("finished diverged pruned", dict(result=True), (None, "leave")),
]


@pytest.mark.parametrize(("statuses", "given", "expected"), TABLE)
def test_each_row_of_the_state_table(statuses, given, expected):
    for status in statuses.split():
        assert step(status, **given) == NextStep(*expected)


def test_it_is_total_and_never_trains_what_has_a_result():
    exits = (None, "stopped", "failed", "oom", "disk full", "no device", "died", "unheard of")
    for status, result, alive, exit, count in itertools.product(
        get_args(Status), (False, True), (False, True), exits, range(5)
    ):
        counts = dict.fromkeys(("attempts", "oom", "hung"), count)
        got = step(status, result=result, alive=alive, exit=exit, **counts)
        assert got.action in ("start", "adopt", "wait", "leave", "again")
        if result or alive:
            assert got.action not in ("start", "again")
        if alive:
            assert got.action in ("wait", "adopt")
        if status in FINAL_STATUSES and not result and not alive:
            assert got == NextStep("interrupted", "start")


def test_a_forecast_leaves_out_what_the_driver_leaves():
    for status, count in itertools.product(get_args(Status), range(3)):
        state = RunState(status, attempts=count, oom=count, hung=count)
        known = {"result": status in FINAL_STATUSES, "alive": False}
        action = next_step(state, **known, max_attempts=LIMIT).action
        assert closed_runs({"run": state}, ()) == ({"run"} if action == "leave" else set())
    assert closed_runs({"run": RunState()}, {"run": "parent"}) == {"run"}


# --- No run is started for ever -----------------------------------------------------------------


class End(NamedTuple):
    """How a worker ends: its word, its code, what it leaves as a result; or it hangs. A child of it
    may hold the run's lock for a moment longer."""

    exit: str | None
    code: int
    result: bytes | None
    hangs: bool
    lingers: bool


WORDS = (rundir.STOPPED, rundir.DISK_FULL, rundir.OOM, rundir.DEVICE_LOST, rundir.NO_DEVICE)
OWN = (rundir.FAILED, rundir.WRONG_UNIT)
RESULTS = (b"", b"[]", b'{"status": "done"}', b'{"status": "finished", "step": 1e999}')
ENDS = st.builds(
    End,
    exit=st.sampled_from([None, None, *WORDS, rundir.DATA_DAMAGED, *OWN, "unheard of"]),
    code=st.sampled_from([0, 1, -9, 74, rundir.EXIT_TAKEN, 79]),
    result=st.sampled_from([None, None, *RESULTS]),
    hangs=st.booleans(),
    lingers=st.booleans(),
)
# Once out of memory, once silent; pauses until the disk surely has room; two places without devices
MORE = 1 + 1 + 6 + 2


class Ends(Elsewhere):
    """A launcher whose workers end so, one after another, and never write a checkpoint."""

    def __init__(self, ends: Sequence[End]) -> None:
        super().__init__()
        self.slots = [Slot(f"s{n}", f"s{n}", "cuda") for n in range(3)]
        self.ends = ends
        self.starts: Counter[str] = Counter()
        self.ended: dict[str, tuple[RunDir, End]] = {}

    def start(self, run: RunDir, slot: Slot, settled: object = None) -> None:
        end = self.ends[self.starts[run.id] % len(self.ends)]
        self.starts[run.id] += 1
        assert self.starts[run.id] <= LIMIT + MORE, "it is started for ever"
        self.left[run.id] = 10**9 if end.hangs else int(end.lingers)
        notes = {"slot": slot.name, **({"exit": end.exit} if end.exit else {})}
        run.lock.path.write_text(json.dumps(notes))
        if end.result is not None:
            run.result.write_bytes(end.result)
        self.ended[run.id] = run, end

    def alive(self, run: RunDir) -> bool:
        return self.left.get(run.id, -1) >= 0

    def notes(self, run: RunDir) -> Notes:
        return run.lock.notes()

    def stop(self, run: RunDir, now: bool = False) -> None:
        self.left[run.id] = 0

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        self.left = {run: left - 1 for run, left in self.left.items()}
        ended = [run for run in self.ended if self.left[run] < 10**8]
        return {run: self.ended.pop(run)[1].code for run in ended}


@pytest.mark.whole
@settings(max_examples=80, deadline=None)
@given(st.lists(ENDS, min_size=1, max_size=4))
def test_no_sequence_of_ends_starts_a_run_for_ever_without_a_newer_checkpoint(ends):
    now, told = itertools.count(step=2.0), Quiet()
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(disk, "has_room", lambda folder, size: True),
        patch.object(disk.time, "monotonic", lambda: next(now)),
        patch.object(Store, "liveness", None, create=True),
    ):
        launcher, store = Ends(ends), Store(Path(folder) / "runs")
        store.liveness = launcher
        with Ledger.driving(store) as ledger:
            given = {"attempts": LIMIT, "hang_s": 0.0}
            outcome = Drive(small_plan(), store, ledger, launcher, given, told).run()
        counts = outcome.progress.counts
        stopped = outcome.stopped or outcome.retired or outcome.misread
        assert stopped or counts.keys() <= {"failed", "oom", "hung"}, (counts, told.lines)


class Asked:
    """A search that asks for no run, and notes which results it saw."""

    prunes = False

    def __init__(self) -> None:
        self.seen: list[set[str]] = []
        self.standing: dict[str, str] = {}

    def grow(self, result, metrics):
        self.seen.append({run.id for run in small_plan().runs() if result(run.id) is not None})


def test_a_search_hears_of_results_that_were_there_before_the_driver_began(tmp_path):
    """As of a worker that outlives a killed driver, and ends while the next one starts."""
    store, launcher, search = Store(tmp_path / "runs"), Ends([]), Asked()
    plan = small_plan()
    for run in plan.runs():
        leave_run(store, run, 0.5)
    with Ledger.driving(store) as ledger:
        given = {"attempts": LIMIT, "hang_s": 0.0}
        Drive(plan, store, ledger, launcher, given, Quiet(), search=search).run()
    assert search.seen == [{run.id for run in plan.runs()}]
    assert not launcher.starts
