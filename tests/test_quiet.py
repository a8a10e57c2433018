"""`sweep --quiet`: errors and exit codes, nothing else; a table that nobody sees is no look."""

import sqlite3
from pathlib import Path

import pytest

WORDS = ("sweep", "stem=none,dpn", "model.depth=1", "model.width=16", "model.heads=2")
SMALL = (*WORDS, "train.steps=40", "seeds=3", "launcher=inline")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def looks():
    with sqlite3.connect("runs/ledger.db") as ledger:
        return ledger.execute("SELECT count(*) FROM event WHERE kind = 'look'").fetchone()[0]


def test_a_quiet_sweep_trains_and_prints_nothing(ask):
    assert ask(*SMALL, "--quiet") == (0, "")
    assert looks() == 0
    assert len([*Path("runs/runs").glob("*/result.json")]) == 6
    code, text = ask(*SMALL)
    assert code == 0
    assert "| dpn |" in text
    assert looks() == 1
    with sqlite3.connect("runs/ledger.db") as ledger:
        ledger.execute("UPDATE run SET status = 'failed'")
    for path in Path("runs/runs").glob("*/result.json"):
        path.unlink()
    code, text = ask(*SMALL, "--quiet")
    assert (code, text.count("\n")) == (1, 1)
    assert "6 failed of 6 runs" in text


def test_a_quiet_sweep_asks_nothing(ask):
    code, text = ask(*WORDS, "train.epochs=1e11", "launcher=inline", "--quiet")
    assert (code, text.count("\n")) == (2, 1)
    assert text.endswith("a sweep of this length needs a confirmation; add --yes\n")
    code, text = ask("sweep", "nope", "--quiet")
    assert (code, text.count("\n")) == (2, 1)
