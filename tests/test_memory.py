"""What fits into memory at once, and what a run has taken."""

import pytest
import tiny
import torch
from torch import nn

from ablate.shared.errors import UserError
from ablate.training import memory
from ablate.training.cost import cost, matmul_rate, utilisation
from ablate.training.model import build


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
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Tanh())
    images = torch.randn(100, 5)

    def chosen(bytes_free):
        monkeypatch.setattr(memory, "free_bytes", lambda: bytes_free)
        return memory.micro_batch(100, images, model, lambda x: model(x).sum())

    each = 32 / memory.SPARE
    assert chosen(100 * each) == 100
    assert chosen(100 * each - 1) == 50
    assert chosen(10 * each) == 10
    assert chosen(1) == 1
    monkeypatch.setattr(memory, "ENOUGH", 24 * 32)  # however much is free
    assert chosen(1e12) == 10  # 25 don't


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
    import time

    spent = cost(time.monotonic() - 10, 500, torch.device("cpu"))
    assert spent["seconds"] == pytest.approx(10, abs=0.5)
    assert spent["images_per_s"] == pytest.approx(50, rel=0.05)
    assert 1e7 < spent["peak_bytes"] < 1e12
    rate = matmul_rate(torch.device("cpu"), torch.float32)
    used = utilisation(10**6, rate / 3e6, torch.device("cpu"), torch.float32)
    assert 0.3 < used < 3  # the rate is measured anew
