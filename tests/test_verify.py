"""`ablate verify`: one byte, digit or row changed anywhere is found, and named; what is
not finished is no finding. `--rerun` gives the same bits."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from conftest import Shell, contents, wait_for
from support.plans import with_sections
from support.tables import PLANTED, make_plan, plant, tabulate

from ablate.analysis import english
from ablate.audit.rerun import SAME_BITS, retrain
from ablate.audit.verify import Verified, verify_plan
from ablate.planning.analysis_keys import Analysis
from ablate.planning.expand import plan_from_words
from ablate.planning.plan import Plan
from ablate.report.formats import render_table
from ablate.run.metrics import classify
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running.launchers import Slot
from ablate.shared.errors import Failure
from ablate.shared.files import to_json
from ablate.store import looks
from ablate.store.events import result_detail
from ablate.store.folder import HostLock
from ablate.store.ledger import Ledger
from ablate.store.repair import repair_ledger
from ablate.store.store import Store

GOLDEN = Path(__file__).parent / "golden"
# Two runs that finish, two that diverge.
SWEEP = ("sweep", "optim.lr=0.001,1e20", "model.arch=mu/4", "model.depth=1", "train.steps=4")
WORDS = (*SWEEP, "seeds=2", "--as", "tiny")


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Path:
    shell = Shell(tmp_path_factory.mktemp("driven"))
    shell(*WORDS, "launcher=inline")
    return shell.folder / "runs"


@pytest.fixture
def store(driven, shell) -> Store:
    """A copy of it in a shell's folder, to be changed."""
    return Store(shutil.copytree(driven, shell.folder / "runs"))


def checked(store: Store, sweep: str = "tiny") -> Verified:
    with Ledger.reading(store) as ledger:
        plan = store.read_plan(sweep)
        assert plan is not None
        return verify_plan(plan, store, ledger)


def run_of(store: Store, label: str = "lr=0.001#0", sweep: str = "tiny") -> str:
    plan = store.read_plan(sweep)
    assert plan is not None
    return next(run.id for run in plan.runs() if run.label == label)


def sql(store: Store, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(store.ledger)) as db, db:
        assert db.execute(statement).rowcount > 0, statement


def changed(text: bytes, place: int) -> bytes:
    """Another digit there."""
    return text[:place] + str((int(text[place : place + 1]) + 1) % 10).encode() + text[place + 1 :]


def blamed(store: Store, *words: str) -> None:
    """A finding has all these words."""
    found = checked(store).findings
    assert any(all(word in line for word in words) for line in found), found


def mended_by_repair(store: Store) -> None:
    """Findings on the ledger name the repair, after which nothing is found."""
    of_ledger = [line for line in checked(store).findings if "ledger.db: " in line]
    assert of_ledger
    assert all("doctor --repair" in line for line in of_ledger), of_ledger
    repair_ledger(store)
    assert checked(store).findings == []


# --- Nothing wrong ------------------------------------------------------------------------------


def test_what_was_trained_is_verified_and_left_as_it_is(store, shell):
    before = kept(store)
    lines = shell("verify").out.splitlines()
    csv = shell("table", "--format", "tidy").out.splitlines()[1:]
    numbers = sum(line.rsplit(",", 2)[1] != "" for line in csv if line.count(",") == 6)
    assert lines == [f"verified: 4 runs, {numbers} numbers, nothing wrong"]
    assert kept(store) == before


def kept(store: Store) -> dict[str, bytes]:
    """All files but the ledger's."""
    found = contents(store.root)
    return {name: content for name, content in found.items() if "ledger" not in name}


def test_the_test_metrics_follow_from_the_predictions_in_every_order(driven):
    store = Store(driven)
    folder = store.rundir(run_of(store))
    table, result = np.load(folder.predictions), folder.read_result()
    assert classify.classification_scores(table, 10) == result["test"]
    assert classify.classification_scores(table[::-1], 10) == result["test"]
    assert classify.classification_scores(table, 9).keys() == {"n", "loss", "top1"}


