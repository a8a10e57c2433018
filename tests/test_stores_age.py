"""A store that an older version wrote stays readable for ever: `golden/store-1` was written by the
version whose ledger had format 1, and is never written again."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from ablate.ledger import VERSION, Ledger, Store

GOLDEN = Path(__file__).parent / "golden"
WORDS = ("sweep", "block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2")
SHORT = ("train.steps=4", "train.batch=32", "--as", "fixture")


def old(folder: Path) -> Path:
    """A copy of the old store as ./runs."""
    return shutil.copytree(GOLDEN / "store-1", folder / "runs")


def test_its_table_is_what_it_was(shell):
    old(shell.folder)
    facts = shell("table", "fixture", "--format", "csv").out.splitlines()
    assert set(facts) >= set((GOLDEN / "store-1.csv").read_text().splitlines())
    assert "4 finished" in shell("status", "fixture").out


def test_its_ledger_migrates_once_and_its_events_are_sealed(tmp_path):
    store = Store(old(tmp_path))
    with sqlite3.connect(store.ledger) as db:
        before = db.execute("SELECT number, at, run, kind, detail FROM event").fetchall()
    for _ in range(2):
        with Ledger.reading(store) as ledger:
            assert ledger.broken_seals() == []
            assert {state.status for state in ledger.states().values()} == {"finished"}
    with sqlite3.connect(store.ledger) as db:
        assert db.execute("SELECT version FROM meta").fetchall() == [(VERSION,)]
        assert db.execute("SELECT number, at, run, kind, detail FROM event").fetchall() == before


def test_the_same_command_trains_nothing_again_and_more_seeds_extend_it(shell):
    old(shell.folder)
    assert "finished:" not in shell(*WORDS, *SHORT, "seeds=2").out
    assert shell(*WORDS, *SHORT, "seeds=3").out.count("finished:") == 2
