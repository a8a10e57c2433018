"""A text tower beside a frozen image tower: loss, texts and tokens, zero-shot, a sweep."""

from __future__ import annotations

import json
import math
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import yaml
from conftest import REPOSITORY, Shell, refused
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from support.processes import kill, workers
from torch import nn

from ablate.analysis.paper import published_figures
from ablate.data import bundled_sets
from ablate.data.cache import prepare_cache
from ablate.data.splits import Split
from ablate.planning.compose import resolve_data
from ablate.planning.expand import plan_from_words as make_plan
from ablate.run import RunSpec
from ablate.run.metrics.contrastive import contrastive_scores
from ablate.run.rundir import RunDir
from ablate.run.schema import read_section
from ablate.run.sections import Data, Text
from ablate.store.store import Store
from ablate.training.calibrate import random_split
from ablate.training.model import build
from ablate.training.model.export import timm_arguments
from ablate.training.model.towers import Towers, normalised, similarities
from ablate.training.starting_weights import begin
from ablate.training.task import Predictor, contrastive
from ablate.training.task.contrastive import Contrastive, Tokens, floors, pair_losses
from ablate.training.training import Training

TEXT = tiny.TEXT
LIT = {"task": "contrastive", "text": TEXT, "optim.lr_mult": {"image": 0}}
CPU = torch.device("cpu")


# --- The loss -----------------------------------------------------------------------------------


def by_loops(images: np.ndarray, texts: np.ndarray, theta: float) -> float:
    """The released loss, pair by pair, in numpy."""
    z, w = ([row / (math.sqrt(sum(row**2)) + 1e-8) for row in part] for part in (images, texts))
    total = 0.0
    for i in range(len(z)):
        row = [math.exp(theta) * float(z[i] @ other) for other in w]
        column = [math.exp(theta) * float(other @ w[i]) for other in z]
        for line in (row, column):
            total -= line[i] - math.log(sum(math.exp(value) for value in line))
    return total / (2 * len(z))


def ours(images: torch.Tensor, texts: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    return pair_losses(similarities(normalised(images), normalised(texts), theta.exp())).mean()


def test_the_golden_values_of_the_released_loss():
    eye, alike = torch.eye(4).double(), torch.ones(7, 3).double()
    assert ours(eye, eye, torch.zeros(1)).item() == pytest.approx(0.7437, abs=5e-5)
    assert ours(eye, eye, torch.tensor([10.0]).log()).item() == pytest.approx(1.36e-4, abs=5e-7)
    assert ours(alike, alike, torch.zeros(1)).item() == pytest.approx(math.log(7), abs=1e-12)


def test_the_loss_and_its_gradients_are_those_of_loops():
    """Central differences of the loops, of each embedding's every value and of the temperature."""
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(5, 3)), generator.normal(size=(5, 3)), np.array(0.7)]
    tensors = [torch.from_numpy(part).requires_grad_() for part in parts]
    loss = ours(*tensors)
    assert loss.item() == pytest.approx(by_loops(*parts), abs=1e-12)
    loss.backward()
    for n, part in enumerate(parts):
        for place in np.ndindex(part.shape):
            ends = []
            for sign in (1e-5, -1e-5):
                moved = [other.copy() for other in parts]
                moved[n][place] += sign
                ends.append(by_loops(*moved))
            slope = (ends[0] - ends[1]) / 2e-5
            assert tensors[n].grad[place].item() == pytest.approx(slope, abs=1e-8)


def test_equal_captions_have_a_floor_that_perfect_towers_reach():
    """250 pairs of 10 captions: ln 25 = 3.2189."""
    texts = torch.arange(250) % 10
    perfect = 1e4 * torch.eye(10).double()[texts] @ torch.eye(10).double()[texts].T
    assert pair_losses(perfect).mean().item() == pytest.approx(3.2189, abs=5e-5)
    assert floors(texts.numpy()).mean() == pytest.approx(pair_losses(perfect).mean().item())
    uneven = np.array([4, 4, 4, 9, 7, 7])
    wanted = [math.log(3)] * 3 + [0.0] + [math.log(2)] * 2
    assert floors(uneven).tolist() == pytest.approx(wanted)
    for seed in range(20):  # whatever the towers say, equal texts being said alike
        drawn = torch.randn(6, 10, generator=torch.Generator().manual_seed(seed)).double()
        assert pair_losses(5 * drawn[:, uneven]).mean() > floors(uneven).mean()


