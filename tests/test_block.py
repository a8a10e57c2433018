"""Blocks beside the nine placements: against their equations in torch's own functions, and others'.

REFERENCE C.1 (NormFormer), C.2 (Sub-LN), D.4 (BatchNorm in the MLP; one-channel BatchNorm).
"""

import math
from functools import partial

import pytest
import tiny
import torch
import torch.nn.functional as F
from tiny import close
from torch import nn

from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.block import (
    BatchNormBlock,
    BatchNormFFN,
    Block,
    Layer,
    NormFormer,
    NormFormerFull,
    SubLN,
    sub_ln_gain,
)
from ablate.training.model.count import describe
from ablate.training.model.norm import LayerNorm, OneChannelBatchNorm, Shape
from ablate.training.model.sublayers import HeadScale, activation

WIDTH, HEADS, HIDDEN, TOKENS = 12, 3, 20, 5
LAYER = Layer(Shape(WIDTH, HEADS, grid=(2, 2), cls=1), 4, HIDDEN, 0.0, 0.0, LayerNorm)


def made(block, seed=0, **settings):
    """A block in float64 with random weights."""
    built = block(LAYER, **settings).double()
    tiny.scramble(built, seed)
    return built


def tokens(seed=3):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(4, TOKENS, WIDTH, dtype=torch.float64, generator=generator) + 1


# --- Equations, in torch's own functions --------------------------------------------------------


def ln(norm, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-6)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def contexts(attention, x):
    """The heads' outputs side by side: what W_O is applied to."""
    q, k, v = F.linear(x, attention.qkv.weight, attention.qkv.bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)  # sqrt(d) = 2
    return (weights @ v).transpose(1, 2).flatten(2)


