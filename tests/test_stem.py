"""Stems: their equations (REFERENCE C.3, C.4), what folds into what, others' implementations."""

import itertools
from functools import partial

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny import close
from torch import nn

from ablate.planning.compose import resolve_run
from ablate.run import choices
from ablate.run.build import build_run
from ablate.run.rundir import RunDir
from ablate.shared.errors import UserError
from ablate.training import loop
from ablate.training.model import build
from ablate.training.model import stem as stems
from ablate.training.model.count import describe
from ablate.training.model.stem import ConvStem, HierarchicalMLP, Patches, PostNorm, stages
from ablate.training.model.whiten import RIDGE, WhitenNormStem, WhitenStem, moments, whitening

WIDTH, EPS = 32, 1e-6
PATCHES = Patches(size=8, patch=4, channels=3)
K = PATCHES.values


def double(stem, seed=0):
    stem = stem.double()
    tiny.scramble(stem, seed)
    return stem


def images(batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 8, 8, 3, dtype=torch.float64, generator=generator)


def normed(x, eps=EPS):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + eps).sqrt()


def affine(norm, x):
    return norm.weight * x + norm.bias


def one_channel(x, norm):
    return affine(norm, (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt())


def rms(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


# --- Equations ----------------------------------------------------------------------------------

STEMS = {
    "Plain": lambda s, p: s.dense(p),
    "PreNorm": lambda s, p: s.dense(affine(s.before, normed(p))),
    "PostNorm": lambda s, p: affine(s.after, normed(s.dense(p))),
    "DualPatchNorm": lambda s, p: affine(s.after, normed(s.dense(affine(s.before, normed(p))))),
    "PostPosembNorm": lambda s, p: s.dense(p),
    "OnlyLearnable": lambda s, p: affine(s.after, s.dense(affine(s.before, p))),
    "NoLearnable": lambda s, p: normed(s.dense(normed(p))),
    "DualRMSNorm": lambda s, p: rms(s.dense(rms(p, s.before.weight)), s.after.weight),
    "DualBatchNorm": lambda s, p: one_channel(s.dense(one_channel(p, s.before)), s.after),
    "PatchNorm": lambda s, p: s.dense(normed(p)),
}


@pytest.mark.parametrize("name", STEMS)
def test_a_stem_is_its_equation(name):
    built = double(getattr(stems, name)(PATCHES, WIDTH))
    close(built(images()), STEMS[name](built, PATCHES.cut(images())))


def test_image_ln_standardises_an_image_before_it_is_cut():
    stem = double(stems.ImageNorm(PATCHES, WIDTH))
    x = images()
    whole = normed(x.flatten(1)).view(x.shape)
    close(stem(x), stem.dense(PATCHES.cut(whole)))
    close(stem(3 * x + 2), stem(x), 1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_without_a_bias_post_ignores_the_scale_of_a_patch(bias):
    stem, x = double(PostNorm(PATCHES, WIDTH, eps=1e-14, bias=bias)), images()
    assert (stem.dense.bias is not None) is bias
    assert torch.allclose(stem(3 * x), stem(x), atol=1e-9) is not bias
    assert not torch.allclose(stem(x + 1), stem(x), atol=1e-2)


@pytest.mark.parametrize(
    "name", [name for name in choices.STEMS if name not in ("vitbn", "conv", "hmlp", "image_ln")]
)
def test_a_stem_mixes_no_patches(name):
    stem = tiny.built(tiny.run({"stem": name})).stem.double()
    x = images()
    other = x.clone()
    other[:, :4, :4] += torch.randn(4, 4, 3, dtype=torch.float64)
    same = (stem(x) == stem(other)).all(-1).all(0)
    assert same.tolist() == [False, True, True, True]


# --- Norms behind the positions -----------------------------------------------------------------


def entering(model, x):
    """What enters the first block."""
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(x)
    return seen[0]


@pytest.mark.parametrize("cls", ["patches", "include_cls"])
def test_post_posemb_norms_the_patches_with_their_positions(cls):
    run = tiny.run({"stem": "post_posemb", "stem.cls": cls})
    model = tiny.built(run)
    tiny.scramble(model)
    norm = model.stem.after_cls if cls == "include_cls" else model.stem.after_posemb
    nn.init.ones_(norm.weight)
    nn.init.zeros_(norm.bias)
    x = entering(model, tiny.images(2, run))
    tokens = model.stem(tiny.images(2, run)) + model.posemb
    token = model.cls.token.expand(2, -1, -1)
    if cls == "include_cls":
        close(x, normed(torch.cat([token, tokens], 1)), 1e-5)
    else:
        close(x, torch.cat([token, normed(tokens)], 1), 1e-5)


def test_post_posemb_with_the_class_token_is_timms_pre_norm(oracle):
    run = tiny.run({"stem": "post_posemb", "stem.cls": "include_cls", "model.norm_eps": 1e-6})
    model = tiny.built(run).double()
    tiny.scramble(model)
    theirs = oracle("timm.models.vision_transformer").VisionTransformer(
        **{"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 0, "num_heads": 2},
        **{"no_embed_class": True, "pre_norm": True},
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    with torch.no_grad():
        kernel = model.stem.dense.weight.unflatten(1, (4, 4, 3)).permute(0, 3, 1, 2)
        theirs.double().patch_embed.proj.weight.copy_(kernel)
        if theirs.patch_embed.proj.bias is not None:
            theirs.patch_embed.proj.bias.copy_(model.stem.dense.bias)
        else:
            model.stem.dense.bias.zero_()
        theirs.pos_embed.copy_(model.posemb)
        theirs.cls_token.copy_(model.cls.token)
    theirs.norm_pre.load_state_dict(model.stem.after_cls.state_dict())
    expected = theirs.norm_pre(theirs._pos_embed(theirs.patch_embed(images().permute(0, 3, 1, 2))))
    close(entering(model, images()), expected)


# --- Convolutions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "patch", "chain"),
    [  # REFERENCE C.4
        (192, 16, [(24, 2), (48, 2), (96, 2), (192, 2)]),
        (384, 16, [(48, 2), (96, 2), (192, 2), (384, 2)]),
        (768, 16, [(64, 2), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]),
        (1024, 16, [(64, 2), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]),
        (384, 32, [(48, 2), (96, 2), (192, 2), (384, 2), (384, 2)]),
        (768, 32, [(64, 2), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 2)]),
        (384, 4, [(192, 2), (384, 2)]),
        (768, 4, [(256, 2), (256, 1), (512, 2)]),
    ],
)
def test_the_channels_of_the_conv_stem_are_those_of_the_reference(width, patch, chain):
    assert stages(width, patch) == chain


@pytest.mark.parametrize("arch", ["Ti/16", "S/16", "B/16", "S/32"])
def test_the_conv_stem_reaches_the_grid_with_one_block_fewer(arch):
    run = tiny.run({"stem": "conv", "model.arch": arch, "data.size": 64})
    model = build(run, device="meta")
    patch = int(arch[-2:])
    tokens = model.stem(torch.empty(2, 64, 64, 3, device="meta"))
    assert tokens.shape == (2, (64 // patch) ** 2, run.model.width)
    assert len(model.blocks) == 11


def test_the_conv_stem_is_torchvisions(oracle):
    tv = oracle("torchvision.models.vision_transformer")
    configs = [tv.ConvStemConfig(out_channels=c, kernel_size=3, stride=2) for c in (4, 8, 16, 32)]
    sizes = {"image_size": 32, "patch_size": 16, "num_layers": 1, "num_heads": 2}
    theirs = tv.VisionTransformer(
        **sizes, hidden_dim=32, mlp_dim=64, conv_stem_configs=configs
    ).double()
    stem = ConvStem(Patches(size=32, patch=16, channels=3), 32).double()
    tiny.scramble(stem)
    with torch.no_grad():
        for i, (conv, norm) in enumerate(zip(stem.convs, stem.norms, strict=True)):
            block = getattr(theirs.conv_proj, f"conv_bn_relu_{i}")
            block[0].weight.copy_(conv.weight)
            block[1].weight.copy_(norm.weight)
            block[1].bias.copy_(norm.bias)
        last = theirs.conv_proj.conv_last
        last.weight.copy_(stem.dense.weight[:, :, None, None])
        last.bias.copy_(stem.dense.bias)
    x = torch.randn(3, 32, 32, 3, dtype=torch.float64)
    for train in (True, True, False):  # the running statistics are those of two batches
        stem.train(train)
        theirs.train(train)
        ours, expected = stem(x), theirs._process_input(x.permute(0, 3, 1, 2))
        close(ours, expected, 1e-9)
        x = x * 1.5 + 0.1
    block = theirs.conv_proj.conv_bn_relu_3[1]
    close(stem.norms[3].mean, block.running_mean, 1e-9)
    close(stem.norms[3].var, block.running_var, 1e-9)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.patch": 1}, r"stem: conv .* can't reach patches of 1: .* 2, 4, 8, 16 or 32"),
        ({"model.patch": 7, "data.size": 28}, "stem: conv .* patches of 7"),
        ({"model.width": 20}, "stem: .* multiple of 8, got 20"),
        ({"model.depth": 1}, "model.depth: 1 less the 1 that the stem saves leaves 0"),
        ({"model.depth": 3, "model.cls": "late", "model.cls_at": 2}, "model.depth: 3 less"),
        ({"stem": "hmlp", "model.patch": 2}, r"^model\.patch: stem=hmlp .* got 2;"),
        ({"stem": "hmlp", "model.width": 18}, r"^model\.width: stem=hmlp .* got 18;"),
    ],
)
def test_an_impossible_stem_says_what_to_change(changes, told):
    with pytest.raises(UserError, match=told):
        describe(tiny.run({"stem": "conv", "model.depth": 2, **changes}))


# --- The hierarchical MLP -----------------------------------------------------------------------


@pytest.mark.parametrize(("patch", "first"), [(16, 4), (8, 2), (4, 1), (12, 3)])
def test_the_hmlp_stem_is_three_convolutions_whose_squares_do_not_overlap(patch, first):
    """As the paper draws it, by torch's convolutions and batch norms: outputs, gradients, running
    statistics."""
    stem = double(HierarchicalMLP(Patches(size=2 * patch, patch=patch, channels=3), WIDTH))
    quarter = WIDTH // 4
    convs, norms = [], []
    for layer, (inputs, outputs, side) in zip(
        stem.layers, [(3, quarter, first), (quarter, quarter, 2), (quarter, WIDTH, 2)], strict=True
    ):
        convs.append(nn.Conv2d(inputs, outputs, side, side).double())
        norms.append(nn.BatchNorm2d(outputs).double())
        kernel = layer.weight.detach().unflatten(1, (side, side, inputs)).permute(0, 3, 1, 2)
        convs[-1].load_state_dict({"weight": kernel, "bias": layer.bias})
        ours = stem.norms[len(norms) - 1]
        norms[-1].load_state_dict({"weight": ours.weight, "bias": ours.bias}, strict=False)
    theirs = nn.Sequential(
        *(convs[0], norms[0], nn.GELU(), convs[1], norms[1], nn.GELU(), convs[2], norms[2])
    )
    x = torch.randn(5, 2 * patch, 2 * patch, 3, dtype=torch.float64)
    for train in (True, True, False):  # the running statistics are those of two batches
        stem.train(train)
        theirs.train(train)
        x = (x * 1.5 + 0.1).detach().requires_grad_()
        ours = stem(x)
        expected = theirs(x.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        close(ours, expected)
        weight = torch.randn_like(ours)
        (mine,) = torch.autograd.grad((ours * weight).sum(), x)
        (others,) = torch.autograd.grad((expected * weight).sum(), x)
        close(mine, others, 1e-9)
    for ours, norm in zip(stem.norms, norms, strict=True):
        close(ours.mean, norm.running_mean)
        close(ours.var, norm.running_var)


def test_the_hmlp_stem_mixes_no_patches():
    stem = double(HierarchicalMLP(PATCHES, WIDTH)).eval()
    x = images()
    other = x.clone()
    other[:, :4, :4] += torch.randn(4, 4, 3, dtype=torch.float64)
    same = (stem(x) == stem(other)).all(-1).all(0)
    assert same.tolist() == [False, True, True, True]


def test_the_hmlp_stem_starts_as_torchs_convolutions():
    stem = build(tiny.run({"stem": "hmlp", "model.arch": "S/16", "data.size": 32})).stem
    for layer in stem.layers:
        limit = layer.in_features**-0.5
        assert 0.95 * limit < layer.weight.abs().max() <= limit
        assert 0.8 * limit < layer.bias.abs().max() <= limit


# --- Whitening ----------------------------------------------------------------------------------


def correlated(batch=400):
    """Images whose neighbouring pixels are alike."""
    x = images(batch, seed=3)
    return (x + x.roll(1, 1) + x.roll(1, 2) + 0.5).flatten(1).cumsum(1).view(x.shape) / 8


def test_moments_are_those_of_all_patches():
    x = correlated()
    mean, covariance = moments(x.split(150), PATCHES)
    rows = PATCHES.cut(x).flatten(0, 1).numpy()
    np.testing.assert_allclose(mean, rows.mean(0), atol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(rows.T, bias=True), atol=1e-9)


def fitted(kind, x, stem=WhitenStem):
    built = double(stem(PATCHES, WIDTH, kind=kind))
    (built.before if stem is WhitenStem else built.before[0]).fit([x])
    return built


@pytest.mark.parametrize("kind", ["zca", "pca"])
def test_whitened_patches_have_unit_covariance(kind, monkeypatch):
    monkeypatch.setattr("ablate.training.model.whiten.RIDGE", 0)
    x = correlated()
    rows = fitted(kind, x).before(PATCHES.cut(x)).flatten(0, 1)
    close(rows.mean(0), torch.zeros(K).double(), 1e-6)
    close(rows.T @ rows / len(rows), torch.eye(K).double(), 1e-6)


def test_pca_is_sklearns(monkeypatch):
    PCA = pytest.importorskip("sklearn.decomposition").PCA
    monkeypatch.setattr("ablate.training.model.whiten.RIDGE", 0)
    x = correlated()
    rows = PATCHES.cut(x).flatten(0, 1)
    theirs = PCA(whiten=True, svd_solver="full").fit_transform(rows.numpy())
    ours = fitted("pca", x).before(rows[None])[0].numpy()
    ours *= np.sqrt((len(rows) - 1) / len(rows))  # sklearn divides by n - 1
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours * signs, theirs, atol=1e-6)


def test_zca_is_the_symmetric_one_and_pca_is_its_rotation():
    _, covariance = moments([correlated()], PATCHES)
    zca, pca = whitening(covariance, "zca"), whitening(covariance, "pca")
    close(zca, zca.T, 1e-9)
    close(zca.T @ zca, pca.T @ pca, 1e-8)
    assert not torch.allclose(zca, pca)


def test_a_pixel_that_never_varies_stays_finite():
    x = correlated()
    x[:, ::4, ::4] = 0.25
    stem = fitted("zca", x)
    tokens = stem(x)
    assert tokens.isfinite().all()
    values = torch.linalg.eigvalsh(moments([x], PATCHES)[1])
    assert torch.linalg.matrix_norm(stem.before.matrix, 2) <= (RIDGE * values.mean()) ** -0.5 * 1.01


def test_whiten_ln_norms_what_is_decorrelated():
    x = correlated()
    stem = fitted("zca", x, WhitenNormStem)
    whiten, norm = stem.before
    close(stem(x), stem.dense(normed(whiten(PATCHES.cut(x))) * norm.weight + norm.bias))


def test_whitening_travels_in_the_checkpoint_and_is_nan_until_fitted():
    run = tiny.run({"stem": "whiten"})
    model, other = tiny.built(run), build(run)
    tiny.scramble(model)
    assert not other(tiny.images(2, run)).isfinite().any()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tiny.images(2, run)), model(tiny.images(2, run)))


def test_what_was_measured_is_kept_and_read_again(tmp_path):
    run, memo = tiny.run({"stem": "whiten"}), tmp_path / "cache" / "fingerprint"
    batches = [tiny.images(64, run)]
    one, other, third = build(run), build(run), build(tiny.run({"stem": "whiten_ln"}))
    one.fit(batches, memo)
    (path,) = memo.parent.iterdir()
    assert path.name == "fingerprint-moments-4.safetensors"
    assert load_file(path)["covariance"].dtype == torch.float64
    other.fit([], memo)  # reads nothing
    third.fit([], memo)
    assert torch.equal(one.stem.before.matrix, other.stem.before.matrix)
    assert torch.equal(one.stem.before.matrix, third.stem.before[0].matrix)
    whole = path.read_bytes()
    for harmed in (b"torn", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(harmed)
        other.fit(batches, memo)
        assert torch.equal(one.stem.before.matrix, other.stem.before.matrix)
        assert path.read_bytes() == whole


def test_a_run_whitens_alike_whichever_run_measured_first(tmp_path):
    """Sums of other batches differ in their last bits, of which the map of grey images in three
    channels makes much more."""

    def matrix(cache: str, batch: int) -> torch.Tensor:
        words = ["data=digits", "data.channels=3", "model.input=imagenet", "stem=whiten"]
        words += ["train.steps=1", f"eval.batch={batch}"]
        run = build_run(resolve_run(words, tmp_path)[0])
        rundir = RunDir(tmp_path / f"{cache}-{batch}")
        rundir.create(run.spec.tree)
        rest = (lambda: False, lambda **notes: None, print)
        machine = loop.Machine(torch.device("cpu"), tmp_path / cache, 1e9, *rest)
        loop.train(run, rundir, machine)
        return load_file(rundir.weights)["stem.before.matrix"]

    first = matrix("shared", 500)
    assert torch.equal(alone := matrix("alone", 7), matrix("shared", 7))
    assert not torch.equal(alone, first)


def test_a_model_without_whitening_reads_no_images():
    build(tiny.run()).fit(itertools.repeat(None))


# --- Counts -------------------------------------------------------------------------------------


def test_a_stem_has_as_many_parameters_as_its_equation():
    def extra(stem):
        counts = [describe(tiny.run({"stem": s, "model.depth": 2})) for s in ("none", stem)]
        return counts[1]["parameters"] - counts[0]["parameters"]

    block = 12 * WIDTH**2 + 13 * WIDTH
    conv = 9 * (3 * 16 + 16 * 32) + 2 * (16 + 32) + 32 * WIDTH - K * WIDTH
    hmlp = (3 + 1 + 4 * 8 + 1) * 8 + 2 * (8 + 8 + WIDTH) + 4 * 8 * WIDTH - K * WIDTH
    both = 2 * K + 2 * WIDTH
    expected = {
        **{"none": 0, "dpn": both, "pre": 2 * K, "post": 2 * WIDTH, "post_posemb": 2 * WIDTH},
        **{"only_learnable": both, "no_learnable": 0, "rmsnorm": K + WIDTH, "vitbn": 2 * 2},
        **{
            "conv": conv - block,
            "hmlp": hmlp,
            "whiten": 0,
            "whiten_ln": 2 * K,
            "image_ln": 0,
            "patch_ln": 0,
        },
    }
    assert {stem: extra(stem) for stem in choices.STEMS} == expected


@pytest.mark.parametrize("stem", [s for s in choices.STEMS if "eps" in choices.STEMS[s].params])
def test_the_norms_of_a_stem_take_the_hosts_eps(stem):
    run = tiny.run({"stem": stem, "model.norm_eps": 1e-3, "model.depth": 2})
    assert run.stem.settings["eps"] == 1e-3
    assert {m.eps for m in build(run).stem.modules() if hasattr(m, "eps")} == {1e-3}
    given = tiny.run({"stem": stem, "stem.eps": 1e-2, "model.norm_eps": 1e-3})
    assert given.stem.settings["eps"] == 1e-2