# --- Texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("T-shirt/top", "tshirttop"),
        ("a close-up photo of the {}.", "a closeup photo of the {}"),
        ("polar_bear", "polar bear"),
        ("  A  Red\tSeven! ", "a red seven"),
        ("tench, Tinca tinca", "tench, tinca tinca"),
        ("{}", "{}"),
        ("jack-o'-lantern", "jackolantern"),
        ("", ""),
    ],
)
def test_how_a_text_is_written(text, written):
    assert contrastive.canonical(text) == written


def test_a_prompt_is_filled_with_the_name():
    expected = ["jack russell", "a photo of my jack russell"]
    assert contrastive.prompted("Jack_Russell", ["{}", "A photo of my {}!"]) == expected


def table(counts: dict[str, int], **changes) -> Tokens:
    return Tokens(Text(**{**TEXT, "width": 32, "heads": 2, **changes}), counts)


def test_words_are_numbered_by_how_often_they_are_there_then_by_spelling():
    counts = {"b a": 2, "c a": 2, "d": 1}
    for tokens in (table(counts), table(dict(reversed(counts.items())))):
        assert tokens(["a b c d", "z a", "a, b"])[:, :5].tolist() == [
            *([3, 4, 5, 6, 1], [2, 3, 1, 1, 1], [3, 4, 1, 1, 1])
        ]
        assert tokens([""]).tolist() == [[1] * 6]
        assert tokens(["a b c d a b c"]).tolist() == [[3, 4, 5, 6, 3, 1]]  # cut before the end
    assert table(counts, vocab=5)(["a b c"])[0, :3].tolist() == [3, 4, 2]


def test_the_table_is_never_learnt_from_texts_to_test_on():
    run = tiny.run({**LIT, "data.classes": 3, "data.test_classes": 2})
    images = torch.zeros(4, 8, 8, 3, dtype=torch.uint8)
    names = ("red seven", "blue eight", "green nine")
    train = Split(images, torch.tensor([0, 0, 1, 1]), torch.ones(4), names)
    tokens = Contrastive(run)._tokens(train)
    assert tokens(["green nine", "red eight"])[:, :2].tolist() == [[2, 2], [5, 4]]


def test_byte_pairs_are_learnt_from_the_training_texts_and_are_the_same_each_time():
    pytest.importorskip("tokenizers")
    counts = {"a red seven": 3, "a red eight": 2, "naïve": 1}
    rows, again = (
        table(some, tokens="bpe", vocab=300, length=12)(["a red seven", "zebra", "", "naïve"])
        for some in (counts, dict(reversed(counts.items())))
    )
    assert np.array_equal(again, rows)
    assert rows.shape == (4, 12)
    assert (rows[:, -1] == 1).all()
    assert rows[0].tolist().count(1) == 9  # three words, one token each
    assert (rows[1] != 1).sum() > 3  # in bytes: nothing is unknown
    assert rows[2].tolist() == [1] * 12
    assert 2 not in rows
    with refused(r"^text\.vocab: bpe needs at least 259, got 32"):
        table(counts, tokens="bpe")


# --- Zero-shot ----------------------------------------------------------------------------------


