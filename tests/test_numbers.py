"""Numbers of a run beside its accuracy, of shipped probes, and of a probe and a metric of the
user's own: by their definition, through every reader of one sweep."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Shell
from pages import blocks
from safetensors.torch import load_file

import ablate
from ablate.audit import export
from ablate.planning.analysis_keys import number_of
from ablate.report import plot
from ablate.shared.errors import UserError
from ablate.store.store import Store

WORDS = ("stem=none,dpn", "model.depth=2", "train.steps=12", "seeds=3", "launcher=inline")
PROBE, ECE, RATIO = "steeply:Steepness", "mymetrics:ece", "gradnorm:embedding"
PROBES = f"probe=[gradnorm,scales,attention,fewshot,{PROBE}]"
SHOW = f"accuracy,{RATIO},scales:centre/rest,attention:2,fewshot:5,Steepness:last"
FILES = {"mymetrics.py": "mymetrics.py", "steeply.py": "myprobes.py"}  # as the manual has them
SOURCE = blocks("file")["mymetrics.py"]


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """From an empty folder and the manual's files to a table."""
    shell = Shell(tmp_path_factory.mktemp("numbers"))
    for name, page in FILES.items():
        (shell.folder / name).write_text(blocks("file")[page])
    mine = ("sweep", *WORDS, PROBES, f"analysis.metric={ECE}", "--as", "mine")
    shell(*mine)
    shell("sweep", *WORDS, PROBES, "analysis.metric=Steepness:last", "--as", "steep")
    table = shell(*mine).out  # the sweep that is meant where none is named
    (shell.folder / "table.md").write_text(table)
    return shell