def test_unfinished_runs_are_counted_and_torn_files_named(store):
    tree = json.loads(store.read_plan("tiny").to_bytes())
    tree["seeds"] = (0, 1, 2)
    for cell in tree["cells"]:
        cell["ids"] |= RunSpec.of(cell["spec"]).ids([2])
    longer = Plan.from_tree(tree)
    store.write_plan(longer)
    begun = run_of(store, "lr=0.001#2")
    with Ledger.driving(store) as ledger:
        ledger.plan(longer)
        ledger.record(begun, "started", step=0)
    folder = store.rundir(begun)
    folder.create(next(run.spec.tree for run in longer.runs() if run.id == begun))
    found = checked(store)
    assert (found.findings, found.notes) == ([], ["2 of 6 runs have no result yet"])
    folder.run.write_bytes(folder.run.read_bytes()[:40])
    found = checked(store)
    assert found.findings == []
    assert f"{begun} lr=0.001#2 (started): run.json is torn" in found.notes


def test_a_result_that_nobody_recorded_yet_is_a_note(store):
    with Ledger.driving(store) as ledger:
        ledger.record(run_of(store), "interrupted")
    found = checked(store)
    assert found.findings == []
    assert "1 of 4 runs have a result that the ledger has not recorded yet" in found.notes


def test_a_table_without_results_has_no_numbers(tmp_path):
    store, words = Store(tmp_path / "runs"), ["optim.lr=0.1,0.2", "seeds=2"]
    plan, _ = plan_from_words(words, store=store.root, name="tiny")
    store.write_plan(plan)
    with Ledger.driving(store) as ledger:
        ledger.plan(plan)
    verified = checked(store)
    assert (verified.runs, verified.numbers, verified.findings) == (0, 0, [])


# --- Something wrong ----------------------------------------------------------------------------


def test_a_file_that_can_t_be_read_is_a_finding_of_its_run_alone(store):
    first, second = (run_of(store, f"lr=0.001#{seed}") for seed in (0, 1))
    metrics, predictions = store.rundir(first).metrics, store.rundir(second).predictions
    metrics.unlink()
    metrics.mkdir()
    predictions.write_bytes(predictions.read_bytes()[:-1])
    verified = checked(store)
    places = [(line.split()[0], line.split(": ")[1]) for line in verified.findings]
    assert places == [(first, metrics.name), (second, predictions.name)]
    assert verified.runs == 4


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.whole
@pytest.mark.parametrize("label", ["lr=0.001#0", "lr=1e+20#1"])
def test_every_digit_of_a_result_and_of_its_metrics_is_watched(store, label):
    run = run_of(store, label)
    folder = store.rundir(run)
    for path in (folder.result, folder.metrics):
        whole = path.read_bytes()
        digits = [match.start() for match in re.finditer(rb"\d", whole)]
        assert digits or path == folder.metrics  # which a run that diverged at once has empty
        for content in (*(changed(whole, place) for place in digits[::3]), whole + b"\n"):
            path.write_bytes(content)
            blamed(store, run, path.name)
        path.write_bytes(whole)
    assert checked(store).findings == []


RESULT = ("result.json", "metrics.jsonl", "run.json", "predictions.npy", "weights.safetensors")


