"""Few-shot: draws, ridge regression, runs that train nothing, and the probe that says the same."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from conftest import Shell, refused
from safetensors.torch import load_file
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score

import ablate
from ablate.data.batches import Batches, evaluation_batches
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView
from ablate.data.splits import Split, open_cached
from ablate.planning.expand import plan_from_words as make_plan
from ablate.planning.search import Search, apply_settings
from ablate.planning.tuning import default_of
from ablate.run.build import build_run
from ablate.run.metrics.fewshot import FEWSHOT, FEWSHOT_SEEDS, FEWSHOT_SHOTS, fewshot_scores
from ablate.run.run import Run
from ablate.run.rundir import RunDir
from ablate.store.store import Store
from ablate.training.model import build
from ablate.training.task.fewshot import POOL, classify, draw, pool, ridge

# --- Draws --------------------------------------------------------------------------------------


def test_the_rows_are_those_of_the_evaluator():
    """Golden: big_vision/evaluators/fewshot_lsr.py as executed."""
    labels = np.arange(40) % 4
    assert draw(labels, 3, 0).tolist() == [16, 24, 8, 9, 37, 13, 22, 18, 38, 19, 23, 31]


def test_shots_nest_and_a_class_with_fewer_gives_what_it_has():
    labels = np.array([3] * 4 + [0] * 30 + [7] * 12)
    for seed in FEWSHOT_SEEDS:
        draws = [draw(labels, shots, seed) for shots in FEWSHOT_SHOTS]
        for fewer, more in itertools.pairwise(draws):
            assert {*fewer} < {*more}
        counts = [np.bincount(labels[rows])[[0, 3, 7]].tolist() for rows in draws]
        assert counts == [[1, 1, 1], [5, 4, 5], [10, 4, 10], [25, 4, 12]]
    assert draw(labels, 5, 0).tolist() != draw(labels, 5, 1).tolist()


@pytest.mark.whole
def test_the_pool_of_a_set_that_goes_by_class_has_every_class():
    assert pool(50_000, 10).tolist() == [*range(50_000)]
    labels = np.repeat(np.arange(1000), 1300)
    rows = pool(len(labels), 1000)
    assert len(rows) == len({*rows}) == POOL
    assert np.bincount(labels[rows], minlength=1000).min() >= 30
    assert np.array_equal(rows, pool(len(labels), 1000))  # another run's
    assert len(pool(14_000_000, 21_843)) == 65 * 21_843


# --- The classifier -----------------------------------------------------------------------------


def features(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)) * 3 + 1


def padded(known: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whitened by `known`, with the constant."""
    parts = [(part - known.mean(0)) / (known.std(0) + 1e-5) for part in (known, others)]
    return tuple(np.hstack([part, np.full((len(part), 1), 100.0)]) for part in parts)


