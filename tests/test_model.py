"""The ViT, its stems, its counts, its masks: against closed forms and others' implementations."""

import dataclasses
import importlib
import inspect
import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import tiny
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate.data.draws import Draws
from ablate.run import choices, sections
from ablate.training.model import build, sublayers
from ablate.training.model.count import SHAPES, _Counter, aten, describe
from ablate.training.model.drop import Drop, DropPath, StepKey
from ablate.training.model.norm import LayerNorm
from ablate.training.model.stem import DualPatchNorm, Patches, Plain
from ablate.training.model.vit import sincos2d

PAPER = {"data.size": 224, "data.classes": 1000}


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "rep", "plain", "dpn"),
    [  # REFERENCE A.1: 224 px, 1000 classes, tok; without a representation layer; what DPN adds
        ("Ti/16", 5_754_280, 5_717_224, 1_920),
        ("S/16", 22_198_120, 22_050_280, 2_304),
        ("S/32", 23_026_408, 22_878_568, 6_912),
        ("B/16", 87_157_480, 86_566_888, 3_072),
        ("B/32", 88_814_056, 88_223_464, 7_680),
        ("L/16", 305_375_208, 304_325_608, 3_584),
        ("H/14", 633_684_200, 632_044_520, 3_736),
    ],
)
def test_parameters_are_as_many_as_published(arch, rep, plain, dpn):
    def count(changes):
        model = build(tiny.run({**PAPER, "model.arch": arch, **changes}), device="meta")
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        return sum(parameter.numel() for parameter in model.parameters())

    assert count({"model.rep": True}) == rep
    assert count({}) == plain
    assert count({"stem": "dpn"}) == plain + dpn
    positions = (224 // int(arch[-2:])) ** 2 * choices.ARCHS[arch[:-3]].width
    assert count({"model.posemb": "sincos2d"}) == plain - positions


def test_pre_post_adds_a_norm_a_sublayer():
    def count(attn, mlp, post):
        run = tiny.run({"block.attn": attn, "block.mlp": mlp, "block.post": post})
        return describe(run)["parameters"]

    once = count("pre", "pre", "residual")
    for attn, mlp, post in tiny.MODES:
        assert count(attn, mlp, post) == once + [attn, mlp].count("pre+post") * 2 * 32


def test_groups_are_the_sizes_that_are_normalised_over():
    run = tiny.run({"stem": "dpn", "block.attn": "pre+post", "block.mlp": "post"})
    norms = ("attn.pre", "attn.post", "mlp.post")
    groups = {"stem.before": 48, "stem.after": 32, "norm": 32}
    assert describe(run)["groups"] == groups | {f"blocks.0.{norm}": 32 for norm in norms}
    bare = tiny.run({"norm": "identity", "model.final_norm": "drop"})
    assert describe(bare)["groups"] == {}


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"norm": norm, "data.size": size, "model.pool": "gap"}
            for norm in ("layernorm", "rmsnorm", "batchnorm", "dtn")
            for size in (8, 16)
        ),
        {**PAPER, "model.arch": "S/16"},
        {"model.arch": "mu/4", "model.depth": 3, "model.heads": 3, "model.head_dim": 8},
        {"model.arch": "Ti/2", "model.rep": True, "model.pool": "gap", "model.mlp_ratio": 2},
    ],
    ids=tiny.names,
)
def test_what_is_counted_is_what_torch_counts(changes):
    run = tiny.run(changes)
    model = build(run, device="meta").eval()
    image = torch.empty(1, run.data.size, run.data.size, run.data.channels, device="meta")
    math = sdpa_kernel(SDPBackend.MATH)  # whose products it knows on every device
    with math, FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    assert describe(run)["multiply_adds"] == counter.get_total_flops() // 2


# On a matrix, each to its own shape.
SMOOTH = ("erf", "exp", "gelu", "reciprocal", "rsqrt", "sigmoid", "silu", "sqrt", "tanh")
ALIKE = ("abs", "neg", "relu", *SMOOTH)


OVER = [((2, 3, 4), [-1]), ((2, 3, 4), [0, 1], True), ((2, 3), [2])]  # these dimensions


VARIANCES = [((2, 3, 4), [1, 2]), ((2, 3), None), ((2, 3), [2])]


