"""Scales that only show that a sweep runs: no gain of theirs is judged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from conftest import Shell, records, refused
from support.tables import PLANTED, TEXTS, make_plan, notes_of, plant, tabulate

from ablate.analysis.headline import table_headline
from ablate.planning.expand import plan_from_words
from ablate.planning.plan import Plan
from ablate.report.formats import render_table

FILE = """\
title: Two norms
base: {recipe: quick, data: digits, train.epochs: 1, optim.warmup_epochs: 0}
variants: [{layernorm: {}}, {rmsnorm: {norm: rmsnorm}}]
scales:
  smoke: {seeds: 3}
  tiny: {smoke: true, seeds: 2}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sweeps").mkdir()
    Path("sweeps/norms.yaml").write_text(FILE)
    return tmp_path


def planned(*words, scale):
    return plan_from_words(["norms", *words], store=Path("runs"), scale=scale)[0]


def test_it_is_a_property_and_no_name(folder):
    assert not planned(scale="smoke").smoke
    plan = planned(scale="tiny")
    assert plan.smoke
    assert Plan.from_tree(json.loads(plan.to_bytes())) == plan
    assert b"smoke" not in planned(scale=None).to_bytes()


def test_gains_have_means_alone_and_the_first_sentence_says_so():
    plan = make_plan(list(PLANTED))
    judged = tabulate(plan, plant(plan, PLANTED))
    assert judged.has_verdicts
    smoke = tabulate(dataclasses.replace(plan, smoke=True), plant(plan, PLANTED))
    assert smoke.complete
    assert not smoke.has_verdicts
    assert not smoke.is_look
    gains = [entry.gain for entry in smoke.entries if entry.gain]
    assert len(gains) == len(PLANTED) - 1
    for estimate in (*gains, *(entry.accuracy for entry in smoke.entries)):
        assert (estimate.low, estimate.high) == (None, None)
    assert [gain.mean for gain in gains] == [e.gain.mean for e in judged.entries if e.gain]
    assert smoke.notes[0].key == "smoke"
    assert table_headline(smoke) == smoke.notes[0].text
    assert not notes_of(judged, "smoke")
    for form in TEXTS:
        text = render_table(smoke, form)
        assert text.count(smoke.notes[0].text.partition(":")[0]) == (0 if form == "csv" else 1), (
            form
        )
    facts = records(render_table(smoke, "tidy"))
    verdicts = {fact["text"] for fact in facts if fact["quantity"] == "verdict"}
    assert verdicts <= {"", "baseline"}


@pytest.mark.whole
def test_a_shipped_table_has_no_word_beside_the_published_numbers(shell: Shell):
    """In a store of its own, with looks: none is recorded of it."""
    shell("sweep", "table1", "--scale", "smoke", "train.epochs=1", "launcher=inline")
    facts = shell.facts("--against", "paper")
    assert [f["value"] for f in facts if f["quantity"] == "paper.gain"] == ["1.4", "0.3"]
    for quantity in ("verdict", "paper.agreement", "paper.gain.inside", "paper.difference"):
        words = {f["text"] or f["value"] for f in facts if f["quantity"] == quantity}
        assert words <= {"", "baseline"}, quantity
    looks = Path(shell.folder / "runs" / "looks.jsonl").read_text().splitlines()
    assert all("interval" not in line for line in looks)


def test_a_smoke_test_has_no_looks(folder):
    Path("sweeps/norms.yaml").write_text(FILE.replace("true, seeds: 2", "true, until: {}"))
    with refused(r"^sweeps/norms.yaml: until: "):
        planned(scale="tiny")
    Path("sweeps/norms.yaml").write_text(FILE.replace("smoke: true", "smoke: 1"))
    with refused(r"^sweeps/norms.yaml: scales.tiny.smoke: "):
        planned(scale="tiny")


def test_a_scale_of_an_old_name_is_the_file_s_own(folder):
    Path("sweeps/norms.yaml").write_text(FILE.replace("tiny:", "digits:"))
    assert planned(scale="digits").smoke


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("figure1", "digits", "smoke"), ("table5", "camvid", "smoke"), ("dnn_bn", "mnist", "small")],
)
def test_an_old_name_of_a_scale_leads_to_the_new_one(tmp_path, name, old, new):
    with refused(f"^--scale {old}: .* {new}$"):
        plan_from_words([name], store=tmp_path, scale=old)


def test_no_gain_is_forecast(folder, shell):
    done = shell("plan", "norms", "--scale", "tiny", "--detect", "1", code=2)
    assert done.err.startswith("ablate: --detect: ")