def measured(names, embedded, labels, features, classes=None, prompts=("{}",), data=None):
    """Predictions where a text has the embedding that `embedded` gives by its words. `data`: of the
    set, where it is not the run's."""
    changes = {"text": {**TEXT, "prompts": list(prompts), "length": 3}, "data.classes": len(names)}
    run, labels = tiny.run({**LIT, **changes, "data.test_classes": classes}), torch.tensor(labels)
    images = torch.zeros(max(len(labels), len(names)), 8, 8, 3, dtype=torch.uint8)
    split = Split(images[: len(labels)], labels, torch.ones(len(labels)), tuple(names))
    every = Split(images[: len(names)], torch.arange(len(names)), None, names)
    task = Contrastive(run)
    words = {task._tokens(every)([word])[0, 0].item(): word for word in embedded}
    zero = [0.0] * features.shape[1]

    def texts(tokens):
        said = [[words.get(n.item()) for n in row] for row in tokens]
        sums = [sum(torch.tensor(embedded.get(w, zero)) for w in row) for row in said]
        return normalised(torch.stack(sums))

    class Known(Towers):
        """Texts have these embeddings, an image's is itself, and the temperature is 2."""

        def __init__(self):
            nn.Module.__init__(self)
            self.theta = nn.Parameter(torch.tensor([math.log(2.0)]))
            self.features, self.texts = (lambda images: images), texts

    training = SimpleNamespace(model=Known(), train=every, weights=torch.float32, compute=computed)
    predict = Predictor(training, split, data or run.data)
    return task.evaluate(predict, [(features[:3], labels[:3]), (features[3:], labels[3:])])


def computed(call, *given):
    return call(*given)


def test_an_image_counts_as_the_class_whose_name_is_nearest():
    embedded = {"cat": [1.0, 0.0], "dog": [0.0, 1.0], "cow": [1.0, 1.0]}
    features = normalised(torch.tensor([[1.0, 0.1], [0.2, 1], [1, 0.9], [1, 0], [0, 1]]))
    found, rows = measured(("Cat", "dog", "Cow."), embedded, [0, 1, 2, 1, 1], features)
    assert rows["class"].tolist() == [0, 1, 2, 0, 1]
    assert (found["n"], found["zeroshot"], found["twins"]) == (5, 0.8, 0.0)
    texts = normalised(torch.tensor([*embedded.values()]))[[0, 1, 2, 1, 1]]
    batches = zip(features.split(3), texts.split(3), strict=True)
    losses = torch.cat([pair_losses(2 * z @ w.T) for z, w in batches])
    np.testing.assert_allclose(rows["loss"], losses, rtol=1e-6)
    assert rows["floor"].tolist() == pytest.approx([0, 0, 0, math.log(2), math.log(2)])
    assert found["loss"] == pytest.approx((rows["loss"] - rows["floor"]).mean())
    assert contrastive_scores(rows, 3) == found


def test_of_classes_with_one_name_the_first_is_said_and_the_others_are_counted():
    embedded = {"crane": [1.0, 0.0], "dog": [0.0, 1.0]}
    features = torch.tensor([[1.0, 0.0], [1, 0], [0, 1], [1, 0], [1, 0]])
    names = ("dog", "crane", "Crane")
    found, rows = measured(names, embedded, [1, 2, 0, 2, 1], features)
    assert rows["class"].tolist() == [1, 1, 0, 1, 1]
    assert rows["twin"].tolist() == [False, True, False, True, False]
    assert (found["zeroshot"], found["twins"]) == (0.6, 0.4)


def test_a_test_set_with_some_classes_only_is_asked_for_its_own():
    """Of `eval.also`, too, whatever those of the run's data."""
    embedded = {"cat": [1.0, 0.0], "dog": [0.0, 1.0], "cow": [0.9, 0.1]}
    some = ("cat", "dog", "cow"), embedded, [1, 2, 2, 1], torch.tensor([[1.0, 0.0]] * 4)
    two, every = (tiny.run({"data.test_classes": few}).data for few in (2, None))
    for classes, data, said in ((2, None, 2), (None, None, 0), (2, every, 0), (None, two, 2)):
        _, rows = measured(*some, classes=classes, data=data)
        assert rows["class"].tolist() == [said] * 4


