"""What is read is what was written: an edited result or curve is named and withheld by whatever
prints numbers, and JSON that nobody here writes is a line that names the file, in every command."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ablate
from ablate import cli
from ablate.planning.expand import plan as make_plan
from ablate.running import estimate
from ablate.shared import predictions
from ablate.shared.errors import Failure
from ablate.shared.files import to_json
from ablate.shared.rundir import Metrics
from ablate.store.ledger import Ledger, Store

WORDS = ["optim.lr=0.001,0.003", "recipe=quick", "seeds=3"]
NAME = "planted"


def leave(store: Store, run: Any, top1: float) -> None:
    """A run's folder as a worker leaves it, but for the weights."""
    folder = store.rundir(run.id)
    folder.path.mkdir(parents=True)
    folder.run.write_bytes(to_json({"format": 1, "id": run.id, "spec": run.spec()}))
    folder.lock.path.write_text('{"pid": 1, "exit": "result"}')
    folder.write_attempts([{"at": 1.0, "ended": 2.0, "pid": 1, "exit": "result", "from_step": 0}])
    metrics = Metrics(folder.metrics)
    for n in (1, 2):
        scores = {"val_n": 300, "val_loss": 0.1, "val_top1": top1 / n, "val_top5": 1.0}
        line = {"step": 9 * n, "epoch": 1.0 * n, "lr": 0.1, "train_loss": 0.1, **scores}
        metrics.append(line)
    told = np.zeros(300, [("predicted", "u2"), ("rank", "u2"), ("loss", "f8")])
    told["rank"][round(300 * top1) :] = 1
    content = io.BytesIO()
    np.save(content, told)
    folder.predictions.write_bytes(content.getvalue())
    result = {
        **{"status": "finished", "step": 18, "seconds": 9.0, "collapsed": False, "digest": "a"},
        **{"device": "cpu", "threads": 1, "torch": "2", "kernel": "k", "micro_batch": 9},
        **{"train_loss": 0.1, "prior_loss": 2.3, "fingerprint": "f", "plugins": {"norm": None}},
        **{"parameters": 7, "multiply_adds": 9, "images_per_s": 3.0, "peak_bytes": None},
        "test": predictions.metrics(told, 10),
        "validation": {key[4:]: value for key, value in scores.items()},
        "metrics_sha256": hashlib.sha256(folder.metrics.read_bytes()).hexdigest(),
        "predictions_sha256": hashlib.sha256(content.getvalue()).hexdigest(),
        "probes_sha256": {},
    }
    folder.result.write_bytes(to_json(result))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    store = Store(tmp_path_factory.mktemp("planted") / "runs")
    plan, _ = make_plan(WORDS, store=store.root, name=NAME)
    store.write_plan(plan)
    for n, run in enumerate(plan.runs()):
        leave(store, run, 0.8 + 0.01 * (n % 2) + 0.003 * n)
    with Ledger.driving(store):  # made of the folders
        pass
    return store.root


