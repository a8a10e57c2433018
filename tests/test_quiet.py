"""What `sweep` prints for scripts. `--quiet`: errors and exit codes, nothing else; a table that
nobody sees is no look. `--format json`: one document on standard output."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from conftest import ABLATE

WORDS = ("sweep", "stem=none,dpn", "model.depth=1", "model.width=16", "model.heads=2")
SMALL = (*WORDS, "train.steps=40", "seeds=3", "launcher=inline")
LEAST = (*WORDS, "train.steps=4", "seeds=2", "launcher=inline")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def looks():
    with closing(sqlite3.connect("runs/ledger.db")) as ledger, ledger:
        return ledger.execute("SELECT count(*) FROM event WHERE kind = 'look'").fetchone()[0]


@pytest.mark.whole
def test_a_quiet_sweep_trains_and_prints_nothing(ask):
    assert ask(*SMALL, "--quiet") == (0, "")
    assert looks() == 0
    assert len([*Path("runs/runs").glob("*/result.json")]) == 6
    code, text = ask(*SMALL)
    assert code == 0
    assert "| dpn |" in text
    assert looks() == 1
    with closing(sqlite3.connect("runs/ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE run SET status = 'failed'")
    for path in Path("runs/runs").glob("*/result.json"):
        path.unlink()
    code, text = ask(*SMALL, "--quiet")
    assert (code, text.count("\n")) == (1, 1)
    assert "6 failed of 6 runs" in text


def test_a_quiet_sweep_asks_nothing(ask):
    code, text = ask(*WORDS, "train.epochs=1e11", "launcher=inline", "--quiet")
    assert (code, text.count("\n")) == (2, 1)
    assert text.endswith("confirmation; add --yes\n")
    code, text = ask("sweep", "nope", "--quiet")
    assert (code, text.count("\n")) == (2, 1)


@pytest.mark.whole
def test_standard_output_of_a_sweep_is_one_json_document(ask):
    """In a process of its own, since workers and libraries may write, too."""
    command = [ABLATE, *LEAST, "--as", "small", "--format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "finished: dpn#0" in ended.stderr
    printed = json.loads(ended.stdout)
    assert looks() == 1
    code, text = ask("table", "small", "--format", "json")
    assert code == 0
    assert printed == json.loads(text)
    assert printed["complete"]


@pytest.mark.whole
def test_a_sweep_with_failed_runs_prints_its_unfinished_table_as_json(ask):
    assert ask(*LEAST, "--quiet")[0] == 0
    with closing(sqlite3.connect("runs/ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE run SET status = 'failed'")
    for path in Path("runs/runs").glob("*/result.json"):
        path.unlink()
    command = [ABLATE, *LEAST, "--format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    answer = json.loads(ended.stdout)
    assert not answer["complete"]
    assert "--retry failed" in answer["fix"]
    assert "4 failed" in ended.stderr


def test_json_needs_a_table(ask):
    code, text = ask(*LEAST, "--format", "json", "--quiet")
    assert code == 2
    answer = json.loads(text[: text.rindex("}") + 1])
    assert (answer["place"], answer["retry"]) == ("--quiet", False)
    assert "--format json" in answer["fix"]
