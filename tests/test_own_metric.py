"""Metrics of the user's own: a function over predictions, against the definition of what it
computes, through every reader of a sweep."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Shell
from pages import blocks
from test_table import SPEC, finished, make_plan, tabulate

import ablate
from ablate.audit import export
from ablate.planning.analysis_keys import is_metric
from ablate.planning.own_metric import kept, metric_of, read
from ablate.planning.plan import Plan
from ablate.report import plot
from ablate.shared.errors import UserError
from ablate.store.store import Store
from ablate.training.task.classify import evaluate

WORDS = ("stem=none,dpn", "model.depth=2", "train.steps=12", "seeds=3", "launcher=inline")
ECE = "mymetrics:ece"
METRIC = f"analysis.metric={ECE}"
SOURCE = blocks("file")["mymetrics.py"]  # as the manual has it


def calibration_error(confidence, right, bins=15):
    """Guo et al. 2017, eq. 3, as they define it: image by image, into bins (k / M, (k + 1) / M]."""
    bounds, total = np.linspace(0, 1, bins + 1), 0.0
    for low, high in itertools.pairwise(bounds):
        own = [i for i, value in enumerate(confidence) if low < value <= high]
        if own:
            accuracy = sum(bool(right[i]) for i in own) / len(own)
            mean = sum(float(confidence[i]) for i in own) / len(own)
            total += len(own) / len(confidence) * abs(accuracy - mean)
    return total


# --- What predictions keep ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_predictions_keep_the_true_class_and_the_confidence(kind):
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(40, 7, generator=generator)
    labels = torch.randint(7, (40,), generator=generator)
    _, table = evaluate([(logits[:30], labels[:30]), (logits[30:], labels[30:])], kind)
    wide = logits.numpy().astype(float)
    odds = np.exp(wide)
    share = odds / odds.sum(1, keepdims=True) if kind == "softmax" else odds / (1 + odds)
    np.testing.assert_array_equal(table["label"], labels)
    np.testing.assert_array_equal(table["rank"] == 0, table["class"] == table["label"])
    np.testing.assert_allclose(table["confidence"], share[np.arange(40), wide.argmax(1)], rtol=1e-9)


# --- What a function says of itself -------------------------------------------------------------


def said(folder: Path, text: str, name="own:f"):
    (folder / "own.py").write_text(text)
    return read(name, folder, "analysis.metric")


def test_a_function_that_says_nothing_is_neutral(tmp_path):
    metric = metric_of("own:a_b", said(tmp_path, "def a_b(table): ...", "own:a_b"))
    assert (metric.name, metric.short, metric.unit, metric.points) == ("a b", "a_b", "", "units")
    assert (metric.scale, metric.decimals, metric.most, metric.neutral) == (1.0, 4, None, True)
    assert metric.change == "difference"


def test_attributes_say_how_it_is_printed_and_judged(tmp_path):
    text = "from other import f\nf.name = 'macro F1'\nf.unit = '%'\nf.direction = 'more'\n"
    metric = metric_of("own:f", said(tmp_path, text + "f.range = (0, 1)\nf.chance = 0.1\n"))
    assert (metric.unit, metric.points, metric.scale, metric.decimals) == ("%", "points", 100.0, 2)
    assert (metric.most, metric.chance(10), metric.sign, metric.neutral) == (100.0, 0.1, 1, False)
    assert metric == metric_of("own:f", said(tmp_path, text + "f.range = (0, 1)\nf.chance = 0.1\n"))
    less = metric_of("own:f", said(tmp_path, "f = max\nf.direction = 'less'\nf.decimals = 0"))
    assert (less.sign, less.decimals) == (-1, 0)


def test_what_it_says_wrong_is_told_in_its_file(tmp_path):
    for text, line in {
        "f.directon = 'less'": "got 'directon' (did you mean 'direction'?)",
        "f.direction = 'up'": "direction: expected 'more', 'less' or None, got 'up'",
        "f.scale = -1": "scale: expected a number above 0, got -1",
        "f.decimals = 2.0": "decimals: expected a whole number from 0 to 12",
        "f.range = (1, 0)": "range: expected [least, most], either of them null or None",
        "f.unit = 3": "unit: expected a text of one line, got 3",
        "f.chance = 1 / 10": "line 2: f.chance is to be a plain value, got 1 / 10",
    }.items():
        with pytest.raises(UserError) as caught:
            said(tmp_path, f"def f(): ...\n{text}")
        assert line in str(caught.value)
        assert str(tmp_path / "own.py") in str(caught.value)


def test_names(tmp_path, monkeypatch):
    assert is_metric(ECE)
    assert not any(map(is_metric, ("gradnorm:other", "epochs_to:x", "mine", "a.b:c-d", ":f", "a:")))
    monkeypatch.chdir(tmp_path)
    assert read("numpy:mean", tmp_path, "x")["version"] == f"numpy {np.__version__}"
    with pytest.raises(UserError, match=r"nowhere:f: no nowhere\.py in .*, and no installed pack"):
        read("nowhere:f", tmp_path, "analysis.metric")


def test_a_plan_keeps_what_it_says_and_no_other():
    own = {ECE: {"folder": "/x", "version": "abc", "unit": "%", "direction": "less"}}
    plan = make_plan(["base", "up"], metric=ECE)
    named = (dataclasses.replace(c, ids={s: f"{c.row}{s}" for s in c.ids}) for c in plan.cells)
    plan = dataclasses.replace(plan, own=own, cells=tuple(named))
    tree = json.loads(plan.to_bytes())
    assert Plan.from_tree(tree) == plan
    assert plan.metric.sign == -1
    for wrong in (
        {"gradnorm:x": own[ECE]},
        {ECE: {"folder": "/x"}},
        {ECE: {**own[ECE], "unit": 1}},
    ):
        with pytest.raises((ValueError, LookupError)):
            kept(wrong)
        with pytest.raises(ValueError, match="no plan of a sweep"):
            Plan.from_tree({**tree, "own": wrong})
    tree["own"] = {}
    with pytest.raises(ValueError, match="its analysis can't be computed"):
        Plan.from_tree(tree)


def test_chance_and_directions():
    def table(values, **says):
        own = {ECE: {"folder": "", "version": "abc", **says}}
        plan = make_plan([*values], metric=ECE, diverged="chance" if "chance" in says else "omit")
        cells = tuple(dataclasses.replace(c, spec=SPEC) for c in plan.cells)
        plan = dataclasses.replace(plan, own=own, cells=cells)
        results = {
            f"{row}@#{seed}": {**finished(0.9), "test": {"n": 9, "loss": 1, "top1": 0.9, ECE: v}}
            for row, of in values.items()
            for seed, v in enumerate(of)
        }
        return plan, results

    values = {"base": [0.3, 0.31, 0.305], "up": [0.6, 0.605, 0.62]}
    for better, word in (("more", "helps"), ("less", "hurts"), (None, "higher")):
        found = tabulate(*table(values, direction=better))
        assert found.entries[1].verdict == word
    plan, results = table(values, direction="less", chance=0.9, unit="%")
    results["up@#2"] = {"status": "diverged", "step": 3}
    assert tabulate(plan, results).entries[1].values[2] == 90.0
    plan, results = table(values, direction="less")
    chance = dataclasses.replace(plan.analysis, diverged="chance")
    with pytest.raises(UserError, match=f"guessing has no {ECE}; leave chance out"):
        tabulate(dataclasses.replace(plan, analysis=chance), results)


# --- A driven sweep -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """From an empty folder and the manual's file to a table. The folder is moved then: what is
    found there is found in the folder that one works in."""
    shell = Shell(tmp_path_factory.mktemp("own") / "first")
    shell.folder.mkdir()
    (shell.folder / "mymetrics.py").write_text(SOURCE)
    (shell.folder / "table.md").write_text(shell("sweep", *WORDS, METRIC, "--as", "mine").out)
    return Shell(shell.folder.rename(shell.folder.with_name("moved")), 10)


@pytest.fixture
def shell(driven, tmp_path):
    """A copy of the folder, to change."""
    shutil.copytree(driven.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Shell(tmp_path, 100)


def runs_of(folder: Path):
    store = Store(folder / "runs")
    plan = store.read_plan("mine")
    return {(run.cell.row, run.seed): store.rundir(run.id) for run in plan.runs()}


def defined(folder: Path) -> dict[tuple[str, int], float]:
    """The error of every run by its definition, of the file as numpy reads it."""
    tables = {place: np.load(run.predictions) for place, run in runs_of(folder).items()}
    return {
        place: 100 * calibration_error(table["confidence"], table["rank"] == 0)
        for place, table in tables.items()
    }


def test_from_an_empty_folder_to_a_table(driven, monkeypatch):
    expected = defined(driven.folder)
    text = (driven.folder / "table.md").read_text()
    assert "| variant | mymetrics:ece % [95 % CI] | gain [95 % CI] | n | verdict |" in text
    for row in ("none", "dpn"):
        mean = np.mean([value for (label, _), value in expected.items() if label == row])
        assert f"| {row} | {mean:.2f} [" in text
    assert "Expected calibration error: mean over seeds" in text
    assert "in points, lower being better" in text
    assert "mymetrics:ece is a function of the predictions, code " in text
    lines = csv.DictReader(io.StringIO(driven("table", "--format", "csv").out))
    found = {
        (line["row"], int(line["seed"])): float(line["value"])
        for line in lines
        if line["quantity"] == f"{ECE}.run"
    }
    assert found == pytest.approx(expected, rel=1e-12)
    monkeypatch.chdir(driven.folder)
    frame = ablate.Store(driven.folder / "runs").sweep().to_pandas().set_index(["row", "seed"])
    assert {place: 100 * frame.loc[place, ECE] for place in expected} == pytest.approx(expected)
    tree = json.loads(driven("table", "--format", "json").out)
    assert tree["own"][ECE]["name"] == "expected calibration error"
    assert "6 finished runs]" in driven("plan", *WORDS, METRIC, "--detect", "1").out


def test_it_is_shown_beside_another_metric(driven):
    (driven.folder / "more.py").write_text(
        "import numpy as np\n\n\ndef mistaken(table, classes):\n"
        "    return np.float32(len(set(table['label'][table['rank'] > 0])) / classes)\n"
    )
    words = ("table", "analysis.metric=top1", "--show", f"accuracy,{ECE},more:mistaken")
    text = driven(*words).out
    assert "| variant | top1 % | mymetrics:ece % | more:mistaken |" in text
    mistaken = {
        place: len({*table["label"][table["class"] != table["label"]].tolist()}) / 10
        for place, run in runs_of(driven.folder).items()
        for table in [np.load(run.predictions)]
    }
    mean = np.mean([mistaken["none", seed] for seed in range(3)])
    assert f"| {mean:.4f} |\n| dpn" in text
    line = driven("table", "--show", "accuracy,more:mistake", code=2).err
    assert "--show: more:mistake: " in line
    assert "(did you mean 'mistaken'?)" in line


def test_it_is_verified_exported_and_reported(driven, tmp_path, monkeypatch):
    assert "verified: 6 runs" in driven("verify", "mine").out
    for module in (plot, export):  # figures take the longest
        monkeypatch.setattr(module, "figures", lambda *_: {})
    driven("report", "mine", "--out", "page.html")
    page = (driven.folder / "page.html").read_text()
    value = defined(driven.folder)["none", 0]
    assert f"{value:.2f}" in page.partition("mymetrics:ece %</th>")[2]
    driven("export", "mine", "out", "--anonymous")
    there = Shell(tmp_path)  # a reviewer's folder
    shutil.copytree(driven.folder / "out", tmp_path / "out")
    assert (tmp_path / "out" / "code" / "mymetrics.py").read_text() == SOURCE
    assert str(driven.folder) not in (tmp_path / "out" / "sweep.json").read_text()
    table = driven("table", "mine", "--format", "csv").out
    assert there("table", "--from", "out", "--format", "csv").out == table
    assert f"note: {ECE}: its values are as exported" in there("verify", "out").out
    runs = pd.read_csv(tmp_path / "out" / "runs.csv")
    assert 100 * runs[ECE][0] == pytest.approx(value)
    (tmp_path / "mymetrics.py").write_text(SOURCE)
    assert "note:" not in there("verify", "out").out  # computed again, and the same
    own = tmp_path / "out" / "own.json"
    tree = json.loads(own.read_text())
    tree[ECE][next(iter(tree[ECE]))][""] += 1e-9
    own.write_text(json.dumps(tree))
    assert "own.json: changed after the export" in there("verify", "out", code=1).out
    assert "own.json: was changed after the export" in there("table", "--from", "out", code=1).err


def test_another_version_of_the_function_is_a_changed_analysis(shell):
    def codes() -> list[str]:
        looks = Store(shell.folder / "runs").read_looks()
        return [look["analysis"]["code"] for look in looks if look["metric"] == ECE]

    shell("table", "mine")
    assert len(codes()) == 1
    file = shell.folder / "mymetrics.py"
    file.write_text(SOURCE.replace("15", "5"))
    text = shell("table", "mine").out
    assert "analysis.code: " in text
    assert len({*codes()}) == 2
    file.write_text(SOURCE)
    assert "analysis.code" not in shell("table", "mine").out  # the first, again
    assert len(codes()) == 2


def test_what_goes_wrong_is_one_line_in_the_users_file_and_line(shell):
    file, line_of = shell.folder / "mymetrics.py", "def ece(table, bins=15):\n"

    def told(body: str, code: int = 2) -> str:
        file.write_text(f"import numpy as np\n\n\n{line_of}    {body}\n")
        done = shell("table", "mine", code=code)
        assert len(done.err.splitlines()) == 1, done.err
        return done.err

    kept = "predictions.npy has class, rank, loss, label, confidence"
    line = told("return table['logits'].mean()")
    assert f"{ECE}: none#0: ValueError: no field of name logits ({file}, line 5); {kept}" in line
    assert f"expected a finite number, got nan; {kept}" in told("return np.nan")
    assert "expected a finite number, got None" in told("pass")
    assert "expected a finite number, got True" in told("return True")
    assert "SystemExit" in told("raise SystemExit(3)")
    assert "TypeError" in told("return table + 1")
    line = told("raise ValueError('x' * 10**6)")
    assert len(line) < 1000
    assert "x..." in line
    file.write_text(f"print('NOISE')\n{line_of}    print('NOISE')\n    return 0.25\n")
    done = shell("table", "mine", "--format", "json")
    assert json.loads(done.out)
    assert "NOISE" in done.err
    file.write_text("import nothing_so\ndef ece(table): ...\n")
    assert (
        f"ModuleNotFoundError: No module named 'nothing_so' ({file}, line 1)"
        in shell("table", "mine", code=2).err
    )
    assert "nothing_so" in shell("verify", "mine", code=1).out  # a finding
    file.unlink()
    assert "no mymetrics.py in " in shell("table", "mine", code=2).err
    assert "| none | " in shell("table", "mine", "analysis.metric=top1").out  # nothing else
    assert "6 finished" in shell("status", "mine").out


def test_it_is_found_out_before_anything_trains(shell):
    for metric, line in (
        ("mymetrics:ecce", "(did you mean 'ece'?)"),
        ("mymetric:ece", "no mymetric.py in "),
        ("scales:middle", "did you mean"),
    ):
        done = shell("plan", *WORDS, f"analysis.metric={metric}", code=2)
        assert done.err.startswith("ablate: analysis.metric: ")
        assert line in done.err


def test_predictions_that_lack_fields_were_edited(shell):
    run = next(iter(runs_of(shell.folder).values()))
    table = np.load(run.predictions)
    np.save(run.predictions, table[["class", "rank", "loss"]])
    text = " ".join(shell("table").out.split())
    assert f"{run.predictions.relative_to(shell.folder)} was edited since the run ended" in text


def test_a_metric_that_gives_another_number_each_time_is_found(shell):
    file = shell.folder / "mymetrics.py"
    file.write_text("import random\ndef ece(table):\n    return random.random()\n")
    assert "of its lines differ from the raw files" in shell("verify", "mine", code=1).out


def test_a_search_is_judged_on_validation_and_says_by_what(shell):
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "tuned.yaml").write_text(
        "base: {recipe: quick, data: digits, model.depth: 1, train.steps: 1}\n"
        "variants: [{none: {}}, {dpn: {stem: dpn}}]\nseeds: 2\n"
        "tune: {space: {optim.lr: {log: [1e-4, 1e-2]}}, trials: 5, repeats: 1}\n"
        f"analysis: {{metric: {ECE}}}\n"
    )
    text = shell("sweep", "tuned", "launcher=inline").out
    assert "settings are chosen on validation by top-1 accuracy, with other seeds" in text
    assert "mymetrics:ece % [95 % CI]" in text
