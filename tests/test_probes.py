"""Probes measure what they say, and change nothing of the training that they look at."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from support.trainings import digits, outcome, train_until

from ablate.planning.compose import resolve_run
from ablate.run.build import build_run
from ablate.run.choices import PROBES
from ablate.run.rundir import RunDir
from ablate.shared.errors import UserError
from ablate.training.model import build
from ablate.training.model.sublayers import Attention
from ablate.training.probes import Probes
from ablate.training.probes.attention import AttentionDistance, mean_distance
from ablate.training.probes.gradnorm import GradNorm, steps_to_record
from ablate.training.probes.tokens import TokenNorms

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = list(PROBES)
SHORT = {"train.steps": 24, "eval.every": 1, "stem": "dpn", "model.dropout": 0.1}


def shown(probe, model, images) -> dict[str, np.ndarray]:
    """What it has measured when the model has seen these."""
    hooks = list(probe.hooks())
    with torch.inference_mode():
        for part in images.split(2):
            model(part)
    for hook in hooks:
        hook.remove()
    return probe.arrays(1)


# --- Values by hand -----------------------------------------------------------------------------


def test_gradients_of_ones_have_the_root_of_their_number_as_norm():
    run = tiny.run({"stem": "dpn", "model.depth": 2, "probe": ["gradnorm"]})
    model = build(run)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    probe = GradNorm(run, model, total=1)
    probe.gradients(0)
    arrays = probe.arrays(1)
    squares = dict(zip(arrays["groups"], arrays["norms"][0] ** 2, strict=True))
    width, values = 32, 4 * 4 * 3
    expected = {"embedding": values * width + width, "stem.norms": 2 * values + 2 * width}
    expected |= {"posemb": 4 * width, "cls": width, "norm": 2 * width, "head": 10 * width + 10}
    for block in ("blocks.0", "blocks.1"):  # q, k, v, out, their biases, a LayerNorm; the MLP
        expected[f"{block}.attn"] = 4 * width**2 + 4 * width + 2 * width
        expected[f"{block}.mlp"] = 8 * width**2 + 5 * width + 2 * width
    assert squares == pytest.approx(expected, rel=1e-5)
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert math.sqrt(sum(squares.values())) == pytest.approx(total.item(), rel=1e-5)


def test_which_steps_are_recorded():
    assert steps_to_record(4) == [0, 1, 2, 3]
    assert steps_to_record(35) == [*range(10), 10, 20, 30]
    steps = steps_to_record(93_000)  # a hundred apart, and ten apart in the last thousand
    assert steps[8:14] == [8, 9, 100, 200, 300, 400]
    assert steps[-101:-98] == [91_900, 92_000, 92_010]
    assert len(steps) == len(set(steps)) < 1100


def test_uniform_attention_on_14_by_14_looks_7_28_grid_units_far():
    run = tiny.run({"data.size": 28, "model.arch": "mu/2", "model.depth": 2})
    model = build(run).eval()
    for module in model.modules():
        if isinstance(module, Attention):
            torch.nn.init.zeros_(module.qkv.weight)
            torch.nn.init.zeros_(module.qkv.bias)
    arrays = shown(AttentionDistance(run, model, 1), model, tiny.images(3, run))
    assert arrays["distance"].shape == (2, 2)
    assert arrays["distance"] == pytest.approx(7.2808, abs=5e-5)
    assert arrays["images"] == 3
    assert list(arrays["grid"]) == [14, 14]


def test_attention_of_two_patches_by_hand_without_the_class_token():
    """Scores s / sqrt(2) with itself and 0 with the other, so that it looks away with probability
    1 / (1 + exp(s / sqrt(2)))."""
    layer = Attention(2, heads=1, head_dim=2)
    torch.nn.init.zeros_(layer.qkv.bias)
    layer.qkv.weight.data = torch.eye(2).repeat(3, 1)
    images = [[90, 90], [1, 0], [0, 1]], [[0, 90], [2, 0], [0, 2]]
    x, far = torch.tensor(images, dtype=torch.float32), 3.0
    found = mean_distance(layer, x, torch.tensor([[0.0, far], [far, 0.0]]))
    expected = [[far / (1 + math.exp(s / math.sqrt(2)))] for s in (1, 4)]
    assert found.tolist() == pytest.approx(np.array(expected), rel=1e-6)


def test_tokens_are_as_long_as_what_enters_and_leaves_the_blocks():
    run = tiny.run({"data.size": 8, "model.arch": "mu/4", "model.depth": 1})
    model = build(run).eval()
    with torch.no_grad():
        model.posemb[0, 1] += 100.0  # the place in the first row, second column
    images = tiny.images(3, run)
    norms = shown(TokenNorms(run, model, 1), model, images)["norms"]
    with torch.inference_mode():
        x = model.stem(images) + model.posemb
        behind = model.blocks[0](model.cls(x))[:, 1:]
    for found, tokens in zip(norms, (x, behind), strict=True):
        expected = tokens.square().sum(-1).sqrt().mean(0).reshape(2, 2)
        assert found == pytest.approx(expected.numpy(), rel=1e-5)
    assert np.unravel_index(norms[0].argmax(), (2, 2)) == (0, 1)


def test_scales_are_those_of_the_model_that_is_measured(tmp_path, cache):
    run = digits(**SHORT, **{"train.ema": 0.9}, probe=["scales"])
    train_until(run, tmp_path / "a", cache)
    scales = RunDir(tmp_path / "a").read_probe("scales")
    saved = load_file(tmp_path / "a" / "weights.safetensors")
    norms = ("stem.before", "stem.after", "blocks.0.attn.pre", "blocks.0.mlp.pre", "norm")
    assert set(scales) == {f"{norm}.weight" for norm in norms}
    assert scales["stem.before.weight"].shape == (16,)
    for name, scale in scales.items():
        assert np.array_equal(scale, saved[name].numpy())
        assert scale.std() > 0


# --- The training stays what it is --------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """(folder, result) of one training with all probes on."""
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    return folder, train_until(digits(**SHORT, probe=ALL), folder, cache)


def test_the_same_bits_with_probes_and_without(whole, tmp_path, cache, monkeypatch):
    folder, result = whole

    def refused(*_, **__):
        raise AssertionError("a hook where no probe is on")

    for name in ("register_forward_hook", "register_forward_pre_hook"):
        monkeypatch.setattr(torch.nn.Module, name, refused)
    off = digits(**SHORT)
    plain = train_until(off, tmp_path, cache)
    assert not list(tmp_path.glob("probe-*"))
    assert plain.pop("probes_sha256") == {}
    with_probes = {key: value for key, value in result.items() if key != "probes_sha256"}
    assert outcome(tmp_path, plain) == outcome(folder, with_probes)
    weights = "weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (folder / weights).read_bytes()
    assert Probes(off, build(off), 24).checkpoint_tensors() == {}


def test_a_resumed_run_ends_with_the_same_files(whole, tmp_path, cache):
    folder, result = whole
    run = digits(**SHORT, probe=ALL)
    for stop_at in (5, 9):  # in the first steps, and behind them
        assert train_until(run, tmp_path, cache, stop_at) is None
    assert not list(tmp_path.glob("probe-*"))
    again = train_until(run, tmp_path, cache)
    assert again["probes_sha256"] == result["probes_sha256"]
    assert set(again["probes_sha256"]) == set(ALL)
    for name in ALL:
        one, other = (RunDir(path).probe(name).read_bytes() for path in (folder, tmp_path))
        assert one == other, name


def test_norms_are_taken_before_clipping(tmp_path, cache):
    norms = []
    for clip in (None, 1e-4):
        run = digits(**{"train.steps": 1, "optim.clip": clip}, probe=["gradnorm"])
        train_until(run, tmp_path / str(clip), cache)
        norms.append(RunDir(tmp_path / str(clip)).read_probe("gradnorm")["norms"])
    assert np.array_equal(*norms)
    assert norms[0].max() > 1e-2


def test_a_run_that_diverges_keeps_its_gradients(tmp_path, cache):
    settings = {"train.steps": 60, "optim.lr": 1e30, "optim.warmup_epochs": 0, "optim.clip": None}
    result = train_until(digits(**settings, probe=ALL), tmp_path, cache)
    assert result["status"] == "diverged"
    assert set(result["probes_sha256"]) == {"gradnorm"}
    arrays = RunDir(tmp_path).read_probe("gradnorm")
    assert arrays["steps"][-1] <= result["step"]
    assert np.isfinite(arrays["norms"][0]).all()


# --- What a run with a probe is -----------------------------------------------------------------


def test_runs_without_probes_keep_their_ids_and_those_with_are_others():
    run, every = tiny.run(), tiny.run({"probe": ALL})
    bare = {key: value for key, value in run.spec.tree.items() if key != "probe"}
    assert build_run(bare).id == run.id == tiny.run({"probe": []}).id
    ids = {tiny.run({"probe": names}).id for names in (["gradnorm"], ["scales"])}
    assert len(ids | {run.id, every.id}) == 4
    one, other = (tiny.run({"probe": names}) for names in (ALL, ALL[::-1]))
    assert one.id == other.id
    assert build_run(json.loads(json.dumps(every.spec.tree))) == every


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("probe=gradnorm", r"probe: expected a list such as \[gradnorm,scales\], got 'gradnorm'"),
        ("probe=[gradnorms]", r"did you mean 'gradnorm'\?"),
    ],
)
def test_words_of_the_command_line(word, line):
    assert resolve_run(["probe=[scales,gradnorm]"], Path("store"))[0]["probe"] == [
        "gradnorm",
        "scales",
    ]
    with pytest.raises(UserError, match=line):
        resolve_run([word], Path("store"))


def test_a_model_without_attention_is_refused_that_probe_alone():
    mlp = {"model.arch": "mlp/2x20", "model.head_dim": None, "norm": "identity"}
    with pytest.raises(UserError, match=r"probe: attention: model\.arch=mlp/2x20 has none"):
        tiny.run({**mlp, "probe": ["attention"]})
    run = tiny.run({**mlp, "probe": ["gradnorm"]})
    probe = GradNorm(run, build(run), total=1)
    probe.gradients(0)  # without gradients: zeros
    assert probe.arrays(1)["norms"].tolist() == [[0.0] * len(probe.groups)]
    assert probe.groups == ["layers.0.0", "layers.1.0", "head"]


def test_torn_files_are_none(tmp_path):
    folder = RunDir(tmp_path)
    assert folder.read_probe("gradnorm") is None
    folder.probe("gradnorm").write_bytes(b"PK\x03\x04 torn")
    assert folder.read_probe("gradnorm") is None
