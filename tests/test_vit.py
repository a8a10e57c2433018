"""Hosts: their counts and initial weights, the class token, timm's models; every combination."""

import itertools
import json
import math
from functools import partial

import pytest
import tiny
import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from tiny import close
from torch import nn

from ablate.planning import compose
from ablate.run import choices
from ablate.run.build import build_run
from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.model.export import from_timm, timm_arguments, to_timm
from ablate.training.model.norm import (
    DTN,
    BatchNorm,
    DynamicErf,
    DynamicTanh,
    ExcludeCls,
    LayerNorm,
    OneChannelBatchNorm,
    RMSNorm,
)

PAPER = {"data.size": 224, "data.classes": 1000}
MNIST = {"data.size": 28, "data.channels": 1}
DEPTH = {"model.depth": 3}

# --- Counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "parameters"),
    [  # REFERENCE A.1; DTN's by its closed form (less 3D a block: qkv has no bias). DeiT is timm's
        ("dtn_s_star/16", 27_776_872),
        ("dtn_b_star/16", 86_566_888 - 12 * 3 * 768),
        ("dtn_t_star/16", 5_717_224 - 12 * 3 * 192),
        ("S/16+", 22_198_120 - 196 * 384 - 384),  # S/16 less positions and class token
    ],
)
def test_parameters_are_as_many_as_published(arch, parameters):
    counts = describe(tiny.run({**PAPER, "model.arch": arch}))
    assert counts["parameters"] == parameters
    if arch == "dtn_b_star/16":  # as its code prints them
        assert counts["multiply_adds"] / 1e9 == pytest.approx(17.58, rel=0.01)


@pytest.mark.whole
@pytest.mark.parametrize("star", ["", "_star"])
@pytest.mark.parametrize(("size", "heads"), [("t", (3, 4)), ("s", (6, 9)), ("b", (12, 16))])
def test_dtn_adds_six_numbers_a_head_and_norm(star, size, heads):
    words = {**PAPER, "model.arch": f"dtn_{size}{star}/16"}
    plain, dtn = (describe(tiny.run({**words, "norm": n})) for n in ("layernorm", "dtn"))
    assert dtn["parameters"] - plain["parameters"] == 10 * 2 * 6 * heads[star != ""]


@pytest.mark.parametrize("depth", [1, 7])
@pytest.mark.parametrize("stem", ["none", "dpn"])
def test_batch_norm_in_the_mlp_adds_128_a_block_of_mnist_vit(depth, stem):
    """REFERENCE D.4: 2 * 128 for the BatchNorm less 2 * 64 for the LayerNorm before the MLP."""
    words = {**MNIST, "model.arch": "mnist_vit", "stem": stem, "model.depth": depth}
    plain, bnffn = (
        describe(tiny.run({**words, "block": block}))["parameters"] for block in ("vit", "bnffn")
    )
    block = 3 * 64 * 512 + 512 * 64 + 64 + 2 * 64 * 128 + 128 + 64 + 4 * 64
    entrance = (49 + 1) * 64 + 17 * 64 + 64 + 2 * 64 + (64 + 1) * 10
    assert plain == entrance + (2 * 49 + 2 * 64) * (stem == "dpn") + depth * block
    assert bnffn == plain + 128 * depth


@pytest.mark.parametrize(("depth", "parameters"), [(1, 152_724), (6, 891_304)])
def test_vitbn_has_as_many_parameters_as_published(depth, parameters, tmp_path):
    vitbn = ["recipe=mnist_bn", "model.arch=mnist_vit", "block=vitbn", "stem=vitbn"]
    words = [*vitbn, "data=digits", "data.size=28", f"model.depth={depth}"]
    run = build_run(compose.resolve_run(words, tmp_path)[0])
    assert describe(run)["parameters"] == parameters