@pytest.mark.parametrize(("rows", "width"), [(50, 7), (8, 7), (7, 7), (20, 300)])
def test_ridge_is_scikit_learns_with_more_and_with_fewer_rows_than_features(rows, width):
    x, _ = padded(features(rows, width), features(1, width))
    y = 2 * np.eye(4)[np.arange(rows) % 4] - 1
    expected = Ridge(alpha=1024, fit_intercept=False, solver="svd").fit(x, y).coef_.T
    found = ridge(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rows", "width"), [(200, 16), (20, 300)])
def test_the_classes_are_those_of_scikit_learn_s_regression(rows, width):
    known, others = features(rows, width), features(500, width, 1)
    labels = np.minimum(np.arange(rows) % 20, 9)  # half of them of one class: the constant counts
    known[:, 0] += labels
    known[:, 1] = 5.0  # as constant as a feature may be
    others[:, 0] += np.arange(500) % 10
    x, z = padded(known, others)
    model = Ridge(alpha=1024, fit_intercept=False).fit(x, 2 * np.eye(10)[labels] - 1)
    found = classify(*map(torch.from_numpy, (known, labels, others)), 10)
    np.testing.assert_array_equal(found, model.predict(z).argmax(1))
    moved = [torch.from_numpy(part * 50 - 7) for part in (known, others)]
    same = classify(moved[0], torch.from_numpy(labels), moved[1], 10) == found
    assert same.double().mean() > 0.99  # but for the 1e-5 of a deviation


def test_the_constant_is_as_good_as_not_penalised():
    """scikit-learn penalises no intercept."""
    labels = np.array([0] * 6 + [1, 2])
    known = features(8, 1500)
    shares = np.linspace(0, 1, 400)[:, None]  # from the mean of all rows to one of them
    others = known.mean(0) + shares * (known[np.arange(400) % 8] - known.mean(0))
    x, z = (part[:, :-1] for part in padded(known, others))
    expected = Ridge(alpha=1024).fit(x, 2 * np.eye(3)[labels] - 1).predict(z).argmax(1)
    assert set(expected) == {0, 1, 2}
    found = classify(*map(torch.from_numpy, (known, labels, others)), 3).numpy()
    assert np.mean(found == expected) > 0.98


def test_of_equal_scores_the_first_class_counts():
    known, labels = torch.ones(12, 3).double(), torch.arange(12) % 4
    assert classify(known, labels, torch.ones(5, 3).double(), 4).tolist() == [0] * 5


def test_scores_are_means_over_the_draws():
    generator = np.random.default_rng(0)
    table = np.empty(
        90, [("label", "u1"), ("class", "u1", (len(FEWSHOT_SHOTS), len(FEWSHOT_SEEDS)))]
    )
    table["label"] = generator.integers(3, size=90)
    table["class"] = generator.integers(3, size=(90, len(FEWSHOT_SHOTS), len(FEWSHOT_SEEDS)))
    found = fewshot_scores(table, 3)
    assert found.pop("n") == 90
    means = (table["class"] == table["label"][:, None, None]).mean((0, 2))
    expected = {f"fewshot{shots}": mean for shots, mean in zip(FEWSHOT_SHOTS, means, strict=True)}
    assert found == pytest.approx(expected, abs=1e-15)
    assert FEWSHOT.metrics[0].key == "fewshot25"  # of the papers' tables


# --- Features and views -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant",
    [{}, {"model.rep": True}, {"model.pool": "gap"}, {"model.arch": "mlp/2x16"}],
    ids=tiny.names,
)
def test_features_are_what_the_head_reads(variant):
    run = tiny.run(variant)
    model = build(run).eval()
    seen = []
    model.head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    images = tiny.images(3, run)
    logits = model(images)
    assert torch.equal(model.features(images), seen[0])
    assert torch.equal(model.head(seen[0]), logits)
    assert seen[0].shape == (3, run.model.width)
    if run.model.rep:
        model.blocks[-1].register_forward_hook(lambda *given: seen.append(given[2]))
        model.features(images)
        assert torch.equal(seen[0], model.rep(model.pool(model.norm(seen[-1]))))


def test_a_squeezed_view_is_the_centre_of_the_square():
    """Of 256x256 the central 224x224, whatever shape the image had."""
    images = torch.randint(256, (2, 256, 256, 3), dtype=torch.uint8)
    aspects = torch.tensor([1.5, 0.7])
    shown = ImageView(224, crop=0.875, squeezed=True).centred(images, aspects)
    assert torch.equal(shown, images[:, 16:240, 16:240])
    kept = ImageView(224, crop=0.875).centred(images, aspects)
    assert not torch.equal(kept, shown)


def test_a_square_as_large_as_the_view_shows_the_centre_of_a_wide_or_high_image():
    """`data.cache_size` = `data.size`, and nothing cropped: half of an image twice as wide."""
    ramp = torch.arange(8, 136, 16, dtype=torch.uint8).expand(8, 8)
    levels = torch.stack([ramp, ramp.T, ramp])[..., None].expand(-1, -1, -1, 3).contiguous()
    squares = Split(levels, torch.zeros(3, dtype=torch.int64), torch.tensor([2.0, 0.5, 1.0]))

    def shown(aspect: str) -> torch.Tensor:
        run = tiny.run({"data.cache_size": 8, "eval.aspect": aspect})
        [(images, _)] = evaluation_batches(squares, 3, ImageView.from_run(run))
        trained, _ = Batches(squares, 3, run.augment, Draws(0), ImageView.from_run(run)).at(0)
        assert torch.equal(trained, images[Draws(0).order(0, 3)])  # also without crops
        return ((images + 1) * 127.5).round()

    half = torch.arange(36, 100, 8).clamp(40, 88).expand(8, 8)  # of no pixel beyond the half
    expected = torch.stack([half, half.T, ramp])[..., None].expand(-1, -1, -1, 3)
    assert torch.equal(shown("keep"), expected.float())
    assert torch.equal(shown("squeeze"), levels.float())