BROADCAST = [((2, 1, 4), (3, 4)), ((2, 3), (3, 3))]
CALLS = {
    **{getattr(aten, name).default: [((2, 3),)] for name in ALIKE},
    aten.clamp.default: [((2, 3), 1e-6)],
    aten.add.Tensor: [((2, 3, 4), (3, 1)), ((2, 3), 1e-6), ((2, 3), (2, 4))],
    aten.addmm.default: [((5,), (2, 3), (3, 5)), ((5,), (2, 4), (3, 5)), ((4,), (2, 3), (3, 5))],
    aten.bmm.default: [((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (2, 3, 5)), ((3, 3, 4), (2, 4, 5))],
    aten.cat.default: [([(2, 3), (2, 4)], 1), ([(2, 3), (1, 3)],), ([(2, 3), (1, 4)], -1)],
    aten.div.Tensor: [*BROADCAST, ((2, 3), 2.0)],
    aten.gt.Scalar: [((2, 3), 1e-6)],
    aten.linalg_vector_norm.default: [((2, 3, 4), 2, [-1], True), ((2, 3),), ((2, 3), 2, [2])],
    aten.mean.dim: [*OVER, ((2, 3), None)],
    aten.mul.Scalar: [((2, 3), 0.5)],
    aten.mul.Tensor: BROADCAST,
    aten.native_batch_norm.default: [((2, 3, 4), (3,), (3,), (3,), (3,), False, 0.1, 1e-5)],
    aten.native_group_norm.default: [((2, 6, 4), (6,), (6,), 2, 6, 4, 3, 1e-5)],
    aten.native_layer_norm.default: [
        ((2, 3, 4), [4], (4,), (4,), 1e-6),
        ((2, 3, 4), [3, 4], None, None, 1e-6),
        ((2, 3, 4), [3], (3,), (3,), 1e-6),
    ],
    aten.pow.Tensor_Scalar: [((2, 3), 2)],
    aten.sub.Tensor: BROADCAST,
    aten.var.correction: VARIANCES,
    aten.var_mean.correction: VARIANCES,
    aten._safe_softmax.default: [((2, 3), -1)],
}


@pytest.mark.parametrize("operation", SHAPES, ids=str)
def test_a_shape_is_told_as_torch_tells_it_and_what_fits_nothing_is_torchs_to_refuse(operation):
    def sized(argument):
        if isinstance(argument, list) and isinstance(argument[0], tuple):
            return [sized(part) for part in argument]
        return torch.empty(argument, device="meta") if isinstance(argument, tuple) else argument

    fitting = 0
    for call in CALLS[operation]:
        arguments = [sized(argument) for argument in call]
        try:
            theirs = operation(*arguments)
        except (RuntimeError, IndexError):
            with pytest.raises((RuntimeError, IndexError)), _Counter(SHAPES):
                operation(*arguments)
            continue
        fitting += 1
        with _Counter(SHAPES):
            ours = operation(*arguments)
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
        for own, other in pairs:
            assert (own.shape, own.dtype, own.device) == (other.shape, other.dtype, other.device)
    assert 0 < fitting < max(2, len(CALLS[operation]))


TYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)


@pytest.mark.parametrize("operation", SHAPES, ids=str)
def test_a_type_is_told_as_torch_tells_it(operation):
    """Of tensors of each type, and of two types by turns; with `dtype` where the operation takes
    it."""

    def typed(argument, types):
        if isinstance(argument, list) and isinstance(argument[0], tuple):
            return [typed(part, types) for part in argument]
        if isinstance(argument, tuple):
            return torch.empty(argument, device="meta", dtype=next(types))
        return argument

    options = [{}]
    if any(argument.name == "dtype" for argument in operation._schema.arguments):
        options.append({"dtype": torch.float64})
    compared = 0
    for first, second, given in itertools.product(TYPES, TYPES, options):
        types = itertools.cycle((first, second))
        arguments = [typed(argument, types) for argument in CALLS[operation][0]]
        try:
            theirs = operation(*arguments, **given)
        except RuntimeError:
            continue
        with _Counter(SHAPES):
            ours = operation(*arguments, **given)
        both = [out if isinstance(out, tuple) else (out,) for out in (ours, theirs)]
        own, others = ([part.dtype for part in out] for out in both)
        assert own == others, arguments
        compared += 1
    assert compared > 1


def test_a_part_that_torch_ignores_when_it_joins_is_ignored():
    parts = [torch.empty(0, device="meta"), torch.empty(2, 3, device="meta")]
    with _Counter(SHAPES):
        assert torch.cat(parts, dim=1).shape == (2, 3)