@pytest.mark.whole
@pytest.mark.parametrize("name", RESULT)
def test_a_file_that_is_cut_or_gone_or_has_a_flipped_bit_is_found(store, name):
    run = run_of(store)
    path = store.rundir(run).path / name
    whole = path.read_bytes()
    for place in range(0, len(whole) - 1, len(whole) // 20):  # a last line break may lack
        if not name.startswith("weights"):  # they may be taken away
            path.write_bytes(whole[:place])
            blamed(store, run, name)
        if path.suffix in (".npy", ".safetensors"):
            path.write_bytes(flipped(whole, place))
            blamed(store, run, name)
    if not name.startswith("weights"):
        path.unlink()
        blamed(store, run, name)


def test_a_run_that_is_not_the_one_its_id_says_is_found(store):
    run = run_of(store)
    path = store.rundir(run).run
    whole = json.loads(path.read_bytes())

    def other(section: str, **keys: object) -> dict:
        spec = whole["spec"]
        return {**whole, "spec": {**spec, section: {**spec[section], **keys}}}

    strange = ({**whole, "id": "0" * 16}, {**whole, "spec": 3}, [1])
    for content in (other("optim", lr=0.002), other("model", depth=2), *strange):
        path.write_bytes(to_json(content))
        blamed(store, run, "run.json")
    path.write_bytes(to_json(other("data", path="/elsewhere")))  # where it lies is no part
    assert checked(store).findings == []


STARTED, FINISHED = (f"WHERE run = '{{run}}' AND kind = '{k}'" for k in ("started", "finished"))
SET = "UPDATE event SET detail = "
ROWS = [
    ("UPDATE run SET status = 'diverged' WHERE id = '{run}'", "status"),
    ("UPDATE run SET attempts = 1 WHERE id = '{run}'", "attempts"),
    ("UPDATE run SET step = 3 WHERE id = '{run}'", "step"),
    (f"UPDATE event SET at = at + 1 {STARTED}", "event"),
    (f"UPDATE event SET kind = 'diverged' {FINISHED}", "event"),
    (f"UPDATE event SET kind = 'done' {FINISHED}", "event"),
    (f"{SET}'{{{{}}}}' {STARTED}", "event"),
    (f"{SET}'{{{{' {STARTED}", "event"),
    (f"{SET}replace(detail, '\"seconds\": 0', '\"seconds\": 1') {FINISHED}", "seconds"),
    (f"{SET}replace(detail, 'cpu', 'gpu') {FINISHED}", "device"),
    ("DELETE FROM run WHERE id = '{run}'", "lacks this run"),
    (f"DELETE FROM event {FINISHED}", "status"),
]


@pytest.mark.parametrize(("statement", "what"), ROWS)
def test_a_changed_row_of_the_ledger_is_found(store, statement, what):
    run = run_of(store)
    sql(store, statement.format(run=run))
    blamed(store, run, what)
    mended_by_repair(store)


def test_the_newest_event_taken_out_is_found(store):
    with contextlib.closing(sqlite3.connect(store.ledger)) as db:
        run = db.execute("SELECT run FROM event ORDER BY number DESC").fetchone()[0]
    sql(store, "DELETE FROM event WHERE number = (SELECT max(number) FROM event)")
    blamed(store, run, "ledger.db")
    mended_by_repair(store)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE planned SET position = 9 WHERE position = 3",
        "UPDATE planned SET run = 'z' || substr(run, 2) WHERE position = 0",
        "DELETE FROM planned WHERE position = 1",
    ],
)
def test_a_changed_planned_row_is_found(store, statement):
    sql(store, statement)
    blamed(store, "planned", "tiny.json")
    mended_by_repair(store)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"cells": []}, "it has no cells"),
        ({"contrasts": {"odd": {"along": "optim.lr"}}}, "its contrast 'odd' is none"),
    ],
)
def test_a_plan_that_nothing_can_be_computed_from_is_a_line(store, shell, edit, said):
    path = store.plan_path("tiny")
    tree = json.loads(path.read_text())
    (tree if "cells" in edit else tree["analysis"]).update(edit)
    path.write_text(json.dumps(tree))
    assert f"tiny.json: is no plan of a sweep: {said}" in shell("verify", "tiny", code=1).err


def test_a_plan_whose_cells_are_other_runs_is_found(store):
    path, first = store.plan_path("tiny"), run_of(store)
    whole = path.read_text()
    path.write_text(whole.replace('"lr": 0.001', '"lr": 0.002'))
    blamed(store, first, "tiny.json")
    path.write_text(whole.replace(first, "0" * 16))
    blamed(store, "planned")


