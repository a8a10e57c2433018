"""The ledger: a fold of events, one writer, readers that don't wait, plans as plain data."""

from __future__ import annotations

import json
import sqlite3

import pytest

from ablate.ledger import Ledger, RunState, Store, fold
from ablate.plan import Analysis, Cell, Column, Plan, Row, file_name
from ablate.spec import UserError


def small_plan(name="p", seeds=(0, 1)) -> Plan:
    cells = tuple(
        Cell(row, "", {"data": {"classes": 10}}, {seed: f"{row}{seed}" for seed in seeds})
        for row in ("a", "b")
    )
    rows = (Row("a", {}), Row("b", {"stem": "dpn"}))
    return Plan(name, "title", (name,), rows, (Column("", {}),), cells, "a", seeds, Analysis())


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def test_the_kept_state_is_the_fold_of_the_events(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        ledger.record("a0", "started", step=0)
        ledger.record("a0", "died", step=10, code=-9)  # a newer checkpoint: does not count
        ledger.record("a0", "interrupted")
        ledger.record("a0", "started", step=10)
        ledger.record("a0", "died", step=10, code=-9)  # none: counts
        ledger.record("a0", "oom")
        state = RunState()
        for _, kind, detail in ledger.events("a0"):
            state = fold(state, kind, detail)
        assert state == ledger.states(["a0"])["a0"] == RunState("oom", attempts=1, oom=1, step=10)
        assert ledger.record("a0", "retried") == RunState("interrupted", step=10)


def test_planning_again_keeps_what_happened_and_extends(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        ledger.record("a0", "started", step=0)
        ledger.record("a0", "finished", seconds=1.0)
        ledger.plan(small_plan(seeds=(0, 1, 2)))
        states = ledger.states()
        assert states["a0"].status == "finished"
        assert states["b2"].status == "planned"
        assert len(states) == 6
        assert len(ledger.events("a0")) == 3
    with Ledger.reading(store) as ledger:
        assert ledger.sweeps() == ["p"]
        assert ledger.last_detail("finished") == {"a0": {"seconds": 1.0}}


def test_a_reader_reads_while_a_driver_is_in_the_middle_of_writing(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        ledger._db.execute("BEGIN IMMEDIATE")
        with Ledger.reading(store) as reader:
            assert len(reader.states()) == 4
            with pytest.raises(sqlite3.OperationalError):
                reader.record("a0", "started", step=0)
        ledger._db.execute("ROLLBACK")


def test_an_event_that_fails_changes_nothing(store):
    with Ledger.driving(store) as ledger:
        ledger.plan(small_plan())
        with pytest.raises(ValueError, match="unknown event"):
            ledger.record("a0", "exploded")
        assert ledger.states(["a0"])["a0"] == RunState()
        assert [kind for _, kind, _ in ledger.events("a0")] == ["planned"]


def test_no_store_and_a_store_of_another_version_are_said_in_a_line(store):
    with pytest.raises(UserError, match="no store at"), Ledger.reading(store):
        pass
    with Ledger.driving(store) as ledger:
        ledger._db.execute("UPDATE meta SET version = 99")
    with pytest.raises(UserError, match="format 99"), Ledger.reading(store):
        pass


def test_plans_are_plain_json_and_come_back(store):
    plan = small_plan()
    store.write_plan(plan)
    assert store.read_plan("p") == plan
    assert json.loads(store.plan_path("p").read_text())["baseline"] == "a"
    assert [run.id for run in plan.runs()] == ["a0", "b0", "a1", "b1"]  # seed-major


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
    assert file_name("x" * 999) != file_name("x" * 998)