@pytest.mark.parametrize(("norm", "added"), [("identity", 0), ("batchnorm", 600)])
def test_the_mlp_has_784_100_100_100_10_units(norm, added):
    layers = 784 * 100 + 100 + 2 * (100 * 100 + 100) + 100 * 10 + 10
    answer = describe(tiny.run({**MNIST, "model.arch": "mlp/3x100", "norm": norm}))
    assert answer["parameters"] == layers + added
    assert answer["multiply_adds"] == 784 * 100 + 2 * 100 * 100 + 1000


# --- What an architecture stands for ------------------------------------------------------------


@pytest.mark.whole
def test_every_host_is_built_at_its_own_size():
    for name, arch in choices.ARCHS.items():
        wide = {"mlp": "mlp/3x100", "mnist_vit": "mnist_vit"}.get(name, f"{name}/14")
        run = tiny.run({"data.size": 28, "model.arch": wide})
        logits = build(run, device="meta")(torch.empty(2, 28, 28, 3, device="meta"))
        assert logits.shape == (2, 10)
        found = [(m.width, m.depth, m.heads) for m in (run.model, arch)]
        assert found[0] == found[1]


def test_deit_and_dtn_are_what_their_code_says():
    deit = tiny.run({**PAPER, "model.arch": "deit_s/16"}).model
    assert (deit.gelu, deit.init, deit.norm_eps, deit.qkv_bias) == ("erf", "deit", 1e-6, True)
    assert (deit.cls, deit.cls_posemb, deit.rep) == ("include", True, False)
    dtn = tiny.run({**PAPER, "model.arch": "dtn_s_star/16"})
    assert (dtn.model.width, dtn.model.heads, dtn.model.head_dim) == (432, 9, 48)
    assert (dtn.model.cls, dtn.model.cls_at, dtn.model.cls_posemb) == ("late", 10, False)
    assert (dtn.model.qkv_bias, dtn.model.init) == (False, "deit")
    assert dtn.norm.settings["eps"] == dtn.model.norm_eps == 1e-5


def test_a_host_can_be_overridden_field_by_field():
    run = tiny.run({"model.arch": "deit_ti/4", "model.gelu": "tanh", "model.cls_posemb": False})
    assert (run.model.gelu, run.model.cls_posemb, run.model.init) == ("tanh", False, "deit")
    bare = tiny.run({"model.arch": "deit_ti/4", "model.pool": "gap"}).model
    assert (bare.cls, bare.cls_posemb) == ("include", False)  # there is no class token


def test_s_16_plus_pools_all_tokens_with_fixed_positions():
    run = tiny.run({**PAPER, "model.arch": "S/16+"})
    assert (run.model.pool, run.model.posemb, run.model.rep) == ("gap", "sincos2d", True)
    assert run.id == tiny.run({**PAPER, "model.arch": "S+/16"}).id


# --- Identity -----------------------------------------------------------------------------------


def test_what_was_added_is_left_out_of_ids_while_it_means_as_before():
    run = tiny.run()
    others = {"cls": "exclude", "cls_posemb": True, "qkv_bias": False, "gelu": "erf"}
    others |= {"init": "deit", "norm_eps": 1e-5}
    added = {"kind", "cls_at", *others}
    assert not added & json.loads(run.spec.identity)["model"].keys()
    tree = run.spec.tree
    bare = {**tree, "model": {k: v for k, v in tree["model"].items() if k not in added}}
    assert build_run(bare) == run
    over_tokens = {"norm": "groupnorm"}  # which can be shown the class token, or not
    for key, value in others.items():
        norm = over_tokens if key == "cls" else {}
        other = tiny.run({f"model.{key}": value, **norm})
        assert json.loads(other.spec.identity)["model"][key] == value
        assert other.id != tiny.run(norm).id


# --- Other people's models ----------------------------------------------------------------------