# --- Runs ---------------------------------------------------------------------------------------

PARENT = ("from.train.steps=60", "from.optim.warmup_epochs=1")
SWEEP = ("sweep", "stem=none,dpn", "task=fewshot", "data=mnist5k", "data.size=8", *PARENT)
SWEEP = (*SWEEP, "from.data=digits", "seeds=2", "--as", "few", "launcher=inline")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("fewshot"))
    shell(*SWEEP)
    return shell


def folder(shell, sweep: str, label: str) -> RunDir:
    store = Store(shell.folder / "runs")
    return next(store.rundir(r.id) for r in store.read_plan(sweep).runs() if r.label == label)


def by_sklearn(run: Run, weights: Path, cache: Path) -> dict[str, float]:
    """The test accuracies of a run, by scikit-learn on what a model of its parent's weights has
    before the head."""
    model = build(run).eval()
    tensors = load_file(weights)
    head = {name: t for name, t in model.state_dict().items() if name.startswith("head.")}
    model.load_state_dict({**tensors, **head})
    found = []
    with torch.inference_mode():
        for name in ("train", "test"):
            split: Split = open_cached(run.data, cache).split(name)
            shown = evaluation_batches(split, 500, ImageView.from_run(run))
            parts = [(model.features(images).double(), labels) for images, labels in shown]
            found += [torch.cat(part).numpy() for part in zip(*parts, strict=True)]
    pool_features, pool_labels, test_features, test_labels = found
    scores = {f"fewshot{shots}": [] for shots in FEWSHOT_SHOTS}
    for shots, seed in itertools.product(FEWSHOT_SHOTS, FEWSHOT_SEEDS):
        generator, rows = np.random.default_rng(seed), []
        for label in range(10):
            rows += [*generator.permutation(np.flatnonzero(pool_labels == label))[:shots]]
        x, z = padded(pool_features[rows], test_features)
        ridge = Ridge(alpha=1024, fit_intercept=False).fit(x, 2 * np.eye(10)[pool_labels[rows]] - 1)
        scores[f"fewshot{shots}"].append(accuracy_score(test_labels, ridge.predict(z).argmax(1)))
    return {key: float(np.mean(each)) for key, each in scores.items()}


@pytest.mark.whole
def test_a_run_says_what_scikit_learn_says_of_its_parent_s_features(measured):
    child, parent = (folder(measured, "few", label) for label in ("dpn#1", "dpn#1.from"))
    run, told = build_run(child.read_spec()), child.read_result()
    expected = by_sklearn(run, parent.weights, measured.folder / "runs" / "cache")
    assert told["test"].pop("n") == 500
    assert told["test"] == pytest.approx(expected, abs=1 / 500)
    assert (told["step"], told["train_loss"]) == (0, None)
    own, theirs = (load_file(one.weights) for one in (child, parent))
    for name, tensor in own.items():
        same = not tensor.any() if name.startswith("head.") else torch.equal(tensor, theirs[name])
        assert same, name


@pytest.mark.whole
def test_its_predictions_are_small_and_verified(measured):
    table = np.load(folder(measured, "few", "none#0").predictions)
    assert table.dtype.itemsize == 1 + len(FEWSHOT_SHOTS) * len(FEWSHOT_SEEDS)
    assert "nothing wrong" in measured("verify").out
    assert "the same bits" in measured("verify", "--rerun", "none#0").out
    values = [float(f["value"]) for f in measured.facts() if f["quantity"] == "fewshot25"]
    assert len(values) >= 2
    assert min(values) > 30  # of ten classes; 3 epochs of 8x8 digits, then MNIST's
    assert "ridge regression on frozen features" in measured("table", "--notes", "full").out
    assert "(their parents)" in measured("status", "few").out


def test_what_has_no_effect_makes_no_other_run(tmp_path):
    def ids(*words):
        sweep = ("task=fewshot", *PARENT, "seeds=1", *words)
        return {r.id for r in make_plan(sweep, store=tmp_path)[0].runs() if not r.above}

    plain = ids("stem=none,dpn")
    assert len(plain) == 2
    for word in ("optim.lr=0.5", "train.epochs=3", "augment.flip=true", "eval.every=2"):
        assert ids("stem=none,dpn", word) == plain, word
    for word in ("from.optim.lr=0.5", "train.precision=fp64", "data=mnist5k", "eval.batch=7"):
        assert not ids("stem=none,dpn", "data.size=8", word) & plain, word


