"""`ablate export DIR`, `ablate table --from DIR`, `ablate.load`: what a reviewer gets."""

from __future__ import annotations

import filecmp
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Shell

import ablate
from ablate.ledger import Ledger, Store
from ablate.report import bundle
from ablate.report.bundle import Bundle
from ablate.report.formats import FORMATS
from ablate.report.gather import histories
from ablate.spec import Failure, UserError

GOLDEN = Path(__file__).parent / "golden"
# Four runs that finish, two that diverge.
SWEEP = ("sweep", "optim.lr=0.003,0.01,1e20", "model.arch=mu/4", "model.depth=1", "train.steps=4")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Shell:
    """A folder with a store, and the bundle `out` of its sweep."""
    shell = Shell(tmp_path_factory.mktemp("exported"))
    shell(*SWEEP, "seeds=2", "--as", "tiny")
    done = shell("export", "tiny", "out")
    assert "ablate table --from out" in done.out
    return shell


@pytest.fixture
def out(exported, tmp_path) -> Path:
    """A copy of the bundle alone, to be changed."""
    return shutil.copytree(exported.folder / "out", tmp_path / "out")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def leave(store: Store, folder: Path, sweep: str = "tiny") -> None:
    plan = store.read_plan(sweep)
    with Ledger.reading(store) as ledger:
        told = histories(plan, ledger)
    bundle.export(plan, store, told, folder)


# --- What is in it ------------------------------------------------------------------------------


def test_it_holds_tables_curves_raw_files_and_says_what_they_are(exported):
    out = exported.folder / "out"
    there = files(out)
    plan = Store(exported.folder / "runs").read_plan("tiny")
    extensions = {"latex": "tex"}
    tables = {f"table.{extensions.get(name, name)}" for name in FORMATS if name != "rich"}
    single = {"runs.csv", "curves.parquet", "sweep.json", "looks.jsonl", "environment.json"}
    assert tables | single | {"events.json", "README.txt", "report.html"} <= there
    for run in plan.runs():
        folder = exported.folder / "runs" / "runs" / run.id
        for name in ("run.json", "result.json", "env.json", "metrics.jsonl"):
            copy = out / "specs" / run.id / name
            assert copy.read_bytes() == (folder / name).read_bytes()
        if (folder / "predictions.npy").exists():
            assert filecmp.cmp(
                folder / "predictions.npy", out / "predictions" / f"{run.id}.npy", shallow=False
            )
    readme = (out / "README.txt").read_text()
    assert "ablate table --from ." in readme
    for name in there - {"README.txt"}:
        assert name.partition("/")[0] in readme or name.startswith("table.")
    told = json.loads((out / "environment.json").read_text())
    assert told["ablate"] == ablate.__version__
    assert list(told["trained_with"]["packages.torch"].values()) == [6]


def test_tables_and_report_are_those_of_the_store(exported):
    out = exported.folder / "out"
    for name in ("csv", "json", "md"):
        printed = exported("table", "tiny", "--format", name).out
        assert (out / f"table.{name}").read_text() == printed
    exported("report", "tiny", "--out", "report.html")
    assert (out / "report.html").read_bytes() == (exported.folder / "report.html").read_bytes()


def test_the_same_sweep_gives_the_same_bytes(exported, tmp_path):
    store = Store(exported.folder / "runs")
    leave(store, tmp_path / "again")
    assert files(tmp_path / "again") == files(exported.folder / "out")
    for name in files(tmp_path / "again"):
        assert filecmp.cmp(tmp_path / "again" / name, exported.folder / "out" / name, shallow=False)


def test_a_store_of_old_is_exported_too(tmp_path):
    store = Store(shutil.copytree(GOLDEN / "store-1", tmp_path / "runs"))
    leave(store, tmp_path / "out", "fixture")
    assert (tmp_path / "out" / "table.csv").exists()
    frame = ablate.load(store=tmp_path / "out")
    assert set(frame.id) == {path.name for path in (tmp_path / "runs" / "runs").iterdir()}


# --- Recomputed ---------------------------------------------------------------------------------


def test_the_table_is_made_again_from_the_raw_files_alone(out, shell):
    made = (out / "table.csv").read_bytes()
    for path in {*out.glob("table.*"), *out.glob("*.csv"), out / "report.html"}:
        path.unlink()
    before = files(shell.folder)
    done = shell("table", "--from", "out", "--format", "csv")
    assert done.out.encode() == made
    assert files(shell.folder) - before == {
        "1.out",
        "1.err",
    }  # a reviewer looks, and writes nothing


def test_a_changed_prediction_is_named(out, shell):
    path = sorted((out / "predictions").iterdir())[0]
    table = np.load(path)
    table["rank"][0] += 1
    np.save(path, table)
    done = shell("table", "--from", "out", code=1)
    assert path.name in done.err
    assert done.err.startswith("ablate: ")
    assert done.err.count("\n") == 1