EXPORTED = [
    {"model.arch": "mu/4"},
    {"model.arch": "mu/2", "model.pool": "gap"},
    {"model.arch": "deit_ti/4"},
    {"model.arch": "deit_ti/4", "model.qkv_bias": False, "data.channels": 1},
    {"model.arch": "mu/4", "model.norm_eps": 1e-5, "model.mlp_ratio": 2.0},
    {"model.arch": "mu/4", "model.act": "silu"},
    {"model.arch": "mu/4", "model.act": "swiglu"},
    {"model.arch": "deit_ti/4", "model.act": "geglu", "model.width": 33, "model.head_dim": 11},
    {"model.arch": "mu/4", "model.registers": 4},
    {"model.arch": "mu/2", "model.registers": 4, "model.pool": "gap"},
    {"model.arch": "deit_ti/4", "model.registers": 2},
    {"model.arch": "mu/4", "model.layerscale": 0.1},
    {"model.arch": "mu/2", "model.pool": "map", "model.act": "relu"},
    {"model.arch": "mu/4", "model.qk_norm": True, "model.norm_eps": 1e-5},
]


def timm_model(oracle, run):
    arguments = timm_arguments(run)
    if "mlp_layer" in arguments:
        arguments["mlp_layer"] = getattr(oracle("timm.layers"), arguments["mlp_layer"])
    norm = partial(nn.LayerNorm, eps=run.model.norm_eps)
    timm = oracle("timm.models.vision_transformer")
    return timm.VisionTransformer(**arguments, norm_layer=norm).double()


@pytest.mark.whole
@pytest.mark.parametrize("changes", EXPORTED, ids=tiny.names)
def test_exported_weights_give_the_same_logits_in_timm(changes, oracle):
    run = tiny.run({"model.depth": 3, "model.width": 48, "model.heads": 3, **changes})
    model = build(run).double()
    tiny.scramble(model)
    theirs = timm_model(oracle, run)
    theirs.load_state_dict(load(save(to_timm(run, model.state_dict()))))
    images = tiny.images(3, run).double()
    close(model(images), theirs(images.permute(0, 3, 1, 2)))
    back = from_timm(run, theirs.state_dict())
    assert back.keys() == model.state_dict().keys()
    for name, values in model.state_dict().items():
        assert torch.equal(back[name], values), name


@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_deit_is_timms(name, oracle):
    """The whole model at its published size, shapes and names of its parameters included."""
    arch = {"tiny": "deit_ti", "small": "deit_s", "base": "deit_b"}[name]
    run = tiny.run({**PAPER, "model.arch": f"{arch}/16"})
    with torch.device("meta"):
        theirs = oracle("timm").create_model(f"deit_{name}_patch16_224").state_dict()
    ours = to_timm(run, build(run, device="meta").state_dict())
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stem": "dpn"}, "stem: timm's VisionTransformer has 'none' only, got 'dpn'"),
        ({"model.rep": True}, "model.rep: timm"),
        ({"norm": "rmsnorm"}, "norm: timm"),
        ({"model.act": "relu2"}, "model.act: timm has no 'relu2'"),
        ({"model.act": "swiglu", "model.pool": "map"}, "model.act: timm's .* takes no gated"),
        ({"model.pool": "map", "model.registers": 1}, "model.registers: timm"),
        ({"block.mlp": "post"}, "block.mlp: timm"),
        ({"model.arch": "mlp/3x10"}, "model.kind: timm"),
        ({"model.cls": "exclude"}, "model.cls: timm"),
    ],
)
def test_exporting_what_timm_has_not_says_why(changes, told):
    with pytest.raises(UserError, match=told):
        to_timm(tiny.run(changes), {})


