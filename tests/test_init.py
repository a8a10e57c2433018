"""Initial weights: the rule of each role, and that a weight depends on its seed and name alone."""

import math

import pytest
import tiny
import torch
from torch import nn

from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.init import SCHEMES, initialise

SMALL = {"model.arch": "S/16", "model.depth": 2, "model.rep": True, "data.size": 224}


@pytest.fixture(scope="module")
def weights():
    """ViT-S/16 of two blocks, 1000 classes, with DPN and head bias -6.9."""
    run = tiny.run({**SMALL, "stem": "dpn", "data.classes": 1000, "model.head_bias": -6.9})
    return dict(build(run).named_parameters())


def deviation(weight):
    return weight.detach().std(correction=0).item()


def test_every_weight_is_filled(weights):
    assert all(weight.isfinite().all() for weight in weights.values())
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["stem.dense.weight", "rep.weight"])
def test_patch_and_representation_kernels_are_lecun_normal(weights, name):
    weight, fan_in = weights[name].detach(), {"stem.dense.weight": 768, "rep.weight": 384}[name]
    assert weight.shape[1] == fan_in
    assert deviation(weight) == pytest.approx(fan_in**-0.5, rel=0.01)  # after truncation
    cut = 2 * fan_in**-0.5 / 0.87962566
    assert 0.98 * cut < weight.abs().max() <= cut
    # A normal cut at two deviations has this kurtosis; a uniform would have 1.8, a normal 3.
    assert (weight**4).mean() / (weight**2).mean() ** 2 == pytest.approx(2.37, abs=0.03)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *((f"attn.f.qkv {part}", math.sqrt(3 / 384)) for part in range(3)),  # each by itself
        ("attn.f.out", math.sqrt(3 / 384)),
        ("mlp.f.fc1", 0.055902),  # sqrt(6 / (5 D))
        ("mlp.f.fc2", 0.055902),
    ],
)
def test_kernels_of_a_block_are_xavier_uniform(weights, name, limit):
    name, _, part = name.partition(" ")
    weight = weights[f"blocks.0.{name}.weight"].detach()
    weight = weight.chunk(3)[int(part)] if part else weight
    assert 0.999 * limit < weight.abs().max() <= limit * (1 + 1e-5)
    assert deviation(weight) == pytest.approx(limit / math.sqrt(3), rel=0.01)


def test_qkv_of_another_inner_width_counts_its_own_outputs():
    run = tiny.run({"model.width": 64, "model.heads": 8, "model.head_dim": 64})
    weights = dict(build(run).named_parameters())
    limit = math.sqrt(6 / (64 + 512))
    for name in ("blocks.0.attn.f.qkv.weight", "blocks.0.attn.f.out.weight"):
        assert 0.99 * limit < weights[name].abs().max() <= limit


def test_biases_of_the_mlp_are_tiny_normals_and_the_others_zero(weights):
    for name, weight in weights.items():
        if ".mlp.f." in name and name.endswith("bias"):
            assert deviation(weight) == pytest.approx(1e-6, rel=0.15)
        elif name.endswith("bias") and name != "head.bias":
            assert not weight.any(), name


def test_positions_are_normal_with_the_inverse_root_of_the_width(weights):
    posemb = weights["posemb"].detach()
    assert deviation(posemb) == pytest.approx(384**-0.5, rel=0.01)
    assert posemb.abs().max() > 3.5 * 384**-0.5  # not truncated


def test_norms_scale_by_one_and_the_class_token_and_head_are_zero(weights):
    scales = [name for name in weights if name.endswith((".pre.weight", "stem.before.weight"))]
    scales += ["norm.weight", "stem.after.weight"]
    assert len(scales) == 2 * 2 + 1 + 2
    assert all((weights[name] == 1).all() for name in scales)
    assert not weights["cls.token"].any()
    assert not weights["head.weight"].any()
    assert (weights["head.bias"] == torch.tensor(-6.9)).all()