def test_a_changed_result_is_named_and_a_lost_one(out, tmp_path):
    plan, told = Bundle(out).read()
    run = next(run for run in plan.runs() if run.label == "0.003#0")
    path = Bundle(out).rundir(run.id).result
    result = json.loads(path.read_text())
    result["test"]["top1"] += 0.1
    path.write_text(json.dumps(result))
    with pytest.raises(Failure, match=rf"{run.id} 0\.003#0: result\.json"):
        Bundle(out).recompute(plan, told)
    path.unlink()
    with pytest.raises(Failure, match=rf"{run.id} 0\.003#0: result\.json: missing"):
        Bundle(out).recompute(plan, told)


@pytest.mark.parametrize("words", [["tiny"], ["--scale", "digits"], ["--as", "x"]])
def test_from_takes_no_other_sweep(out, shell, words):
    assert "--from" in shell("table", "--from", "out", *words, code=2).err


def test_from_a_folder_that_is_no_bundle(shell):
    (shell.folder / "sweep.json").write_text("{}")
    assert "no bundle" in shell("table", "--from", ".", code=2).err


# --- Never half-written -------------------------------------------------------------------------


def test_another_folder_is_left_alone_and_an_earlier_export_replaced(exported, out, tmp_path):
    store = Store(exported.folder / "runs")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"mine.*no earlier export"):
        leave(store, tmp_path / "mine")
    assert files(tmp_path / "mine") == {"notes.txt"}
    with pytest.raises(UserError, match="no such folder"):
        leave(store, tmp_path / "nowhere" / "out")
    before = files(out)
    (out / "stale.txt").write_text("of an earlier one")
    leave(store, out)
    assert files(out) == before
    (tmp_path / "empty").mkdir()
    leave(store, tmp_path / "empty")
    assert files(tmp_path / "empty") == before
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "out", "empty"}


def test_a_run_whose_files_were_changed_is_not_exported(exported, out, tmp_path):
    store = Store(shutil.copytree(exported.folder / "runs", tmp_path / "runs"))
    run = next(run for run in store.read_plan("tiny").runs() if run.label == "0.003#1")
    with open(store.rundir(run.id).predictions, "ab") as file:
        file.write(b"\0")
    before = {name: (out / name).read_bytes() for name in files(out)}
    with pytest.raises(Failure, match=rf"{run.id} 0\.003#1: {run.id}\.npy"):
        leave(store, out)
    assert {name: (out / name).read_bytes() for name in files(out)} == before
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}


# --- In Python ----------------------------------------------------------------------------------


def test_load_gives_a_row_a_run(exported):
    store = exported.folder / "runs"
    frame = ablate.load("tiny", store)
    plan = Store(store).read_plan("tiny")
    assert list(frame.id) == [run.id for run in plan.runs()]
    for row in frame.itertuples():
        result = json.loads((store / "runs" / row.id / "result.json").read_text())
        spec = json.loads((store / "runs" / row.id / "run.json").read_text())["spec"]
        assert row.status == result["status"]
        assert row.seconds == result["seconds"]
        assert row.seed == spec["seed"]
        if row.status == "finished":
            assert (row.top1, row.top5, row.loss) == tuple(
                result["test"][name] for name in ("top1", "top5", "loss")
            )
            assert row.test_n == result["test"]["n"]
        else:
            assert pd.isna(row.top1)
            assert pd.isna(row.test_n)
    assert set(frame["optim.lr"]) == {0.003, 0.01, 1e20}
    assert set(frame.status) == {"finished", "diverged"}


def test_load_gives_the_curves(exported):
    store = exported.folder / "runs"
    frame = ablate.load("tiny", store, curves=True)
    lines = [
        {"id": path.parent.name, **json.loads(line)}
        for path in (store / "runs").glob("*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(lines) > 0
    assert len(frame) == len(lines)
    for line in lines:
        row = frame[(frame.id == line["id"]) & (frame.step == line["step"])].iloc[0]
        assert all(row[key] == value for key, value in line.items())


def test_a_bundle_loads_as_its_store_and_its_files_are_the_frames(exported, monkeypatch):
    out = exported.folder / "out"
    monkeypatch.chdir(exported.folder)
    runs, curves = ablate.load("tiny"), ablate.load("tiny", curves=True)
    pd.testing.assert_frame_equal(ablate.load(store=out), runs)
    pd.testing.assert_frame_equal(ablate.load("tiny", out, curves=True), curves)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "curves.parquet"), curves)
    read = pd.read_csv(out / "runs.csv", keep_default_na=False)
    assert list(read.id) == list(runs.id)
    assert [float(v) for v in read.top1 if v != ""] == list(runs.top1.dropna())


def test_load_names_what_there_is(exported, tmp_path):
    with pytest.raises(UserError, match="tiny"):
        ablate.load("tinny", exported.folder / "runs")
    with pytest.raises(UserError, match="tiny"):
        ablate.load("tinny", exported.folder / "out")
    with pytest.raises(UserError, match="no store"):
        ablate.load(store=tmp_path)


def test_importing_ablate_loads_nothing():
    code = (
        "import sys; before = set(sys.modules); import ablate; print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pandas", "numpy", "scipy", "jinja2", "torch", "ablate.report"}
    assert not heavy & set(done.stdout.split())