def test_mistakes_are_told_in_a_line(tmp_path):
    words = ["stem=none,dpn", "task=fewshot"]
    with refused("task: fewshot trains nothing and needs weights to start from; give"):
        make_plan(words, store=tmp_path)
    with refused("probe: gradnorm: "):
        make_plan([*words, *PARENT, "probe=[gradnorm]"], store=tmp_path)
    with refused("eval.aspect: images of data=digits"):
        make_plan([*words, *PARENT, "eval.aspect=squeeze"], store=tmp_path)


def test_a_batch_larger_than_the_pool_is_none_of_its_business(measured):
    words = (*SWEEP[:-3], "train.batch=5000", "launcher=inline")
    assert "finished" not in measured(*words).out  # the runs are there


@pytest.mark.whole
def test_a_probe_says_what_a_run_of_the_same_data_says(shell):
    words = ("train.steps=40", "optim.warmup_epochs=1", "probe=[fewshot]")
    common = ("seeds=1", "launcher=inline", "--as")
    shell("sweep", "stem=none,dpn", *words, *common, "p")
    probed = folder(shell, "p", "dpn#0")
    own, start = np.load(probed.path / "probe-fewshot.npz"), f"from.weights={probed.weights}"
    shell("sweep", "task=fewshot", start, "stem=dpn", "optim.lr=0.1,0.2", *common, "f")
    assert own["accuracy"].shape == (len(FEWSHOT_SHOTS), len(FEWSHOT_SEEDS))
    means = dict(zip((f"fewshot{k}" for k in own["shots"]), own["accuracy"].mean(1), strict=True))
    told = folder(shell, "f", "lr=0.1#0").read_result()["test"]
    assert {k: v for k, v in told.items() if k != "n"} == pytest.approx(means)
    assert "nothing wrong" in shell("verify", "p").out


# --- A search of the parents' settings ----------------------------------------------------------


TUNED = """\
base: {task: fewshot, data: digits}
from:
  {recipe: quick, data: digits, train.epochs: 1, optim.warmup_epochs: 0, tune: {
    sampler: grid, repeats: 1, at: {train.steps: 8}, space: {
      optim.lr: {choices: [3e-3, 1e-6]}, optim.lr_mult.stem: {choices: [1.0, 0.0]}}}}
variants: [{a: {}}, {b: {stem: dpn}}]
seeds: 1
"""


@pytest.mark.whole
def test_parents_are_searched_as_they_are(shell):
    """Judged by their own validation; each child starts from the winner of its search."""
    (shell.folder / "tuned.yaml").write_text(TUNED)
    shell("sweep", "tuned.yaml", "launcher=inline")
    assert "on validation of the parents" in shell("table", "tuned", "--notes", "full").out
    store = Store(shell.folder / "runs")
    plan = store.read_plan("tuned")
    runs = {run.label: run for run in plan.runs()}
    trials = [run for run in runs.values() if run.trial is not None]
    assert len(trials) == 8
    rate, stem = "from.optim.lr", "from.optim.lr_mult.stem"
    for run in trials:
        made = run.run()
        assert (made.task, made.parent, made.seed) == ("classify", None, 1000)
        assert (made.train.steps, made.optim.lr) == (8, run.trial.params[rate])
        assert made.optim.lr_mult == {"stem": run.trial.params[stem]}
    for row in "ab":
        told = {t.cell.ids[1000]: t for t in plan.trials if t.cell.row == row}
        scores = {run: store.rundir(run).read_result()["validation"]["top1"] for run in told}
        [[won]] = [cell.chosen for cell in plan.cells if cell.row == row]
        assert won.params in [told[r].params for r in told if scores[r] == max(scores.values())]
        parent = runs[f"{row}#0"].run().parent
        assert parent.id == runs[f"{row}#0.from"].id
        assert (parent.seed, parent.train.steps) == (0, None)
        settings = {rate: parent.optim.lr, stem: parent.optim.lr_mult["stem"]}
        assert settings == won.params
    assert "nothing wrong" in shell("verify", "tuned").out
    frame = ablate.Store(shell.folder / "runs").sweep("tuned").to_pandas(trials=True)
    assert frame[[rate, stem]].notna().all(axis=None)


