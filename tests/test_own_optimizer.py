"""Optimisers by import path: read as text, tried at plan time, gone on with bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pages import blocks
from torch import nn

from ablate.planning import compose
from ablate.run import plugin
from ablate.run.run import Run
from ablate.shared.errors import UserError
from ablate.training.calibrate import random_split
from ablate.training.optim import check_optimizer, make_optimizer
from ablate.training.training import Training

SOURCE = """
import torch

class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, weight_decay=0.0, betas=(0.9, 0.99), *, each: int = 2,
                 how=torch.sign):
        settings = dict(lr=lr, weight_decay=weight_decay, betas=betas, each=each)
        super().__init__(params, settings)
        for group in self.param_groups:
            group["seen"] = torch.zeros(2)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["calls"] = group.get("calls", 0) + 1
            group["seen"] += torch.tensor([1.0, 0.5])  # in place
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"m": torch.zeros_like(p), "n": 0, "mean": 0.5, "none": None}
                state["n"] += 1
                state["mean"] = 0.3 * state["mean"] + 0.7 * float(p.grad.abs().mean())
                p.mul_(1 - group["lr"] * group["weight_decay"])
                size = group["lr"] * (1 + (group["calls"] + state["n"]) % group["each"])
                size *= 1 + float(group["seen"].sum()) / 100
                p.sub_(size * state["mean"] * state["m"].lerp(p.grad, 0.1).sign())
                state["m"].lerp_(p.grad, 1 - group["betas"][1])

class NoDecay(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

class Lists(torch.optim.SGD):
    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = [p.grad]

class Grows(Lists):
    def step(self):
        self.param_groups[0].setdefault("old", []).append(1)

class NoOptimizer:
    def __init__(self, params, lr, weight_decay=0.0):
        pass
"""


@pytest.fixture
def folder(users) -> Path:
    return users({"steps/own.py": SOURCE, "steps/page.py": blocks("file")["myoptim.py"]})


def completed(name: str, settings: Any = None, **changes: Any) -> dict[str, Any]:
    given = {"name": name, "lr": 0.1, "wd": 0.1, "settings": settings, **changes}
    return plugin.complete({"optim": given}, Path.cwd())["optim"]


def run(name: str, settings: Any = None, **changes: Any) -> Run:
    own = completed(name, settings, **changes)
    said = {f"optim.{key}": value for key, value in own.items()}
    return tiny.run({**said, "train.batch": 8, "train.epochs": 4, "optim.warmup_epochs": 0})


def test_settings_are_the_parameters_but_rate_and_decay(folder):
    section = completed("steps.own:Signs", {"each": 3})
    assert section["settings"] == {"betas": [0.9, 0.99], "each": 3}  # `how` is left to the class
    assert section["folder"] == str(folder)
    assert len(section["version"]) == 12


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Signs", {"lr": 1}, r"optim\.settings\.lr: is optim\.lr in"),
        ("NoDecay", None, r"optim\.wd: steps\.own:NoDecay takes no weight_decay; give 0"),
    ],
)
def test_rate_and_decay_are_the_recipes_and_what_it_does_not_take_is_refused(
    folder, name, settings, said
):
    with pytest.raises(UserError, match=rf"^{said}"):
        completed(f"steps.own:{name}", settings)


def test_what_it_does_not_take_may_be_nought_and_is_in_no_id(folder):
    assert completed("steps.own:NoDecay", wd=0)["settings"] is None
    plain = run("steps.own:Signs")
    assert replace(plain, optim=replace(plain.optim, eps=0.5)).id == plain.id
    with pytest.raises(UserError, match=r"^optim\.eps: 0\.5 has no effect with optim\.name=steps"):
        compose.resolve_run(["optim.name=steps.own:Signs", "optim.eps=0.5"], Path("runs"))


def test_two_steps_of_it_are_tried(folder):
    unkept = "keeps old, a list, which no checkpoint holds; keep tensors and numbers"
    wrong = {"Lists": unkept, "Grows": unkept, "NoOptimizer": r"is no torch\.optim\.Optimizer"}
    for name, said in wrong.items():
        with pytest.raises(UserError, match=rf"^optim\.name: steps\.own:{name}: {said}"):
            check_optimizer(run(f"steps.own:{name}").optim)
    check_optimizer(run("steps.own:Signs").optim)
    check_optimizer(run("steps.page:SignDescent", {"momentum": 0.8}).optim)


def test_a_state_with_numbers_goes_on_bit_for_bit(folder):
    """Of parameters and of groups; also where the training was further before."""
    chosen = run("steps.own:Signs", {"each": 3})

    def stepped(steps: int) -> Training:
        torch.manual_seed(0)  # of the images
        split = random_split(chosen.data, 24, torch.device("cpu"))
        training = Training(chosen, split, torch.device("cpu"))
        for _ in range(steps):
            training.step()
        return training

    def bits(training: Training) -> dict[str, list[Any]]:
        tensors, _ = training.state()
        return {name: tensor.detach().flatten().tolist() for name, tensor in tensors.items()}

    stopped = stepped(2)
    tensors, state = stopped.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    numbers = {"group.0.calls:int", "optim.n:int.head.bias", "optim.mean:float.head.bias"}
    assert numbers | {"group.0.seen"} <= kept.keys()
    stopped.step()
    for training in (stepped(0), stopped):
        training.load(kept, state)
        for _ in range(4):
            training.step()
        assert bits(training) == bits(stepped(6))
    begins = {name: t for name, t in kept.items() if not name.startswith(("optim.", "group."))}
    stopped.load(begins, replace(state, step=0))
    assert not [name for name in bits(stopped) if name.startswith(("optim.", "group."))]


@pytest.mark.parametrize("decay", ["by_lr", "independent"])
def test_a_class_of_an_installed_package_is_that_packages(decay, oracle):
    """timm's, which its `__init__` has from another file; kernels alone decay."""
    lion = oracle("timm.optim.lion").Lion
    section = completed("timm.optim:Lion", {"betas": [0.8, 0.95]})
    assert section["version"].startswith("timm ")
    assert section["folder"] is None
    chosen = replace(run("timm.optim:Lion", {"betas": [0.8, 0.95]}).optim, decay=decay)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizer = make_optimizer(ours, chosen)
    wd = 0.1 / 0.1 if decay == "independent" else 0.1
    groups = [{"params": [theirs.weight], "weight_decay": wd}, {"params": [theirs.bias]}]
    other = lion(groups, lr=0.1, betas=(0.8, 0.95), weight_decay=0.0)
    for step in range(3):
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(step))
            two.grad = one.grad.clone()
        optimizer.set_rate(0.1 / (step + 1))
        for group in other.param_groups:
            group["lr"] = 0.1 / (step + 1)
        optimizer.step()
        other.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
