"""`--format json`: one whole document on standard output, its keys, and the exit code of the text.

In this process, on a copy of a store that a sweep left.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ablate.cli import main
from ablate.cli.answers import JSON_VERSION, Answer, print_json
from ablate.planning.launcher import launcher_settings


@pytest.fixture
def ask(golden_store, monkeypatch, capsys):
    """(exit code, standard output, standard error) of a command beside a store in ./runs."""

    def ask(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return ask


def of(ask, *words: str, code: int = 0) -> dict:
    """The document. Asked twice, it has the same bytes; the text form has the same exit code."""
    said = ask(*words, "--format", "json")
    assert said[0] == code, said
    assert ask(*words, "--format", "json")[1] == said[1]
    assert ask(*words)[0] == code
    found = json.loads(said[1], parse_constant=pytest.fail)
    assert found.pop("version") == JSON_VERSION
    return found


@pytest.mark.whole
def test_list(ask):
    whole, norms = of(ask, "list"), of(ask, "list", "norms")
    assert norms == {"norms": whole["norms"]}
    assert norms["norms"]["choose"] == "norm=NAME"
    text = ask("list", "norms")[1].splitlines()[1:]
    assert [line.split()[0] for line in text] == [c["name"] for c in norms["norms"]["choices"]]


def test_config(ask):
    words = ("config", "stem=dpn", "model.depth=2", "seed=4")
    found = of(ask, *words)
    assert ask(*words)[1].splitlines()[0] == f"# run {found['run']}"
    assert found["configuration"]["model"]["depth"] == 2
    assert found["configuration"]["stem"]["name"] == "dpn"


@pytest.mark.whole  # it builds the models, in a process of its own
def test_plan(ask):
    words = ("plan", "stem=none,dpn", "model.arch=mu/4", "model.depth=1", "train.epochs=1e11")
    found = of(ask, *words, "launcher=inline", "seeds=2", "--detect", "2", "--spread", "1")
    assert (found["total"], found["states"], found["seeds"]) == (4, {"planned": 4}, [0, 1])
    none, dpn = found["variants"]
    assert (none["row"], dpn["row"]) == ("none", "dpn")
    assert none["step"] == 1
    assert dpn["step"] > 0
    assert dpn["parameters"] - none["parameters"] == 2 * (16 + 32)  # a norm of 16, one of 32
    assert found["left"]["device_seconds"] is None  # more than a month: it is not timed
    assert found["detect"]["columns"][0]["power"] is None  # of two seeds nothing can be told
    assert found["detect"]["columns"][0]["seeds"]["expected"] > 2
    assert (found["tuning"], found["until"], found["designs"]) == (None, None, [])
    assert found["launcher"] == launcher_settings({"name": "inline"})


def test_what_is_not_finite_is_null(capsys):
    with Answer(sys.stdout) as answer:
        print_json({"a": [1.5, float("nan")], "b": (float("inf"), -float("inf")), "c": {"d": True}})
        answer.print()
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found.pop("version") == JSON_VERSION
    assert found == {"a": [1.5, None], "b": [None, None], "c": {"d": True}}


def test_status(ask):
    found = of(ask, "status")
    with closing(sqlite3.connect("runs/ledger.db")) as ledger, ledger:
        told = dict(ledger.execute("SELECT status, count(*) FROM run GROUP BY status"))
    assert found["states"] == told == {"finished": found["total"]}
    assert (found["driven"], found["running"], found["failed"]) == (False, [], [])


def test_a_run_that_failed_is_in_the_status_with_its_error(ask):
    with closing(sqlite3.connect("runs/ledger.db")) as ledger, ledger:
        [run] = ledger.execute("SELECT id FROM run LIMIT 1").fetchone()
        ledger.execute("UPDATE run SET status = 'failed' WHERE id = ?", (run,))
    (Path("runs/runs") / run / "lock").write_text('{"error": "OSError: no disk"}')
    [failed] = of(ask, "status")["failed"]
    assert (failed["run"], failed["status"]) == (run, "failed")
    assert failed["error"] == "OSError: no disk"


def test_show(ask):
    found = of(ask, "show", "pre#0")
    folder = Path("runs/runs") / found["run"]
    assert found["result"] == json.loads((folder / "result.json").read_bytes())
    assert found["configuration"] == json.loads((folder / "run.json").read_bytes())["spec"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert found["metrics"] == list(map(json.loads, lines))
    both = of(ask, "show", "pre#0", "--against", "post#0")
    assert both["differs"]["configuration"] == {"block.attn": ["pre", "post"]}
    assert both["results"]["step"] == [found["result"]["step"]] * 2


def test_table(ask):
    found = of(ask, "table")
    assert f"| {found['rows'][1]['label']} |" in ask("table")[1]


def test_verify(ask):
    found = of(ask, "verify")
    assert (found["name"], found["findings"]) == ("fixture", [])
    assert ask("verify")[1].endswith(
        f"verified: {found['runs']} runs, {found['numbers']} numbers, nothing wrong\n"
    )
    file = next(Path("runs/runs").glob("*/predictions.npy"))
    file.write_bytes(file.read_bytes()[:-4] + b"more")
    wrong = of(ask, "verify", code=1)
    assert any("predictions.npy" in line for line in wrong["findings"])
    text = ask("verify")[1].splitlines()
    assert text == [*wrong["findings"], *(f"note: {note}" for note in wrong["notes"])]


def test_doctor(ask):
    code, out, _ = ask("doctor", "--repair", "--format", "json")
    found = json.loads(out)
    assert code == ask("doctor", "--repair")[0] == 0
    assert {one["level"] for one in found["findings"]} <= {"ok", "warning"}
    assert "rebuilt from" in found["repaired"][-1]
    next(Path("runs/runs").glob("*/result.json")).write_text("{")
    said = ask("doctor", "--repair", "--format", "json")
    assert said[0] == ask("doctor", "--repair")[0] == 1
    assert "problem" in said[2]
    levels = [one["level"] for one in json.loads(said[1])["findings"]]
    assert "problem" in levels


@pytest.mark.parametrize("words", [("status", "--watch"), ("show", "pre#0", "--log")])
def test_what_is_no_document_is_refused(ask, words):
    code, out, err = ask(*words, "--format", "json")
    assert (code, err.count("\n"), words[-1] in err) == (2, 1, True)
    assert json.loads(out)["place"] == "--format json"


@pytest.mark.parametrize("words", [("status",), ("config",), ("table",), ("trials",)])
def test_another_format_is_answered_with_those_of_the_command(ask, words):
    code, out, err = ask(*words, "--format", "xml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ("yaml" in err) == (words == ("config",))
    assert ("text" in err) == (words == ("status",))
    assert ("latex" in err) == (words == ("table",))
    assert all(text in err for text in ("--format", "'xml'", "json"))