def test_classes_whose_names_are_one_in_tokens_are_twins():
    """Two words of a text are read here, and an [end]."""
    embedded = {"crane": [1.0, 0.0], "dog": [0.0, 1.0]}
    names = ("dog", "crane of rust", "crane of steel", "crane")
    features = torch.tensor([[1.0, 0.0]] * 4)
    # "old crane" is one of all three, "crane" of itself alone.
    for prompts, last in ((("{}",), False), (("old {}",), True), (("old {}", "{}"), False)):
        _, rows = measured(names, embedded, [1, 2, 0, 3], features, prompts=prompts)
        assert rows["twin"].tolist() == [False, True, False, last]


@pytest.mark.parametrize("prompts", [1, 3, 7])
def test_embeddings_of_millions_of_texts_are_never_there_at_once(prompts, monkeypatch):
    """The bits are those of all at once: texts go through the tower in the same batches."""
    run = tiny.run({**LIT, "eval.batch": 4})
    tokens = np.random.default_rng(0).integers(3, 32, (5, prompts, 6))
    vectors, shown = torch.randn(32, 16, generator=torch.Generator().manual_seed(0)), []

    def texts(some):
        shown.append(len(some))
        return vectors[some].sum(1)

    predict = SimpleNamespace(compute=computed)
    towers = SimpleNamespace(texts=texts, theta=torch.zeros(1))
    known = Contrastive(run)._embedded(predict, towers, tokens)
    assert max(shown) == 4
    whole = vectors[torch.from_numpy(tokens)].sum(2).double()
    assert torch.equal(known, normalised(whole.mean(1)))
    # In whole numbers, whose sums hang on no order, with many that are as near as another.
    images, many = (torch.randint(-3, 4, (n, 5)).double() for n in (40, 50))
    monkeypatch.setattr(contrastive, "CLASSES", 7)
    assert torch.equal(contrastive.nearest(images, many), (images @ many.T).argmax(1))


def test_prompts_are_averaged_by_direction():
    """A name's embedding is the mean of directions, however long each prompt's vector is."""
    embedded = {"cat": [1.0, 0.0], "big": [0.0, 9.0], "dog": [0.6, 0.8]}
    features = normalised(torch.tensor([[1.0, 0.0], [1, 0.2], [1, 1.1], [0.5, 1]]))
    names = ("cat", "dog", "big")
    _, rows = measured(names, embedded, [0, 0, 0, 0], features, prompts=("{}", "Big {}"))
    cat = np.array([1.0, 0]) + np.array([1, 9]) / np.sqrt(82)
    dog = np.array([0.6, 0.8]) + np.array([0.6, 9.8]) / np.sqrt(0.36 + 9.8**2)
    big = np.array([0.0, 2.0])
    known = np.stack([v / np.linalg.norm(v) for v in (cat, dog, big)])
    assert rows["class"].tolist() == (features.numpy() @ known.T).argmax(1).tolist()
    assert len({*rows["class"].tolist()}) > 1


# --- Towers -------------------------------------------------------------------------------------


def test_a_frozen_tower_is_as_it_is_measured_and_outside_of_everything():
    """Dropout, statistics, the norm that is clipped, the optimiser, the decay: without it."""
    changes = {"model.dropout": 0.5, "norm": "powernorm", "optim.wd": 0.5, "train.epochs": 4}
    run = tiny.run({**LIT, **changes})
    training = Training(run, random_split(run.data, 24, CPU), CPU)
    before = {name: t.clone() for name, t in training.model.state_dict().items()}
    images, _ = training.inputs()
    seen = training.model.features(images)
    training.model.eval()
    assert torch.equal(training.model.features(images), seen)
    training.model.train()
    assert training.model.text.training
    for _ in range(3):
        training.step()
    after = training.model.state_dict()
    moved = {name for name, tensor in before.items() if not torch.equal(after[name], tensor)}
    # A token that no text has, and positions' decay: none.
    assert moved == {n for n, _ in training.model.named_parameters() if not n.startswith("image.")}
    assert all(p.grad is None for p in training.model.image.parameters())
    held = {p for group in training.optimizer.param_groups for p in group["params"]}
    assert held == {*training.model.text.parameters(), training.model.theta}
    decays = [g for g in training.optimizer.param_groups if g["weight_decay"]]
    shapes = {id(m.weight) for m in training.model.text.modules() if isinstance(m, nn.Linear)}
    assert {id(p) for group in decays for p in group["params"]} == shapes


