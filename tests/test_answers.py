"""What programs get: under `--format json` every command prints exactly one object, whose keys
docs/json.md has, and ends with a documented code; nothing asks where nobody can answer."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
import typer.main
from conftest import ABLATE, GOLDEN, wait_for
from support.json_contract import ERROR_KEYS, check_document

from ablate import cli
from ablate.api import failure_of
from ablate.cli.answers import choose_fields
from ablate.shared import NoRoom, TryAgain, UserError
from ablate.store.store import Store

TINY = ("stem=none,dpn", "model.depth=1", "model.width=16", "model.heads=2", "train.steps=2")
SHEET = ("--row", "row", "--metric", "acc:more")
NOWHERE = ("--store", "nowhere")

# Each command: the section of its document and words that are well; the place of a mistake, and
# words that make it. Beside the golden store, in this order.
COMMANDS: dict[str, tuple[str, tuple[str, ...] | None, str, tuple[str, ...]]] = {
    "list": ("list", ("norms",), "list", ("norm",)),
    "config": ("config", ("stem=dpn",), "stem", ("stem=non",)),
    "plan": ("plan", (*TINY, "launcher=inline"), "stem", ("stem=non,dpn",)),
    "sweep": ("table", (*TINY, "seeds=1", "launcher=inline"), "--quiet", (*TINY, "--quiet")),
    "status": ("status", (), "sweep", ("nope",)),
    "stop": ("stop", (), "--timeout", ("--timeout", "0")),
    "show": ("show", ("pre#0",), "run", ("nope#0",)),
    "table": ("table", ("fixture",), "--notes", ("fixture", "--notes", "long")),
    "plot": ("plot", ("fixture", "gain"), "plot", ("fixture", "gains")),
    "trials": ("trials", None, "fixture", ("fixture",)),  # for a search: test_json_keys.py
    "new": ("new", ("norm", "my_norm"), "new", ("nrom", "my_norm")),
    "report": ("report", ("fixture",), "--out", ("--out", "page.pdf")),
    "export": ("export", ("fixture", "handed-on"), "sweep", ("nope", "new")),
    "merge": ("merge", ("handed-on", "--store", "both"), "nope", ("nope",)),
    "import": ("import", ("sheet.csv", *SHEET), "sheet.csv", ("sheet.csv", *SHEET, "--seed", "s")),
    "verify": ("verify", ("fixture",), "--rerun", ("fixture", "--rerun", "pre#0", "stem=dpn")),
    "doctor": ("doctor", ("--repair",), "--repair", ("fixture", "--repair")),
    "run": ("run", ("pre#0", "--delete", "--yes"), "run", ("pre#1",)),
    "gc": ("gc", ("--yes",), "no store at nowhere", NOWHERE),
    "gate start": ("gate log", ("idea", "trainer=line"), "trainer", ("idea", "trainer=lin")),
    "gate try": ("gate try", None, "trainer.r", ("idea", "trainer.r=1")),  # test_gate_stream.py
    "gate log": ("gate log", ("idea",), "stream", ("ida",)),
    "gate show": ("gate show", ("idea", "0"), "idea", ("idea", "7")),
    "gate restore": ("gate restore", ("idea", "0", "restored"), "idea", ("idea", "7", "x")),
    "data prepare": ("data prepare", ("digits",), "data", ("digitz",)),
}
SERVING = {"watch", "mcp"}  # until somebody ends it: see below, and test_agents.py


def command_names() -> Iterator[str]:
    """Yield each command of the application, those of a group with its name."""
    for name, command in typer.main.get_command(cli.app).commands.items():
        inner = getattr(command, "commands", None)
        yield from [name] if inner is None else [f"{name} {each}" for each in inner]


@pytest.fixture
def beside(shell):
    """A folder with the golden store and a sheet."""
    shutil.copytree(GOLDEN / "store", shell.folder / "runs")
    (shell.folder / "sheet.csv").write_text("row,acc\na,1\na,2\nb,3\nb,4\n")
    return shell


def answer(done, section: str) -> dict:
    """The one object on standard output, whose keys are those of the section."""
    document = json.loads(done.out, parse_constant=pytest.fail)
    check_document(document, section, set())
    return document


def test_each_command_has_words_here():
    assert {*command_names()} == {*COMMANDS, *SERVING}


@pytest.mark.whole
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_one_object_well_and_with_a_mistake(beside, name):
    section, words, place, wrong = COMMANDS[name]
    if name == "merge":
        beside("export", "fixture", "handed-on")
    if name.startswith("gate "):
        beside("new", "trainer", "line")
        if name != "gate start":
            beside("gate", "start", "idea", "trainer=line")
    if words is not None:
        document = answer(beside(*name.split(), *words, "--format", "json"), section)
        assert not document.keys() & {*ERROR_KEYS}
    for mistake, wrong_place in ((wrong, place), (("--nope",), "--nope")):
        document = answer(beside(*name.split(), *mistake, "--format=json", code=2), "error")
        assert (document["place"], document["retry"]) == (wrong_place, False)
        assert document["fix"]


def test_the_page_of_watch_is_served_behind_its_object(beside):
    process = beside.start("watch", "fixture", "--format", "json")
    file = beside.folder / f"{beside.number}.out"
    wait_for(lambda: file.read_text().endswith("}\n"))
    process.send_signal(signal.SIGINT)
    done = beside.end(process)
    assert done.code == 130
    assert answer(done, "watch")["url"].startswith("http://127.0.0.1:")


@pytest.mark.whole
def test_a_command_that_a_signal_stops_says_so(beside):
    words = ("sweep", *TINY[:-1], "train.epochs=50", "launcher.devices=cpu", "--yes")
    process = beside.start(*words, "--format", "json")
    error_file = beside.folder / f"{beside.number}.err"
    wait_for(lambda: "sweep: " in error_file.read_text())
    process.send_signal(signal.SIGINT)
    done = beside.end(process)
    assert done.code == 128 + signal.SIGINT
    assert answer(done, "error")["retry"] is True


def test_what_a_child_prints_is_no_part_of_the_object(beside, monkeypatch):
    """A child inherits the descriptor, whatever became of `sys.stdout`."""

    def printing(*_):
        subprocess.run(["sh", "-c", "echo from a child"], check=True)
        os.write(1, b"from a library\n")
        return {"name": "x"}

    monkeypatch.setattr("ablate.report.trees.of_status", printing)
    done = beside("status", "--format", "json")
    assert json.loads(done.out)["name"] == "x"
    assert {"from a child", "from a library"} <= {*done.err.splitlines()}


def test_a_fault_of_ours_is_an_object_too(beside, monkeypatch):
    def broken(*_):
        raise KeyError("x")

    monkeypatch.setattr("ablate.report.trees.of_status", broken)
    done = beside("status", "--format", "json", code=1)
    assert "Traceback" in done.err
    assert answer(done, "error")["place"] == "KeyError"


def test_a_library_that_ctrl_c_interrupts_may_end_with_any_error(beside, monkeypatch):
    def interrupted(*_):
        monkeypatch.setattr(cli, "_heard", [signal.SIGINT])
        raise ImportError

    monkeypatch.setattr("ablate.report.trees.of_status", interrupted)
    done = beside("status", "--format", "json", code=128 + signal.SIGINT)
    assert answer(done, "error")["retry"] is True
    assert "Traceback" not in done.err


def test_what_was_found_is_printed_with_the_error(beside):
    file = next((beside.folder / "runs" / "runs").glob("*/predictions.npy"))
    file.write_bytes(file.read_bytes()[:-4] + b"more")
    document = answer(beside("verify", "--format", "json", code=1), "verify")
    assert document["findings"]
    assert document["place"] == "fixture"


# --- Nobody is asked ------------------------------------------------------------------------------

LONG = ("stem=none,dpn", "model.depth=1", "train.epochs=1e11", "launcher=inline")
ASKING = {
    "sweep": ("sweep", *LONG),
    "sweep --detach": ("sweep", *LONG, "--detach", "here"),
    "run --delete": ("run", "pre#0", "--delete"),
    "gc": ("gc", "fixture"),
}


@pytest.mark.whole
@pytest.mark.parametrize("closed", [False, True], ids=["no input", "closed input"])
@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_nothing_is_asked_without_a_terminal(beside, words, closed):
    for more in ((), ("--format", "json")):
        line = [ABLATE, *words, *more]
        if closed:
            line = ["sh", "-c", 'exec "$@" <&-', "sh", *line]
        ended = subprocess.run(
            line,
            cwd=beside.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 2, ended.stderr
        assert ended.stderr.splitlines()[-1].endswith("; add --yes")
        if more:
            assert json.loads(ended.stdout)["fix"] == "add --yes"
    assert len([*(beside.folder / "runs" / "runs").glob("*/result.json")]) == 6


def test_a_program_is_not_asked_on_a_terminal_either(beside, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    document = answer(beside("gc", "fixture", "--format", "json", code=2), "gc")
    assert (document["fix"], document["removed_bytes"]) == ("add --yes", 0)
    assert document["bytes"] > 0


# --- Exit codes -----------------------------------------------------------------------------------


@pytest.mark.whole
def test_what_another_process_holds_can_be_tried_again(beside):
    store = Store(beside.folder / "runs")
    with store.driver.hold():
        store.driver.note(pid=os.getpid())
        for words in (("gc",), ("run", "pre#0", "--delete", "--yes"), ("doctor", "--repair")):
            document = answer(beside(*words, "--format", "json", code=75), "error")
            assert (document["place"], document["retry"]) == ("runs", True)


def test_a_damaged_ledger_is_named_and_repaired_in_its_own_store(beside):
    (beside.folder / "runs").rename(beside.folder / "other")
    with closing(sqlite3.connect(beside.folder / "other/ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE event SET at = 'x'")
    document = answer(beside("table", "--store", "other", "--format", "json", code=1), "error")
    assert document["place"] == "other/ledger.db"
    [command] = re.findall("`ablate (.*)`", document["fix"])
    beside(*command.split())
    beside("table", "--store", "other")


def test_a_disk_that_is_full_can_be_tried_again(tmp_path):
    full = failure_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/ledger.db"))
    assert isinstance(full, NoRoom)
    assert (full.place, full.retry) == ("runs/ledger.db", True)
    assert not failure_of(OSError(errno.EACCES, "no", "x")).retry
    with closing(sqlite3.connect(tmp_path / "a.db")) as writer:
        writer.execute("CREATE TABLE t(x)")
        writer.execute("BEGIN EXCLUSIVE")
        reader = sqlite3.connect(tmp_path / "a.db", timeout=0)
        with closing(reader), pytest.raises(sqlite3.OperationalError) as busy:
            reader.execute("SELECT * FROM t")
    assert isinstance(failure_of(busy.value), TryAgain)


# --- Waiting --------------------------------------------------------------------------------------


@pytest.mark.whole
def test_waiting_ends_with_the_sweep_its_time_or_its_driver(beside):
    assert answer(beside("status", "fixture", "--wait", "--format", "json"), "status")["done"] == 6
    slow = (*TINY[:-1], "train.epochs=3000", "seeds=1", "launcher.devices=cpu", "--as", "slow")
    started = beside.process("sweep", *slow, "--detach", "here", "--yes", "--format", "json")
    assert answer(started, "sweep --detach")["sweep"] == "slow"
    wait = ("status", "slow", "--wait", "--format", "json")
    late = answer(beside(*wait, "--timeout", "0.5", code=75), "status")
    assert (late["retry"], late["driven"]) == (True, True)
    line = {"cwd": beside.folder, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen([ABLATE, *wait], **line, text=True) as waiting:
        beside("stop")
        left = json.loads(waiting.communicate(timeout=120)[0])
        assert waiting.returncode == 1
    assert left["fix"].startswith("`ablate sweep ")
    assert left["done"] < left["total"]
    with closing(sqlite3.connect(beside.folder / "runs" / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE run SET status = 'failed' WHERE status != 'finished'")
    assert "--retry failed" in answer(beside(*wait, code=1), "status")["error"]


@pytest.mark.parametrize(
    "words",
    [
        ("--wait", "--until", "look"),
        ("--until", "finished"),
        ("--timeout", "3"),
        ("--wait", "--watch"),
        ("--wait", "--until", "lok"),
    ],
    ids=" ".join,
)
def test_waiting_for_what_can_not_be_is_a_mistake(beside, words):
    done = beside("status", "fixture", *words, "--format", "json", code=2)
    assert answer(done, "error")["place"].startswith(words[-2] if len(words) > 2 else "--")


# --- Fields and the parts of a line ---------------------------------------------------------------


def test_fields_keep_the_labels_of_their_objects():
    entries = [{"row": "a", "gain": {"mean": 1, "row": 7}, "n": 3}, {"row": "b", "n": 3}]
    tree = {"sweep": "s", "columns": [{"label": "", "entries": entries}], "empty": []}
    assert choose_fields(tree, ["gain"]) == {
        "columns": [{"label": "", "entries": [{"row": "a", "gain": {"mean": 1, "row": 7}}]}]
    }
    assert choose_fields(tree, ["sweep", "empty", "sweeep", "version", "error", "fix"]) == {
        **{"sweep": "s", "empty": []},
        "absent": ["sweeep"],
    }


def test_fields_are_of_json(beside):
    assert "--format json" in beside("status", "--fields", "done", code=2).err
    fields = ("--format", "json", "--fields", "done,error,version")
    answer(beside("status", "nope", *fields, code=2), "error")
    done = beside("table", "--format", "json", "--fields", "gain, verdict")
    document = json.loads(done.out)
    assert document.keys() == {"columns", "version"}
    [column] = document["columns"]
    assert [entry.keys() for entry in column["entries"]] == [
        {"row", "column", "gain", "verdict"},
    ] * 2


PARTS = {
    "train.epochs: got 'epoch' (did you mean 'epochs'?), expected a key among epochs; steps": (
        "train.epochs",
        "steps",
    ),
    "stem: expected one of a, b, got 'c; d: e'": ("stem", "expected one of a, b, got 'c; d: e'"),
    "s: 3 failed of 9 runs: `ablate status s` shows why": ("s", "`ablate status s` shows why"),
    "seeds: the command has no {seed}: add {seed}": ("seeds", "add {seed}"),
    "no such command 'tabel'. Did you mean 'table'?": (None, "Did you mean 'table'?"),
    "`a: b; c`: is odd": ("`a: b; c`", None),
    "a's part: isn't b's; use c, which isn't d's": ("a's part", "use c, which isn't d's"),
    "it broke": (None, None),
}


@pytest.mark.parametrize("line", PARTS)
def test_place_and_remedy_are_parts_of_the_line(line):
    error = UserError(line)
    assert (error.place, error.fix) == PARTS[line]