@pytest.fixture
def shell(driven, tmp_path):
    """A copy of the folder, to change."""
    shutil.copytree(driven.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Shell(tmp_path, 100)


def runs_of(folder: Path):
    store = Store(folder / "runs")
    plan = store.read_plan("mine")
    return {(run.cell.row, run.seed): store.rundir(run.id) for run in plan.runs()}


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


def defined(folder: Path) -> dict[tuple[str, int, str], float]:
    """Every number by its definition, of the files as numpy reads them."""
    found = {}
    for place, run in runs_of(folder).items():
        table = np.load(run.predictions)
        found[*place, ECE] = 100 * calibration_error(table["confidence"], table["rank"] == 0)
        arrays = np.load(run.probe("gradnorm"))
        assert arrays["steps"][-1] == 10  # of 12 steps: the last tenth of the 11 that are told
        norms = dict(zip(arrays["groups"], arrays["norms"][-1].astype(float), strict=True))
        halves = [math.hypot(norms[f"blocks.{b}.attn"], norms[f"blocks.{b}.mlp"]) for b in (0, 1)]
        found[*place, RATIO] = math.log2(norms["embedding"] / np.mean(halves))
        # What the manual's probe keeps is what ours says of the same gradients, at every step.
        whole = np.sqrt(np.square(arrays["norms"].astype(float)).sum(1))
        theirs = np.load(run.path / "probe-Steepness.npz")
        np.testing.assert_allclose(theirs["norms"][arrays["steps"]], whole, rtol=1e-5)
        found[*place, "Steepness:last"] = float(theirs["norms"][-1])
        distances = np.load(run.probe("attention"))["distance"]
        found[*place, "attention:2"] = distances[1].astype(float).mean()
        found[*place, "fewshot:5"] = 100 * np.load(run.probe("fewshot"))["accuracy"][1].mean()
        if place[0] == "dpn":
            arrays = np.load(run.probe("scales"))
            square = arrays["stem.before.weight"].astype(float).reshape(4, 4)
            centre, corners = square[1:3, 1:3].sum(), square[[0, 0, 3, 3], [0, 3, 0, 3]].sum()
            rest = (square.sum() - centre - corners) / 8
            found[*place, "scales:centre/rest"] = centre / 4 / rest
    return found


@pytest.mark.whole
def test_the_numbers_of_the_files_are_in_tables_and_frames(driven, monkeypatch):
    expected = defined(driven.folder)
    lines = csv.DictReader(io.StringIO(driven("table", "--format", "tidy", "--show", SHOW).out))
    found = {
        (line["row"], int(line["seed"]), line["quantity"].removesuffix(".run")): line["value"]
        for line in lines
        if ":" in line["quantity"] and line["quantity"].endswith(".run")
    }
    assert {key: float(value) for key, value in found.items()} == pytest.approx(expected, rel=1e-6)
    monkeypatch.chdir(driven.folder)
    frame = ablate.Store(driven.folder / "runs").sweep().to_pandas().set_index(["row", "seed"])
    for (row, seed, name), value in expected.items():
        scale = 100 if name in ("fewshot:5", ECE) else 1
        assert scale * frame.loc[(row, seed), name] == pytest.approx(value)
    assert frame.loc["none"]["scales:centre/rest"].isna().all()
    text = driven("table", "--format", "md", "--show", SHOW).out
    assert re.search(r"\| none \| [\d.]+ \| [-\d.]+ \| - \| [\d.]+ \| [\d.]+ \| [\d.]+ \|", text)


@pytest.mark.whole
def test_a_table_says_what_each_is_and_which_way_it_is_better(driven):
    short, expected = (driven.folder / "table.md").read_text(), defined(driven.folder)
    text = driven("table", "--notes", "full").out
    means = [np.mean([expected[row, seed, ECE] for seed in range(3)]) for row in ("none", "dpn")]
    for said in (
        "| variant | mymetrics:ece % [95 % CI] | gain [95 % CI] | n | verdict |",
        *(f"| {row} | {mean:.2f} [" for row, mean in zip(("none", "dpn"), means, strict=True)),
        "Expected calibration error: mean over seeds",
        "in points, lower being better",
        "mymetrics:ece is a function of the predictions, code ",
    ):
        assert said in text
        assert said in short or "code" in said
    tree = json.loads(driven("table", "--format", "json").out)
    assert tree["own"][ECE]["name"] == "expected calibration error"
    text = driven("table", "analysis.metric=Steepness:last", "--notes", "full").out
    assert "| variant | Steepness:last [95 % CI] | difference [95 % CI] |" in text
    assert f"what the probe {PROBE} kept" in text
    tree = json.loads(driven("table", f"analysis.metric={RATIO}", "--format", "json").out)
    assert tree["metric"] == RATIO
    plan = driven("plan", *WORDS, PROBES, f"analysis.metric={ECE}", "--detect", "1").out
    assert "6 finished runs]" in plan


def test_probes_are_told_by_version_and_change_no_bit(driven, tmp_path):
    run = runs_of(driven.folder)["none", 0]
    assert json.loads(run.result.read_text())["plugins"]["probe"]
    Shell(tmp_path)("sweep", "stem=none,dpn", *WORDS[1:3], "seeds=1", WORDS[-1], "--as", "mine")
    without = runs_of(tmp_path)["none", 0]
    assert without.id != run.id
    one, other = load_file(run.weights), load_file(without.weights)
    assert all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


def test_it_is_shown_beside_another_metric(driven):
    (driven.folder / "more.py").write_text(
        "import numpy as np\n\n\ndef mistaken(table, classes):\n"
        "    return np.float32(len(set(table['label'][table['rank'] > 0])) / classes)\n"
    )
    text = driven("table", "analysis.metric=top1", "--show", f"accuracy,{ECE},more:mistaken").out
    assert "| variant | top1 % | mymetrics:ece % | more:mistaken |" in text
    runs = runs_of(driven.folder)
    tables = [np.load(runs["none", seed].predictions) for seed in range(3)]
    mistaken = [{*table["label"][table["class"] != table["label"]].tolist()} for table in tables]
    assert f"| {np.mean([*map(len, mistaken)]) / 10:.4f} |\n| dpn" in text
    line = driven("table", "--show", "accuracy,more:mistake", code=2).err
    assert "--show: more:mistake: " in line
    assert "(did you mean 'mistaken'?)" in line


def test_they_are_verified_exported_drawn_and_reported(driven, tmp_path, monkeypatch):
    assert "verified: 6 runs" in driven("verify", "mine").out
    driven("plot", "steep", "forest", "--out", "forest.svg")
    assert "difference" in (driven.folder / "forest.svg").read_text()
    for module in (plot, export):  # other figures, which take the longest
        monkeypatch.setattr(module, "draw_figures", lambda *_: {})
    driven("report", "mine", "--out", "page.html")
    page = (driven.folder / "page.html").read_text()
    value = defined(driven.folder)["none", 0, ECE]
    assert f"{value:.2f}" in page.partition("mymetrics:ece %</th>")[2]
    driven("export", "mine", "out", "--anonymous")
    there = Shell(tmp_path)  # a reviewer's folder
    shutil.copytree(driven.folder / "out", tmp_path / "out")
    code = tmp_path / "out" / "code"
    assert [path.name for path in code.iterdir()] == ["mymetrics.py"]  # of no probe
    assert (code / "mymetrics.py").read_text() == SOURCE
    assert str(driven.folder) not in (tmp_path / "out" / "sweep.json").read_text()
    driven("export", "steep", str(tmp_path / "steep"), "--anonymous")
    for place, sweep in (("out", "mine"), ("steep", "steep")):
        table = driven("table", sweep, "--format", "tidy").out
        assert there("table", "--from", place, "--format", "tidy").out == table
    assert f"note: {ECE}: its values are as exported" in there("verify", "out").out
    runs = pd.read_csv(tmp_path / "out" / "runs.csv")
    assert 100 * runs[ECE][0] == pytest.approx(value)
    assert list(runs.filter(like="gradnorm:")) == [RATIO]
    (tmp_path / "mymetrics.py").write_text(SOURCE)
    assert "note:" not in there("verify", "out").out  # computed again, and the same
    own = tmp_path / "out" / "own.json"
    tree = json.loads(own.read_text())
    tree[ECE][next(iter(tree[ECE]))][""] += 1e-9
    own.write_text(json.dumps(tree))
    assert "own.json: changed after the export" in there("verify", "out", code=1).out
    assert "own.json: was changed after the export" in there("table", "--from", "out", code=1).err


def test_a_row_without_the_number_is_refused_by_name(driven):
    for metric, said in {
        "scales:centre": "'none' has no scales:centre, nor another number of scales;",
        "attention:3": "'none' has no attention:3: its model has 2 layers;",
        "gradnorm:embeding": "did you mean 'gradnorm:embedding'?",
    }.items():
        assert said in driven("table", f"analysis.metric={metric}", code=2).err
    words = ("model.depth=1", "probe=[attention]", "analysis.metric=attention:2")
    line = driven("plan", "stem=none,dpn", *words, code=2).err  # before anything trains
    assert "'none' has no attention:2: its model has 1 layer; choose another metric" in line
    line = driven("table", f"analysis.metric={RATIO}", "--against", "paper", code=2).err
    assert "published figures are of top1, but the table is of gradnorm:embedding" in line
    line = driven("plan", *WORDS, f"analysis.metric={RATIO}", code=2).err
    assert "'none' and 1 more row do not measure gradnorm; the sweep with probe=[" in line


def test_an_edited_file_is_named_and_its_run_withheld(shell, monkeypatch):
    monkeypatch.chdir(shell.folder)
    run, *others = runs_of(shell.folder).values()
    path, metric = run.probe("gradnorm"), f"analysis.metric={RATIO}"
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "norms": 2 * arrays["norms"]})
    said = "probe-gradnorm.npz was edited since the run ended"
    assert said in shell("table", metric).out
    assert said not in shell("table", "analysis.metric=top1").out  # which does not read it
    changed = "probe-gradnorm.npz: differs from the file that the run wrote"
    assert changed in shell("verify", code=1).out
    frame = ablate.Store(shell.folder / "runs").sweep().to_pandas().set_index("id")
    assert frame.loc[run.path.name, "status"] == "withheld"
    assert math.isnan(frame.loc[run.path.name, RATIO])
    path.unlink()
    assert "probe-gradnorm.npz: missing" in shell("table", metric).out
    assert "probe-gradnorm.npz: missing" in shell("verify", code=1).out
    table = np.load(others[0].predictions)  # without what only a metric of one's own reads
    np.save(others[0].predictions, table[["class", "rank", "loss"]])
    text = " ".join(shell("table").out.split())
    place = others[0].predictions.relative_to(shell.folder)
    assert f"{place} was edited since the run ended" in text