def test_a_forger_must_forge_every_seal(store):
    """A better accuracy, consistent through predictions and result: the ledger knows better; with
    the ledger's hash forged, too, its seals do."""
    run = run_of(store)
    folder = store.rundir(run)
    table = np.load(folder.predictions)
    table["rank"][:50] = 0
    np.save(folder.predictions, table)
    result = folder.read_result() | {"test": classify.classification_scores(table, 10)}
    result["predictions_sha256"] = hashlib.sha256(folder.predictions.read_bytes()).hexdigest()
    folder.result.write_bytes(to_json(result))
    (finding,) = checked(store).findings
    assert finding.endswith(": result.json: differs from the file that the ledger recorded")
    with Ledger.reading(store) as ledger:
        detail = ledger.last_detail("finished")[run]
    detail["result_sha256"] = hashlib.sha256(folder.result.read_bytes()).hexdigest()
    sql(store, f"{SET}'{json.dumps(detail)}' " + FINISHED.format(run=run))
    (finding,) = checked(store).findings
    assert finding.startswith(f"{run}: ledger.db: event")


@pytest.mark.parametrize("change", [0.01, -0.01], ids=["better", "worse"])
def test_a_metric_other_than_that_of_the_predictions_is_named(store, change):
    run = run_of(store)
    folder = store.rundir(run)
    result = folder.read_result()
    result["test"]["top1"] += change
    folder.result.write_bytes(to_json(result))
    named = f"test top1 is {result['test']['top1']}"
    assert any(line.startswith(run) and named in line for line in checked(store).findings)


def test_the_table_itself_is_compared(store):
    """A number that no single check watches: `collapsed`."""
    folder = store.rundir(run_of(store))
    result = folder.read_result()
    folder.result.write_bytes(to_json({**result, "collapsed": not result["collapsed"]}))
    assert any(line.startswith("the table: ") for line in checked(store).findings)


def test_the_command_names_each_and_fails(store, shell):
    run = run_of(store)
    path = store.rundir(run).predictions
    path.write_bytes(flipped(path.read_bytes(), 500))
    done = shell("verify", "tiny", code=1)
    assert f"{run} lr=0.001#0: predictions.npy:" in done.out
    assert "nothing wrong" not in done.out
    said = done.err.removeprefix("checking the runs of tiny\nablate: tiny: 1 finding; `")
    assert "--retry damaged`" in said


def test_a_folder_that_is_no_bundle_is_named_with_both_choices(driven, shell):
    done = shell("verify", "no/such", code=2)
    assert "ablate: no/such: is no folder of a bundle" in done.err
    assert "no store at" in done.err
    shutil.copytree(driven, shell.folder / "runs")
    (shell.folder / "empty").mkdir()
    for word in ("no/such", "empty"):
        said = f"ablate: {word}: is no folder of a bundle (`ablate export` writes one), and names "
        said += f"no sweep: expected one driven in runs: tiny, got {word!r}\n"
        assert shell("verify", word, code=2).err.endswith(said)


# --- Once more ----------------------------------------------------------------------------------


def test_a_run_trained_again_gives_the_same_bits(store, shell):
    before = kept(store)
    for words in (("tinny",), ("tinny", "--rerun", "lr=0.001#1")):
        assert "did you mean 'tiny'" in shell("verify", *words, code=2).err
    done = shell("verify", "tiny", "--rerun", "lr=0.001#1", "launcher=inline")
    run = run_of(store, "lr=0.001#1")
    assert done.out.splitlines()[-1] == f"{run}: the second training gave the same bits"
    for name in ("weights.safetensors", "predictions.npy", "metrics.jsonl", "test"):
        assert f"{name}: the same bits" in done.out
    after = kept(store)
    del after[store.rerunning.path.relative_to(store.root).as_posix()]
    assert after == before
    assert not store.reruns.exists()