def test_the_clipped_norm_is_of_what_trains():
    plain = {"name": "sgd", "b1": 0.0, "wd": 0.0, "schedule": "constant", "warmup_epochs": 0}
    changes = {f"optim.{key}": value for key, value in plain.items()}
    run = tiny.run({**LIT, **changes, "optim.clip": 1e-3, "train.precision": "fp64"})
    training = Training(run, random_split(run.data, 16, CPU), CPU)
    before = [p.detach().clone() for p in training.model.parameters()]
    training.step()
    pairs = zip(training.model.parameters(), before, strict=True)
    moved = math.sqrt(sum((p - old).square().sum().item() for p, old in pairs))
    assert moved == pytest.approx(run.optim.lr * 1e-3, rel=1e-3)


def test_micro_batches_have_the_gradients_of_the_whole_batch():
    """Of negatives in other micro-batches, too; in float64, to rounding."""
    changes = {"train.batch": 12, "train.precision": "fp64", "train.epochs": 4}
    trained = []
    for micro in (None, 3, 4):
        run = tiny.run({**LIT, **changes, "train.micro_batch": micro})
        torch.manual_seed(0)
        training = Training(run, random_split(run.data, 36, CPU), CPU)
        for _ in range(4):
            training.step()
        state = {name: t.clone() for name, t in training.model.state_dict().items()}
        trained.append((state, training.mean_loss()))
    assert trained[0][1] > 0.5
    for state, loss in trained[1:]:
        assert loss == pytest.approx(trained[0][1], abs=1e-12)
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, trained[0][0][name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("factors", [{"image": 0}, {"image": 0, "image.blocks": 0.5}])
def test_micro_batches_see_an_image_once_where_its_tower_is_frozen(factors):
    """A second time only for gradients, where a part of the tower trains."""
    changes = {"train.batch": 12, "train.micro_batch": 4, "optim.lr_mult": factors}
    run = tiny.run({**LIT, **changes})
    training, seen = Training(run, random_split(run.data, 12, CPU), CPU), []
    training.model.image.register_forward_hook(lambda *given: seen.append(len(given[1][0])))
    training.step()
    assert seen == [4, 4, 4] * len(factors)


def test_towers_start_as_they_should():
    run = tiny.run({**LIT, "text": {**TEXT, "width": 512, "heads": 8, "vocab": 500}})
    model = build(run)
    assert model.theta.item() == pytest.approx(math.log(10))
    assert model.theta.shape == (1,)
    for tensor in (model.text.embedding.token, model.text.head.weight):
        assert tensor.std().item() == pytest.approx(512**-0.5, rel=0.03)
    assert model.text.posemb.std().item() == pytest.approx(512**-0.5, rel=0.06)
    assert not model.text.head.bias.any()
    assert model.text.head.weight.shape == (run.model.width, 512)
    assert not any(name.startswith("image.head") for name, _ in model.named_parameters())
    tokens = torch.randint(500, (3, 6))
    last = tokens.clone()
    last[:, 0] = (last[:, 0] + 1) % 500
    assert not torch.allclose(model.texts(tokens), model.texts(last))  # it looks both ways


def test_the_image_tower_starts_from_a_classifier():
    run, parent = tiny.run(LIT), tiny.run({"seed": 5})
    model, start = build(run), build(parent)
    begin(model, start.state_dict())
    images = tiny.images(3, run)
    assert torch.equal(model.image(images), start.features(images))
    with refused(r"from: has no weights for blocks\.1\."):
        begin(build(tiny.run({**LIT, "model.depth": 2})), start.state_dict())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"train.micro_batch": 4, "optim.lr_mult": None},
            r"^train\.micro_batch: .* batch that is split, .* optim\.lr_mult\.image=0$",
        ),
        ({"probe": ["scales"]}, "^probe: scales: task=contrastive has none; leave it out"),
        ({"augment.mixup": 0.2}, "^task: contrastive has no classes to mix"),
        ({"text": None}, "^text: task=contrastive needs a text tower; give recipe=lit"),
        ({"task": "classify"}, "^text: task=classify reads no texts; leave text.KEY and"),
        ({"train.loss": "sigmoid"}, r"^train\.loss: task=contrastive has softmax alone"),
        ({"text": {**TEXT, "arch": "Q"}}, r"^text\.arch: expected a size among mu, .* got 'Q'"),
        ({"text": {**TEXT, "heads": 5}}, r"^text\.heads: 5 heads do not divide width 32"),
        ({"text": {**TEXT, "prompts": ["a photo"]}}, r"^text\.prompts: expected texts with one"),
        ({"text": {**TEXT, "prompts": "a {}"}}, r"^text\.prompts: expected a list"),
        ({"text": {**TEXT, "lenght": 3}}, r"^text\.lenght: .*did you mean"),
        ({"text": {"arch": "mu"}}, r"^text\.width: missing; give text\.width=VALUE"),
    ],
)
def test_mistakes_are_told_in_a_line(changes, said):
    with refused(said):
        tiny.run({**LIT, **changes})