def test_they_are_listed_with_unit_and_direction(driven):
    text = " ".join(driven("list", "metrics").out.split())
    assert "gradnorm:embedding log2 of the embedding's gradient norm" in text
    assert "grid units, no better direction; probe=[attention]" in text
    assert "fewshot:25 25-shot accuracy, %; probe=[fewshot]" in text
    assert "test loss, less is better; task=classify" in text


# --- What goes wrong ----------------------------------------------------------------------------


def test_another_version_of_the_function_is_a_changed_analysis(shell):
    def codes() -> list[str]:
        looks = Store(shell.folder / "runs").read_looks()
        return [look["analysis"]["code"] for look in looks if look["metric"] == ECE]

    shell("table", "mine")
    assert len({*codes()}) == 1
    file = shell.folder / "mymetrics.py"
    file.write_text(SOURCE.replace("15", "5"))
    text = shell("table", "mine").out
    assert "analysis.code: " in text
    assert len({*codes()}) == 2
    file.write_text(SOURCE)
    assert "analysis.code" not in shell("table", "mine").out  # the first, again
    assert len(codes()) == 2
    file.write_text("import random\ndef ece(table):\n    return random.random()\n")
    assert "of its lines differ from the raw files" in shell("verify", "mine", code=1).out


def test_what_goes_wrong_is_one_line_in_the_users_file_and_line(shell):
    file, line_of = shell.folder / "mymetrics.py", "def ece(table, bins=15):\n"

    def told(body: str, head: str = line_of) -> str:
        file.write_text(f"import numpy as np\n\n\n{head}    {body}\n")
        done = shell("table", "mine", code=2)
        assert len(done.err.splitlines()) == 1, done.err
        return done.err

    kept = "predictions.npy has class, rank, loss, label, confidence"
    line = told("return table['logits'].mean()")
    assert f"{ECE}: none#0: ValueError: no field of name logits ({file}, line 5); {kept}" in line
    for given in ("ece()", "ece(table, bins)"):
        line = told("return 0.5", f"def {given}:\n")
        assert f"expected ece(predictions) or ece(predictions, classes), got {given}\n" in line
    for body, said in {
        "return np.nan": f"expected a finite number, got nan; {kept}",
        "pass": "expected a finite number, got None",
        "return True": "expected a finite number, got True",
        "raise SystemExit(3)": "SystemExit",
        "return table + 1": "TypeError",
    }.items():
        assert said in told(body)
    line = told("raise ValueError('x' * 10**6)")
    assert len(line) < 1000
    assert "x..." in line
    file.write_text(f"print('NOISE')\n{line_of}    print('NOISE')\n    return 0.25\n")
    done = shell("table", "mine", "--format", "json")
    assert json.loads(done.out)
    assert "NOISE" in done.err
    file.write_text("import nothing_so\ndef ece(table): ...\n")
    line = f"ModuleNotFoundError: No module named 'nothing_so' ({file}, line 1)"
    assert line in shell("table", "mine", code=2).err
    assert "nothing_so" in shell("verify", "mine", code=1).out  # a finding


