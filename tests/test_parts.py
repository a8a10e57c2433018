"""Parts of the model that are built in: each against timm, torch or x-transformers."""

from functools import partial

import pytest
import tiny
import torch
from tiny import close
from torch import nn

from ablate.run import choices
from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.model.norm import ExcludeCls
from ablate.training.model.sublayers import ACTS, MLP, activation
from ablate.training.model.traits import NormTraits, traits
from ablate.training.optim import decay_names
from ablate.training.probes.attention import AttentionDistance
from ablate.training.probes.tokens import TokenNorms


def drawn(changes):
    """The initial weights of a run, by name."""
    return build(tiny.run(changes)).state_dict()


def shared(changes):
    """The names that both a model and the plain one have; each of one shape starts the same."""
    plain, other = drawn({}), drawn(changes)
    names = {n for n in plain.keys() & other.keys() if plain[n].shape == other[n].shape}
    for name in names:
        assert torch.equal(plain[name], other[name]), name
    return plain.keys() - names, other.keys() - names


BLOCK = "blocks.0."
WIDER = {"mlp.f.fc1.weight", "mlp.f.fc1.bias", "mlp.f.fc2.weight"}
SCALES = {"attn.ls.gamma", "mlp.ls.gamma"}
QK = {f"attn.f.{n}_norm.{p}" for n in "qk" for p in ("weight", "bias")}
POOL = [f"{part}.{kind}" for part in ("q", "kv", "proj", "norm") for kind in ("weight", "bias")]
POOL += [f"mlp.{part}.{kind}" for part in ("fc1", "fc2") for kind in ("weight", "bias")]


@pytest.mark.parametrize(
    ("changes", "less", "more"),
    [
        ({"model.act": "relu2"}, set(), set()),
        ({"model.act": "geglu"}, *2 * [{BLOCK + name for name in WIDER}]),
        ({"model.registers": 3}, set(), {"registers.token"}),
        ({"model.layerscale": 1e-5}, set(), {BLOCK + name for name in SCALES}),
        ({"model.qk_norm": True}, set(), {BLOCK + name for name in QK}),
        ({"model.pool": "map"}, {"cls.token"}, {"pool.probe", *(f"pool.{name}" for name in POOL)}),
    ],
    ids=lambda value: tiny.names(value) if isinstance(value, dict) else "",
)
def test_a_part_changes_no_other_initial_value_and_its_kernels_alone_decay(changes, less, more):
    assert shared(changes) == (less, more)
    kernels = {name for name in more if name.endswith(".weight") and "norm" not in name}
    assert decay_names(build(tiny.run(changes))) & more == kernels


def test_parts_start_as_said():
    token = drawn({"model.registers": 64})["registers.token"]
    assert token.shape == (1, 64, 32)
    assert token.std().item() == pytest.approx(1e-6, rel=0.1)
    scaled = drawn({"model.layerscale": 1e-5})
    assert all(torch.equal(scaled[BLOCK + name], torch.full((32,), 1e-5)) for name in SCALES)
    start = drawn({"model.pool": "map", "model.width": 768, "model.heads": 12})
    within = {"probe": (1, 768), "q.weight": (768, 768), "kv.weight": (768, 768)}  # as in flax
    within |= {"proj.weight": (768, 768), "mlp.fc1.weight": (768, 3072)}
    for name, fans in within.items():
        limit = (6 / sum(fans)) ** 0.5
        assert 0.98 * limit < start[f"pool.{name}"].abs().max() <= limit, name
    assert not start["pool.kv.bias"].any()