def test_ids_of_runs_without_texts_are_as_before_and_a_text_is_part_of_one():
    assert tiny.run().id == "1b10adc6de6f6755"  # of before there were texts
    plain = tiny.run(LIT)
    spelled = {**TEXT, "width": 32, "heads": 2, "arch": "Ti"}
    assert tiny.run({**LIT, "text": spelled}).id == plain.id
    for key, value in (("depth", 3), ("prompts", ["a {}"]), ("vocab", 33), ("tokens", "bpe")):
        assert tiny.run({**LIT, "text": {**TEXT, key: value}}).id != plain.id, key
    tree = plain.spec.tree
    assert json.loads(json.dumps(tree)) == tree
    fewer = {**tree, "data": {**tree["data"], "test_classes": 4}}
    assert (RunSpec.of(fewer).guesses, plain.spec.guesses) == (4, 10)


# --- Coloured digits, and a sweep ---------------------------------------------------------------

SMALL = ("sweep", "table4", "--scale", "smoke", "launcher.devices=cpu")
LEARNT = ("seeds=3", "from.train.epochs=12", "train.steps=400", "optim.warmup_steps=20")
SHORT = ("seeds=1", "from.train.steps=60", "from.optim.warmup_steps=5", "train.steps=40")
SWEEP = ("sweep", "table4", "--scale", "smoke", *SHORT, "optim.warmup_steps=4", "launcher=inline")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("contrastive"))
    shell(*SWEEP)
    return shell


def children(shell):
    """What was trained, and where it lies."""
    store = Store(shell.folder / "runs")
    [name] = (path.stem for path in (shell.folder / "runs" / "sweeps").glob("*.json"))
    return [(run, store.rundir(run.id)) for run in store.read_plan(name).runs() if not run.above]


