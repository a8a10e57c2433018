"""The Triton kernels of `philox_kernel`, interpreted on a CPU: the bits of torch's operations.

TRITON_INTERPRET=1 pytest tests/test_philox_kernel.py
"""

import os

import pytest
import torch

from ablate.data.draws import Draws
from ablate.training.model.drop import LEVELS, Dropped, StepKey

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("interpreted with TRITON_INTERPRET=1 alone", allow_module_level=True)
philox_kernel = pytest.importorskip("ablate.data.philox_kernel", exc_type=ImportError)

# Rows, elements of a row, step: whole and part blocks, one program and several, 32 bits of a step.
PLACES = [(3, 5, 0), (1, 16, 9), (2, 4099, 2**31 + 5), (2, 2048, 77)]
PURPOSES = ["mask a", "mask b", "mask c", "noise"]  # words of their keys with and without a sign


def place(purpose, rows, step):
    return Draws(7).secret(purpose), torch.tensor(step), torch.arange(4, 4 + rows)


def test_the_keys_have_every_sign():
    signs = {tuple(word >> 31 for word in Draws(7).secret(purpose)) for purpose in PURPOSES}
    assert {first for first, _ in signs} == {0, 1}


@pytest.mark.parametrize(("rows", "count", "step"), PLACES)
@pytest.mark.parametrize("purpose", PURPOSES)
def test_lanes(purpose, rows, count, step):
    lanes = philox_kernel.lanes(*place(purpose, rows, step), count)
    wanted = Draws(7).lanes_by_operations(*place(purpose, rows, step), count)
    assert lanes.dtype == torch.int16
    assert torch.equal(lanes, wanted)


@pytest.mark.parametrize(("rows", "count", "step"), PLACES)
def test_dropout_both_ways(rows, count, step):
    """In float32: the interpreter cuts bfloat16 off, where a GPU rounds."""
    share = 6554
    at = place("mask a", rows, step)
    dropped = Draws(7).lanes_by_operations(*at, count) < share - 32768
    scale = LEVELS / (LEVELS - share)
    ours = torch.randn(rows, count, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    out = Dropped.apply(ours, philox_kernel, *at, share - 32768, scale)
    wanted = theirs.masked_fill(dropped, 0) * scale
    gradient = torch.randn(rows, count)
    out.backward(gradient)
    wanted.backward(gradient)
    assert torch.equal(out, wanted)
    assert torch.equal(ours.grad, theirs.grad)


def test_a_model_takes_the_kernel_at_the_place_of_its_draws(monkeypatch):
    """A site, a step, some rows of a batch, by the kernel and by torch's operations."""
    outs = []
    for kernel in (philox_kernel, None):
        monkeypatch.setattr(Draws, "kernel", kernel)
        key = StepKey(Draws(3), 10)
        key.meet("here")
        key.meet("there")
        x = torch.linspace(-1, 1, 4 * 5 * 7).view(4, 5, 7).requires_grad_()
        for key.step in (2, 3):
            key.rows = slice(4, 8)
            out = key.dropout("there", x, 20_000)
            out.square().sum().backward()
            outs.append((out, x.grad.clone()))
    for ours, theirs in zip(outs[:2], outs[2:], strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert not torch.equal(outs[0][0], outs[1][0])