def test_mnist_vit_with_dual_patch_norm_is_vit_pytorchs(oracle):
    """The author's vit_org.py is vit_pytorch's ViT of its day, stem included (REFERENCE D.4)."""
    run = tiny.run({**MNIST, "model.arch": "mnist_vit", "stem": "dpn", "model.depth": 2})
    model = build(run).double()
    tiny.scramble(model)
    sizes = {"image_size": 28, "patch_size": 7, "channels": 1, "num_classes": 10, "depth": 2}
    widths = {"dim": 64, "heads": 8, "dim_head": 64, "mlp_dim": 128}
    theirs = oracle("vit_pytorch").ViT(**sizes, **widths).double()
    ours, expected = model.state_dict(), theirs.state_dict()
    names = {"norm": "transformer.norm", "head": "mlp_head"}
    for number, part in enumerate(("before", "dense", "after"), 1):
        names[f"stem.{part}"] = f"to_patch_embedding.{number}"
    parts = {"attn.pre": "0.norm", "attn.f.qkv": "0.to_qkv", "attn.f.out": "0.to_out.0"}
    parts |= {"mlp.pre": "1.net.0", "mlp.f.fc1": "1.net.1", "mlp.f.fc2": "1.net.4"}
    for i, (mine, other) in itertools.product(range(2), parts.items()):
        names[f"blocks.{i}.{mine}"] = f"transformer.layers.{i}.{other}"
    state = {
        name.replace(mine, other, 1): values
        for mine, other in names.items()
        for name, values in ours.items()
        if name.startswith(f"{mine}.")
    }
    positions = torch.cat([ours["cls.posemb"], ours["posemb"]], 1)
    for name, values in (("cls_token", ours["cls.token"]), ("pos_embedding", positions)):
        state[name] = values.view(expected[name].shape)
    theirs.load_state_dict(state)
    images = tiny.images(3, run).double()
    close(model(images), theirs(images.permute(0, 3, 1, 2)))


@pytest.mark.parametrize("norm", ["identity", "batchnorm"])
def test_the_mlp_is_linears_batch_norms_and_sigmoids(norm):
    run = tiny.run({"model.arch": "mlp/3x7", "norm": norm, "data.channels": 1})
    model = build(run).double()
    tiny.scramble(model)
    theirs = nn.Sequential()
    for dense, ours, _ in model.layers:
        theirs.append(nn.Linear(dense.in_features, 7).double())
        theirs[-1].load_state_dict(dense.state_dict())
        if norm == "batchnorm":
            theirs.append(nn.BatchNorm1d(7).double())
            theirs[-1].load_state_dict({"weight": ours.weight, "bias": ours.bias}, strict=False)
        theirs.append(nn.Sigmoid())
    x = tiny.images(5, run).double()
    for train in (True, False):
        model.train(train)
        theirs.train(train)
        hidden = theirs(x.flatten(1))
        close(model(x), F.linear(hidden, model.head.weight, model.head.bias))


# --- Initial weights ----------------------------------------------------------------------------


def test_deit_starts_normal_with_std_002_everywhere():
    run = tiny.run({"data.size": 64, "model.arch": "deit_s/16", "model.depth": 1})
    for name, weight in build(run).named_parameters():
        weight = weight.detach()
        if name.endswith("bias"):
            assert not weight.any(), name
        elif ".pre." in name or name == "norm.weight":
            assert (weight == 1).all(), name
        else:
            assert weight.std().item() == pytest.approx(0.02, rel=0.12), name
            assert weight.numel() < 10**5 or weight.abs().max() > 4 * 0.02, name


def test_mnist_vit_starts_as_torch_does_with_standard_normal_positions():
    model = build(tiny.run({**MNIST, "model.arch": "mnist_vit", "model.depth": 1}))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            limit = module.in_features**-0.5
            for values in module.parameters():
                assert 0.5 * limit < values.abs().max() <= limit, name
            std = module.weight.std().item()
            assert std == pytest.approx(limit / math.sqrt(3), rel=0.05), name
    for values in (model.posemb, model.cls.token, model.cls.posemb):
        assert values.std().item() == pytest.approx(1, rel=0.3)


