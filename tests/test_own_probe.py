"""Probes of the user's own: read as text, in the id by their version, numbers of them in tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Shell
from pages import blocks
from safetensors.torch import load_file

import ablate
from ablate.audit import export
from ablate.planning.own_metric import number_of
from ablate.shared.errors import UserError
from ablate.store.store import Store

SOURCE = blocks("file")["myprobes.py"]
PROBE, NUMBER = "steeply:Steepness", "Steepness:last"
WORDS = ("stem=none,dpn", "model.depth=1", "train.steps=6", "seeds=2", "launcher=inline")
BESIDE = f"probe=[{PROBE},gradnorm]"


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("probe"))
    (shell.folder / "steeply.py").write_text(SOURCE)
    shell("sweep", *WORDS, BESIDE, f"analysis.metric={NUMBER}", "--as", "mine")
    return shell


@pytest.fixture
def folder(users) -> Path:
    return users({"steeply.py": SOURCE, "bad.py": BAD})


def runs_of(folder: Path):
    store = Store(folder / "runs")
    return {run.label: store.rundir(run.id) for run in store.read_plan("mine").runs()}


def test_its_number_is_in_tables_and_frames(driven):
    """What the manual's probe keeps is what ours says of the same gradients."""
    runs = runs_of(driven.folder)
    for run in runs.values():
        ours, theirs = np.load(run.probe("gradnorm")), np.load(run.path / "probe-Steepness.npz")
        norms = np.sqrt(np.square(ours["norms"].astype(float)).sum(1))
        np.testing.assert_allclose(theirs["norms"], norms, rtol=1e-5)
        assert theirs["last"] == theirs["norms"][-1]
    text = driven("table").out
    assert "| variant | Steepness:last [95 % CI] | difference [95 % CI] |" in text
    assert "Gradient norm of the last step: mean over seeds" in text
    assert f"what the probe {PROBE} kept" in text
    frame = ablate.Store(driven.folder / "runs").sweep().to_pandas().set_index(["row", "seed"])
    found = float(np.load(runs["dpn#1"].path / "probe-Steepness.npz")["last"])
    assert frame.loc[("dpn", 1), NUMBER] == pytest.approx(found)
    assert "nothing wrong" in driven("verify").out


def test_it_is_told_by_version_and_changes_no_bit(driven, tmp_path, monkeypatch):
    run = runs_of(driven.folder)["none#0"]
    assert json.loads(run.result.read_text())["plugins"]["probe"]
    bare = Shell(tmp_path)
    bare("sweep", *WORDS, "--as", "mine")
    without = runs_of(tmp_path)["none#0"]
    assert without.id != run.id
    one, other = load_file(run.weights), load_file(without.weights)
    assert all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


def test_a_bundle_has_its_number_without_its_file(driven, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "figures", lambda *_: {})  # which take the longest
    driven("export", "mine", "out", "--anonymous")
    shutil.move(driven.folder / "out", tmp_path / "out")
    there = Shell(tmp_path)
    table = there("table", "--from", "out", "--format", "csv").out
    assert table == driven("table", "mine", "--format", "csv").out
    assert not (tmp_path / "out" / "code").exists()


def test_what_is_wrong_is_told_before_anything_trains(folder):
    shell = Shell(folder)
    for probe, line in (
        ("gradnor", "expected one of gradnorm, scales"),
        (f"{PROBE},{PROBE}", "probe: Steepness is given twice"),
    ):
        assert line in shell("plan", "stem=none,dpn", f"probe=[{probe}]", code=2).err
    words = ("plan", "stem=none,dpn", f"probe=[{PROBE}]")
    assert (
        "did you mean 'Steepness:last'?"
        in shell(*words, "analysis.metric=Steepness:lst", code=2).err
    )
    assert "own_probes: is read from the files" in shell(*words, "own_probes.folder=/x", code=2).err
    for text, line in (
        ("class A:\n    numbers = {'a': {'uni': 1}}", "numbers: a: expected an attribute among"),
        ("class A:\n    numbers = ['a']", "numbers: expected {NAME: {attribute: value}}"),
        ("class A:\n    numbers = dict(a=1)", "line 2: numbers is to be a plain value"),
        ("class A(:", "invalid syntax"),
    ):
        (folder / "bad.py").write_text(text)
        with pytest.raises(UserError) as caught:
            number_of("A:b", "bad:A", folder, "analysis.metric")
        assert line in str(caught.value)


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


def test_a_probe_that_does_not_work_is_told_by_plan(folder):
    lines = {"Gradients": 9, "Hooks": 13, "End": 17}
    lacks = "AttributeError: '{}' object has no attribute 'nothing' ({{}}, line {})"
    for name, said in {
        "A": "is no subclass of ablate.training.probes.probe:Probe",
        **{name: lacks.format(name, line) for name, line in lines.items()},
        "Arrays": "ValueError: Object arrays cannot be saved when allow_pickle=False ({}",
    }.items():
        words = (*WORDS, f"probe=[bad:{name}]")
        line = Shell(folder)("plan", *words, code=2).err
        assert f"probe: bad:{name}: {said.format(folder / 'bad.py')}" in line