@pytest.mark.whole
def test_no_shipped_model_but_dtns_loads_torchs_compiler_to_be_described():
    """It takes as long as torch itself, in every run; DTN's own operations are many."""
    code = """
import sys
import tiny
from ablate.training.model.count import describe
pools = [{"model.pool": pool} for pool in ("gap", "map")]
for variant in [v for v in tiny.VARIANTS if len(v) < 3] + pools:
    if str(variant.get("norm")).startswith("dtn"):
        continue
    describe(tiny.run({"model.depth": 2, **variant}))
    assert "torch._dynamo" not in sys.modules, variant
"""
    home = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- what may be chosen -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in choices.CHOICES for name in choices.CHOICES[kind]]
)
def test_a_choice_is_what_its_class_takes(kind, name):
    choice = choices.CHOICES[kind][name]
    module, _, cls = choice.path.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), cls))
    taken = {
        parameter.name: parameter.default
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    host = {field.name: field.default for field in dataclasses.fields(sections.Model)}
    params = choice.params.items()
    given = {key: host[p.host] if p.host else p.default for key, p in params}
    given = {k: None if v is dataclasses.MISSING else v for k, v in given.items()}  # of the run's
    assert taken == given


@pytest.mark.parametrize("variant", tiny.VARIANTS, ids=tiny.names)
def test_every_variant_trains(variant):
    late = tiny.LATE if str(variant.get("norm")).startswith("dtn") else {}
    run = tiny.run({"model.rep": True, "model.depth": 3, **variant, **late})
    model = tiny.built(run)
    tiny.scramble(model)
    logits = model(tiny.images(3, run))
    assert logits.shape == (3, 10)
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("positions.bias"):  # of DTN: it cancels in a softmax
            assert parameter.grad.any(), name


def test_settings_of_a_norm_reach_the_blocks_and_not_the_final_norm():
    model = build(tiny.run({"norm.affine": False, "norm.eps": 1e-3}))
    assert model.blocks[0].attn.pre.weight is None
    assert model.blocks[0].mlp.pre.eps == 1e-3
    assert model.norm.weight is not None
    assert model.norm.eps == 1e-6


@pytest.mark.parametrize("final_norm", ["keep", "auto", "drop"])
@pytest.mark.parametrize("mode", tiny.MODES, ids="-".join)
def test_the_final_norm_is_dropped_on_demand_or_after_a_residual_post_norm(final_norm, mode):
    attn, mlp, post = mode
    blocks = {"block.attn": attn, "block.mlp": mlp, "block.post": post}
    model = build(tiny.run({**blocks, "model.final_norm": final_norm}))
    redundant = post == "residual" and mlp != "pre"
    there = {"keep": True, "auto": not redundant, "drop": False}[final_norm]
    assert isinstance(model.norm, LayerNorm) is there


# --- patches and stems --------------------------------------------------------------------------


def test_cutting_patches_and_a_dense_layer_is_a_convolution():
    conv, stem = nn.Conv2d(3, 7, 4, 4), Plain(Patches(size=12, patch=4, channels=3), 7)
    kernel = conv.weight.permute(0, 2, 3, 1).reshape(7, 48)
    stem.load_state_dict({"dense.weight": kernel, "dense.bias": conv.bias})
    images = torch.randn(2, 12, 12, 3)
    convolved = conv(images.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(stem(images), convolved, atol=2e-6, rtol=1e-5)


def test_images_of_another_size_are_refused():
    model = build(tiny.run())
    with pytest.raises(RuntimeError, match="shape"):
        model(torch.zeros(1, 16, 16, 3))


@pytest.mark.whole
def test_dual_patch_norm_is_that_of_timm(oracle):
    norms = ("input_norm_layer", "proj_norm_layer")
    theirs = oracle("timm.models.naflexvit").NaFlexEmbeds(
        **{"patch_size": 4, "embed_dim": 32, "proj_type": "linear", "class_token": False},
        **{"pos_embed": "none", **dict.fromkeys(norms, partial(nn.LayerNorm, eps=1e-6))},
    )
    stem = DualPatchNorm(Patches(size=8, patch=4, channels=3), 32, eps=1e-6).double()
    tiny.scramble(stem)
    theirs.double().norm_input.load_state_dict(stem.before.state_dict())
    theirs.proj.load_state_dict(stem.dense.state_dict())
    theirs.norm.load_state_dict(stem.after.state_dict())
    images = torch.randn(2, 8, 8, 3, dtype=torch.float64)
    tokens, _ = theirs(images.permute(0, 3, 1, 2))
    torch.testing.assert_close(stem(images), tokens, atol=1e-12, rtol=1e-12)


# --- norms and attention ------------------------------------------------------------------------


def test_the_attention_kernels_agree():
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    fused = sublayers.KERNELS["sdpa"](q.float(), k.float(), v.float())
    torch.testing.assert_close(sublayers.explicit(q.float(), k.float(), v.float()), fused)
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).div(8**0.5).softmax(-1)
    expected = torch.einsum("bhqk,bhkd->bhqd", weights, v)
    torch.testing.assert_close(fused.double(), expected, atol=1e-6, rtol=1e-5)


def test_the_attention_kernel_follows_device_and_dtype():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert sublayers.kernel(cpu, torch.bfloat16) == "explicit"
    assert sublayers.kernel(cpu, torch.float32) == "sdpa"
    assert sublayers.kernel(cpu, torch.float64) == "sdpa"
    assert sublayers.kernel(cuda, torch.bfloat16) == "sdpa"


def test_bfloat16_on_a_cpu_runs_the_explicit_kernel(monkeypatch):
    calls, explicit = [], sublayers.explicit
    record = lambda q, k, v: calls.append(q.dtype) or explicit(q, k, v)  # noqa: E731
    monkeypatch.setitem(sublayers.KERNELS, "explicit", record)
    run = tiny.run({"stem": "dpn", "model.depth": 2, "block.attn": "pre+post"})
    model = build(run)
    tiny.scramble(model)
    images = tiny.images(4, run)
    exact = model(images)
    assert calls == []
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(images)
    assert calls == [torch.bfloat16] * 2
    torch.testing.assert_close(rough.float(), exact, atol=0.1, rtol=0)


@pytest.mark.parametrize("posemb", ["learn", "sincos2d", "rope2d", "none"])
@pytest.mark.parametrize("stem", ["none", "dpn"])
def test_sums_of_blocks_have_the_precision_of_images_with_and_without_positions(posemb, stem):
    run = tiny.run({"model.posemb": posemb, "stem": stem, "model.pool": "gap", "model.depth": 2})
    model = build(run)
    dtypes = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, args, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(tiny.images(2, run))
    assert dtypes == [torch.float32] * 2


# --- the whole ViT ------------------------------------------------------------------------------


def test_the_representation_layer_is_a_tanh_before_the_head():
    run = tiny.run({"model.rep": True})
    model = build(run)
    tiny.scramble(model)
    seen = []
    model.rep.register_forward_hook(lambda _, args, output: seen.append((*args, output)))
    logits = model(tiny.images(2, run))
    ((pooled, rep),) = seen
    torch.testing.assert_close(rep, torch.tanh(pooled @ model.rep.weight.T + model.rep.bias))
    torch.testing.assert_close(logits, rep @ model.head.weight.T + model.head.bias)


def test_sincos_positions_are_their_formula():
    table = sincos2d((3, 5), 16)
    assert table.shape == (1, 15, 16)
    y, x = 2, 4
    omega = 10_000.0 ** -(torch.arange(4) / 3)
    expected = torch.cat([f(p * omega) for p in (x, y) for f in (torch.sin, torch.cos)])
    torch.testing.assert_close(table[0, y * 5 + x], expected)


def test_fixed_positions_are_no_parameter_and_in_no_checkpoint():
    model = build(tiny.run({"model.posemb": "sincos2d"}))
    assert "posemb" not in model.state_dict()
    torch.testing.assert_close(model.posemb, sincos2d((2, 2), 32))


# --- dropout and stochastic depth ---------------------------------------------------------------


def bound(drop, batch=8, step=0, site="here"):
    drop.site = site
    drop.bind(StepKey(Draws(seed=0), batch))
    drop.step.step = step
    return drop.train()


def test_dropout_zeroes_at_its_rate_and_keeps_the_mean():
    x = torch.ones(64, 10, 32, requires_grad=True)
    y = bound(Drop(0.3), batch=64)(x)
    assert y.unique().tolist() == pytest.approx([0, 1 / (1 - round(0.3 * 65536) / 65536)])
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_stochastic_depth_drops_whole_examples():
    x, branch = (torch.full((2000, 3, 4), value, requires_grad=True) for value in (2.0, 1.0))
    y = bound(DropPath(0.25), batch=2000)(x, branch)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(y.detach(), 2 + branch.grad)
    kept = branch.grad.flatten(1)
    assert (kept == kept[:, :1]).all()
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (kept[:, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)


def test_nothing_is_dropped_or_drawn_in_evaluation_or_at_rate_zero():
    x = torch.randn(4, 2, 3)
    assert Drop(0.9).eval()(x) is x  # no Step is bound: a draw would fail
    assert Drop(0.0).train()(x) is x
    run = tiny.run({"model.dropout": 0.5, "model.drop_path": 0.5, "model.depth": 2})
    model = build(run)
    tiny.scramble(model)
    plain = build(tiny.run({"model.depth": 2}))
    plain.load_state_dict(model.state_dict())
    images = tiny.images(3, run)
    assert torch.equal(model.eval()(images), plain.train()(images))


def test_training_with_dropout_needs_a_step():
    run = tiny.run({"model.dropout": 0.5})
    with pytest.raises(AssertionError, match="dropout: bind a Step"):
        build(run).train()(tiny.images(2, run))


@pytest.mark.parametrize(("depth", "rates"), [(1, [0.0]), (4, [0.0, 0.1, 0.2, 0.3])])
def test_stochastic_depth_grows_linearly(depth, rates):
    model = build(tiny.run({"model.depth": depth, "model.drop_path": 0.3}))
    for sublayer in ("attn", "mlp"):
        drops = [getattr(block, sublayer).drop_path for block in model.blocks]
        assert [drop.rate for drop in drops] == pytest.approx(rates)
        assert all(isinstance(drop, DropPath) for drop in drops)


def test_dropout_stands_at_its_four_places():
    model = build(tiny.run({"model.dropout": 0.2, "model.depth": 2}))
    sites = {m.site for m in model.modules() if isinstance(m, Drop) and m.rate}
    places = ("attn.dropout", "mlp.f.dropout", "mlp.dropout")
    assert sites == {"dropout"} | {f"blocks.{i}.{place}" for i in range(2) for place in places}
    assert all(m.rate == 0.2 for m in model.modules() if isinstance(m, Drop) and m.rate)


def masks(changes):
    """{site: mask} of one training forward."""
    rates = {"model.dropout": 0.4, "model.drop_path": 0.4, "model.depth": 3}
    run = tiny.run({**rates, **changes})
    model = build(run).train()
    at, even = StepKey(Draws(run.seed), 8), StepKey(Draws(run.seed), 8)
    at.step = even.step = 3
    model.bind(at)
    seen, dropped, kept = {}, at.dropped, at.kept

    def elements(site, *asked):
        seen[site] = dropped(site, *asked)
        return seen[site]

    def examples(site):
        even.meet(site, 0.5)  # the rate of a block hangs on how many there are
        seen[site] = even.kept(site)
        return kept(site)

    at.dropped, at.kept = elements, examples
    model(tiny.images(8, run))
    return seen


@pytest.mark.whole
@pytest.mark.parametrize("mode", tiny.MODES[1:], ids="-".join)
def test_masks_are_shared_by_all_variants(mode):
    attn, mlp, post = mode
    blocks = {"block.attn": attn, "block.mlp": mlp, "block.post": post}
    baseline = masks({})
    assert len(baseline) == 1 + 3 * 3 + 2 * 2
    for stem in choices.STEMS:
        variant = masks({"stem": stem, **blocks})
        fewer = {site for site in baseline if site.startswith("blocks.2.")}
        assert baseline.keys() - variant.keys() == (fewer if stem == "conv" else set())
        assert variant.keys() <= baseline.keys()
        for site, mask in variant.items():
            assert torch.equal(mask, baseline[site]), site


def test_a_split_batch_gives_the_gradients_of_the_whole():
    run = tiny.run({"model.dropout": 0.3, "model.drop_path": 0.3, "model.depth": 2})
    images = tiny.images(8, run).double()

    def gradients(*parts):
        model = build(run).double().train()
        tiny.scramble(model)
        at = StepKey(Draws(0), 8)
        model.bind(at)
        for at.rows in parts:
            model(images[at.rows]).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    whole = gradients(slice(None))
    split = gradients(slice(0, 2), slice(2, 8))
    torch.testing.assert_close(split, whole, atol=1e-12, rtol=1e-10)


def test_the_specs_sizes_are_big_visions():
    """decode_variant: width, depth, heads."""
    sizes = {
        name: dataclasses.astuple(arch)[:3]
        for name, arch in choices.ARCHS.items()
        if "decode_variant" in arch.source
    }
    small = {"mu": (32, 1, 2), "Ti": (192, 12, 3), "S": (384, 12, 6), "B": (768, 12, 12)}
    assert sizes == {**small, "L": (1024, 24, 16), "H": (1280, 32, 16)}