def test_the_heads_bias_is_added_to_torchs():
    runs = [tiny.run({"model.arch": "mlp/1x9", "model.head_bias": bias}) for bias in (0.0, -3.0)]
    plain, lowered = (build(run).head.bias for run in runs)
    close(lowered, plain - 3, 1e-6)
    assert plain.any()


def test_convolutions_start_as_torchs():
    stem = build(tiny.run({"stem": "conv", "model.arch": "Ti/16", "data.size": 32})).stem
    for conv in stem.convs:
        limit = (9 * conv.in_channels) ** -0.5
        assert 0.95 * limit < conv.weight.abs().max() <= limit


# --- The class token ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, [5, 5, 5, 5]),
        ({"model.cls": "exclude"}, [5, 5, 5, 5]),
        ({"model.cls": "late"}, [4, 4, 5, 5]),
        ({"model.cls": "late", "model.cls_at": 3}, [4, 4, 4, 5]),
        ({"model.pool": "gap"}, [4, 4, 4, 4]),
        ({"model.arch": "dtn_t/4"}, [4, 4, 5, 5]),
        ({"model.arch": "dtn_t/4", "model.pool": "gap"}, [4, 4, 4, 4]),
    ],
)
def test_the_class_token_joins_when_it_should(changes, tokens):
    run = tiny.run({"model.depth": 4, **changes})
    model, seen = build(run), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    model(tiny.images(2, run))
    assert seen == tokens


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"norm": "dtn", "model.arch": "dtn_t/2"}, [DTN, DTN, *5 * [LayerNorm]]),
        ({"norm": "batchnorm", "model.cls": "exclude"}, [*6 * [ExcludeCls], LayerNorm]),
        ({"norm": "layernorm", "model.cls": "exclude"}, 7 * [LayerNorm]),
        ({"norm": "dyt"}, 7 * [DynamicTanh]),
        ({"norm": "derf"}, 7 * [DynamicErf]),
        ({"norm": "rmsnorm"}, [*6 * [RMSNorm], LayerNorm]),
        ({"block": "vitbn"}, [*3 * [OneChannelBatchNorm, nn.Identity], OneChannelBatchNorm]),
    ],
)
def test_where_the_class_token_is_and_at_the_end_norms_are_layer_norms(changes, kinds):
    """Where it joins late; past norms that mix tokens; unless all are another."""
    model = build(tiny.run({**DEPTH, **changes}))
    norms = [norm for block in model.blocks for norm in (block.attn.pre, block.mlp.pre)]
    assert [type(norm) for norm in (*norms, model.norm)] == kinds
    if DTN in kinds:
        assert {m.eps for m in model.modules() if isinstance(m, LayerNorm)} == {1e-5}
    if ExcludeCls in kinds:
        assert (type(norms[0].patches), type(norms[0].token)) == (BatchNorm, LayerNorm)


