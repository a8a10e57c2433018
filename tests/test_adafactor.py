"""big_vision's Adafactor: against timm's, against flax's axes one by one, and its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from ablate.training.adafactor import AdafactorBV, flax_shapes, largest
from ablate.training.model import build
from ablate.training.optim import make_optimizer


def parameters(dtype=torch.float32) -> list[nn.Parameter]:
    """Factored, whole for want of entries, of three axes, a vector."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 48), (40, 31), (3, 32, 64), (40,)]
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in shapes]


def step(optimizer, parameters, number: int) -> None:
    generator = torch.Generator().manual_seed(100 + number)
    for parameter in parameters:
        grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = grad * 10.0 ** (number % 3 - 4)
    optimizer.step()


def test_it_is_timms(oracle):
    """Kept in float32: timm rounds the update itself where it keeps the moment in bfloat16."""
    theirs, ours = parameters(), parameters()
    shared = {"lr": 1e-2, "weight_decay": 0.1}
    options = {"min_dim_size_to_factor": 32, "momentum_dtype": torch.float32, "unscaled_wd": False}
    other = oracle("timm.optim").AdafactorBigVision(theirs, **shared, **options)
    mine = AdafactorBV([{"params": ours, "weight_decay": 0.1}], 1e-2, moment=torch.float32)
    for number in range(12):
        before = [p.detach().clone() for p in ours]
        step(other, theirs, number)
        step(mine, ours, number)
        for p, q, old in zip(ours, theirs, before, strict=True):
            assert (p - q).abs().max() < 1e-4 * (p - old).abs().max() + 1e-6, number
            q.data.copy_(p.data)


def test_the_moment_is_kept_in_bfloat16_and_the_update_is_not_rounded():
    ours = parameters(torch.float64)
    start, mine = ours[1].detach().clone(), AdafactorBV([{"params": ours}], 1.0)
    v = m = np.zeros((40, 31))
    expected = start.numpy().copy()
    for number in range(5):
        step(mine, ours, number)
        g = ours[1].grad.numpy()
        kept = min(0.999, 1 - (number + 1) ** -0.8)
        v = kept * v + (1 - kept) * (g**2 + 1e-30)
        update = 0.9 * m + 0.1 * g / np.sqrt(v)
        expected -= update
        m = torch.from_numpy(update).bfloat16().double().numpy()
    assert mine.state[ours[1]]["m"].dtype == torch.bfloat16
    np.testing.assert_allclose(ours[1].detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("update", "share"),
    [(1, 0.0), (2, 1 - 2**-0.8), (5623, 1 - 5623**-0.8), (5624, 0.999), (90_000, 0.999)],
)
def test_the_share_of_the_mean_square_that_is_kept(update, share):
    """0 at first, so v is g^2; .999 from update 5624 on."""
    p = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    mine = AdafactorBV([{"params": [p]}], 0.0)
    p.grad = torch.ones_like(p)
    mine.step()
    mine.state[p]["step"], mine.state[p]["v"] = update - 1, torch.zeros_like(p)
    mine.step()
    assert 1 - float(mine.state[p]["v"][0]) == pytest.approx(share, abs=1e-12)