class Same(HostLock):
    """Starts no worker: what it would leave is copied from another store."""

    slots = (Slot("cpu:0", "cpu", "cpu"),)

    def __init__(self, store: Store) -> None:
        self.store, self.started = store, ""

    def start(self, folder: RunDir, slot: Slot, settled: object = None) -> None:
        self.started = folder.id
        if (kept := self.store.rundir(folder.id).path).exists():
            shutil.copytree(kept, folder.path, dirs_exist_ok=True)

    def poll(self, wait_s: float = 0.0) -> dict[str, int]:
        return {self.started: 0}


def test_whatever_differs_is_named(driven, store):
    run = next(run for run in store.read_plan("tiny").runs() if run.label == "lr=0.001#0")
    folder, again = store.rundir(run.id), Same(Store(driven))
    result = folder.read_result()
    line = json.loads(folder.metrics.read_bytes().splitlines()[-1])

    def compared() -> tuple[list[str], list[str]]:
        machine, lines = retrain(store, run, again, lambda *_: None)
        assert not store.reruns.exists()
        return machine, [line for line in lines if not line.endswith(SAME_BITS)]

    assert compared() == ([], [])
    folder.weights.write_bytes(flipped(folder.weights.read_bytes(), -1))
    folder.predictions.unlink()
    folder.metrics.write_bytes(to_json({**line, "val_top1": 0.5}).replace(b"\n", b"") + b"\n")
    folder.result.write_bytes(to_json(result | {"device": "NVIDIA H200", "test": {"top1": 1}}))
    differing = [
        f"test: was {{'top1': 1}}, is {result['test']}",
        "weights.safetensors: differs",
        "predictions.npy: differs",
        f"metrics.jsonl: differs from step {line['step']} on",
    ]
    assert compared() == (["device: was NVIDIA H200, is cpu"], differing)
    with pytest.raises(Failure, match="left no result: its worker died"):
        retrain(store, run, Same(Store(driven / "nothing")), lambda *_: None)
    with store.rerunning.hold(), pytest.raises(Failure, match="another process trains a run again"):
        retrain(store, run, again, lambda *_: None)


@pytest.mark.whole
def test_ctrl_c_leaves_nothing_of_a_rerun(store, shell):
    process = shell.start("verify", "--rerun", "lr=0.001#0")
    wait_for((store.reruns / run_of(store) / "run.json").exists)
    os.kill(process.pid, signal.SIGINT)
    done = shell.end(process)
    assert (done.code, done.err) == (130, "training lr=0.001#0 once more\n")
    assert "stopped" in done.out
    assert not store.reruns.exists()
    assert not store.rerunning.is_held()


def test_what_can_not_be_trained_again_says_so(store, shell):
    assert "no id" in shell("verify", "--rerun", "zz", code=2).err
    words = ("verify", "--rerun", "lr=0.001#0")
    only = "launcher.KEY=VALUE only; leave optim.lr= out"
    assert only in shell(*words, "optim.lr=1", code=2).err
    store.rundir(run_of(store)).result.unlink()
    assert "no result to compare with" in shell(*words, code=1).err


# --- Tables that refuse -------------------------------------------------------------------------


def planted(**changed):
    """A plan whose norm is a class of the user's own, and results; `changed` in one of them."""
    plan = make_plan(list(PLANTED), columns=("S/4", "Ti/4"))
    plan = spelled(plan, slice(None), norm={"name": "own:Norm"})
    results = plant(plan, PLANTED)
    for result in results.values():
        result |= {"torch": "2.13", "micro_batch": 8, "plugins": {"norm": "n1", "stem": None}}
        result |= {"deterministic": True, "tf32": None, "cudnn_benchmark": False}
    results["same@Ti/4#1"] |= changed
    return plan, results