def test_the_pairs_that_are_tested_are_in_no_other_split_nor_are_their_digits(tmp_path):
    """By the pixels: the colour is the brightest one's, the shape is looked up in scikit-learn."""
    tree, _ = resolve_data("coloured_digits", [], tmp_path)  # 8x8, which the sweep enlarges
    cached, bunch = prepare_cache(read_section(Data, tree["data"], "data"), tmp_path), load_digits()
    shapes = {image.tobytes(): n for n, image in enumerate(bunch.images.astype(np.uint8))}
    colours = np.array([*bundled_sets.COLOURS.values()])
    seen, rows = {}, {}
    for split in ("train", "validation", "test"):
        part = cached.split(split)
        images, every = part.images.numpy().astype(int), np.arange(len(part))
        brightest = images.reshape(-1, 64, 3)[every, images.sum(3).reshape(-1, 64).argmax(1)]
        colour = np.abs(brightest[:, None] - colours).sum(2).argmin(1)
        channel = colours[colour].argmax(1)
        shade = np.stack([image[:, :, c] for image, c in zip(images, channel, strict=True)])
        sixteen = np.rint(16 * shade / colours[colour, channel][:, None, None]).astype(np.uint8)
        row = [shapes[image.tobytes()] for image in sixteen]
        pairs, called = zip(colour, bunch.target[row], strict=True), [*bundled_sets.COLOURS]
        names = [f"{called[c]} {bundled_sets.NUMBERS[d]}" for c, d in pairs]
        assert [cached.class_names[label].split(" ", 1)[1] for label in part.labels] == names
        seen[split], rows[split] = {*names}, {*row}
    assert {split: len(names) for split, names in seen.items()} == {
        **{"train": 85, "validation": 85, "test": 15}
    }
    for found in (seen, rows):
        assert not found["test"] & (found["train"] | found["validation"])
    assert {*" ".join(seen["test"]).split()} <= {*" ".join(seen["train"]).split()}
    assert (cached.class_names[0], cached.class_names[65]) == ("a red zero", "an orange five")


@pytest.mark.whole
def test_a_sweep_from_parents_to_a_table(swept):
    values = [float(f["value"]) for f in swept.facts() if f["quantity"] == "zeroshot"]
    assert len(values) == 2
    assert min(values) > 100 / 15  # after a few steps
    shown = swept("table", "--show", "loss,twins", "--notes", "full").out
    assert "whose name, embedded as a text, is nearest" in shown
    assert "0.00" in shown
    for run, folder in children(swept):
        parent = RunDir(folder.path.parent / run.run().parent.id)
        own, theirs = (load_file(one.weights) for one in (folder, parent))
        for name, tensor in theirs.items():
            assert name.startswith("head.") or torch.equal(own[f"image.{name}"], tensor), name
        result = folder.read_result()
        assert result["prior_loss"] == pytest.approx(math.log(256))
        assert result["train_loss"] < result["prior_loss"]
        assert set(result["test"]) == {"n", "zeroshot", "loss", "twins"}


@pytest.mark.whole
def test_verify_makes_the_metrics_again_and_finds_a_changed_prediction(swept):
    assert "nothing wrong" in swept("verify").out
    _, folder = children(swept)[0]
    rows, told = np.load(folder.predictions), folder.read_result()["test"]
    assert contrastive_scores(rows, 15) == told
    rows["class"] = (rows["class"] + 1) % 100
    assert contrastive_scores(rows, 15)["zeroshot"] != told["zeroshot"]


