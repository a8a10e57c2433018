"""Schedules, losses, augmentations and activations by import path, each against another's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from pages import blocks
from scipy import optimize, special
from torch import nn

from ablate.data.draws import Draws
from ablate.data.image_changes import normalise
from ablate.planning import compose
from ablate.run.run import Run
from ablate.shared.errors import UserError
from ablate.training import own_augment
from ablate.training.answers import check_parts
from ablate.training.calibrate import random_split
from ablate.training.model import build
from ablate.training.optim import Lengths, learning_rate, own_factor
from ablate.training.task.classify import Classify, prior_loss, targets
from ablate.training.training import Training

SOURCE = """
import random
import torch
from scipy import optimize
from torch import nn

class Stairs:
    version = 2

    def __init__(self, every=10, *, by: float = 0.5):
        self.every, self.by = every, by

    def __call__(self, step, total):
        return self.by ** (step // self.every)

def falls(step, total):
    return 1 - 2 * step / total

def halves(step, total, *, power: int = 1):
    return 0.5 ** power

def summed(logits, target):
    return (logits.logsumexp(1) - logits.gather(1, target[:, None])[:, 0]).sum()

def rows(logits, target):
    return logits.logsumexp(1)

class Learnt(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

class Bright:
    def __init__(self, by: float = 0.2, *, also: int):
        self.by = by

    def __call__(self, images, draw):
        one, two = draw.uniform(3), draw.uniform()
        return images * (1 - self.by * one.mean(1) * two)[:, None, None, None]

def same(images, draw):
    return images

def cut(images, draw):
    return images[:, 1:]

def loose(images, draw):
    return images * random.random()

def doubled(x, by=2.0):
    return x * by

class Gate:
    gated = True

    def __call__(self, x):
        return nn.functional.silu(x)
"""


@pytest.fixture
def folder(users) -> Path:
    pages = [f"{name}.py" for name in ("myrate", "myloss", "myaug", "myact")]
    return users({"own.py": SOURCE, **{name: blocks("file")[name] for name in pages}})


# --- Each part, against one that isn't ours -----------------------------------------------------


def test_a_schedule_is_a_factor_behind_the_warm_up(folder):
    chosen = tiny.run_with_parts(
        optim__schedule="myrate:polynomial", optim__schedule_settings={"power": 2}
    ).optim
    lengths = Lengths(30, 10, 0)
    schedules, parameter = torch.optim.lr_scheduler, nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=chosen.lr)
    warmup = schedules.LambdaLR(optimizer, lambda step: step / 10)
    after = schedules.PolynomialLR(optimizer, total_iters=20, power=2)
    theirs = schedules.SequentialLR(optimizer, [warmup, after], milestones=[10])
    for step in range(30):
        ours = learning_rate(chosen, step, lengths, own_factor(chosen))
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        theirs.step()
    low = tiny.run_with_parts(optim__schedule="own:Stairs", optim__min_lr=3e-4).optim
    ends = [learning_rate(low, s, Lengths(50, 0, 10), own_factor(low)) for s in (5, 15, 25, 45)]
    assert ends == pytest.approx([1e-3, 5e-4, 3e-4, 3e-4])
    cools = learning_rate(chosen, 25, Lengths(30, 10, 10), own_factor(chosen))
    assert cools == pytest.approx(1e-3 * 0.25**2 * 0.5)


def test_steps_past_the_last_one_have_its_rate(folder):
    power = {"power": 1.5}  # of a share below 0, no real number
    run = tiny.run_with_parts(
        optim__schedule="myrate:polynomial", optim__schedule_settings=power, train__steps=2
    )
    run = replace(run, optim=replace(run.optim, warmup_epochs=0, warmup_steps=0))
    device = torch.device("cpu")
    training = Training(run, random_split(run.data, 8, device), device)
    rates = []
    for _ in range(4):
        training.step()
        rates.append(training.rate)
    assert rates == pytest.approx([1e-3, 1e-3 * 0.5**1.5] + [1e-3 * 0.5**1.5] * 2)


def test_a_loss_has_what_the_recipe_makes(folder):
    logits, labels = torch.randn(6, 10), torch.randint(10, (6,))
    focal = Classify(
        tiny.run_with_parts(train__loss="myloss:focal", train__loss_settings={"gamma": 3.0})
    )
    right = special.log_softmax(logits.double().numpy(), axis=1)[range(6), labels]
    expected = -np.mean((1 - np.exp(right)) ** 3.0 * right)  # Lin et al. 2017, equation 4
    assert float(focal.loss(logits, labels)) == pytest.approx(expected, rel=1e-5)
    assert focal.loss(logits.bfloat16(), labels).dtype == torch.float32
    chosen = tiny.run_with_parts(
        train__loss="torch.nn:CrossEntropyLoss", train__label_smoothing=0.1
    )
    ours = Classify(chosen).loss(logits, targets(labels, 10, 0.1))
    assert torch.allclose(ours, F.cross_entropy(logits, labels, label_smoothing=0.1))
    assert chosen.train.loss_version.startswith("torch 2")


def test_a_collapsed_run_is_told_by_the_best_guess(folder):
    split = random_split(tiny.run_with_parts().data, 300, torch.device("cpu"))
    split.labels[:] = torch.arange(300).sqrt().long() % 7  # three classes of ten have none
    for smoothing in (0.0, 0.1):
        chosen = tiny.run_with_parts(
            train__loss="torch.nn:CrossEntropyLoss", train__label_smoothing=smoothing
        )
        expected = prior_loss(split.labels, 10, smoothing)
        assert Classify(chosen).prior_loss(split) == pytest.approx(expected, abs=1e-4)
    focal = Classify(tiny.run_with_parts(train__loss="myloss:focal"))
    shares = np.bincount(split.labels.numpy(), minlength=10)[:7] / 300

    def guessed(z: np.ndarray) -> float:
        log_p = z - np.log(np.exp(z).sum())
        return float(-(shares * (1 - np.exp(log_p)) ** 2 * log_p).sum())

    least = optimize.minimize(guessed, np.log(shares), tol=1e-9).fun
    assert least < guessed(np.log(shares)) - 1e-4  # the classes' shares aren't the best guess
    assert focal.prior_loss(split) == pytest.approx(least, abs=1e-5)
    mixed = tiny.run_with_parts(train__loss="myloss:focal", augment__mixup=0.2)
    assert Classify(mixed).prior_loss(split) is None


@pytest.mark.parametrize(
    ("name", "settings", "theirs"),
    [
        ("torch.nn:Mish", None, F.mish),
        ("torch.nn.functional:mish", None, F.mish),
        ("torch.nn:LeakyReLU", {"negative_slope": 0.3}, partial(F.leaky_relu, negative_slope=0.3)),
        ("own:doubled", {"by": 3}, lambda x: 3 * x),
    ],
)
def test_an_activation_is_that_of_every_mlp(folder, name, settings, theirs):
    model = build(
        tiny.run_with_parts(model__act=name, model__act_settings=settings, model__pool="map")
    )
    x = torch.linspace(-3, 3, 101)
    acts = [block.mlp.f.act for block in model.blocks] + [model.pool.mlp.act]
    assert all(torch.equal(act(x), theirs(x)) for act in acts)
    assert (
        model.blocks[0].mlp.f.fc1.weight.shape
        == build(tiny.run_with_parts()).blocks[0].mlp.f.fc1.weight.shape
    )


def test_a_gated_one_is_gated_and_may_be_learnt(folder):
    swiglu, own = (
        build(tiny.run_with_parts(model__act="swiglu")),
        build(tiny.run_with_parts(model__act="own:Gate")),
    )
    images = tiny.images(3, tiny.run_with_parts())
    own_state, state = own.state_dict(), {n: t.clone() for n, t in swiglu.state_dict().items()}
    assert own_state.keys() == state.keys()
    assert all(torch.equal(own_state[name], state[name]) for name in state)
    tiny.scramble(swiglu)
    own.load_state_dict(swiglu.state_dict())
    assert torch.equal(own(images), swiglu(images))
    bent = build(tiny.run_with_parts(model__act="myact:Bent", model__act_settings={"start": 0.5}))
    starts = [float(p.detach()) for name, p in bent.named_parameters() if name.endswith("act.b")]
    assert starts == [0.5] * len(bent.blocks)
    assert all(torch.equal(p, state[n]) for n, p in bent.named_parameters() if n in state)


def begun(chosen: Run, steps: int = 0) -> Training:
    torch.manual_seed(0)  # of the images
    split = random_split(chosen.data, 24, torch.device("cpu"))
    training = Training(chosen, split, torch.device("cpu"))
    for _ in range(steps):
        training.step()
    return training


def test_an_augmentations_numbers_are_each_images_own(folder):
    own = {"augment__extra": ["own:same", "own:Bright"]}
    own["augment__extra_settings"] = {"Bright": {"also": 1, "by": 0.5}}
    same, plain = (
        begun(tiny.run_with_parts(augment__extra=["own:same"])),
        begun(tiny.run_with_parts()),
    )
    assert torch.equal(same.inputs()[0], plain.inputs()[0])  # to the last bit
    one, two = (
        begun(tiny.run_with_parts(**own), 1),
        begun(tiny.run_with_parts(**own, train__micro_batch=2), 1),
    )
    images, _ = one.inputs()
    assert torch.equal(images, two.inputs()[0])
    draws = Draws(0)
    first = draws.uniform("extra Bright 1", 1, 3, 8)
    second = draws.uniform("extra Bright 2", 1, 1, 8)[0]
    darker = 1 - 0.5 * first.mean(0) * second
    before, _ = begun(tiny.run_with_parts(), 1).inputs()
    expected = ((before + 1) / 2 * darker[:, None, None, None]) * 2 - 1
    assert torch.allclose(images, expected, atol=1e-6)
    assert len(darker.unique()) == 8


def test_an_augmentations_draws(monkeypatch):
    draws = Draws(0)
    chance = own_augment.Chance(draws, "a", 3, 8)
    small = chance.uniform(5, 2)
    assert chance.uniform().shape == (8,)
    monkeypatch.setattr(own_augment, "AT_ONCE", 25)
    assert torch.equal(own_augment.Chance(draws, "a", 3, 8).uniform(5, 2), small)
    normals = own_augment.Chance(draws, "a", 3, 4096).normal(4)
    assert normals.shape == (4096, 4)
    assert abs(float(normals.mean())) < 0.03
    assert abs(float(normals.std()) - 1) < 0.02


@pytest.mark.parametrize("input", ["range", "unit", "imagenet"])
def test_levels_come_back_as_they_were(folder, input):
    levels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 256, 1).expand(1, 3, 256, 3)
    same = own_augment.Augmentations(tiny.run_with_parts(augment__extra=["own:same"]).augment)
    assert torch.equal(normalise(same(levels, Draws(0), 0), input), normalise(levels, input))


def all_parts(**changes: Any) -> Run:
    parts = {"optim__schedule": "own:halves", "train__loss": "myloss:focal"}
    parts |= {"augment__extra": ["myaug:Grain"], "model__act": "myact:Bent"}
    more = {"augment__randaug": 1, "train__epochs": 3, "optim__warmup_epochs": 0}
    return tiny.run_with_parts(**(parts | more | changes))


def test_all_at_once_go_on_bit_for_bit(folder):
    chosen = all_parts()
    check_parts(chosen, {"train": 24})
    straight, fresh = begun(chosen, 5), begun(chosen)
    tensors, state = begun(chosen, 2).state()
    fresh.load({name: tensor.clone() for name, tensor in tensors.items()}, state)
    for _ in range(3):
        fresh.step()
    ours, theirs = (training.state()[0] for training in (straight, fresh))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    start = build(chosen).state_dict()
    gates = [name for name in start if name.endswith("act.b")]
    assert gates
    assert not any(torch.equal(ours[f"model.{name}"], start[name]) for name in gates)  # is trained
    assert straight.rate == pytest.approx(0.5e-3)


# --- Refusals -----------------------------------------------------------------------------------

NO = r"no {}\.py in .* its Python source"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("optim.schedule=cosin", r"optim\.schedule: got .*expected one of cosine, .*module:name"),
        ("optim.schedule=math:pow", rf"optim\.schedule: math:pow: {NO.format('math')}"),
        ("train.loss=os:remove", rf"train\.loss: os:remove: {NO.format('os')}"),
        ("optim.name=builtins:dict", rf"optim\.name: builtins:dict: {NO.format('builtins')}"),
        ("optim.schedule_settings.power=2", r"optim\.schedule_settings: is for optim\.schedule="),
        ("model.act=gelo", r"model\.act: .*did you mean 'gelu'.*expected one of gelu, relu"),
        ("model.act=torch:tanh", r"model\.act: torch:tanh: .*__init__\.py: expected a class or"),
        ("augment.extra=own:same", r"augment\.extra: expected a list such as"),
        ("augment.extra=[same]", r"augment\.extra: expected names such as module:name, got"),
        ("augment.extra=[own:same,own:same]", r"augment\.extra: two are called 'same'; rename one"),
        ("augment.extra=[own:Bright]", r"augment\.extra_settings\.Bright\.also: missing; give"),
        (
            "augment.extra=[own:same] augment.extra_settings.sane.by=1",
            r"augment\.extra_settings\.sane: expected a name among same",
        ),
    ],
)
def test_what_can_not_be_is_refused_before_torch_is_loaded(folder, words, said):
    with pytest.raises(UserError, match=said):
        compose.resolve_run(words.split(), Path("runs"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim__schedule": "own:falls"}, r"gives -0\.\d+ at step \d+ of \d+; give a factor"),
        ({"train__loss": "own:rows"}, r"expected the mean over the rows, one .*, got \[8\]"),
        ({"train__loss": "own:Learnt"}, r"has parameters, which nothing would train"),
        ({"train__loss": "own:summed", "train__micro_batch": 4}, r"gives .* of their halves"),
        ({"train__loss": "own:summed", "train__label_smoothing": 0.1}, r"\w+Error: .*own\.py, lin"),
        ({"augment__extra": ["own:cut"]}, r"expected images of \[4, 8, 8, 3\], got \[4, 7, 8"),
        ({"augment__extra": ["own:loose"]}, r"gives other images for the same ones"),
    ],
)
def test_what_does_not_work_is_told_when_it_is_planned(folder, changes, said):
    with pytest.raises(UserError, match=rf"^[\w.]+: own:\w+: {said}"):
        check_parts(tiny.run_with_parts(**{"train__epochs": 9, **changes}), {"train": 24})


def test_a_run_has_the_settings_of_each_by_name(folder):
    first = all_parts().id
    changes = {"augment__extra_settings": {"Grain": {"strength": 0.2}}}
    beside = {"augment__extra": ["myaug:Grain", "own:same"]}
    ids = {all_parts(**each).id for each in (changes, beside, {"train__loss": "softmax"})}
    assert len(ids | {first}) == 4
