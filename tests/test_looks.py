"""Looks: whatever prints a gain with an interval leaves one in the sealed ledger; where none can be
left, none is printed; what was changed after one is said, whatever the sweep is called."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ABLATE, GOLDEN, REPOSITORY, wait_for
from support.looks import reading as reading_of
from support.tables import notes_of

import ablate
from ablate.analysis import english, reading
from ablate.audit.bundle import Bundle
from ablate.audit.doctor import stored
from ablate.audit.verify import verify_plan
from ablate.cli import app
from ablate.report.formats import FORMATS
from ablate.shared.errors import UserError
from ablate.store import looks
from ablate.store.ledger import Ledger
from ablate.store.repair import repair_ledger
from ablate.store.store import Store

WORDS = ("block.attn=pre,post", "model.depth=1", "model.width=16", "model.heads=2")
SHORT = ("train.steps=4", "train.batch=32")
WITHHELD = "Verdicts are withheld, since this look can't be recorded"


def unread(folder: Path) -> Store:
    """Two variants of three seeds, all finished, of which no verdict was read, in folder/runs."""
    store = Store(shutil.copytree(GOLDEN / "store", folder / "runs"))
    store.looks.unlink()
    store.ledger.unlink()
    return store


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return unread(tmp_path)


def run(*words: str) -> None:
    app(words, standalone_mode=False)


def told(store: Store) -> list[dict]:
    with Ledger.reading(store) as ledger:
        assert ledger.broken_seals() == []
        assert store.looks_view() == ledger.looks()
        return ledger.looks()


def findings(store: Store) -> list[str]:
    plan = store.read_plan("fixture")
    with Ledger.reading(store) as ledger:
        return verify_plan(plan, store, ledger).findings


# --- One door -----------------------------------------------------------------------------------


@pytest.mark.whole
def test_only_the_door_asks_for_verdicts():
    asking = set()
    for path in (REPOSITORY / "ablate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "make_table" in ast.unparse(node):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                allowed = ("Detail.MEANS", "Detail.INTERVALS")
                if None in given or given.get("detail", allowed[0]) not in allowed:  # **options
                    asking.add(path.name)
    assert asking == {"reading.py"}


@pytest.mark.whole
@pytest.mark.parametrize(
    "words",
    [
        *(("table", "--format", name) for name in FORMATS),
        ("table", "fixture", "--show", "gain,verdict", "--transpose"),
        ("report",),
        ("plot", "gain"),
        ("plot", "forest"),
        ("export", "out"),
    ],
    ids=" ".join,
)
def test_every_way_of_printing_a_verdict_leaves_one_look(store, words):
    run(*words)
    run(*words)
    [look] = told(store)
    assert (look["sweep"], look["columns"][""]["n"], look["metric"]) == ("fixture", 3, "top1")
    assert look["planned"] == []
    runs = [[*row["runs"].values()] for row in look["columns"][""]["rows"].values()]
    assert runs == [[*cell.ids.values()] for cell in store.read_plan("fixture").cells]
    assert findings(store) == []


def test_what_prints_none_leaves_none(store, tmp_path):
    for words in (("status",), ("plot", "curves"), ("verify",), ("show", "pre#0")):
        run(*words)
    ablate.Store(store.root).sweep("fixture").to_pandas()
    assert told(store) == []


@pytest.mark.whole
def test_an_unfinished_table_has_means_and_leaves_one_peek_for_each_number_of_seeds(store, capsys):
    plan = store.read_plan("fixture")
    for seed in (2, 1):
        store.rundir(plan.cells[1].ids[seed]).result.unlink()
        for words in (("table",), ("table", "--format", "tidy"), ("report",)):
            run(*words)
        printed = capsys.readouterr().out
        assert "UNFINISHED" in printed
        assert "gain," in printed
        assert not any(word in printed for word in ("gain.low", "gain.p", "verdict,"))
        assert [look["columns"][""]["n"] for look in told(store)] == [*range(2, seed - 1, -1)]
    assert {tuple(look["planned"]) for look in told(store)} == {(3,)}
    store.rundir(plan.cells[1].ids[0]).result.unlink()
    run("table")
    assert len(told(store)) == 2  # of the baseline alone: no gain was seen


def test_a_sweep_that_ends_leaves_one_and_the_same_look_is_one(shell):
    store = unread(shell.folder)
    words = (*WORDS, *SHORT, "seeds=3", "launcher=inline", "--as", "fixture")
    assert "verdict" in shell("sweep", *words).out
    assert len(told(store)) == 1
    shell("table")
    assert len(told(store)) == 1


@pytest.mark.whole
def test_a_look_beside_a_running_driver(shell):
    store = unread(shell.folder)
    words = ("stem=none,dpn", *WORDS[1:], "train.epochs=5000", "seeds=1", "--as", "long")
    driver = shell.start("sweep", *words)
    try:
        wait_for(lambda: driver.poll() is not None or "started" in kinds(store))
        app(("table", "fixture", "--store", str(store.root)), standalone_mode=False)
        assert store.driver.is_held()
        assert [look["sweep"] for look in told(store)] == ["fixture"]
    finally:
        driver.send_signal(signal.SIGTERM)
        driver.wait(60)
    assert kinds(store).index("look") < len(kinds(store)) - 1  # it wrote on
    assert len(told(store)) == 1
    assert findings(store) == []


def kinds(store: Store) -> list[str]:
    if not store.ledger.exists():
        return []
    with Ledger.reading(store) as ledger:
        return [kind for (kind,) in ledger._db.execute("SELECT kind FROM event ORDER BY number")]


def test_looks_at_once_beside_a_writer_are_all_kept_and_sealed(store):
    with Ledger.driving(store) as ledger:
        run_id = store.read_plan("fixture").cells[0].ids[0]
        threads = [
            threading.Thread(target=store.add_look, args=(reading_of("bx", (n % 8,)).event(),))
            for n in range(24)
        ]
        for thread in threads:
            thread.start()
        for _ in range(20):
            ledger.record(run_id, "interrupted")
        for thread in threads:
            thread.join()
    seeds = [[*look["columns"][""]["rows"]["b"]["runs"]] for look in told(store)]
    assert sorted(seeds) == [[str(n)] for n in range(8)]
    assert kinds(store).count("interrupted") == 20


def test_a_look_that_another_process_records_first_is_told(store):
    plan = store.read_plan("fixture")
    results = {run.id: store.result(run.id) for run in plan.runs()}
    fewer = dataclasses.replace(plan, seeds=(0, 1))

    class Raced(Store):
        def add_look(self, look):
            store.add_look(looks.look(fewer).event())
            super().add_look(look)

    read = reading.read_verdicts(plan, Raced(store.root), results)
    [readings] = notes_of(read.table, "looks.other-readings")
    assert readings.values["subject"] == "intervals"
    assert readings.values["verdicts"] == [{"n": 2, "sweeps": ["fixture"]}]
    assert [look.n for look in read.looks] == [2, 3]


# --- Where none can be left ---------------------------------------------------------------------


@pytest.mark.whole
def test_a_store_that_can_not_be_written_has_its_means_and_no_intervals(tmp_path):
    store = unread(tmp_path)
    with Ledger.reading(store):
        pass  # made again

    def alone(*lines: str) -> subprocess.CompletedProcess:
        words = ["unshare", "-rm", "sh", "-c", " && ".join(lines)]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    fixed = "mount --bind runs runs", "mount -o remount,ro,bind runs"
    if alone(*fixed).returncode:
        pytest.skip("needs a mount that is read-only: `unshare -rm` may not here")
    done = alone(*fixed, f"{ABLATE} table --format tidy", f"{ABLATE} export out > /dev/null")
    assert done.returncode == 0, done.stderr
    assert f'note,,"{WITHHELD} (the store is not writable)."' in done.stdout
    assert ",gain," in done.stdout
    assert not any(f",{what}," in done.stdout for what in ("gain.low", "gain.p", "verdict"))
    assert told(store) == []
    again = subprocess.check_output(
        [ABLATE, "table", "--from", "out", "--format", "tidy"], cwd=tmp_path
    )
    assert again == (tmp_path / "out" / "table.tidy.csv").read_bytes()
    assert WITHHELD in again.decode()


@pytest.fixture
def shown(store, capsys) -> Callable[..., str]:
    """What a table prints, under other words; `driven=True`: while another machine drives."""

    def shown(*words: str, driven: bool = False, format: str = "md") -> str:
        if driven:
            assert store.driver.acquire()
            store.driver.note(pid=os.getpid(), host="elsewhere", sweep="other")
        capsys.readouterr()
        run("table", *words, "--format", format)
        store.driver.release()
        return capsys.readouterr().out

    return shown


def test_another_machine_that_drives_the_store_keeps_its_ledger(store, shown):
    with Ledger.reading(store):
        pass
    printed = shown(driven=True)
    assert f"{WITHHELD} (elsewhere drives the store" in printed
    assert "| +3.89 [-]" in printed
    assert told(store) == []
    printed = shown()
    assert WITHHELD not in printed
    assert len(told(store)) == 1
    assert shown(driven=True) == printed  # what is recorded needs no store that can be written
    assert WITHHELD in shown("analysis.margin=1", driven=True)


# --- What was changed after one -----------------------------------------------------------------


def test_a_table_whose_analysis_changed_after_a_look_says_what_changed(store, shown):
    assert "Changed after" not in shown("analysis.margin=0.3")
    changed = ("fixture", "analysis.metric=loss", "analysis.spread=paired")
    said = "metric: top1 -> loss; analysis.spread: images -> paired; analysis.margin: 0.3 -> none. "
    printed = shown(*changed, "--notes", "full")
    assert f"Changed after verdicts had been read, at n = 3: {said}" in printed
    assert "paired t" in printed
    printed = shown(*changed, "--strict", format="tidy")
    assert said in printed
    assert english.write("looks.strict", {}) in printed
    assert ",verdict," not in printed
    assert "Changed after" not in shown("analysis.margin=0.3")  # that which was read first
    assert [look["analysis"]["margin"] for look in told(store)] == [0.3, None]
    run("report", "analysis.margin=1")
    assert "analysis.margin: 0.3 -&gt; 1.0" in Path("fixture.html").read_text()
    run("plot", "analysis.margin=1", "gain", "--out", "gain.svg")
    text = Path("gain.svg").read_text().replace("&gt;", ">").replace("<", " <")
    assert "analysis.margin: 0.3 -> 1.0" in " ".join(text.split())
    assert len(told(store)) == 3
    assert findings(store) == []


def test_analysis_words_apply_or_are_refused(store, capsys):
    run("status", "fixture", "analysis.spread=auto")  # as it was driven
    for command in ("status", "verify"):
        with pytest.raises(UserError, match=r"analysis\.spread: fixture was driven with another"):
            run(command, "fixture", "analysis.spread=paired")
    with pytest.raises(UserError, match=r"analysis\.sprad: .*'spread'\?\), expected a key among"):
        run("table", "fixture", "analysis.sprad=paired")
    with pytest.raises(UserError, match=r"analysis\.margin: must be more than 0"):
        run("export", "analysis.margin=-1", "out")
    capsys.readouterr()
    run("export", "fixture", "analysis.spread=paired", "out")
    run("table", "--from", "out", "--notes", "full")
    assert "paired t" in capsys.readouterr().out


# --- What a bundle carries ----------------------------------------------------------------------


def test_a_bundle_prints_the_words_that_it_carries_and_adds_no_look(store, capsys):
    run("table", "analysis.margin=2")
    run("export", "out")
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    capsys.readouterr()
    run("table", "--from", "out", "--format", "tidy")
    printed = capsys.readouterr().out
    assert printed == Path("out/table.tidy.csv").read_text()
    assert ",verdict," in printed
    assert "analysis.margin: 2.0 -> none" in printed
    assert {path: path.read_bytes() for path in before} == before
    assert len(told(store)) == 2
    tree = json.loads(Path("out/sweep.json").read_text())
    tree["analysis"]["alpha"] = 0.5
    Path("out/sweep.json").write_text(json.dumps(tree))
    Bundle(Path("out")).write_manifest()
    run("table", "--from", "out", "--format", "tidy")
    printed = capsys.readouterr().out
    assert "the bundle has other verdicts" in printed
    assert not any(f",{what}," in printed for what in ("gain.low", "verdict"))


# --- Kept ---------------------------------------------------------------------------------------

FORGED = json.dumps(reading_of("bx", 3).event()) + "\n"
EDITS = {
    "gone": lambda text: None,
    "empty": lambda text: "",
    "first line out": lambda text: "".join(text.splitlines(True)[1:]),
    "last line out": lambda text: "".join(text.splitlines(True)[:-1]),
    "another order": lambda text: "".join(reversed(text.splitlines(True))),
    "a line twice": lambda text: text + text.splitlines(True)[0],
    "a line more": lambda text: text + FORGED,
    "a line more before": lambda text: FORGED + text,
    "torn": lambda text: text[:-9],
    "fewer seeds": lambda text: text.replace('"n": 3', '"n": 2', 1),
    "another run": lambda text: text.replace('"runs": {"0": "', '"runs": {"0": "0', 1),
    "a run out": lambda text: text.replace('"runs": {"0": ', '"runs": {"7": ', 1),
    "fewer contrasts": lambda text: text.replace('"contrasts": 1', '"contrasts": 0', 1),
    "a peek": lambda text: text.replace('"columns"', '"planned": [3], "columns"', 1),
    "another sweep": lambda text: text.replace("fixture", "other", 1),
    "another margin": lambda text: text.replace("0.3", "0.5"),
    "no margin": lambda text: text.replace("0.3", "null"),
    "another spread": lambda text: text.replace("images", "paired", 1),
    "another metric": lambda text: text.replace("top1", "loss", 1),
    "another alpha": lambda text: text.replace("0.05", "0.01", 1),
    "looks declared": lambda text: text.replace('"looks": []', '"looks": [3]', 1),
    "a row renamed": lambda text: text.replace('"post"', '"past"', 1),
    "another variant": lambda text: text.replace('"spec": "', '"spec": "0', 1),
}


@pytest.mark.whole
def test_every_edit_of_the_file_is_found_and_the_ledger_counts(store):
    for words in ((), ("analysis.margin=0.3",), ("analysis.metric=loss",)):
        run("table", *words)
    whole = store.looks.read_text()
    assert findings(store) == []
    for name, edit in EDITS.items():
        text = edit(whole)
        assert text != whole, name
        store.looks.unlink() if text is None else store.looks.write_text(text)
        (finding,) = findings(store)
        assert finding.startswith("looks.jsonl: "), name
        assert "looks" in [found.check for found in stored.content(store)], name
        store.looks.write_text(whole)
    store.looks.unlink()
    run("table", "analysis.margin=0.7")
    assert store.looks.read_text().startswith(whole)
    assert findings(store) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET detail = replace(detail, '0.3', 'null') WHERE kind = 'look'",
        "UPDATE event SET run = 'x' WHERE kind = 'look'",
        "DELETE FROM event WHERE number = (SELECT min(number) FROM event WHERE kind = 'look')",
        "DELETE FROM event WHERE number = (SELECT max(number) FROM event)",
    ],
)
def test_an_edit_of_the_ledger_is_found_though_the_file_follows(store, statement):
    run("table", "analysis.margin=0.3")
    run("table")
    with sqlite3.connect(store.ledger) as db:
        assert db.execute(statement).rowcount > 0
    db.close()
    with Ledger.reading(store) as ledger:
        store.looks.write_bytes(ledger.looks_text())
    assert any("ledger.db: " in finding for finding in findings(store))


def test_looks_outlive_a_lost_ledger_and_a_repair(store):
    run("table")
    run("table", "analysis.margin=0.3")
    known = told(store)
    store.ledger.unlink()
    assert told(store) == known
    store.looks.write_text(store.looks.read_text().splitlines(True)[0])  # one taken out
    repair_ledger(store)
    assert told(store) == known
    assert findings(store) == []
