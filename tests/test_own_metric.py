"""Metrics of the user's own, functions over predictions: what they say of themselves, and what a
table makes of that. One through every reader of a sweep: test_numbers.py."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tables import finished, make_plan, notes_of, tabulate

from ablate.planning.analysis_keys import is_metric, metric_of, parse_own_metrics, read_own_metric
from ablate.planning.plan import Plan
from ablate.shared.errors import UserError
from ablate.training.task.classify import evaluate

ECE = "mymetrics:ece"


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
    return read_own_metric(name, folder, "analysis.metric")


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
    assert read_own_metric("numpy:mean", tmp_path, "x")["version"] == f"numpy {np.__version__}"
    with pytest.raises(UserError, match=r"nowhere:f: no nowhere\.py in .*, and no installed pack"):
        read_own_metric("nowhere:f", tmp_path, "analysis.metric")


def test_a_plan_keeps_what_it_says_and_no_other():
    own = {ECE: {"folder": "/x", "version": "abc", "unit": "%", "direction": "less"}}
    plan = make_plan(["base", "up"], metric=ECE)
    named = (dataclasses.replace(c, ids={s: f"{c.row}{s}" for s in c.ids}) for c in plan.cells)
    plan = dataclasses.replace(plan, own=own, cells=tuple(named))
    tree = json.loads(plan.to_bytes())
    assert Plan.from_tree(tree) == plan
    assert plan.metric.sign == -1
    unsaid, wrong = {"folder": "/x"}, {**own[ECE], "unit": 1}
    for other in ({"gradnorm:x": own[ECE]}, {ECE: unsaid}, {ECE: wrong}):
        with pytest.raises((ValueError, LookupError)):
            parse_own_metrics(other)
        with pytest.raises(ValueError, match="no plan of a sweep"):
            Plan.from_tree({**tree, "own": other})
    with pytest.raises(ValueError, match="its analysis can't be computed"):
        Plan.from_tree({**tree, "own": {}})


def test_chance_and_directions():
    values = {"base": [0.3, 0.31, 0.305], "up": [0.6, 0.605, 0.62]}
    diverged = {"up@#2": {"status": "diverged", "step": 3}}

    def tabulated(more=None, diverged="omit", **says):
        plan = make_plan([*values], metric=ECE, diverged=diverged)
        plan = dataclasses.replace(plan, own={ECE: {"folder": "", "version": "abc", **says}})
        results = {
            f"{row}@#{seed}": {**finished(0.9), "test": {"n": 9, "loss": 1, "top1": 0.9, ECE: v}}
            for row, of in values.items()
            for seed, v in enumerate(of)
        }
        return tabulate(plan, results | (more or {}))

    def entry(*results, **says):
        return tabulated(*results, **says).entries[1]

    for better, word in (("more", "helps"), ("less", "hurts"), (None, "higher")):
        assert entry(direction=better).verdict == word
    [rule] = notes_of(tabulated(direction=None), "verdicts")
    assert "(bold)" not in rule.text
    assert "gain" not in rule.text
    scored = entry(diverged, "chance", direction="less", chance=0.9, unit="%")
    assert scored.values[2] == 90.0
    with pytest.raises(UserError, match=f"guessing has no {ECE}; leave chance out"):
        entry(diverged, "chance", direction="less")
