"""A store that an older version wrote stays readable for ever: `golden/store-N` was written by the
version whose ledger had format N, and is never written again."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from ablate.cli import app
from ablate.shared.build import build_run
from ablate.shared.errors import UserError
from ablate.store.connection import VERSION
from ablate.store.ledger import Ledger
from ablate.store.store import Store
from ablate.training.loop import Machine, train

GOLDEN = Path(__file__).parent / "golden"
WORDS = ("sweep", "block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2")
SHORT = ("train.steps=4", "train.batch=32", "--as", "fixture")


READ = "runs have the random draws of an older version (train.draws=1)"
OLD = [("store-1", 2), ("store-2", 3), ("store-3", 3)]  # its seeds


def old(folder: Path, name: str) -> Path:
    """A copy of the old store as ./runs."""
    return shutil.copytree(GOLDEN / name, folder / "runs")


@pytest.mark.parametrize(("name", "seeds"), OLD)
def test_its_table_is_what_it_was(shell, name, seeds):
    old(shell.folder, name)
    facts = shell("table", "fixture", "--format", "csv").out.splitlines()
    assert set(facts) >= set((GOLDEN / f"{name}.csv").read_text().splitlines())
    assert f"{2 * seeds} finished" in shell("status", "fixture").out
    assert shell("table", "fixture").out.count(READ) == 1


@pytest.mark.parametrize(("name", "seeds"), OLD)
def test_its_ledger_migrates_once_and_its_events_are_sealed(tmp_path, name, seeds):
    store = Store(old(tmp_path, name))
    looks = [look["seeds"][-1] + 1 for look in store.looks_view()]
    lines = store.looks.read_bytes()
    with sqlite3.connect(store.ledger) as db:
        before = db.execute("SELECT number, at, run, kind, detail FROM event").fetchall()
    for _ in range(2):
        with Ledger.reading(store) as ledger:
            assert ledger.broken_seals() == []
            assert {state.status for state in ledger.states().values()} == {"finished"}
            seen = [{key: look[key] for key in ("sweep", "seeds")} for look in ledger.looks()]
            assert seen == [{"sweep": "fixture", "seeds": list(range(n))} for n in looks]
            sealed = hashlib.sha256(store.plan_path("fixture").read_bytes()).hexdigest()
            assert ledger.plan_events("fixture") == [("plan", {"sha256": sealed, "rebuilt": True})]
    assert store.looks.read_bytes() == lines
    with sqlite3.connect(store.ledger) as db:
        assert db.execute("SELECT version FROM meta").fetchall() == [(VERSION,)]
        after = db.execute("SELECT number, at, run, kind, detail FROM event").fetchall()
    assert after[: len(before)] == before
    kinds = [kind for *_, kind, _ in after[len(before) :]]
    assert kinds == ["look"] * (len(looks) if name != "store-3" else 0) + ["plan"]


def test_a_look_of_old_counts_where_seeds_grow(tmp_path, capsys):
    """Of which analysis it was is not known, so nothing is said of that."""
    app(("table", "--store", str(old(tmp_path, "store-2"))), standalone_mode=False)
    printed = capsys.readouterr().out
    assert "verdicts were read at n = 2: the chance" in printed
    assert "Changed since" not in printed


def test_runs_of_older_draws_are_never_mixed_with_new_ones(shell):
    """Each run of the same command is another one; the table says what it leaves out."""
    old(shell.folder, "store-1")
    home = shell.folder / "runs" / "runs"
    ids, plan = set(os.listdir(home)), [*WORDS[1:], *SHORT, "seeds=2"]
    assert "4 planned" in shell("plan", *plan).out
    done = shell("sweep", *plan, "launcher=inline").out
    assert done.count("finished:") == 4
    assert "The store also has 4 runs of this sweep with the random draws of" in done
    assert READ not in done
    planned = {run.id for run in Store(shell.folder / "runs").read_plan("fixture").runs()}
    assert len(planned) == 4
    assert not planned & ids
    assert ids < set(os.listdir(home)) == ids | planned
    more = shell("sweep", *plan[:-1], "seeds=3", "launcher=inline").out
    assert more.count("finished:") == 2


def test_a_run_of_older_draws_is_not_trained_again(shell):
    old(shell.folder, "store-3")
    again = shell("verify", "--rerun", "pre#0", "launcher=inline", code=2)
    (line,) = again.err.splitlines()
    assert "train.draws: 1 is of runs of an older version" in line
    assert "nothing wrong" in shell("verify", "fixture").out
    run = build_run(Store(shell.folder / "runs").rundir("69e7a1ebbafea702").read_spec())
    with pytest.raises(UserError, match=r"train\.draws: 1 is of runs of an older version"):
        train(run, None, Machine(None, None, 0, None, None, None))