@pytest.fixture
def store(made, tmp_path, monkeypatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture
def ask(monkeypatch, capfd) -> Callable[..., tuple[int, str]]:
    """`ablate WORDS` in this process: its exit code and all that it printed."""

    def ask(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, "".join(capfd.readouterr())

    return ask


def first(store: Store) -> Any:
    plan = store.read_plan(NAME)
    assert plan is not None
    return next(plan.runs())


def edit(path: Path, before: bytes) -> None:
    """One digit more, behind `before`."""
    content = path.read_bytes()
    place = content.index(before) + len(before)
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


# --- Edited -------------------------------------------------------------------------------------


def test_untouched_files_are_read_without_a_word(store, ask):
    for words in (("table",), ("table", "--show", "auc,verdict"), ("status",)):
        code, text = ask(*words)
        assert code == 0
        assert "ithheld" not in text
    assert ask("export", "out")[0] == 0
    assert "helps" in ask("table")[1] or "verdict" in ask("table")[1]


def test_an_edited_result_is_named_and_withheld_by_every_reader(store, ask, tmp_path):
    run = first(store)
    folder = store.rundir(run.id)
    score = json.loads(folder.result.read_bytes())["test"]["top1"]
    edit(folder.result, b'"top1": 0.')
    edited = json.loads(folder.result.read_bytes())["test"]["top1"]
    assert edited != score
    said = f"{run.label}: runs/runs/{run.id}/result.json was edited since it was recorded"
    code, text = ask("table", "--format", "json")
    assert code == 0
    table = json.loads(text)
    assert any(said in note for note in table["notes"])
    assert not table["complete"]
    assert '"verdict": "' not in text
    assert f"{100 * edited:.2f}" not in ask("table", "--format", "csv")[1]
    for words in (("table",), ("status",), ("plot", "forest"), ("plot", "curves")):
        assert said in " ".join(ask(*words)[1].split()).replace("- ", "-")
    assert f"runs/{run.id}/result.json was edited" in ask("show", run.label)[1]
    assert ask("report", "--out", "page.html")[0] == 0
    assert said in (tmp_path / "page.html").read_text()
    code, text = ask("export", "out")
    assert code == 1
    assert run.id in text
    assert "result.json" in text
    frame = ablate.load(store="runs").set_index("id")
    assert frame.status[run.id] == "withheld"
    assert math.isnan(frame.top1[run.id])
    assert not frame.top1.drop(run.id).isna().any()


def test_edited_metrics_are_named_and_withheld_where_they_are_read(store, ask, tmp_path):
    run = first(store)
    edit(store.rundir(run.id).metrics, b'"val_top1": 0.')
    said = f"{run.label}: runs/runs/{run.id}/metrics.jsonl was edited since the run ended"
    assert "edited" not in ask("table")[1]  # whose numbers are not of it
    code, text = ask("table", "--show", "auc")
    assert code == 0
    assert said in text
    assert said in ask("plot", "curves")[1]
    assert run.id not in set(ablate.load(store="runs", curves=True).id)
    assert ask("report", "--out", "page.html")[0] == 0
    assert said in (tmp_path / "page.html").read_text()
    code, text = ask("export", "out")
    assert (code, "metrics.jsonl" in text) == (1, True)
    store.rundir(run.id).metrics.unlink()
    assert f"runs/{run.id}/metrics.jsonl: missing" in ask("table", "--show", "auc")[1]


def test_a_search_is_told_no_edited_result(store):
    run = first(store)
    seal = store.seals()[run.id]
    assert store.result(run.id, seal)["status"] == "finished"
    edit(store.rundir(run.id).metrics, b'"val_top1": 0.')
    with pytest.raises(Failure, match=r"metrics\.jsonl was edited"):
        store.result(run.id, seal)


def test_a_run_that_begins_again_has_no_seal_until_it_is_recorded(store):
    run = first(store)
    with Ledger.driving(store) as ledger:
        ledger.record(run.id, "interrupted")
        ledger.record(run.id, "started", step=0)
        assert run.id not in ledger.seals()
        assert ledger.seals([run.id]) == {}
        assert len(ledger.seals()) == 5
    edit(store.rundir(run.id).result, b'"top1": 0.')  # another file: the new worker's
    assert store.results([run]).withheld == {}


def test_results_recorded_before_hashes_were_taken_are_read_as_they_are(store, ask):
    import sqlite3

    with sqlite3.connect(store.ledger) as db:
        db.execute("UPDATE event SET detail = '{}' WHERE kind = 'finished'")
    edit(store.rundir(first(store).id).result, b'"top1": 0.')
    assert "edited" not in ask("table")[1]


# --- Forged -------------------------------------------------------------------------------------

DEEP = ["[" * 100_000, "[" * 700 + "]" * 700, '{"a":' * 700 + "1" + "}" * 700]
ANY = ["[]", "{}", "3", '"text"', "null", "NaN", '{"status": []}', "[[]]", "[3]", *DEEP]


def changed(path: Path, *keys: Any, to: Any) -> str:
    """The file's JSON with another value at a place."""
    tree = part = json.loads(path.read_bytes())
    *above, last = keys
    for key in above:
        part = part[key]
    part[last] = to
    return json.dumps(tree)


def of_a_result(path: Path) -> list[str]:
    changes: list[tuple[str, Any]] = [
        *(("status", value) for value in ("unknown", None, 3, {}, "planned")),
        *(("test", value) for value in (3, None, [], {}, {"top1": "high"}, {"top1": 10**400})),
        *(("validation", value) for value in (3, [1], {"top1": []})),
        *(("step", "x"), ("seconds", {}), ("plugins", [3]), ("probes_sha256", [])),
        *(("collapsed", "no"), ("parameters", "7"), ("kernel", 3), ("digest", [1])),
        *(("metrics_sha256", 3), ("train_loss", math.inf)),
    ]
    return [changed(path, key, to=value) for key, value in changes]


def of_a_plan(path: Path) -> list[str]:
    changes: list[tuple[tuple[Any, ...], Any]] = [
        *(((key,), 3) for key in json.loads(path.read_bytes())),
        *((("cells", 0, "ids", "0"), bad) for bad in ("../../x", "..", 3, None, "", "a" * 16)),
        (("cells", 0, "ids"), {"x": "a" * 16}),
        *((("cells", 0, "spec"), bad) for bad in ({}, [], {"data": 3})),
        (("cells", 0, "spec", "optim", "lr"), 0.5),
        (("cells", 0, "row"), "nowhere"),
        (("rows", 0, "label"), ["x"]),
        (("baseline",), "nowhere"),
        *((("seeds",), bad) for bad in ([], ["0"], [0, [1]])),
        (("analysis", "metric"), "luck"),
        *((("analysis", "alpha"), bad) for bad in (0, "x", 7)),
    ]
    return [changed(path, *keys, to=value) for keys, value in changes]


def of_attempts(path: Path) -> list[str]:
    return [
        changed(path, "attempts", to=value)
        for value in (3, [3], [[]], [{"at": "x"}], [{"origin": 3}], [{"origin": {"git": []}}])
    ]


COMMANDS = (
    *(("status",), ("table",), ("table", "--show", "auc,params"), ("trials",), ("verify",)),
    *(("plot", "forest"), ("plot", "curves"), ("report", "--out", "page.html"), ("gc",)),
    *(("export", "out"), ("show", "RUN"), ("show", "RUN", "--against", "RUN"), ("stop",)),
    *(("doctor", "--repair"), ("status",), ("table",)),
)


def forgeries(store: Store) -> list[tuple[Path, str]]:
    folder = store.rundir(first(store).id)
    plan = store.plan_path(NAME)
    special = {
        folder.result: of_a_result(folder.result),
        plan: of_a_plan(plan),
        folder.env: of_attempts(folder.env),
        folder.run: [changed(folder.run, "spec", to=value) for value in (3, [], {"data": 3})],
        folder.lock.path: ['{"pid": "x", "step": "y", "error": []}'],
        folder.metrics: ['{"epoch": "x"}', '{"val_top1": {}}'],
        store.looks: ['{"sweep": 3, "seeds": 3}', '{"sweep": "planted", "seeds": ["x"]}'],
        store.cache / "costs.json": ['{"a": 3}', '{"a": {"examples": 3}}'],
        store.driver.path: ['{"pid": [], "host": 3, "sweep": {}}'],
    }
    return [(path, text) for path, texts in special.items() for text in (*texts, *ANY)]


def survive(store: Store, ask: Callable[..., tuple[int, str]], every: int) -> None:
    """Each command ends by itself, with a line where it fails; every other exception ends here."""
    run = first(store).id
    whole = shutil.copytree(store.root, store.root.with_name("whole"))
    for number, (path, text) in enumerate(forgeries(store)[::every]):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if number % 2:  # nothing tells what it was
            store.ledger.unlink(missing_ok=True)
        for words in COMMANDS:
            code, said = ask(*(run if word == "RUN" else word for word in words))
            place = f"{path}: {text[:200]}: {words}: {said[-2000:]}"
            assert code in (0, 1, 2), place
            assert "Traceback" not in said, place
            failures = [line for line in said.splitlines() if line.startswith("ablate: ")]
            assert len(failures) == (code != 0), place
            if words == ("table",) and path == store.plan_path(NAME):
                assert code, place
                assert path.name in said, place
        shutil.rmtree(store.root)
        shutil.copytree(whole, store.root)


@pytest.mark.slow
def test_forged_json_is_a_line_in_every_command(store, ask):
    survive(store, ask, 1)


def test_some_forged_json_is_a_line_in_every_command(store, ask):
    survive(store, ask, 23)


def test_a_forged_plan_is_named_and_the_same_sweep_writes_it_again(store, ask):
    path = store.plan_path(NAME)
    whole = path.read_bytes()
    path.write_text(changed(path, "cells", 0, "spec", "optim", "lr", to=0.5))
    code, said = ask("table")
    assert code == 1
    assert f"{path.relative_to(Path.cwd())}: was edited" in said
    assert ask("sweep", *WORDS, "--as", NAME)[0] == 0
    assert path.read_bytes() == whole


def test_what_costs_were_cached_counts_only_where_it_is_an_answer(store):
    path = store.cache / "costs.json"
    path.parent.mkdir(exist_ok=True)
    answer = {"parameters": 3, "multiply_adds": 9, "examples": {"train": 5}, "warnings": []}
    forged = [3, {}, {**answer, "multiply_adds": 0}, {**answer, "examples": 3}]
    forged += [{**answer, "examples": {}}, {**answer, "step_s": "x"}, {**answer, "parameters": []}]
    path.write_text(json.dumps({f"{n}": tree for n, tree in enumerate([*forged, answer])}))
    assert estimate._known(store) == {f"{len(forged)}": answer}
    path.write_text("[]")
    assert estimate._known(store) == {}
