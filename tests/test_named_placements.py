"""Placements by their names, as `placement_2026` spells them: against their papers' equations over
a whole encoder, which are restated here in torch's own functions. No released code is run: that of
LayerNorm Scaling, Mix-LN and HybridNorm is of language models."""

from __future__ import annotations

import pytest
import tiny
import torch
import torch.nn.functional as F
import yaml
from conftest import REPOSITORY

from ablate.training.calibrate import random_split
from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.training import Training

DEPTH, WIDTH, HEADS = 8, 32, 2
SWEEP = yaml.safe_load((REPOSITORY / "sweeps" / "placement_2026.yaml").read_text())
ROWS = {name: keys for row in SWEEP["variants"] if len(row) == 1 for name, keys in row.items()}


# --- The parts of a block, in torch's own functions ---------------------------------------------


def norm(part, x):
    return F.layer_norm(x, x.shape[-1:], part.weight, part.bias, 1e-6)


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attention(f, x, norms=(None, None, None)):
    qkv = F.linear(x, f.qkv.weight, f.qkv.bias).chunk(3, -1)
    q, k, v = (
        heads(part) if own is None else norm(own, heads(part))
        for own, part in zip(norms, qkv, strict=True)
    )
    weights = (q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5).softmax(-1)
    return F.linear((weights @ v).transpose(1, 2).flatten(2), f.out.weight, f.out.bias)


def normed_attention(f, x):
    return attention(f, x, (f.q_norm.norm, f.k_norm.norm, f.v_norm.norm))


def mlp(f, x):
    hidden = F.gelu(F.linear(x, f.fc1.weight, f.fc1.bias), approximate="tanh")
    return F.linear(hidden, f.fc2.weight, f.fc2.bias)


# --- The papers' equations of block l = 1, 2, ... of L ------------------------------------------


def pre(b, x):
    x = x + attention(b.attn.f, norm(b.attn.pre, x))
    return x + mlp(b.mlp.f, norm(b.mlp.pre, x))


def post(b, x, alpha=1.0):
    x = norm(b.attn.post, alpha * x + attention(b.attn.f, x))
    return norm(b.mlp.post, alpha * x + mlp(b.mlp.f, x))


def res_post_norm(b, x, number):
    x = x + norm(b.attn.branch, attention(b.attn.f, x))
    return x + norm(b.mlp.branch, mlp(b.mlp.f, x))


def peri_ln(b, x, number):
    x = x + norm(b.attn.branch, attention(b.attn.f, norm(b.attn.pre, x)))
    return x + norm(b.mlp.branch, mlp(b.mlp.f, norm(b.mlp.pre, x)))


def layernorm_scaling(b, x, number):
    x = x + attention(b.attn.f, norm(b.attn.pre.norm, x) / number**0.5)
    return x + mlp(b.mlp.f, norm(b.mlp.pre.norm, x) / number**0.5)


def mix_ln(b, x, number):
    return post(b, x) if number <= 2 else pre(b, x)  # a quarter of eight


def hybrid_norm(b, x, number):
    y = norm(b.attn.post, x + normed_attention(b.attn.f, x))
    return y + mlp(b.mlp.f, y)


def hybrid_norm_star(b, x, number):
    if number > 1:
        return hybrid_norm(b, x, number)
    x = x + normed_attention(b.attn.f, norm(b.attn.pre, x))
    return x + mlp(b.mlp.f, norm(b.mlp.pre, x))


def deep_norm(b, x, number):
    return post(b, x, alpha=2.0)  # (2 L)^(1/4) of eight blocks


EQUATIONS = {
    "pre/pre": lambda b, x, number: pre(b, x),
    "res-post-norm": res_post_norm,
    "Peri-LN": peri_ln,
    "LayerNorm Scaling": layernorm_scaling,
    "Mix-LN": mix_ln,
    "HybridNorm": hybrid_norm,
    "HybridNorm*": hybrid_norm_star,
    "DeepNorm": deep_norm,
}
IN_TEST_BLOCK = {"NormFormer", "Sub-LN"}