def test_which_gelu_counts_where_there_is_one():
    deit = {"model.arch": "deit_ti/4", "model.act": "relu"}
    assert tiny.run(deit).id == tiny.run({**deit, "model.gelu": "tanh"}).id
    assert tiny.run({**deit, "model.act": "geglu"}).model.gelu == "erf"
    assert tiny.run({"model.act": "gelu"}).id == tiny.run().id
    assert not tiny.run({"model.arch": "deit_ti/4", "model.pool": "map"}).model.cls_posemb


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.act": "relu", "model.gelu": "erf"}, "model.gelu: model.act=relu has no GELU; lea"),
        ({"model.arch": "mlp/2x9", "model.act": "relu"}, "model.act: model.arch=mlp/2x9 has none"),
        ({"model.pool": "map", "model.cls": "exclude"}, "model.cls: there is no class token with"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        tiny.run(changes)


# --- Activations --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTS)
def test_an_activation_is_that_of_timm_and_of_x_transformers(name, oracle):
    timm, tanh = oracle("timm.layers"), partial(nn.GELU, approximate="tanh")
    squared = oracle("x_transformers.x_transformers").ReluSquared
    layers = {"gelu": tanh, "relu": nn.ReLU, "relu2": squared, "silu": timm.Swish}
    layer = (layers | {"swiglu": nn.SiLU, "geglu": tanh})[name]
    act = activation(name)
    hidden = act.hidden(48)
    ours = MLP(12, hidden, 0.0, act=act).double()
    tiny.scramble(ours)
    if name.endswith("glu") and act.inputs == 2:
        theirs = timm.GluMlp(12, 2 * hidden, act_layer=layer, gate_last=False).double()
    else:
        theirs = timm.Mlp(12, hidden, act_layer=layer).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    close(ours(x), theirs(x))


@pytest.mark.parametrize("arch", ["B/16", "L/16", "H/14"])
def test_a_gated_mlp_has_as_many_parameters(arch):
    paper = {"data.size": 224, "data.classes": 1000, "model.arch": arch}
    runs = [tiny.run({**paper, "model.act": name}) for name in ("gelu", "swiglu")]
    plain, gated = (describe(run)["parameters"] for run in runs)
    assert gated == pytest.approx(plain, rel=2e-3)


def test_each_half_of_a_gate_starts_as_if_it_were_alone():
    weight = drawn({"model.act": "swiglu", "model.width": 96})["blocks.0.mlp.f.fc1.weight"]
    assert weight.shape == (2 * 256, 96)
    limit = (6 / (96 + 256)) ** 0.5
    assert 0.99 * limit < weight.abs().max() <= limit


@pytest.mark.parametrize("block", ["normformer", "subln", "bnffn"])
def test_inner_norms_have_the_width_of_a_gate(block):
    run = tiny.run({"block": block, "model.act": "swiglu"})
    assert build(run)(tiny.images(2, run)).shape == (2, 10)


# --- Registers ----------------------------------------------------------------------------------

REGISTERS = {"model.registers": 3, "model.depth": 4}


@pytest.mark.parametrize(
    "host",
    [
        *({"stem": stem} for stem in choices.STEMS),
        *({"model.pool": "gap"}, {"model.cls": "late"}, {"model.arch": "deit_ti/4"}),
    ],
    ids=tiny.names,
)
def test_registers_stand_between_the_class_token_and_the_patches(host):
    run = tiny.run({**REGISTERS, "data.size": 16, **host})
    model = tiny.built(run).eval()
    tiny.scramble(model)
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, args, output: seen.append(output))
    logits = model(tiny.images(2, run))
    cls, late = int(run.model.pool == "tok"), run.model.cls_at or 0
    patches = (16 // run.model.patch) ** 2
    expected = [3 + patches + (cls if i >= late else 0) for i in range(len(seen))]
    assert [x.shape[1] for x in seen] == expected
    normed = model.norm(seen[-1])
    read = normed[:, 0] if cls else normed[:, 3:].mean(1)
    close(logits, model.head(model.rep(read)), 1e-5)


@pytest.mark.parametrize("norm", choices.NORMS)
def test_norms_beside_registers(norm):
    """One that mixes tokens leads them past itself with `exclude`; on a grid it must."""
    tokens = torch.randn(4, 1 + 3 + 4, 32)
    run = {**REGISTERS, "norm": norm}
    model = build(tiny.run({**run, "model.cls": "exclude"}))
    pre = model.blocks[0].attn.pre
    if isinstance(pre, ExcludeCls):
        assert traits(pre.patches, NormTraits).mixes_tokens
        out = pre(tokens)
        close(out[:, :4], nn.functional.layer_norm(tokens[:, :4], (32,), eps=1e-6), 1e-6)
        close(out[:, 4:], pre.patches(tokens[:, 4:]), 1e-6)
    elif norm != "identity":
        assert not traits(pre, NormTraits).mixes_tokens
    if norm.startswith("dtn"):
        for host in ({}, {"model.pool": "gap"}, {"model.cls": "late"}):
            with pytest.raises(UserError, match=f"norm={norm}: .*[Rr]egisters"):
                describe(tiny.run({**run, **host}))
    else:
        describe(tiny.run({**run, "model.pool": "gap"}))


def test_probes_leave_registers_out():
    """What patches are in the first block, registers or not, they are for the probes."""
    found = []
    for changes in ({}, {"model.registers": 3}):
        run = tiny.run({"data.size": 16, **changes})
        model = build(run).eval()
        tiny.scramble(model.blocks[0])
        if run.model.registers:
            nn.init.normal_(model.registers.token, std=10.0)
        probes = [kind(run, model, 1) for kind in (AttentionDistance, TokenNorms)]
        hooks = [hook for probe in probes for hook in probe.hooks()]
        with torch.no_grad():
            model(tiny.images(4, run))
        assert hooks
        found.append((probes[0].arrays(1)["distance"][0], probes[1].arrays(1)["norms"][0]))
    for plain, beside in zip(*found, strict=True):
        close(torch.tensor(plain), torch.tensor(beside), 1e-6)


# --- LayerScale ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", list(choices.BLOCKS))
def test_layerscale_scales_each_branch_from_its_initial_value(block):
    """Times 0 a branch adds nothing, times 1 it is as it was; test_vit has timm's, by export."""
    changes = {"block": block, "model.final_norm": "drop"}
    run = tiny.run({**changes, "model.layerscale": 1.0})
    plain, scaled = build(tiny.run(changes)), build(run)
    images = tiny.images(2, run)
    for each in (plain, scaled):
        nn.init.normal_(each.head.weight)
    names = {f"blocks.0.{part}.ls.gamma" for part in ("attn", "mlp")}
    missing = scaled.load_state_dict(plain.state_dict(), strict=False)
    assert set(missing.missing_keys) == names
    assert not missing.unexpected_keys
    close(scaled(images), plain(images), 1e-6)
    for name in names:
        nn.init.zeros_(scaled.get_parameter(name))
    read = scaled.cls.token[0].expand(2, -1)
    close(scaled(images), scaled.head(read), 1e-6)


# --- Norms of queries and keys ------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_qk_norm_is_a_layernorm_of_each_heads_channels(norm):
    """The equation, written out; whole models beside timm's: test_vit, by exported weights."""
    changes = {"model.qk_norm": True, "model.heads": 4, "model.head_dim": 5, "norm": norm}
    layer = build(tiny.run(changes)).blocks[0].attn.f.double()
    tiny.scramble(layer)
    x = torch.randn(2, 3, 32, dtype=torch.float64)
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).split(20, -1)

    def normed(part, by):
        centred = part - part.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return unit * by.weight + by.bias

    heads = []
    for i in range(4):
        h = slice(5 * i, 5 * i + 5)
        query, key = normed(q[..., h], layer.q_norm), normed(k[..., h], layer.k_norm)
        heads.append((query @ key.transpose(1, 2) / 5**0.5).softmax(-1) @ v[..., h])
    close(layer(x), torch.cat(heads, -1) @ layer.out.weight.T + layer.out.bias)


