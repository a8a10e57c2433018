"""The ledger: a fold of events, a driver and looks that write, readers that don't wait."""

import contextlib
import json
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.looks import reading
from support.plans import record_plan, small_plan

from ablate.planning.plan import Plan
from ablate.planning.settings import sweep_file_name
from ablate.run.rundir import FINAL_STATUSES
from ablate.shared.errors import Failure, UserError
from ablate.store.events import RunState
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.version import FORMAT


def test_a_reader_reads_while_a_driver_is_in_the_middle_of_writing(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        ledger._db.execute("BEGIN IMMEDIATE")
        with Ledger.reading(store) as reader:
            assert len(reader.states()) == 4
            with pytest.raises(sqlite3.OperationalError):
                reader.record("a0", "started", step=0)
        ledger._db.execute("ROLLBACK")


def test_a_lost_ledger_is_in_memory_where_the_store_can_not_be_written(store, monkeypatch):
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, small_plan())
    for file in store.root.glob("ledger.db*"):
        file.unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with Ledger.reading(store) as reader:
        assert len(reader.states()) == 4
        with pytest.raises(sqlite3.OperationalError):
            reader.record("a0", "started", step=0)
    assert not store.ledger.exists()


def test_an_event_that_fails_changes_nothing(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        with pytest.raises(ValueError, match="unknown event"):
            ledger.record("a0", "exploded")
        assert ledger.states(["a0"])["a0"] == RunState()
        assert [kind for _, kind, _ in ledger.events("a0")] == ["planned"]


def test_no_store_is_said_in_a_line(store):
    with pytest.raises(UserError, match=r"no store at .* start with"), Ledger.reading(store):
        pass
    store.root.mkdir()
    (store.root / "environment.json").write_text('{"bundle": 3}')
    table = f"`ablate table --from {store.root}`"
    with pytest.raises(UserError, match=f"no store at .*bundle.*{table}"), Ledger.reading(store):
        pass


def test_a_file_that_is_no_ledger_is_a_failure_and_no_mistake_of_the_user(store):
    store.root.mkdir()
    store.ledger.write_bytes(b"no ledger" * 1000)
    with pytest.raises(Failure) as caught, Ledger.reading(store):
        pass
    assert "--repair" in str(caught.value)


@pytest.mark.parametrize("format", [FORMAT - 1, FORMAT + 1])
def test_a_store_of_another_format_is_refused_in_a_line_and_left(store, format):
    with Ledger.driving(store) as ledger:
        ledger._db.execute("UPDATE meta SET version = ?", [format])
    before = store.ledger.read_bytes()
    for open_ledger in (Ledger.reading, Ledger.driving):
        with pytest.raises(Failure) as refused, open_ledger(store):
            pass
        assert str(refused.value) == (
            f"{store.ledger}: has format {format}, and this ablate reads format "
            f"{FORMAT} alone; use the ablate that wrote it, or begin a new store with --store DIR"
        )
    assert store.ledger.read_bytes() == before


def test_a_plan_of_another_format_is_named_with_its_remedy(store):
    plan = small_plan()
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, plan)
        tree = json.loads(plan.to_bytes()) | {"format": FORMAT - 1}
        store.plan_path(plan.name).write_text(json.dumps(tree))
        with pytest.raises(Failure, match=rf"has format {FORMAT - 1}, .*; the same `ablate s"):
            ledger.sealed_plan(store, plan.name)


def test_a_result_that_was_recorded_without_its_hash_is_damage(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        ledger.record("a0", "finished", seconds=1.0)
        for read in (lambda: ledger.events("a0"), ledger.seals):
            with pytest.raises(sqlite3.DatabaseError, match="damaged: no event is 'finished'"):
                read()


def test_plans_are_plain_json_and_come_back(store):
    plan = small_plan()
    store.write_plan(plan)
    assert store.read_plan("p") == plan
    assert json.loads(store.plan_path("p").read_text())["baseline"] == "a"
    assert [run.id for run in plan.runs()] == ["a0", "b0", "a1", "b1"]  # seed-major


def test_a_plan_counts_from_when_it_is_announced_and_its_forerunner_until_it_is_written(store):
    first, second = small_plan(), small_plan(seeds=(0, 1, 2))
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, first)
        store.write_plan(second)
        with pytest.raises(Failure, match=r"p\.json: was edited after it was planned; the same"):
            ledger.sealed_plan(store, "p")
        store.write_plan(first)
        ledger.announce(second)
        assert ledger.sealed_plan(store, "p") == first
        store.write_plan(second)
        assert ledger.sealed_plan(store, "p") == second
        ledger.plan(second)
        assert ledger.sealed_plan(store, "p") == second
        store.write_plan(first)
        with pytest.raises(Failure, match="was edited after it was planned"):
            ledger.sealed_plan(store, "p")
        count = len(ledger.events("plan of p"))
        record_plan(store, ledger, second)
        assert len(ledger.events("plan of p")) == count == 4


@pytest.mark.parametrize("parsed", [False, True])
def test_a_plan_written_between_two_looks_of_a_reader_is_no_edit(store, monkeypatch, parsed):
    """`parsed`: the moment the file has been read; else before the ledger is asked."""
    second = small_plan(seeds=(0, 1, 2))
    with Ledger.driving(store) as ledger, Ledger.reading(store) as reader:
        record_plan(store, ledger, small_plan())
        owner, name = (Plan, "from_tree") if parsed else (reader, "plan_seals")
        look = getattr(owner, name)

        def late(what: Any) -> Any:
            seen = look(what) if parsed else None
            monkeypatch.setattr(owner, name, look)  # a plan that is written is read again, too
            record_plan(store, ledger, second)
            return seen if parsed else look(what)

        monkeypatch.setattr(owner, name, late)
        assert reader.sealed_plan(store, "p") == second