def test_heads_are_factored_one_by_one_as_flax_stores_them():
    """Queries, keys and values of flax are (D, H, d), the output (H, d, D): over D and d."""
    run = tiny.run({"model.width": 128, "model.heads": 2, "model.pool": "map"})
    model = build(run)
    shapes = {name: flax_shapes(model).get(p) for name, p in model.named_parameters()}
    expected = {"attn.f.qkv.weight": (3, 2, 64, 128), "attn.f.qkv.bias": (3, 2, 64)}
    expected |= {"attn.f.out.weight": (128, 2, 64), "mlp.f.fc1.weight": None}
    expected = {f"blocks.0.{name}": shape for name, shape in expected.items()}
    expected |= {"pool.kv.weight": (2, 2, 64, 128), "pool.q.weight": (1, 2, 64, 128)}
    assert {name: shapes[name] for name in expected} == expected
    fused = model.blocks[0].attn.f.qkv.weight
    D, H, d = 128, 2, 64
    apart = [nn.Parameter(part.detach().view(H, d, D).permute(2, 0, 1)) for part in fused.chunk(3)]
    mine = make_optimizer(model, tiny.run({"optim.name": "adafactor_bv", "optim.wd": 0.0}).optim)
    theirs = AdafactorBV([{"params": apart}], 1e-3, b2=0.99)
    before = fused.detach().clone()
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        fused.grad = torch.randn(fused.shape, generator=generator) * torch.rand(3 * H * d, 1) * 1e-3
        for whole, part in zip(fused.grad.chunk(3), apart, strict=True):
            part.grad = whole.view(H, d, D).permute(2, 0, 1)
        mine.set_rate(1e-3)
        mine.step()
        theirs.step()
    stored = torch.cat([part.detach().permute(1, 2, 0).reshape(H * d, D) for part in apart])
    assert not torch.equal(fused, before)
    torch.testing.assert_close(fused.detach() - before, stored - before, rtol=1e-4, atol=1e-7)
    assert mine.state[fused]["r"].numel() == 3 * H * d  # not 3 H d + D: per head


def factored(shape, grads, cap=0.999, decay=0.8, eps=1e-30, least=32):
    """optax's scale_by_factored_rms in float64, with big_vision's cap of its decay: the updates."""
    order = np.argsort(shape, kind="stable")
    two = None if shape[order[-2]] < least else (int(order[-2]), int(order[-1]))
    v, row, col = np.zeros(shape), 0.0, 0.0
    for count, g in enumerate(grads):
        kept = min(cap, 1 - (count + 1.0) ** -decay)
        square = g * g + eps
        if two is None:
            v = kept * v + (1 - kept) * square
            yield g * v**-0.5
            continue
        d1, d0 = two
        row = kept * row + (1 - kept) * square.mean(d0)
        col = kept * col + (1 - kept) * square.mean(d1)
        mean = row.mean(d1 - 1 if d1 > d0 else d1, keepdims=True)
        yield g * np.expand_dims((row / mean) ** -0.5, d0) * np.expand_dims(col**-0.5, d1)


@pytest.mark.parametrize(("patch", "is_factored"), [(16, False), (32, True)])
def test_the_kernel_of_the_plain_stem_is_factored_as_big_visions_convolution(patch, is_factored):
    """(P, P, C, D), of which both largest axes have 32 entries at P = 32 alone; a dense kernel
    (P P C, D), as Dual PatchNorm's, is factored at each."""
    width, size, channels = 64, 32, 3
    words = {"model.width": width, "model.heads": 2, "model.patch": patch, "optim.wd": 0.0}
    words |= {"data.size": size, "data.channels": channels, "optim.name": "adafactor_bv"}
    run = tiny.run({**words, "optim.b2": 0.999})
    model = build(run).double()
    kernel = model.stem.dense.weight
    dense = build(tiny.run({**words, "stem": "dpn"}))
    assert dense.stem.dense.weight not in flax_shapes(dense)
    mine = AdafactorBV(
        [{"params": [kernel]}], 1.0, b1=0.0, views=flax_shapes(model), moment=torch.float64
    )
    shape = (patch, patch, channels, width)
    random = np.random.default_rng(0)
    scale = 10.0 ** random.uniform(-3, 0, shape)  # which factors alone can't follow
    grads = [random.normal(size=shape) * scale for _ in range(20)]
    for g, update in zip(grads, factored(shape, grads), strict=True):
        before = kernel.detach().clone()
        kernel.grad = torch.from_numpy(g.reshape(-1, width).T.copy())
        mine.step()
        moved = (before - kernel.detach()).T.reshape(shape).numpy()
        np.testing.assert_allclose(moved, update, rtol=1e-9, atol=1e-12)
    assert ("r" in mine.state[kernel]) is is_factored


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((768, 12, 64), (0, 2)),
        ((16, 16, 3, 768), None),
        ((32, 32), (1, 0)),
        ((32, 31), None),
        ((5,), None),
    ],
)
def test_the_two_largest_axes_of_equal_ones_the_last(shape, axes):
    assert largest(shape) == axes