def test_a_metric_is_found_in_the_folder_that_one_works_in(driven):
    """Wherever it was, and nothing else is lost where it is not there."""
    table = driven("table").out
    moved = Shell(driven.folder.rename(driven.folder.with_name("moved")), 50)
    file = moved.folder / "mymetrics.py"
    try:
        assert moved("table").out == table
        file.rename(moved.folder / "kept")
        assert "no mymetrics.py in " in moved("table", code=2).err
        assert "| none | " in moved("table", "analysis.metric=top1").out
        assert "6 finished" in moved("status", "mine").out
    finally:
        (moved.folder / "kept").rename(file)
        moved.folder.rename(driven.folder)


BAD = """
from ablate.training.probes.probe import Probe

class A:
    pass

class Gradients(Probe):
    def gradients(self, step):
        self.nothing

class Hooks(Probe):
    def hooks(self):
        return [self.nothing]

class End(Probe):
    def end(self, evaluate):
        evaluate(self.nothing)

class Arrays(Probe):
    def arrays(self, steps):
        return {"a": object()}
"""


@pytest.mark.whole
def test_it_is_found_out_before_anything_trains(shell):
    bad = shell.folder / "bad.py"
    bad.write_text(BAD)
    lacks = "AttributeError: '{}' object has no attribute 'nothing' ({}, line {})"
    for said, line in {
        "analysis.metric=mymetrics:ecce": "analysis.metric: mymetrics:ecce: ",
        "analysis.metric=mymetric:ece": "no mymetric.py in ",
        "analysis.metric=scales:middle": "did you mean",
        f"probe=[{PROBE}] analysis.metric=Steepness:lst": "did you mean 'Steepness:last'?",
        f"probe=[{PROBE}] own_probes.folder=/x": "own_probes: is read from the files",
        "probe=[gradnor]": "expected one of gradnorm, scales",
        f"probe=[{PROBE},{PROBE}]": "probe: Steepness is given twice",
        "probe=[bad:A]": "bad:A: is no subclass of ablate.training.probes.probe:Probe",
        "probe=[bad:Gradients]": lacks.format("Gradients", bad, 9),
        "probe=[bad:Hooks]": lacks.format("Hooks", bad, 13),
        "probe=[bad:End]": lacks.format("End", bad, 17),
        "probe=[bad:Arrays]": f"Object arrays cannot be saved when allow_pickle=False ({bad}",
    }.items():
        assert line in shell("plan", *WORDS, *said.split(), code=2).err