def spelled(plan, which, **sections):
    """With other sections in the specs of some of its cells."""
    cells = list(plan.cells)
    cells[which] = [with_sections(cell, **sections) for cell in cells[which]]
    return dataclasses.replace(plan, cells=tuple(cells))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"device": "NVIDIA H200"}, "device: cpu (17 runs), NVIDIA H200 (1 run: same)"),
        ({"kernel": "explicit"}, "attention kernel"),
        ({"deterministic": False}, "use of deterministic algorithms: True (17 runs), False (1 run"),
        ({"cudnn_benchmark": True}, "use of cuDNN's benchmark"),
        ({"threads": 4}, "number of threads: 1 (17 runs), 4 (1 run: same)"),
        ({"torch": "2.14"}, "version of torch"),
        ({"digest": "d2"}, "version of the training code"),
        ({"digest": "d1+d2"}, "version of the training code: d1 (17 runs), d1+d2 (1 run"),
        ({"plugins": {"norm": "n2"}}, "code of norm=own:Norm: n1 (17 runs), n2 (1 run: same)"),
        ({"plugins": {"norm": "n1+n2"}}, "n1 (17 runs), n1+n2 (1 run: same)"),
    ],
)
def test_a_strict_table_refuses_unlike_runs_which_others_footnote(changed, said):
    plan, results = planted(**changed)
    table = tabulate(plan, results)
    assert said in render_table(table, "md")
    assert [table.marks(None, column.label) for column in table.columns] == [(), (1,)]
    with pytest.raises(Failure) as refused:
        tabulate(plan, results, strict=True)
    assert str(refused.value).startswith("--strict: Ti/4: Runs differ in their ")
    assert said in str(refused.value)


def test_a_strict_table_refuses_mixed_precision_and_a_run_of_two_codes():
    plan, results = planted()
    mixed = spelled(plan, slice(-1, None), train={"precision": "bf16"})
    with pytest.raises(Failure, match=r"precision: fp32 \(15 runs\), bf16 \(3 runs: unclear\)"):
        tabulate(mixed, results, strict=True)
    for result in results.values():
        result["digest"] = "d1+d2"  # all of them, so that they are alike, and still mixed
    with pytest.raises(Failure, match="version of the training code"):
        tabulate(plan, results, strict=True)


def test_classes_of_ones_own_are_compared_where_the_same_ones_are_loaded():
    """A digest is of all that was loaded: more of it for a row with a stem of one's own, too."""
    plan, results = planted()
    plan = spelled(plan, slice(-1, None), stem={"name": "own2:Stem"})
    for run in plan.cells[-1].ids.values():
        results[run]["plugins"] = {"norm": "n1s1", "stem": "n1s1"}
    assert tabulate(plan, results, strict=True).footnotes == {}
    results[run]["plugins"] = {"norm": "n1s2", "stem": "n1s2"}
    said = r"norm=own:Norm, stem=own2:Stem: n1s1 \(2 runs\), n1s2 \(1 run: unclear\)"
    with pytest.raises(Failure, match=said):
        tabulate(plan, results, strict=True)


def test_a_strict_table_of_like_runs_is_the_table():
    plan, results = planted(micro_batch=4)  # a batch may be split as it fits
    assert tabulate(plan, results, strict=True) == tabulate(plan, results)
    assert "differ in their micro-batch" in render_table(tabulate(plan, results), "md")


def test_the_strict_command_refuses_before_it_prints_and_withholds_verdicts(store, shell):
    before = dataclasses.replace(store.read_plan("tiny"), analysis=Analysis(margin=1.0))
    store.add_look(looks.look(before).event())
    assert english.write("looks.strict", {}) in shell("table", "--strict").out
    folder = store.rundir(run_of(store))
    folder.result.write_bytes(to_json(folder.read_result() | {"device": "NVIDIA H200"}))
    with Ledger.driving(store) as ledger:  # as if it had been trained so
        ledger.record(folder.id, "finished", **result_detail(folder, folder.read_result()))
    done = shell("table", "--strict", "--format", "tidy", code=1)
    assert done.out == ""
    assert re.fullmatch("ablate: --strict: Runs differ in their device: .*\n", done.err)