@pytest.mark.parametrize("variant", tiny.VARIANTS, ids=tiny.names)
def test_the_first_logits_ignore_the_image_and_equal_the_heads_bias(variant):
    late = tiny.LATE if str(variant.get("norm")).startswith("dtn") else {}
    host = {"model.head_bias": -6.9, "model.rep": True, "model.depth": 3}
    run = tiny.run({**host, **variant, **late})
    logits = tiny.built(run)(tiny.images(3, run))
    assert torch.equal(logits, torch.full((3, 10), -6.9))


HOSTS = [
    {"model.rep": True},
    {"model.pool": "gap"},
    {"model.posemb": "sincos2d"},
    {"model.final_norm": "drop"},
    {"model.dropout": 0.1, "model.drop_path": 0.1},
]


@pytest.mark.parametrize("variant", [*tiny.VARIANTS, *HOSTS], ids=tiny.names)
def test_what_variants_share_starts_from_the_same_bits(variant):
    depth = {"model.depth": 3, "seed": 5}
    baseline = build(tiny.run(depth)).state_dict()
    late = tiny.LATE if str(variant.get("norm")).startswith("dtn") else {}
    other = build(tiny.run({**depth, **variant, **late})).state_dict()
    blocks = 2 if variant.get("stem") == "conv" else 3
    within = [name for name in baseline if ".f." in name and name[7] < str(blocks)]
    dense = {*within, "head.weight", "head.bias"}
    assert len(dense) == 8 * blocks + 2
    assert dense <= other.keys()
    gained = variant.get("block") in ("subln", "deepnorm")
    scaled = (".out.", ".fc1.", ".fc2.", ".qkv.") if gained else ()
    for name in baseline.keys() & other.keys():
        of_norm = name.startswith("blocks") and ".f." not in name
        same_shape = baseline[name].shape == other[name].shape  # conv's dense layer has another
        if same_shape and not of_norm and not any(layer in name for layer in scaled):
            assert torch.equal(baseline[name], other[name]), name


def test_depth_moves_no_weight():
    one = build(tiny.run({"model.depth": 1})).state_dict()
    three = build(tiny.run({"model.depth": 3})).state_dict()
    assert one.keys() < three.keys()
    assert all(torch.equal(one[name], three[name]) for name in one)


def test_another_seed_or_another_name_is_another_draw():
    name = "blocks.0.attn.f.qkv.weight"
    one, again, other = (
        build(tiny.run({"seed": seed, "model.depth": 2})).state_dict() for seed in (0, 0, 1)
    )
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one[name.replace("0", "1")])


def test_torchs_own_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build(tiny.run({"model.rep": True}))
    assert torch.equal(before, torch.get_rng_state())


def test_a_double_model_starts_from_the_same_values():
    run = tiny.run()
    double = build(run).double()
    initialise(double, run.seed)
    for name, weight in build(run).named_parameters():
        assert torch.equal(double.get_parameter(name), weight.double()), name


def test_a_weight_without_a_rule_is_an_error():
    model = build(tiny.run())
    model.blocks[0].attn.post = nn.Module()
    model.blocks[0].attn.post.gain = nn.Parameter(torch.zeros(32))
    with pytest.raises(UserError, match=r"Module: nothing says how its parameter 'gain' starts"):
        initialise(model, 0)


def test_every_rule_is_used():
    masks = {"data.labels": "masks", "data.cache": "encoded", "data.source": "datasets"}
    changes = [
        {"model.rep": True, "model.cls_posemb": True},
        {"stem": "conv", "model.depth": 2},
        {"stem": "hmlp"},
        {"model.act": "swiglu", "model.registers": 1, "model.pool": "map"},
        {"task": "segment", **masks},
        {"task": "contrastive", "text": tiny.TEXT},
    ]
    modules = [module for each in changes for module in build(tiny.run(each)).modules()]
    roles = {role for module in modules for role in getattr(module, "roles", {}).values()}
    for scheme in SCHEMES.values():
        assert roles == scheme.keys()