def test_what_a_probe_says_of_its_numbers_is_checked(shell):
    for text, line in (
        (
            "class A:\n    numbers = {'a': {'uni': 1}}",
            "numbers: a: got 'uni' (did you mean 'unit'?), expected an att",
        ),
        ("class A:\n    numbers = ['a']", "numbers: expected {NAME: {attribute: value}}"),
        ("class A:\n    numbers = dict(a=1)", "line 2: numbers is to be a plain value"),
        ("class A(:", "invalid syntax"),
    ):
        (shell.folder / "bad.py").write_text(text)
        with pytest.raises(UserError) as caught:
            number_of("A:b", "bad:A", shell.folder, "analysis.metric")
        assert line in str(caught.value)


@pytest.mark.whole
def test_a_search_is_judged_on_validation_and_says_by_what(shell):
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "tuned.yaml").write_text(
        "base: {recipe: quick, data: digits, model.depth: 1, train.steps: 1}\n"
        "variants: [{none: {}}, {dpn: {stem: dpn}}]\nseeds: 2\n"
        "tune: {space: {optim.lr: {log: [1e-4, 1e-2]}}, trials: 5, repeats: 1}\n"
        f"analysis: {{metric: {ECE}}}\n"
    )
    text = shell("sweep", "tuned", "launcher=inline").out
    assert "mymetrics:ece % [95 % CI]" in text
    text = shell("table", "tuned", "--notes", "full").out
    assert "settings were chosen on validation by top-1 accuracy, with seeds that the table" in text
