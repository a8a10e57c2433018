"""What is read is what was written: an edited result or curve is named and withheld by whatever
prints numbers, and JSON that nobody here writes is a line that names the file, in every command."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import changed_json, flip_digit
from support.stores import NAME, WORDS, leave_run

import ablate
from ablate.audit.doctor import check_store
from ablate.planning.expand import plan_from_words as make_plan
from ablate.run.rundir import RunDir
from ablate.running import estimate
from ablate.shared.errors import Failure
from ablate.shared.files import to_json, write_sealed
from ablate.store.events import result_detail, sealed_events
from ablate.store.folder import WRITES_AGAIN
from ablate.store.ledger import Ledger
from ablate.store.store import Store


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    store = Store(tmp_path_factory.mktemp("planted") / "runs")
    plan, _ = make_plan(WORDS, store=store.root, name=NAME)
    store.write_plan(plan)
    for n, run in enumerate(plan.runs()):
        leave_run(store, run, 0.8 + 0.01 * (n % 2) + 0.003 * n)
    with Ledger.driving(store):  # made of the folders
        pass
    return store.root


@pytest.fixture
def store(made, tmp_path, monkeypatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(shutil.copytree(made, tmp_path / "runs"))


def first(store: Store) -> Any:
    plan = store.read_plan(NAME)
    assert plan is not None
    return next(plan.runs())


def again(store: Store, folder: RunDir, result: dict) -> None:
    """The run ends once more, with this result."""
    folder.result.write_bytes(to_json(result))
    with Ledger.driving(store) as ledger:
        ledger.record(folder.id, "finished", **result_detail(folder, result))


def page(ask) -> str:
    assert ask("report", "--out", "page.html")[0] == 0
    return Path("page.html").read_text()


# --- Edited -------------------------------------------------------------------------------------


def test_untouched_files_are_read_without_a_word(store, ask):
    for words in (("table",), ("table", "--show", "auc,verdict"), ("status",), ("export", "out")):
        code, text = ask(*words)
        assert (code, "ithheld" in text) == (0, False)


@pytest.mark.whole
def test_an_edited_result_is_named_and_withheld_by_every_reader(store, ask):
    run = first(store)
    folder = store.rundir(run.id)
    flip_digit(folder.result, b'"top1": 0.')
    edited = json.loads(folder.result.read_bytes())["test"]["top1"]
    said = f"{run.label}: runs/runs/{run.id}/result.json was edited since it was recorded"
    code, text = ask("table", "--format", "json")
    table = json.loads(text)
    assert (code, table["complete"], '"verdict": "' in text) == (0, False, False)
    assert any(said in note["values"].get("run", "") for note in table["notes"])
    assert f"{100 * edited:.2f}" not in ask("table", "--format", "tidy")[1]
    for words in (("table",), ("status",), ("plot", "forest"), ("plot", "curves")):
        assert said in " ".join(ask(*words)[1].split()).replace("- ", "-")
    assert f"runs/{run.id}/result.json was edited" in ask("show", run.label)[1]
    assert said in page(ask)
    code, text = ask("export", "out")
    assert (code, run.id in text, "result.json" in text) == (1, True, True)
    frame = ablate.Store("runs").sweep().to_pandas().set_index("id")
    assert frame.status[run.id] == "withheld"
    assert [*frame.index[frame.top1.isna()]] == [run.id]


def test_edited_metrics_are_named_and_withheld_where_they_are_read(store, ask):
    run = first(store)
    flip_digit(store.rundir(run.id).metrics, b'"val_top1": 0.')
    said = f"{run.label}: runs/runs/{run.id}/metrics.jsonl was edited since the run ended"
    for words in (("table",), ("table", "--show", "auc"), ("plot", "curves")):
        assert said in ask(*words)[1]
    assert run.id not in set(ablate.Store("runs").sweep().to_pandas(curves=True).id)
    assert said in page(ask)
    code, text = ask("export", "out")
    assert (code, "metrics.jsonl" in text) == (1, True)
    with pytest.raises(Failure, match=r"metrics\.jsonl was edited"):  # a search is not told it
        store.result(run.id, store.seals()[run.id])
    store.rundir(run.id).metrics.unlink()
    assert f"runs/{run.id}/metrics.jsonl: missing" in ask("table", "--show", "auc")[1]


def test_a_run_that_begins_again_has_no_seal_until_it_is_recorded(store):
    run = first(store)
    with Ledger.driving(store) as ledger:
        ledger.record(run.id, "interrupted")
        ledger.record(run.id, "started", step=0)
        assert run.id not in ledger.seals()
        assert ledger.seals([run.id]) == {}
        assert len(ledger.seals()) == 5
    flip_digit(store.rundir(run.id).result, b'"top1": 0.')  # another file: the new worker's
    assert store.results([run]).withheld == {}


def test_results_recorded_before_hashes_were_taken_are_read_as_they_are(store, ask):
    with sqlite3.connect(store.ledger) as db:
        db.execute("UPDATE event SET detail = '{}' WHERE kind = 'finished'")
    flip_digit(store.rundir(first(store).id).result, b'"top1": 0.')
    assert "edited" not in ask("table")[1]


GO_BY_IT = (
    *(("status",), ("table",), ("trials",), ("plot", "forest"), ("report", "--out", "page.html")),
    *(("export", "out"), ("show", "RUN"), ("gc", "--yes"), ("stop",)),
)


def test_an_edited_plan_is_named_by_every_command_that_goes_by_it(store, ask):
    """Whole, and such as a sweep could have planned: only its seal says that it was edited."""
    path, run = store.plan_path(NAME), first(store).id
    whole = path.read_bytes()
    line = f"was edited after it was planned; {WRITES_AGAIN}"
    path.write_text(changed_json(path, "analysis", "margin", to=50.0))
    for words in GO_BY_IT:
        code, said = ask(*(run if word == "RUN" else word for word in words))
        assert code == 1, words
        assert said.endswith(f"ablate: runs/sweeps/{NAME}.json: {line}\n"), words
    with pytest.raises(Failure, match="was edited after it was planned"):
        ablate.Store("runs").sweep().to_pandas()
    code, said = ask("verify")
    assert (code, f"{NAME}.json: differs from the plan that" in said) == (1, True)
    problems = [finding.text for finding in check_store(store) if finding.level == "problem"]
    assert f"{path}: {line}" in problems
    assert ask("sweep", *WORDS, "--as", NAME)[0] == 0
    assert path.read_bytes() == whole
    assert f"{NAME}.json" not in ask("verify")[1]


def test_a_plan_taken_from_its_file_is_said_to_be_until_a_sweep_seals_it(store, ask):
    assert f"note: {NAME}.json: was read from its file" in ask("verify")[1]
    assert ask("sweep", *WORDS, "--as", NAME)[0] == 0
    assert "was read from its file" not in ask("verify")[1]


def test_an_edited_seal_of_a_plan_is_the_ledger_s_fault(store, ask, monkeypatch):
    with sqlite3.connect(store.ledger) as db:
        (number,) = db.execute("SELECT number FROM event WHERE kind = 'plan'").fetchone()
        db.execute("UPDATE event SET detail = replace(detail, 'sha256', 'sha')")
    db.close()
    code, said = ask("table")
    assert code == 1
    assert said.endswith(
        f"ablate: runs/ledger.db: event {number}, the plan of '{NAME}', was changed, or an event "
        f"before it was removed; `ablate doctor --repair` rebuilds the ledger\n"
    )
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(store.root / "runs")
        code, said = ask("table", "--store", str(store.root))
    assert (code, f"`{store.command('doctor', '--repair')}`" in said) == (1, True)
    code, said = ask("verify")
    assert (code, f"plan of {NAME}: ledger.db: event {number} was changed" in said) == (1, True)
    assert ask("doctor", "--repair")[0] == 0
    assert ask("table")[0] == 0


def test_an_edited_env_is_named_by_whoever_prints_it(store, ask):
    run = first(store)
    folder = store.rundir(run.id)
    assert "edited" not in ask("show", run.label)[1]
    assert "env.json" not in ask("verify")[1]
    folder.env.write_text(changed_json(folder.env, "attempts", 0, "exit", to="tampered"))
    said = f"runs/runs/{run.id}/env.json was edited since the run ended"
    assert f"attempts\n  withheld: {said}" in ask("show", run.label)[1]
    code, text = ask("show", run.label, "--against", run.label)
    assert (code, said in text, "tampered" in text) == (0, True, False)
    code, text = ask("verify")
    assert code == 1
    assert f"{run.id} {run.label}: env.json: differs from the file that the run wrote" in text
    assert "edited" not in ask("table")[1]  # whose numbers are not of it
    assert "env.json is not the file that the run wrote" in page(ask)
    code, text = ask("export", "out")
    assert (code, run.id in text, "env.json" in text) == (1, True, True)
    folder.env.unlink()
    assert f"runs/{run.id}/env.json: missing" in ask("show", run.label)[1]
    assert f"{run.label}: env.json: missing" in ask("verify")[1]


@pytest.mark.parametrize("file", ["env.json", "metrics.jsonl"])
def test_a_file_that_a_result_does_not_seal_is_not_believed(store, ask, file):
    run = first(store)
    folder = store.rundir(run.id)
    result = json.loads(folder.result.read_bytes())
    del result[f"{file.partition('.')[0]}_sha256"]
    again(store, folder, result)
    assert f"{file} was edited since the run ended" in ask("show", run.label)[1]
    code, text = ask("verify")
    assert (code, f"{run.label}: {file}: differs from the file" in text) == (1, True)


@pytest.mark.whole
def test_a_bundle_covers_env_json_an_anonymous_one_what_is_left_of_it(store, ask, tmp_path):
    for out, *words in (("plain",), ("nobody", "--anonymous")):
        assert ask("export", out, *words)[0] == 0
        code, text = ask("verify", out)
        assert code == 0, text
        env = tmp_path / out / "specs" / first(store).id / "env.json"
        env.write_text(changed_json(env, "attempts", 0, "exit", to="tampered"))
        code, text = ask("verify", out)
        assert (code, f"specs/{first(store).id}/env.json: changed after" in text) == (1, True)
        assert ("by the hash in result.json" in text) is (out == "plain")


@pytest.mark.parametrize("content", ["[]", '{"status": "unknown"}', "3"])
def test_a_result_of_other_json_is_not_called_torn(store, ask, content):
    path = store.rundir(first(store).id).result
    path.write_text(content)
    code, text = ask("verify")
    assert code == 1
    assert "result.json: not what a worker writes, but the ledger has finished" in text
    path.write_text("{")
    assert "result.json: torn, but" in ask("verify")[1]


@pytest.mark.whole
def test_a_rotten_probe_is_named_and_its_run_withheld_where_probes_are_drawn(store, ask):
    folder = store.rundir(first(store).id)
    probe = folder.probe("tokens")
    np.savez(probe, layer=np.zeros(3))
    seal = {"tokens": hashlib.sha256(probe.read_bytes()).hexdigest()}
    again(store, folder, {**json.loads(folder.result.read_bytes()), "probes_sha256": seal})
    said = "probe-tokens.npz was edited since the run ended"
    for edited in (False, True):
        assert (said in page(ask)) == edited
        assert (said in ask("plot", "curves")[1]) == edited
        assert "ithheld" not in ask("table")[1]
        flip_digit(probe, b"PK")


# --- Forged -------------------------------------------------------------------------------------

DEEP = ["[" * 100_000, "[" * 700 + "]" * 700, '{"a":' * 700 + "1" + "}" * 700]
ANY = ["[]", "{}", "3", '"text"', "null", "NaN", '{"status": []}', "[[]]", "[3]", *DEEP]


def of_a_result(path: Path) -> list[str]:
    changes: list[tuple[str, Any]] = [
        *(("status", value) for value in ("unknown", None, 3, {}, "planned")),
        *(("test", value) for value in (3, None, [], {}, {"top1": "high"}, {"top1": 10**400})),
        *(("validation", value) for value in (3, [1], {"top1": []})),
        *(("step", "x"), ("seconds", {}), ("plugins", [3]), ("probes_sha256", [])),
        *(("collapsed", "no"), ("parameters", "7"), ("kernel", 3), ("digest", [1])),
        *(("metrics_sha256", 3), ("train_loss", math.inf), ("env_sha256", [3])),
    ]
    return [changed_json(path, key, to=value) for key, value in changes]


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
    return [changed_json(path, *keys, to=value) for keys, value in changes]


def of_attempts(path: Path) -> list[str]:
    return [
        changed_json(path, "attempts", to=value)
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
        folder.run: [changed_json(folder.run, "spec", to=value) for value in (3, [], {"data": 3})],
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


def test_a_forged_event_of_a_plan_is_a_line_in_every_command(store, ask):
    """Its seals hold: the forger knows how they are made."""
    details = ["[]", "{}", "3", "null", '{"sha256": 3}', '{"sha256": ["x"]}', '{"sha256"', *DEEP]
    whole = store.ledger.read_bytes()
    for number, detail in enumerate([*details, json.dumps({"sha256": "0" * 64})]):
        with sqlite3.connect(store.ledger) as db:
            (last,) = db.execute("SELECT seal FROM event ORDER BY number DESC").fetchone()
            (event,) = sealed_events(last, [(1.0, f"plan of {NAME}", "plan", detail)])
            row = "INSERT INTO event (at, run, kind, detail, seal) VALUES (?, ?, ?, ?, ?)"
            db.execute(row, event)
        db.close()
        for words in (("table",), ("verify",), ("gc",)):
            code, said = ask(*words)
            assert code == 1, said
            assert "Traceback" not in said
            assert [line.count("ablate: ") for line in said.splitlines()].count(1) == 1, said
        if number == 0:
            assert ask("doctor", "--repair")[0] == 0
            assert ask("table")[0] == 0
        store.ledger.write_bytes(whole)


@pytest.mark.whole
def test_a_ledger_whose_schema_is_no_text_is_a_line_in_every_command(store, ask):
    """SQLite quotes it in its message, which Python can't decode."""
    calm = ask("table")
    whole = store.ledger.read_bytes()
    assert whole.count(b"CREATE TABLE event") == 1
    store.ledger.write_bytes(whole.replace(b"CREATE TABLE event", b"CREATE \xa8ABLE event"))
    for words in (("table",), ("verify",), ("gc",), ("status",), ("sweep", *WORDS, "--as", NAME)):
        code, said = ask(*words)
        assert code in (1, 2), (words, said)
        assert "Traceback" not in said
        assert said.count("ablate: ") == 1, (words, said)
        assert "doctor --repair" in said, (words, said)
    code, said = ask("doctor")
    assert code == 1
    assert "`ablate doctor --repair` rebuilds it" in said
    assert ask("doctor", "--repair")[0] == 0
    assert ask("table") == calm