def test_the_probe_of_attention_sees_normed_queries():
    """As large as queries may be, their norm decides; scales of 0 leave attention uniform."""
    run = tiny.run({"model.qk_norm": True, "data.size": 8, "model.arch": "mu/4"})
    model = build(run).eval()
    tiny.scramble(model)
    nn.init.zeros_(model.blocks[0].attn.f.q_norm.weight)
    nn.init.zeros_(model.blocks[0].attn.f.q_norm.bias)
    probe = AttentionDistance(run, model, 1)
    assert list(probe.hooks())
    with torch.no_grad():
        model(tiny.images(4, run))
    uniform = (0 + 1 + 1 + 2**0.5) / 4  # of the four corners of a square
    close(torch.tensor(probe.arrays(1)["distance"]), torch.full((1, 2), uniform), 1e-6)


# --- Attention pooling --------------------------------------------------------------------------


@pytest.mark.parametrize("registers", [0, 2])
def test_map_is_attention_of_torch_and_an_mlp(registers):
    """torch's MultiheadAttention and LayerNorm, with copied weights; timm's: test_vit."""
    host = {"model.pool": "map", "model.arch": "mu/2", "model.registers": registers}
    run = tiny.run(host)
    model = build(run).double()
    tiny.scramble(model)
    seen = []
    model.norm.register_forward_hook(lambda _, args, output: seen.append(output))
    logits = model(tiny.images(3, run).double())
    (tokens,) = seen
    assert tokens.shape == (3, registers + 16, 32)
    pool = model.pool
    theirs = nn.MultiheadAttention(32, 2, batch_first=True).double()
    norm = nn.LayerNorm(32, eps=1e-6).double()
    norm.load_state_dict(pool.norm.state_dict())
    copied = {"out_proj.weight": pool.proj.weight, "out_proj.bias": pool.proj.bias}
    copied["in_proj_weight"] = torch.cat([pool.q.weight, pool.kv.weight])
    copied["in_proj_bias"] = torch.cat([pool.q.bias, pool.kv.bias])
    theirs.load_state_dict(copied)
    patches = tokens[:, registers:]
    y = theirs(pool.probe.expand(3, -1, -1), patches, patches)[0][:, 0]
    hidden = nn.functional.gelu(pool.mlp.fc1(norm(y)), approximate="tanh")
    close(logits, model.head(y + pool.mlp.fc2(hidden)))


# --- All of them together -----------------------------------------------------------------------

PARTS = {
    **{"model.act": "swiglu", "model.registers": 2, "model.layerscale": 0.1},
    **{"model.qk_norm": True, "model.dropout": 0.1, "model.drop_path": 0.1},
}


@pytest.mark.parametrize("pool", ["tok", "gap", "map"])
def test_bfloat16_is_near_float32_and_every_parameter_has_a_gradient(pool):
    run = tiny.run({**PARTS, "model.pool": pool})
    model = build(run).eval()
    tiny.scramble(model)
    images = tiny.images(4, run)
    exact = model(images)
    exact.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(images)
        layer = model.blocks[0].attn.f
        layer.q_norm.register_forward_hook(lambda _, args, output: output.float())  # as on a GPU
        parts = layer.parts(torch.randn(2, 3, 32))
    close(rough.float(), exact, 0.1)
    assert {part.dtype for part in parts} == {torch.bfloat16}  # what a kernel takes