def normformer(block, x):
    attn, mlp = block.attn, block.mlp
    context = contexts(attn.f, ln(attn.pre, x))
    if isinstance(attn.f.inner, HeadScale):
        context = context * attn.f.inner.scale.repeat_interleave(WIDTH // HEADS)
    x = x + ln(attn.branch, attn.f.out(context))
    hidden = ln(mlp.f.post_act, gelu(mlp.f.fc1(ln(mlp.pre, x))))
    scale = getattr(mlp.skip, "scale", 1)
    return scale * x + mlp.f.fc2(hidden)


def sub_ln(block, x):
    attn, mlp = block.attn, block.mlp
    x = x + attn.f.out(ln(attn.f.inner, contexts(attn.f, ln(attn.pre, x))))
    hidden = mlp.f.fc1(ln(mlp.pre, x))
    if isinstance(mlp.f.pre_act, LayerNorm):
        return x + mlp.f.fc2(gelu(ln(mlp.f.pre_act, hidden)))
    return x + mlp.f.fc2(ln(mlp.f.post_act, gelu(hidden)))


def batch_norm_ffn(block, x):
    attn, mlp = block.attn, block.mlp
    x = x + attn.f.out(contexts(attn.f, ln(attn.pre, x)))
    hidden, norm = mlp.f.fc1(x), mlp.f.pre_act
    mean, var = hidden.mean((0, 1)), hidden.var((0, 1), correction=0)
    hidden = (hidden - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
    return x + mlp.f.fc2(gelu(hidden))


def vitbn(block, x):
    def norm(norm, x):
        return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * norm.weight + norm.bias

    attn, mlp = block.attn, block.mlp
    x = x + attn.f.out(contexts(attn.f, norm(attn.pre, x)))
    if isinstance(mlp.pre, OneChannelBatchNorm):
        return x + mlp.f.fc2(gelu(mlp.f.fc1(norm(mlp.pre, x))))
    return x + mlp.f.fc2(gelu(norm(mlp.f.pre_act, mlp.f.fc1(x))))


CASES = [
    (NormFormer, {}, normformer),
    (NormFormer, {"res_scale": True}, normformer),
    (NormFormerFull, {}, normformer),
    (NormFormerFull, {"res_scale": True}, normformer),
    (SubLN, {}, sub_ln),
    (SubLN, {"mlp_ln": "pre_act", "init_gain": False}, sub_ln),
    (BatchNormFFN, {}, batch_norm_ffn),
    (BatchNormBlock, {}, vitbn),
    (BatchNormBlock, {"mlp": "pre"}, vitbn),
]


@pytest.mark.parametrize(("block", "settings", "equation"), CASES)
def test_a_block_and_its_gradients_are_its_equation(block, settings, equation):
    built = made(block, **settings)
    x, y = tokens().requires_grad_(), tokens().requires_grad_()
    ours, theirs = built(x), equation(built, y)
    close(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0)).double()
    mine = torch.autograd.grad((ours * weight).sum(), [x, *built.parameters()])
    others = torch.autograd.grad((theirs * weight).sum(), [y, *built.parameters()])
    close(mine, others, 1e-9)


# --- Other people's blocks ----------------------------------------------------------------------


@pytest.mark.parametrize("block", [Block, SubLN])
def test_sub_ln_is_timms_block_with_inner_norms(block, oracle):
    inner = block is SubLN
    theirs = oracle("timm.models.vision_transformer").Block(
        *(WIDTH, HEADS, HIDDEN / WIDTH, True),
        **{"scale_attn_norm": inner, "scale_mlp_norm": inner},
        act_layer=partial(nn.GELU, approximate="tanh"),
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    ours = made(block)
    renames = {"attn.f.inner": "attn.norm", "attn.f.out": "attn.proj", "attn.f": "attn"}
    renames |= {"attn.pre": "norm1", "mlp.f.post_act": "mlp.norm", "mlp.f": "mlp"}
    renames |= {"mlp.pre": "norm2"}
    state = {}
    for name, value in ours.state_dict().items():
        old = next(old for old in renames if name.startswith(old))
        state[name.replace(old, renames[old], 1)] = value
    theirs.double().load_state_dict(state)
    close(ours(tokens()), theirs(tokens()))


def test_the_mlp_of_normformer_is_that_of_x_transformers(oracle):
    x_transformers = oracle("x_transformers.x_transformers")
    theirs = x_transformers.FeedForward(WIDTH, mult=2, post_act_ln=True).double()
    erf = partial(activation, gelu="erf")
    layer = Layer(LAYER.shape, 4, 2 * WIDTH, 0.0, 0.0, LayerNorm, act=erf)
    mlp = NormFormer(layer).double().mlp.f
    tiny.scramble(mlp)
    nn.init.zeros_(mlp.post_act.bias)  # theirs has none
    mlp.post_act.eps = 1e-5
    layers = {"ff.0.0": mlp.fc1, "ff.3": mlp.fc2}
    state = {f"{n}.{k}": v for n, layer in layers.items() for k, v in layer.state_dict().items()}
    theirs.load_state_dict(state | {"ff.1.gamma": mlp.post_act.weight}, strict=False)
    close(mlp(tokens()), theirs(tokens()))


def test_the_batch_norms_are_torchs():
    """BatchNorm2d of (b, d_mlp, n, 1), as in the author's code, and of one channel: also their
    running statistics."""
    block, one = made(BatchNormFFN), OneChannelBatchNorm(LAYER.shape).double()
    tiny.scramble(one)
    for norm, width in ((block.mlp.f.pre_act, HIDDEN), (one, 1)):
        theirs = nn.BatchNorm2d(width).double()
        theirs.load_state_dict({"weight": norm.weight, "bias": norm.bias}, strict=False)
        for train in (True, True, False):
            norm.train(train)
            theirs.train(train)
            x = tokens() if width == 1 else block.mlp.f.fc1(tokens())
            shaped = x[:, None] if width == 1 else x.transpose(1, 2)[..., None]
            expected = theirs(shaped)
            close(norm(x), expected[:, 0] if width == 1 else expected[..., 0].transpose(1, 2))


# --- Properties ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "gain"), [(12, 1.78271), (24, 1.96754), (32, 2.03933)])
def test_the_gain_of_sub_ln(depth, gain):
    layer = Layer(LAYER.shape, 4, HIDDEN, 0.0, 0.0, LayerNorm, depth=depth)
    assert sub_ln_gain(layer) == pytest.approx(gain, abs=5e-6)


def test_sub_ln_starts_values_projection_and_mlp_larger_and_nothing_else():
    said = {"model.depth": 3, "block": "subln"}
    plain, larger = (
        dict(build(tiny.run({**said, "block.init_gain": g})).named_parameters())
        for g in (False, True)
    )
    gain = math.sqrt(math.log(6))
    assert plain.keys() == larger.keys()
    for name, values in plain.items():
        expected = values.detach().clone()
        if ".fc" in name or ".out." in name:
            expected *= gain
        elif ".qkv." in name:
            expected[2 * 32 :] *= gain
        close(larger[name].detach(), expected, 1e-7)


@pytest.mark.parametrize(
    ("block", "added"),
    [
        ({"block": "normformer"}, 10 * 32),
        ({"block": "normformer", "block.res_scale": True}, 11 * 32),
        ({"block": "normformer_full"}, 10 * 32 + 2),
        ({"block": "normformer_full", "block.res_scale": True}, 11 * 32 + 2),
        ({"block": "subln"}, 10 * 32),
        ({"block": "bnffn"}, 2 * 128 - 2 * 32),
    ],
)
def test_a_block_adds_as_many_parameters_as_published(block, added):
    plain, other = (describe(tiny.run({"model.depth": 3, **b}))["parameters"] for b in ({}, block))
    assert other == plain + 3 * added


@pytest.mark.parametrize("mlp", ["inner", "pre"])
def test_vitbn_has_two_numbers_a_norm_and_the_final_one_too(mlp):
    run = tiny.run({"model.depth": 3, "block": "vitbn", "block.mlp": mlp})
    model = build(run)
    assert isinstance(model.blocks[2].mlp.pre, OneChannelBatchNorm) is (mlp == "pre")
    assert isinstance(model.norm, OneChannelBatchNorm)
    plain = describe(tiny.run({"model.depth": 3}))["parameters"]
    assert describe(run)["parameters"] == plain - 7 * (2 * 32 - 2)


@pytest.mark.parametrize("other", [{"norm": "rmsnorm"}, {"norm.affine": False}])
def test_vitbn_brings_its_norms(other):
    with pytest.raises(UserError, match="norm: block=vitbn has none to choose; leave norm"):
        tiny.run({"block": "vitbn", **other})


@pytest.mark.parametrize("norm", ["rmsnorm", "batchnorm", "groupnorm", "identity"])
@pytest.mark.parametrize("block", ["normformer", "normformer_full", "subln"])
def test_inner_norms_are_the_chosen_ones(norm, block):
    run = tiny.run({"block": block, "norm": norm})
    first = build(run).blocks[0]
    kind = type(first.attn.pre)
    inner = [first.mlp.f.post_act, first.attn.f.inner if block == "subln" else first.attn.branch]
    assert {type(module) for module in inner} == {kind}