@pytest.mark.slow
def test_forged_json_is_a_line_in_every_command(store, ask):
    survive(store, ask, 1)


@pytest.mark.whole
def test_some_forged_json_is_a_line_in_every_command(store, ask):
    survive(store, ask, 23)


def test_what_costs_were_cached_counts_only_where_it_is_an_answer(store):
    path = store.cache / "costs.json"
    path.parent.mkdir(exist_ok=True)
    size = {"parameters": 3, "multiply_adds": 9, "launches": 2, "statistics": False}
    step = {"image_bytes": 1.5, "peak_bytes": {"2": 7}}
    answer = {**size, "examples": {"train": 5}, "warnings": [], "step": step}
    wrong = {"multiply_adds": 0, "examples": 3, "step_s": "x", "parameters": [], "step": 3}
    forged = [3, {}, {**answer, "examples": {}}]
    forged += [{**answer, key: value} for key, value in wrong.items()]
    forged += [{**answer, "step": {**step, "image_bytes": None}}]
    forged += [{**answer, "step": {**step, "peak_bytes": {"2": "x"}}}]
    for lacking in ("launches", "statistics"):  # of before
        forged.append({key: value for key, value in answer.items() if key != lacking})
    write_sealed(path, {f"{n}": tree for n, tree in enumerate([*forged, answer])})
    assert estimate._cache(store).answers() == {f"{len(forged)}": answer}
    flip_digit(path, b'"parameters": ')
    assert estimate._cache(store).answers() == {}
    path.write_text("[]")
    assert estimate._cache(store).answers() == {}