def test_a_plan_without_its_seal_was_never_planned_here(store):
    with Ledger.driving(store) as ledger:
        record_plan(store, ledger, small_plan())
        ledger._db.execute("DELETE FROM event WHERE run = 'plan of p'")
        with pytest.raises(Failure, match="was never planned here"):
            ledger.sealed_plan(store, "p")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..", ".", "", "a/b", "\0", "x" * 999, "model.arch=Ti/4,S/4", "é"]
)
def test_no_sweep_name_leaves_its_folder(store, name):
    path = store.plan_path(name)
    assert path.resolve().parent == (store.root / "sweeps").resolve()
    assert len(path.name.encode()) < 255
    assert "\0" not in path.name


def test_run_ids_are_names_and_no_paths(store):
    for bad in ("../x", "a/b", "", ".", "a b"):
        with pytest.raises(ValueError, match="not a run id"):
            store.rundir(bad)


def test_different_long_names_are_different_files():
    assert sweep_file_name("x" * 999) != sweep_file_name("x" * 998)


# --- Random interleavings -----------------------------------------------------------------------

RUNS = [f"{row}{seed}" for row in "ab" for seed in range(3)]
ENDS = ("interrupted", "finished", "diverged", "pruned", "failed")
BLANK = {"status": "planned", "attempts": 0, "oom": 0, "hung": 0, "step": 0}
PLANS = {"seeds": st.integers(1, 3), "name": st.sampled_from(["p", "q"])}


class Interleaved(RuleBasedStateMachine):
    """Plans, events, looks, closing and opening, a lost ledger, in any order, beside a model:
    the last word said of a run is its status, and what it counts are deaths without progress."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name) / "runs")
        self.model: dict[str, dict[str, Any]] = {}
        self.events: dict[str, list[str]] = {}
        self.looks: list[dict[str, Any]] = []
        self.opened = contextlib.ExitStack()
        self.ledger = self.opened.enter_context(Ledger.driving(self.store))

    def teardown(self) -> None:
        self.opened.close()
        self.folder.cleanup()

    @rule(**PLANS)
    def plan(self, seeds, name):
        plan = small_plan(name, tuple(range(seeds)))
        self.store.write_plan(plan)
        self.ledger.plan(plan)
        for run in plan.runs():
            self.model.setdefault(run.id, dict(BLANK))
            self.events.setdefault(run.id, ["planned"])

    @rule(**PLANS, written=st.booleans())
    def die_planning(self, seeds, name, written):
        """No row of it counts, and it may be in its file or not."""
        plan = small_plan(name, tuple(range(seeds)))
        self.ledger.announce(plan)
        if written:
            self.store.write_plan(plan)

    @rule(run=st.sampled_from(RUNS), kind=st.sampled_from(ENDS))
    def end(self, run, kind):
        sealed = {"result_sha256": "0" * 64} if kind in FINAL_STATUSES else {}
        self.say(run, kind, {"status": kind}, **sealed)

    @rule(run=st.sampled_from(RUNS), step=st.integers(0, 3))
    def start(self, run, step):
        self.say(run, "started", {"status": "started", "step": step}, step=step)

    @rule(run=st.sampled_from(RUNS), step=st.integers(0, 3))
    def die(self, run, step):
        before = self.model.get(run, BLANK)
        attempts = before["attempts"] + (0 if step > before["step"] else 1)
        self.say(run, "died", {"step": step, "attempts": attempts}, step=step, code=-9)

    @rule(run=st.sampled_from(RUNS), kind=st.sampled_from(["oom", "hung"]))
    def fail_once_more(self, run, kind):
        self.say(run, kind, {"status": kind, kind: self.model.get(run, BLANK)[kind] + 1})

    @rule(run=st.sampled_from(RUNS))
    def retry(self, run):
        self.say(run, "retried", {"status": "interrupted", "attempts": 0, "oom": 0, "hung": 0})

    @rule(**PLANS)
    def look(self, seeds, name):
        """Another connection than the driver's."""
        look = reading("bx", tuple(range(seeds)), name).event()
        self.store.add_look(look)
        if look not in self.looks:
            self.looks.append(look)

    @rule()
    def reopen(self):
        self.opened.close()
        self.ledger = self.opened.enter_context(Ledger.driving(self.store))

    @rule()
    def lose(self):
        """No run here has a folder: all are planned again, and nothing more is known."""
        self.opened.close()
        for path in self.store.root.glob("ledger.db*"):
            path.unlink()
        self.ledger = self.opened.enter_context(Ledger.driving(self.store))
        planned = {run.id for p in "pq" if (t := self.store.read_plan(p)) for run in t.runs()}
        self.model = {run: dict(BLANK) for run in planned}
        self.events = {run: ["planned"] for run in planned}

    def say(self, run, kind, changes, **detail):
        if run in self.model:
            state = self.ledger.record(run, kind, **detail)
            self.events[run].append(kind)
            self.model[run] |= changes
            assert vars(state) == self.model[run]

    @invariant()
    def the_ledger_says_the_same(self):
        with Ledger.reading(self.store) as reader:
            assert {run: vars(state) for run, state in reader.states().items()} == self.model
            assert reader.broken_seals() == []
            assert not reader.lacks_its_end()
            assert reader.looks() == self.store.looks_view() == self.looks
            for name in "pq":
                assert reader.sealed_plan(self.store, name) == self.store.read_plan(name)
            for run, kinds in self.events.items():
                assert [kind for _, kind, _ in reader.events(run)] == kinds


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
