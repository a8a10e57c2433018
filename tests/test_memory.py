"""What fits into memory at once, and what a run has taken."""

import pytest
import tiny
import torch
from torch import nn

from ablate.shared.errors import UserError
from ablate.training import memory
from ablate.training.calibrate import random_split
from ablate.training.cost import cost, matmul_rate, utilisation
from ablate.training.model import build
from ablate.training.training import Training


def test_a_batch_is_halved_to_its_divisors():
    assert list(memory.divisors(64)) == [64, 32, 16, 8, 4, 2, 1]
    assert list(memory.divisors(100)) == [100, 50, 25, 10, 5, 2, 1]
    assert list(memory.divisors(7)) == [7, 1]
    assert list(memory.divisors(1)) == [1]


def test_what_the_backward_pass_keeps_is_counted():
    """Of x -> tanh(W x), by hand: the input, 5 floats, and the result, 3; weights are not."""
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Tanh())
    images = torch.randn(4, 5)
    assert memory.kept_bytes(images, model, lambda x: model(x).sum()) == 4 * (5 + 3)


def test_on_a_cpu_what_fits_is_computed(monkeypatch):
    run = tiny.run({"train.batch": 100, "train.micro_batch": "auto", "model.depth": 1})
    cpu = torch.device("cpu")
    training = Training(run, random_split(run.data, 100, cpu), cpu)
    images, target = training.inputs()
    two = slice(0, 2)
    forward = lambda some: training.part(some, target, two)  # noqa: E731
    each = memory.kept_bytes(images[two].clone(), training.model, forward)
    before = {name: tensor.clone() for name, tensor in training.state()[0].items()}

    def chosen(bytes_free):
        monkeypatch.setattr(memory, "free_bytes", lambda: bytes_free)
        return memory.micro_batch(training)

    spare = each / memory.SPARE
    assert chosen(100 * spare + 1) == 100
    assert chosen(100 * spare - 1) == 50
    assert chosen(10 * spare + 1) == 10
    assert chosen(1) == 1
    monkeypatch.setattr(memory, "ENOUGH", 24 * each)  # however much is free
    assert chosen(1e12) == 10  # 25 don't
    after, state = training.state()
    assert state.step == 0
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_free_memory_is_that_of_this_machine():
    assert 1e7 < memory.free_bytes() < 1e13


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "batchnorm"},
        {"stem": "conv", "model.depth": 2},
        {"block": "bnffn"},
        {"norm": "powernorm"},
    ],
)
def test_statistics_over_a_batch_are_not_split_unasked(changes):
    with pytest.raises(UserError, match=r"train\.micro_batch: auto .* set train\.micro_batch=N"):
        build(tiny.run({**changes, "train.micro_batch": "auto"}), device="meta")
    build(tiny.run({**changes, "train.micro_batch": 4}), device="meta")
    build(tiny.run({"train.micro_batch": "auto"}), device="meta")


def test_cost_and_utilisation():
    spent = cost(10.0, 500, torch.device("cpu"))
    assert spent["seconds"] == 10
    assert spent["images_per_s"] == 50
    assert 1e7 < spent["peak_bytes"] < 1e12
    rate = matmul_rate(torch.device("cpu"), torch.float32)
    used = utilisation(10**6, rate / 3e6, torch.device("cpu"), torch.float32)
    assert 0.3 < used < 3  # the rate is measured anew
