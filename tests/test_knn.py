"""k-NN: the vote of scikit-learn's neighbours, runs that train nothing, and the probe that says the
same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Shell
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from ablate.data.batches import evaluation_batches
from ablate.data.image_changes import ImageView
from ablate.data.splits import open_cached
from ablate.run.build import build_run
from ablate.run.metrics.frozen import KNN_NEIGHBOURS
from ablate.run.metrics.knn import knn_scores
from ablate.run.rundir import RunDir
from ablate.store.store import Store
from ablate.training.model import build
from ablate.training.task import knn
from ablate.training.task.knn import classify


def by_sklearn(known, labels, others, neighbours: int):
    """Predicted classes by scikit-learn, with the weights of DINO's eval_knn.py."""
    model = KNeighborsClassifier(
        min(neighbours, len(known)),
        weights=lambda distances: np.exp((1 - distances) / 0.07),
        algorithm="brute",
        metric="cosine",
    )
    return model.fit(known, labels).predict(others)


def features(rows: int, seed: int):
    """Features of ten classes, of which neighbours are often wrong, and their labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(10, size=rows)
    centres = np.random.default_rng(9).normal(size=(10, 24))
    noise = 2.5 * generator.normal(size=(rows, 24))
    lengths = generator.uniform(0.1, 10, size=(rows, 1))
    return (lengths * (centres[labels] + noise)).astype(np.float32), labels


@pytest.mark.parametrize("rows", [700, 13, 3])
def test_the_classes_are_those_of_scikit_learns_neighbours(rows, monkeypatch):
    monkeypatch.setattr(knn, "BLOCK", 100)
    monkeypatch.setattr(knn, "CHUNK", 64)
    (known, labels), (others, truth) = features(rows, 0), features(300, 1)
    found = classify(*map(torch.from_numpy, (known, labels, others)), 10).numpy()
    for column, neighbours in enumerate(KNN_NEIGHBOURS):
        expected = by_sklearn(known, labels, others, neighbours)
        np.testing.assert_array_equal(found[:, column], expected)
        if rows == 700:
            assert 0.3 < accuracy_score(truth, expected) < 0.9
            assert (found[:, 0] != found[:, 1]).any()


def test_of_equal_votes_the_first_class_counts():
    known, labels = torch.ones(8, 3), torch.arange(8) % 4
    assert (classify(known, labels, torch.ones(5, 3), 4) == 0).all()


def test_scores_are_shares_of_the_images():
    generator = np.random.default_rng(0)
    table = np.empty(90, [("label", "u1"), ("class", "u1", (len(KNN_NEIGHBOURS),))])
    table["label"] = generator.integers(3, size=90)
    table["class"] = generator.integers(3, size=(90, len(KNN_NEIGHBOURS)))
    found = knn_scores(table, 3)
    assert found.pop("n") == 90
    shares = (table["class"] == table["label"][:, None]).mean(0)
    assert found == pytest.approx(dict(zip(("knn10", "knn20"), shares, strict=True)))


# --- Runs ---------------------------------------------------------------------------------------


PARENT = ("from.data=digits", "from.train.steps=60", "from.optim.warmup_epochs=1")


def folder(shell, sweep: str, label: str) -> RunDir:
    store = Store(shell.folder / "runs")
    return next(store.rundir(r.id) for r in store.read_plan(sweep).runs() if r.label == label)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("knn"))
    words = ("stem=none,dpn", "task=knn", "data=mnist5k", "data.size=8", *PARENT)
    shell("sweep", *words, "seeds=2", "--as", "near", "launcher=inline")
    return shell


@pytest.mark.whole
def test_a_run_says_what_scikit_learn_says_of_its_parent_s_features(measured):
    child, parent = (folder(measured, "near", label) for label in ("dpn#1", "dpn#1.from"))
    run, result = build_run(child.read_spec()), child.read_result()
    model = build(run).eval()
    tensors = load_file(parent.weights)
    head = {name: t for name, t in model.state_dict().items() if name.startswith("head.")}
    model.load_state_dict({**tensors, **head})
    parts = []
    for name in ("train", "test"):
        split = open_cached(run.data, measured.folder / "runs" / "cache").split(name)
        shown = evaluation_batches(split, 500, ImageView.from_run(run))
        with torch.inference_mode():
            pairs = [(model.features(images), labels) for images, labels in shown]
        parts += [torch.cat(part).numpy() for part in zip(*pairs, strict=True)]
    known, labels, others, truth = parts
    expected = {
        f"knn{k}": accuracy_score(truth, by_sklearn(known, labels, others, k))
        for k in KNN_NEIGHBOURS
    }
    assert result["test"].pop("n") == 500
    assert result["test"] == pytest.approx(expected, abs=1 / 500)
    assert min(expected.values()) > 0.3
    assert (result["step"], result["train_loss"]) == (0, None)


@pytest.mark.whole
def test_a_table_shows_it_and_its_predictions_are_verified(measured):
    assert np.load(folder(measured, "near", "none#0").predictions).dtype.itemsize == 3
    assert "nothing wrong" in measured("verify").out
    assert "the same bits" in measured("verify", "--rerun", "none#0").out
    quantities = {fact["quantity"] for fact in measured.facts("--show", "knn10,gain,ci")}
    assert {"knn10", "knn20"} <= quantities


@pytest.mark.whole
def test_a_probe_says_what_a_run_of_the_same_data_says(shell):
    words = ("train.steps=40", "optim.warmup_epochs=1", "probe=[knn]")
    common = ("seeds=1", "launcher=inline", "--as")
    shell("sweep", "stem=none,dpn", *words, *common, "p")
    probed = folder(shell, "p", "dpn#0")
    own, start = np.load(probed.path / "probe-knn.npz"), f"from.weights={probed.weights}"
    shell("sweep", "task=knn", start, "stem=dpn", "optim.lr=0.1,0.2", *common, "f")
    result = folder(shell, "f", "lr=0.1#0").read_result()["test"]
    means = {f"knn{k}": value for k, value in zip(own["neighbours"], own["accuracy"], strict=True)}
    assert {k: v for k, v in result.items() if k != "n"} == pytest.approx(means)
    shown = {fact["quantity"] for fact in shell.facts("p", "--show", "knn:20")}
    assert "knn:20" in shown
    assert "nothing wrong" in shell("verify", "p").out
