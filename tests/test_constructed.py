"""What the constructor of a class of the user's own fills counts, by seed and place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from ablate.data.draws import draw_key
from ablate.run import sections
from ablate.run.run import Run
from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.init import overruled

SOURCE = """
import numpy as np
import torch
from torch import nn

class Plain(nn.Module):
    version = 1

    def __init__(self, shape, *, start: float = 1.0):
        super().__init__()
        self.make(shape.width, start)

    def forward(self, x):
        return x


class Drawn(Plain):
    def make(self, width, start):
        self.first = nn.Parameter(torch.randn(width))
        self.second = nn.Parameter(torch.rand(2))
        self.layer = nn.Linear(width, 2)
        self.register_buffer("mask", torch.randn(width))

class Layers(Plain):
    def make(self, width, start):
        self.mix = nn.Linear(width, width)
        self.late = nn.Linear(2, 2)
        nn.init.zeros_(self.mix.weight)
        self.mix.bias.data.fill_(start)

class Reset(Plain):
    def make(self, width, start):
        self.weight = nn.Parameter(torch.zeros(width))
        self.inner = nn.Linear(width, 1)

    def reset_parameters(self):
        nn.init.normal_(self.weight, std=3.0)
        nn.init.constant_(self.inner.weight, 7.0)

class Roles(Plain):
    roles = {"scale": "scale", "offset": "offset", "same": "scale"}

    def make(self, width, start):
        self.scale = nn.Parameter(torch.full((width,), start))
        self.offset = nn.Parameter(torch.empty(width))
        self.same = nn.Parameter(torch.ones(width))
        self.free = nn.Parameter(torch.full((2,), start))

class Filled(Plain):
    def make(self, width, start):
        self.weight = nn.Parameter(torch.ones(width))

    def initialise(self, name, values, generator):
        values.fill_(2)
        return True

class Elsewhere(Plain):
    def make(self, width, start):
        values = np.random.default_rng().normal(size=width)
        self.weight = nn.Parameter(torch.tensor(values, dtype=torch.float32))

class Nothing(Plain):
    def make(self, width, start):
        self.weight = nn.Parameter(torch.empty(width))
"""


@pytest.fixture
def folder(users):
    return users({"starts.py": SOURCE})


@pytest.fixture
def run(folder):
    def run(cls: str, seed: int = 0, **settings: Any) -> Run:
        own = sections.Chosen(f"starts:{cls}", settings, sections.Plugin(str(folder), "1"))
        return dataclasses.replace(tiny.run({"block.attn": "pre+post"}), norm=own, seed=seed)

    return run


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict((*model.named_parameters(), *model.named_buffers()))


def test_draws_of_a_constructor_are_by_seed_and_place(run):
    torch.manual_seed(5)
    model = build(run("Drawn"))
    state = torch.random.get_rng_state()
    again, other = build(run("Drawn")), build(run("Drawn", seed=1))
    torch.random.set_rng_state(state)
    for path in ("blocks.0.attn.pre", "blocks.0.mlp.pre", "blocks.0.attn.post"):
        ours = model.get_submodule(path)
        with torch.random.fork_rng():
            torch.manual_seed(draw_key(0, "init", path))
            expected = [torch.randn(32), torch.rand(2), nn.Linear(32, 2).weight, torch.randn(32)]
        found = (ours.first, ours.second, ours.layer.weight, ours.mask)
        assert all(map(torch.equal, found, expected))
        assert torch.equal(again.get_submodule(path).mask, ours.mask)
        assert not torch.equal(other.get_submodule(path).first, ours.first)
    fewer = dataclasses.replace(run("Drawn"), block=tiny.run().block)  # without the norms behind
    everything = named(model)
    for other, least in ((fewer, 20), (tiny.run(), 15)):
        shared = {n: t for n, t in named(build(other)).items() if n in everything}
        assert len(everything) > len(shared) > least
        assert all(torch.equal(everything[name], tensor) for name, tensor in shared.items())


def test_what_is_done_to_torchs_layers_counts(run):
    layers = build(run("Layers", start=0.5)).get_submodule("blocks.0.attn.pre")
    assert (layers.mix.weight == 0).all()
    assert (layers.mix.bias == 0.5).all()
    assert 0 < float(layers.late.weight.detach().abs().max()) <= 2**-0.5


def test_its_own_reset_parameters_counts(run):
    with torch.random.fork_rng():
        torch.manual_seed(draw_key(0, "init", "blocks.0.mlp.pre"))
        expected = nn.init.normal_(torch.empty(32), std=3.0)
    inside = build(run("Reset")).get_submodule("blocks.0.mlp.pre")
    assert torch.equal(inside.weight, expected)
    assert (inside.inner.weight == 7).all()


def test_roles_win_and_what_they_overrule_is_said(run):
    chosen = run("Roles", start=3.0)
    for path in ("blocks.0.attn.pre", "blocks.0.mlp.pre"):
        inside = build(chosen).get_submodule(path)
        assert (inside.scale == 1).all()
        assert (inside.free == 3).all()
    (line,) = overruled(build(chosen, "meta"), 0)
    assert line.startswith("Roles: 'scale' starts by its role 'scale', not as its constructor")
    assert overruled(build(run("Roles", start=1.0), "meta"), 0) == []
    (line,) = overruled(build(run("Filled"), "meta"), 0)
    assert line.startswith("Filled: 'weight' starts by its initialise(), not as")
    assert overruled(build(run("Drawn"), "meta"), 0) == []


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        ("Elsewhere", r"Elsewhere: its constructor gives 'weight' other values each time; draw"),
        ("Nothing", r"Nothing: nothing says how its parameter 'weight' starts; fill it in the con"),
    ],
)
def test_what_can_not_be_reproduced_is_refused(run, cls, said):
    with pytest.raises(UserError, match=rf"^{said}"):
        overruled(build(run(cls), "meta"), 0)


def test_a_plan_says_what_a_role_overrules(shell, users):
    users({"starts.py": SOURCE.replace("start: float = 1.0", "start: float = 2.0")})
    out = shell("plan", "norm=layernorm,starts:Roles", "launcher=inline")
    assert "Roles: 'scale' starts by its role 'scale'" in out.out + out.err