# --- Impossible combinations --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"norm": "dtn"}, "norm=dtn: .*model.cls=late or model.cls=exclude"),
        ({"model.posemb": "rope2d", "model.head_dim": 6}, r"^model\.posemb: rope2d .* got 6;"),
        ({"block": "hybridnorm", "model.qk_norm": True}, r"^model\.qk_norm: block=hybridnorm"),
        ({"model.cls_at": 1}, "model.cls_at: is for model.cls=late, got model.cls=include"),
        ({"model.cls": "late", "model.depth": 2}, "model.cls_at: .* got 0 with model.depth=2"),
        ({"model.cls": "late", "model.cls_at": 3, **DEPTH}, "model.cls_at: .* got 3"),
        ({"model.pool": "gap", "model.cls": "late"}, "model.cls: there is no class token"),
        ({"model.pool": "gap", "model.cls_posemb": True}, "model.cls_posemb: there is no class"),
        ({"model.arch": "mlp/3"}, "model.arch: an MLP is mlp/DEPTHxWIDTH such as mlp/3x100"),
        ({"model.arch": "mlp/0x10"}, "model.depth: must be more than 0"),
        ({"model.arch": "mlp/2x9", "stem": "dpn"}, "stem: model.arch=mlp/2x9 has none to choose"),
        ({"model.arch": "mlp/2x9", "block.mlp": "post"}, "block: model.arch=mlp/2x9"),
        ({"model.arch": "mlp/2x9", "model.rep": True}, "model.rep: model.arch=mlp/2x9 has none"),
        ({"model.arch": "mlp/2x9", "model.dropout": 0.1}, "model.dropout: model.arch=mlp/2x9"),
        ({"model.kind": "mlp"}, "model.heads: model.arch=mu/4 has none"),
        ({"model.gelu": "relu"}, "model.gelu: expected one of tanh, erf, got 'relu'"),
        ({"model.norm_eps": 0}, "model.norm_eps: must be more than 0"),
        ({"model.heads": 5}, "model.heads: 5 heads do not divide width 32"),
        ({"norm": "groupnorm", "norm.groups": 5}, "norm.groups: 5 groups do not divide"),
        ({"model.arch": "deit/4"}, r"model.arch: got 'deit' \(did you mean 'deit_\w+'\?\), exp"),
    ],
)
def test_an_impossible_model_says_what_to_change(changes, told):
    with pytest.raises(UserError, match=told):
        describe(tiny.run(changes))


# --- Every combination --------------------------------------------------------------------------


BLOCKS, STEMS = list(choices.BLOCKS), list(choices.STEMS)


def pairs(norm):
    """Every block and every stem with this norm; over the norms every block is before each stem."""
    turn = list(choices.NORMS).index(norm)
    number = max(len(BLOCKS), len(STEMS))
    return [(BLOCKS[(n + turn) % len(BLOCKS)], STEMS[n % len(STEMS)]) for n in range(number)]


def test_blocks_norms_and_stems_meet_two_at_a_time():
    met = {(norm, *pair) for norm in choices.NORMS for pair in pairs(norm)}
    assert {(norm, block) for norm, block, _ in met} == {*itertools.product(choices.NORMS, BLOCKS)}
    assert {(norm, stem) for norm, _, stem in met} == {*itertools.product(choices.NORMS, STEMS)}
    assert {(block, stem) for _, block, stem in met} == {*itertools.product(BLOCKS, STEMS)}


@pytest.mark.whole
@pytest.mark.parametrize("all_three", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", choices.NORMS)
def test_every_norm_trains_in_every_block_behind_every_stem(norm, all_three):
    for block, stem in itertools.product(BLOCKS, STEMS) if all_three else pairs(norm):
        changes = {**DEPTH, "model.width": 16, "norm": norm, "block": block, "stem": stem}
        if "norm" in choices.BLOCKS[block].brings and norm != "layernorm":
            with pytest.raises(UserError, match="norm: block="):
                tiny.run(changes)
            continue
        trains({**changes, **(tiny.LATE if norm.startswith("dtn") else {})})


@pytest.mark.parametrize("arch", ["deit_ti/4", "dtn_t/4", "mnist_vit/4", "mlp/2x16", "S/4+"])
@pytest.mark.parametrize("norm", ["layernorm", "batchnorm", "dtn", "dyt"])
def test_every_host_trains(arch, norm):
    small = {} if arch[:3] == "mlp" else {**DEPTH, "model.width": 16, "model.heads": 2}
    late = tiny.LATE if norm == "dtn" and arch in ("deit_ti/4", "mnist_vit/4") else {}
    trains({"model.arch": arch, "norm": norm, **small, **late})


def trains(changes):
    """Forward, backward and the way through a checkpoint and back: the same logits."""
    run = tiny.run(changes)
    model, other = tiny.built(run), build(run)
    tiny.scramble(model)
    images = tiny.images(4, run)
    logits = model(images)
    assert logits.shape == (4, 10)
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, (run, name)
        assert parameter.grad.isfinite().all(), (run, name)
    other.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(other.eval()(images), model.eval()(images)), run