def encoder(changes):
    """The blocks of a ViT in float64, with random weights."""
    model = build(tiny.run({"model.depth": DEPTH, **changes})).double()
    tiny.scramble(model)
    return model.blocks


def tokens(seed=3):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(3, 5, WIDTH, dtype=torch.float64, generator=generator) + 1


def test_every_named_row_of_the_sweep_has_its_equation():
    assert ROWS.keys() == EQUATIONS.keys() | IN_TEST_BLOCK


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_named_placement_and_its_gradients_are_the_papers_equation(name):
    blocks = encoder(ROWS[name])
    x, y = tokens().requires_grad_(), tokens().requires_grad_()
    ours, theirs = blocks(x), y
    for number, block in enumerate(blocks, 1):
        theirs = EQUATIONS[name](block, theirs, number)
    tiny.close(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0)).double()
    inputs = [*blocks.parameters()]
    mine = torch.autograd.grad((ours * weight).sum(), [x, *inputs])
    others = torch.autograd.grad((theirs * weight).sum(), [y, *inputs])
    tiny.close(mine, others, 1e-9)


# --- What they add, and where they start --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "added"),
    [("LayerNorm Scaling", 0), ("Mix-LN", 0), ("DeepNorm", 0), ("HybridNorm", 3 * 32 - 2 * 32)],
)
def test_a_named_placement_has_as_many_parameters_as_its_norms(name, added):
    plain, other = (
        describe(tiny.run({"model.depth": 4, **keys}))["parameters"] for keys in ({}, ROWS[name])
    )
    assert other == plain + 4 * added


def test_deepnorm_starts_values_projection_and_mlp_smaller_and_nothing_else():
    plain, smaller = (
        dict(build(tiny.run({"model.depth": 2, "block": "deepnorm", **gain})).named_parameters())
        for gain in ({"block.init_gain": False}, {})
    )
    assert plain.keys() == smaller.keys()
    for name, values in plain.items():
        expected = values.detach().clone()
        if ".fc" in name or ".out." in name:
            expected /= 2  # (8 L)^(1/4) of two blocks
        elif ".qkv." in name:
            expected[2 * WIDTH :] /= 2
        tiny.close(smaller[name].detach(), expected, 1e-7)


@pytest.mark.parametrize(
    ("share", "depth", "posts"), [(0.25, 12, 3), (0.25, 4, 1), (0.29, 100, 29), (0.9, 1, 0)]
)
def test_mix_ln_has_post_norms_in_its_share_rounded_down(share, depth, posts):
    changes = {"block": "mixln", "block.share": share, "model.depth": depth}
    blocks = build(tiny.run(changes), device="meta").blocks
    is_post = [hasattr(block.attn.post, "weight") for block in blocks]
    assert is_post == [True] * posts + [False] * (depth - posts)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "rmsnorm"},
        {"norm": "dyt"},
        {"norm": "batchnorm"},
        {"norm": "batchnorm", "model.cls": "exclude"},
        {"norm": "dtn", **tiny.LATE},
        {"model.posemb": "rope2d"},
    ],
    ids=tiny.names,
)
def test_hybridnorm_has_the_chosen_norm_on_queries_keys_and_values(changes):
    run = tiny.run({"block": "hybridnorm", "model.depth": 2, **changes})
    model = build(run)
    attn = model.blocks[0].attn
    kinds = {type(part.norm) for part in (attn.f.q_norm, attn.f.k_norm, attn.f.v_norm)}
    assert kinds == {type(attn.post)}
    assert model(tiny.images(4, run)).isfinite().all()


@pytest.mark.parametrize("name", ["LayerNorm Scaling", "Mix-LN", "HybridNorm*", "DeepNorm"])
def test_a_step_changes_every_parameter(name):
    run = tiny.run({"model.depth": 4, "optim.warmup_epochs": 0, **ROWS[name]})
    cpu = torch.device("cpu")
    torch.manual_seed(0)  # of the images
    training = Training(run, random_split(run.data, 16, cpu), cpu)
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    for _ in range(2):  # in the first one the head, which starts at 0, passes nothing back
        training.step()
    for name, parameter in training.model.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, before[name]), name