def test_the_published_numbers_stand_in_the_columns_of_imagenet(tmp_path, monkeypatch):
    """Four columns and as many sets of `eval.also`, which the paper's are."""
    monkeypatch.chdir(tmp_path)
    for name in ("i21k/a/0.png", "i21k/b/0.png", "pairs/train.csv", "pairs/test.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("path,text\na.png,one\nb.png,two\n")
    words = ("data.path=pairs", "from.data.path=i21k", "from.data.classes=2")
    plan, _ = make_plan(["table4", *words], store=tmp_path)
    found = {key: told.printed for key, told in published_figures(plan, tmp_path).items()}
    assert found == {
        ("ViT", "B/32, 220k on imagenet1k"): "61.9 ± 0.12",
        ("Dual PatchNorm", "B/32, 220k on imagenet1k"): "63.0 ± 0.09, +1.1",
        ("ViT", "B/32, 1.1M on imagenet1k"): "67.4 ± 0.07",
        ("Dual PatchNorm", "B/32, 1.1M on imagenet1k"): "68.0 ± 0.09, +0.6",
        ("ViT", "L/16, 220k on imagenet1k"): "75.0 ± 0.11",
        ("Dual PatchNorm", "L/16, 220k on imagenet1k"): "75.4 ± 0.00, +0.4",
        ("ViT", "L/16, 1.1M on imagenet1k"): "78.7 ± 0.05",
        ("Dual PatchNorm", "L/16, 1.1M on imagenet1k"): "78.7 ± 0.10, +0.0",
    }
    run = next(run for run in plan.runs() if not run.above).run()
    assert (run.train.steps, run.train.batch, run.optim.warmup_steps) == (55_000, 16_384, 1650)
    text = run.text
    assert (text.width, text.depth, text.length, text.vocab) == (768, 12, 16, 32_000)
    assert (run.optim.wd, run.optim.decay, run.optim.clip) == (1e-4, "independent", 1.0)


def test_timm_has_no_text_tower():
    with refused(r"^task: timm's VisionTransformer has no text tower"):
        timm_arguments(tiny.run(LIT))


def test_a_text_tower_is_the_child_s_alone(tmp_path):
    plan, _ = make_plan(["table4"], store=tmp_path, scale="smoke")
    runs = [run.run() for run in plan.runs() if not run.above]
    assert {run.optim.lr_mult["image"] for run in runs} == {0.0}
    assert {run.parent.text for run in runs} == {None}
    assert {run.data.test_classes for run in runs} == {15}


@pytest.mark.slow
def test_trained_longer_the_smoke_test_learns_to_compose(shell):
    """Not as a smoke test, so that there are intervals. Both rows are 10 points above guessing by
    their intervals, and on average above the 33.3 % that seeing the digit alone would give."""
    content = yaml.safe_load((REPOSITORY / "sweeps" / "table4.yaml").read_text())
    del content["scales"]["smoke"]["smoke"]
    (shell.folder / "sweeps").mkdir()
    (shell.folder / "sweeps" / "table4.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    began = os.times()
    shell.end(shell.start(*SMALL, *LEARNT), timeout=2400)
    print(shell("table", "--show", "ci,loss,twins").out)
    facts = shell.facts()
    low, mean = (
        [float(f["value"]) for f in facts if f["quantity"] == name and f["row"]]
        for name in ("zeroshot.low", "zeroshot")
    )
    assert len(low) == len(mean) == 2
    assert min(low) > 100 / 15 + 10
    assert min(mean) > 100 / 3
    spent = sum(os.times()[:4]) - sum(began[:4])
    print(f"{spent:.0f} CPU seconds")
    assert spent < 2 * 5 * 60


@pytest.mark.slow
def test_killed_in_the_middle_its_table_is_that_of_an_undisturbed_sweep(shell):
    """Driver and workers, while parents train, while text towers do, and while these go on. Each
    time when a run has a checkpoint that it had not before, so that nothing hangs on the time."""
    short = ("seeds=1", "from.train.steps=250", "train.steps=300")
    shell(*SMALL[:-1], *short, "launcher=inline")
    calm = shell("table", "--format", "tidy").out
    again = Shell(shell.folder / "again")
    again.folder.mkdir()
    often = ("launcher.checkpoint_s=0.1", "launcher.attempts=1000")
    done, killed = again.folder / "runs" / "runs", 0

    def unfinished():
        ended = {path.parent for path in done.glob("*/result.json")}
        return {path for path in done.glob("*/checkpoint-*") if path.parent not in ended}

    for finished in (0, 2, 2):  # two parents
        before, driver = unfinished(), again.start(*SMALL, *short, *often)
        while driver.poll() is None:
            if len([*done.glob("*/result.json")]) >= finished and unfinished() - before:
                break
            time.sleep(0.01)
        killed += driver.poll() is None
        driver.kill()
        again.end(driver)
        kill(workers(again.folder))
    assert killed == 3
    again.end(again.start(*SMALL, *short, *often), timeout=600)
    assert again("table", "--format", "tidy").out == calm