SPACE = "{space: {optim.lr: {log: [1e-4, 1e-2]}}}"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("tune: {space: {from.optim.lr: {log: [1, 2]}}}", "tune: from.optim.lr: is a setting of"),
        (f"tune: {SPACE}\nfrom: {{data: digits, tune: {SPACE}}}", "tune: a sweep has tune or from"),
        (f"from: {{tune: {SPACE}}}", "from.tune: runs start from no"),
        (f"from: {{data: digits, from: {{tune: {SPACE}}}}}", "from.from.tune: only the parents"),
        (
            f"from: {{data: digits, tune: {{trials: 9, {SPACE[1:]}}}",
            "from.tune.trials: 9 trials",
        ),
    ],
)
def test_mistakes_of_a_search_are_told_in_a_line(here, file, said):
    Path("mine.yaml").write_text(f"{file}\nvariants: [{{a: {{}}}}, {{b: {{stem: dpn}}}}]\n")
    with refused(re.escape(said)):
        Search(make_plan(["mine.yaml"], store=here / "runs")[0])


def test_words_and_scales_say_how_parents_are_searched(here):
    Path("mine.yaml").write_text(
        f"from: {{data: digits, tune: {SPACE[:-1]}, at: {{train.steps: 3}}}}}}\n"
        "variants: [{a: {}}, {b: {stem: dpn}}]\n"
        "scales: {small: {from: {train.steps: 4, tune: {trials: 15}}}}\n"
    )

    def searched(*words, scale="small"):
        return make_plan(["mine.yaml", *words], store=here / "runs", scale=scale)[0]

    [stage] = searched().tune.stages
    assert (stage.trials, stage.at) == (5, {"from.train.steps": 3})
    assert [*stage.space] == ["from.optim.lr"]
    assert searched(scale=None).tune.stages[0].trials == 8
    assert searched("from.tune.trials=30").tune.stages[0].trials == 10
    none = searched("from.tune=none")
    assert none.tune is None
    assert none.name == "mine@small+from.tune=none"
    for words, said in (("from.tune=3", "from.tune: give "), ("tune.trials=3", "declares no such")):
        with refused(said):
            searched(words)


def test_learning_rates_by_path_are_searched_like_any_key(tmp_path):
    sweep = ("optim.lr_mult.blocks=0.5,0.25", "train.steps=3")
    spec = make_plan(sweep, store=tmp_path)[0].cells[0].spec
    space = {"log": (0.1, 10.0)}
    for path, factor in (("blocks", 0.5), ("blocks.0.attn", 0.5), ("head", 1.0), ("block", 1.0)):
        assert default_of(spec, f"optim.lr_mult.{path}", space) == factor
    found = apply_settings(spec, {"optim.lr_mult.head": 2.0, "optim.lr_mult.blocks.0": 0.0}).tree
    assert found["optim"]["lr_mult"] == {"blocks": 0.5, "blocks.0": 0.0, "head": 2.0}
    assert spec.tree["optim"]["lr_mult"] == {"blocks": 0.5}


def test_a_key_of_the_model_is_searched_for_parent_and_child(tmp_path):
    sweep = ("task=fewshot", "stem=none,dpn", *PARENT, "seeds=1")
    spec = make_plan(sweep, store=tmp_path)[0].cells[0].spec
    changes = {"model.depth": 3, "norm.eps": 0.5, "model.dropout": 0.25}
    found = apply_settings(spec, changes).tree
    assert found["model"]["depth"] == found["parent"]["model"]["depth"] == 3
    assert found["norm"]["eps"] == found["parent"]["norm"]["eps"] == 0.5
    assert (found["model"]["dropout"], found["parent"]["model"]["dropout"]) == (0.25, 0.0)
    with refused(r"^tune: from\.from\.optim\.lr: no such key"):
        apply_settings(spec, {"from.from.optim.lr": 1.0})


# --- The doctor ---------------------------------------------------------------------------------


def test_the_doctor_rehearses_what_trains(measured):
    words = ("task=fewshot", "data=mnist5k", "data.size=8", "from.data=digits")
    found = measured("doctor", *words, *PARENT).out
    assert f"steps of {' '.join((*words, *PARENT))}.from on cpu" in found
    assert "resume is bit-exact" in found
    weights = folder(measured, "few", "none#0.from").weights
    found = measured("doctor", "task=fewshot", f"from.weights={weights}").out
    assert "takes no steps" in found
