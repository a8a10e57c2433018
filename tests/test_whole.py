"""Whole models: timm's and the user's own, beside the ViT in one table."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import wait_for
from pages import blocks, commands
from support.processes import kill, workers
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import ablate
from ablate.planning import compose, expand
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.run.spec import RunSpec
from ablate.running.estimate import shared_weights
from ablate.shared.errors import UserError
from ablate.training import answers
from ablate.training.calibrate import random_split
from ablate.training.model import build
from ablate.training.model.count import describe
from ablate.training.model.export import timm_arguments
from ablate.training.model.whole_model import features
from ablate.training.numerics import kernel
from ablate.training.optim import decay_names
from ablate.training.starting_weights import begin, check_start
from ablate.training.training import Training

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, images, outputs, *, width: int = 8, rate: float = 0.5):
        super().__init__()
        self.stem = nn.Conv2d(images.channels, width, 3, stride=2)
        self.norm = nn.BatchNorm2d(width)
        self.rate = rate
        self.place = nn.Parameter(torch.randn(1, width))
        self.names = nn.Embedding(3, width)
        self.fc = nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, images):
        x = self.norm(self.stem(images)).relu().mean((2, 3)) + self.place + self.names.weight[0]
        x = nn.functional.dropout(self.fc(x), self.rate, self.training)
        return self.head(x)

class Wide(Net):
    def forward(self, images):
        return super().forward(images)[:, :7]

class Looks(Net):
    def forward(self, images):
        assert images.mean().item() < 9
        return super().forward(images)

class Tied(Net):
    def __init__(self, images, outputs):
        super().__init__(images, outputs)
        self.fc.weight = self.head.weight

class Headless(nn.Module):
    def __init__(self, images, outputs):
        super().__init__()
        self.last = nn.LazyLinear(outputs) if False else nn.Linear(images.size ** 2, outputs)

    def forward(self, images):
        return self.last(images.flatten(1))

class NoModule:
    def __init__(self, images, outputs):
        pass

class Encoder(nn.Module):
    def __init__(self, images, outputs):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, outputs)

    def forward(self, images):
        return self.head(self.layers(images[:, 0]).mean(1))

class Rows(nn.Module):
    def __init__(self, images, outputs):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, outputs)

    def forward(self, images):
        return self.head(self.lstm(images[:, 0])[0][:, -1])

class Shown(Net):
    def __init__(self, images, outputs, *, input: str = "x"):
        super().__init__(images, outputs)
"""


@pytest.fixture
def folder(users) -> Path:
    return users({"nets/own.py": SOURCE})


def run(*words: str, seed: int = 0) -> Run:
    tree, _ = compose.resolve_run(["train.batch=8", *words, f"seed={seed}"], Path("runs"))
    return build_run(tree)


def own(name: str, *words: str, seed: int = 0) -> Run:
    return run(f"model=nets.own:{name}", *words, seed=seed)


def told(run: Run, tmp_path: Path) -> dict[str, Any]:
    """What a plan is told of it."""
    question = {"specs": {"it": run.spec.tree}, "calibrate": [], "peaks": [], "initial": True}
    question |= {"cache": str(tmp_path / "cache"), "device": "cpu"}
    return answers.answer_describe(question, lambda done, total: None)["it"]


# --- What it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["arch", "act_folder"])
def test_a_setting_of_a_whole_model_with_the_name_of_a_shipped_key_is_part_of_the_id(folder, key):
    """The shipped model's keys of these names are not."""
    tree = own("Net").spec.tree
    ids = {RunSpec.of({**tree, "model": {**tree["model"], key: value}}).id for value in "ab"}
    assert len(ids) == 2


TIMMS = {
    "test_vit": ["data.size=32", "model.patch_size=8", "model.drop_path_rate=0.1"],
    "test_convnext": ["data.size=32", "model.drop_path_rate=0.1"],
    "test_resnet": ["data.size=32"],
}


@pytest.mark.parametrize("name", TIMMS)
def test_a_model_of_timm_is_timms(name, oracle):
    """Its names, its weights, its outputs, its parameters and products."""
    timm = oracle("timm")
    chosen = run(f"model=timm:{name}", *TIMMS[name])
    ours = build(chosen).eval()
    sizes = {"img_size": 32, "patch_size": 8} if name == "test_vit" else {}
    theirs = timm.create_model(name, num_classes=10, in_chans=1, **sizes).eval()
    theirs.load_state_dict(ours.state_dict())
    images = tiny.images(3, chosen)
    shown = images.permute(0, 3, 1, 2)
    torch.testing.assert_close(ours(images), theirs(shown), rtol=1e-5, atol=1e-6)
    pooled = theirs.forward_head(theirs.forward_features(shown), pre_logits=True)
    torch.testing.assert_close(features(ours, images), pooled, rtol=1e-5, atol=1e-6)
    found, math = describe(chosen), sdpa_kernel(SDPBackend.MATH)
    with math, FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(shown[:1])
    assert found["multiply_adds"] == counter.get_total_flops() // 2
    assert found["parameters"] == sum(p.numel() for p in theirs.parameters())
    if name != "test_resnet":
        assert "drop_prob=0.1" in str(ours)  # the setting has reached it


def test_only_kernels_decay(folder, oracle):
    assert decay_names(build(own("Net"))) == {"stem.weight", "fc.weight", "head.weight"}
    optim = oracle("timm.optim")
    for name in ("test_vit", "test_convnext"):
        model = build(run(f"model=timm:{name}", *TIMMS[name]))
        _, decays = optim.param_groups_weight_decay(model, 0.1)
        theirs = {id(p) for p in decays["params"]}
        names = {n for n, p in model.named_parameters() if id(p) in theirs}
        assert decay_names(model) == names - {"cls_token", "pos_embed"}


def test_the_seed_decides_the_weights_and_equal_constructors_share_them(folder):
    torch.manual_seed(1)
    one = build(own("Net")).state_dict()
    torch.manual_seed(2)
    again, other = build(own("Net", "model.rate=0.1")), build(own("Net", seed=1))
    assert all(torch.equal(one[name], tensor) for name, tensor in again.state_dict().items())
    assert not torch.equal(one["fc.weight"], other.get_parameter("fc.weight"))


def test_a_whole_model_has_no_parts_of_the_shipped_one(folder):
    plain = own("Net")
    tree = plain.spec.tree
    assert not tree.keys() & {"norm", "stem", "block"}
    assert build_run(tree) == plain
    assert own("Looks").id != plain.id
    assert run("model=mu/2").id == run("model.arch=mu/2").id


# --- What does not apply, and what does not work ------------------------------------------------


def test_what_does_not_apply_is_refused_by_name(folder):
    for words, said in {
        "norm=rmsnorm": r"norm: model=nets\.own:Net brings its own; leave it out",
        "block.attn=post": r"block\.attn: model=nets\.own:Net brings its own; leave it out",
        "stem=dpn": r"stem: model=nets\.own:Net brings its own; leave it out",
        "model.arch=mu/2": r"model\.arch: expected a key among width, rate, got 'arch'",
        "model.input=imagenet": r"model\.input: imagenet is the mean of three channels",
        "probe=[scales]": r"probe: scales: looks into the shipped models, not into model=nets",
        "train.micro_batch=auto": r"train\.micro_batch: auto splits a batch as the machine need",
        "optim.name=muon": r"optim\.name: muon moves matrices in blocks, and model=nets\.own:N",
        "recipe=augreg": r"model: expected for this recipe one of Ti/16, .* got 'nets\.own:Net'",
        "model=vit": r"model: expected a size such as S/16, timm:NAME or module:Class, got 'vit'",
        "model=nets.own:Shown": r"model: nets\.own:Shown: a setting can't be called 'input'",
        "model.name=timm:vit": r"model\.name: a whole model is said by model=NAME",
    }.items():
        with pytest.raises(UserError, match=rf"^{said}"):
            run(words) if re.match(r"model(\.name)?=", words) else own("Net", words)


def test_a_timm_that_is_missing_is_told_with_the_remedy(monkeypatch):
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name == "timm":
            raise importlib.metadata.PackageNotFoundError
        return found(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    remedy = r"timm is not installed; pip install -c .* 'timm>=1\.0'"
    with pytest.raises(UserError, match=rf"^model: timm:test_vit: {remedy}"):
        run("model=timm:test_vit")


def test_a_class_that_does_not_work_is_told_when_it_is_planned(folder, tmp_path):
    for name, said in {
        "Wide": r"Wide\.forward: expected logits \(2, 10\) of 2 images, got \(2, 7\) \(.*22",
        "Tied": r"nets\.own:Tied: fc\.weight and head\.weight are one parameter; give each its",
        "NoModule": r"nets\.own:NoModule: is no torch\.nn\.Module",
    }.items():
        with pytest.raises(UserError, match=rf"^model: {said}"):
            told(own(name), tmp_path)


def test_a_class_that_looks_at_values_is_counted_all_the_same(folder, tmp_path):
    looks, plain = told(own("Looks"), tmp_path), told(own("Net"), tmp_path)
    assert looks["multiply_adds"] == plain["multiply_adds"] == 9 * 9 * 8 + 8 * 8 + 8 * 10
    assert looks["initial"] == plain["initial"]


def test_products_within_one_operator_of_torch_are_counted(folder):
    """In evaluation a layer of nn.TransformerEncoder is one, and on a CPU a layer of nn.LSTM."""
    head, tokens, width, hidden = 10, 8, 8, 16
    layer = tokens * (4 * width**2 + 2 * tokens * width + 2 * width * 16)
    assert describe(own("Encoder"))["multiply_adds"] == 2 * layer + width * head
    assert mha.get_fastpath_enabled()
    first, second = (4 * hidden * (inputs + hidden) for inputs in (width, 2 * hidden))
    rows = 2 * tokens * (first + second)  # in both directions
    assert describe(own("Rows"))["multiply_adds"] == rows + 2 * hidden * head


def test_what_timm_refuses_is_told_in_one_line(tmp_path, oracle):
    oracle("timm")
    for words, said in {
        "test_vt": r"model: timm has no model 'test_vt' \(did you mean 'test_vit'\?\)",
        "test_convnext model.drop_path=1": r"model\.drop_path: .*_path_rate'\?\).* test_convnext: ",
        "test_convnext model.act_layer=none": r"model: timm:test_convnext with act_layer=none",
        "test_convnext": r"model: timm:\w+ can't be shown the 8x8x1 images of data=digits: Runt",
    }.items():
        with pytest.raises(UserError, match=rf"^{said}"):
            told(run(*f"model=timm:{words}".split()), tmp_path)


def test_what_timm_is_given_by_the_run_is_refused(oracle):
    oracle("timm")
    for key in ("num_classes", "in_chans", "img_size", "pretrained"):
        with pytest.raises(UserError, match=rf"^model\.{key}: (is|weights) .*; leave it out"):
            run("model=timm:test_vit", f"model.{key}=3")
    with pytest.raises(UserError, match=r"^timm: model=timm:test_vit has its own names"):
        timm_arguments(run("model=timm:test_vit"))


# --- Training -----------------------------------------------------------------------------------


def begun(chosen: Run, steps: int = 0) -> Training:
    torch.manual_seed(0)  # of the images
    split = random_split(chosen.data, 24, torch.device("cpu"))
    training = Training(chosen, split, torch.device("cpu"))
    for _ in range(steps):
        training.step()
    return training


def bits(training: Training) -> dict[str, list[Any]]:
    tensors, _ = training.state()
    return {name: tensor.detach().flatten().tolist() for name, tensor in tensors.items()}


def test_masks_hang_on_seed_and_step_alone_and_a_resumed_run_is_the_straight_one(folder):
    """With a BatchNorm's statistics, dropout and an average of weights, whatever torch's generator
    has given by then, and none of it is moved."""
    words = ("train.ema=0.9", "train.micro_batch=4")
    chosen = own("Net", *words, "optim.lr_mult.stem=0.5")
    straight, fresh = begun(chosen), begun(chosen)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for _ in range(5):
        straight.step()
    assert torch.equal(torch.get_rng_state(), before)
    tensors, state = begun(chosen, 2).state()
    assert "model.norm.running_var" in tensors
    torch.manual_seed(2)
    fresh.load({name: tensor.clone() for name, tensor in tensors.items()}, state)
    for _ in range(3):
        fresh.step()
    assert bits(fresh) == bits(straight)
    still = begun(own("Net", *words, "model.rate=0.0"), 5)
    assert bits(still)["model.fc.weight"] != bits(straight)["model.fc.weight"]  # there were masks


def test_each_step_and_each_micro_batch_has_masks_of_its_own(folder):
    training = begun(own("Net", "train.micro_batch=4"))
    training.model.head.weight.data.zero_()
    seen = []
    training.model.head.register_forward_pre_hook(lambda module, given: seen.append(given[0] == 0))
    for _ in range(2):
        training.step()
    assert len({tuple(mask.flatten().tolist()) for mask in seen}) == 4


def test_bfloat16_and_a_step_of_torchs_own(folder):
    """The second is torch's AdamW, the network written out."""
    assert begun(own("Net", "train.precision=bf16"), 1).bad_step() is None
    words = ("model.rate=0.0", "optim.clip=null", "optim.warmup_epochs=0")
    training = begun(own("Net", *words, "optim.schedule=constant"))
    model, optim = build(training.run), training.run.optim
    images, target = training.inputs()
    parts = ([], [])
    for name, parameter in model.named_parameters():
        parts[name not in {"stem.weight", "fc.weight", "head.weight"}].append(parameter)
    groups = [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}]
    betas = optim.b1, optim.b2
    adamw = torch.optim.AdamW(groups, optim.lr, betas, optim.eps, weight_decay=optim.wd)
    training.task.loss(model(images), target).backward()
    adamw.step()
    training.step()
    for name, parameter in training.model.named_parameters():
        torch.testing.assert_close(parameter, model.get_parameter(name), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("words", "head"), [("model=nets.own:Net", "head."), ("model=timm:test_convnext", "head.fc.")]
)
def test_a_child_takes_all_but_the_head(folder, oracle, words, head):
    oracle("timm")
    child = run(words, "data.size=32", "from.train.steps=1", "from.data.size=32")
    assert child.parent.model == child.model
    check_start(child)
    theirs = build(replace(child.parent, seed=7)).state_dict()
    model, before = build(child), build(child).state_dict()
    begin(model, theirs)
    for name, tensor in model.state_dict().items():
        source = before if name.startswith(head) else theirs
        assert torch.equal(tensor, source[name]), name


def test_what_no_child_and_no_probe_can_take_of_it_is_told(folder):
    with pytest.raises(
        UserError, match=r"^from: Headless has no submodule head, which begins anew"
    ):
        check_start(own("Headless", "from.train.steps=1"))
    with pytest.raises(UserError, match=r"^model: Net has no features\(images\), \(B, C, H, W\)"):
        told(own("Net", "probe=[fewshot]"), folder)


# --- One table ----------------------------------------------------------------------------------


def test_rows_of_a_file_replace_what_base_says_of_the_model(folder):
    (folder / "sweeps").mkdir()
    (folder / "sweeps" / "nets.yaml").write_text(blocks("file")["sweeps/nets.yaml"])
    plan, _ = expand.plan_from_words(["nets"], store=Path("runs"))
    vit, rms, net = (cell.spec.tree for cell in plan.cells)
    norms = vit["norm"]["name"], rms["norm"]["name"]
    assert (vit["model"]["arch"], *norms) == ("mu/4", "layernorm", "rmsnorm")
    assert (net["model"]["name"], net["model"]["drop_path_rate"]) == ("timm:convnext_atto", 0.1)
    assert "norm" not in net


@pytest.mark.parametrize(
    ("condition", "rates"),
    [
        ("{model.arch: mu/4}", [0.5, 0.003, 0.5]),
        ("{model: mu/4}", [0.5, 0.003, 0.5]),
        ("{model: 'nets.own:Net'}", [0.003, 0.5, 0.003]),
        ("{stem: dpn}", [0.5, 0.003, 0.003]),
        ("{norm: layernorm}", [0.5, 0.003, 0.5]),
        ("{block: [vit, normformer]}", [0.5, 0.003, 0.5]),
    ],
)
def test_an_override_matches_no_setting_that_a_whole_model_replaces(folder, condition, rates):
    (folder / "sweeps").mkdir()
    (folder / "sweeps" / "mine.yaml").write_text(
        f"""
base: {{recipe: quick, data: digits, model.arch: mu/4, stem: dpn}}
variants: [{{a: {{}}}}, {{b: {{model: "nets.own:Net"}}}}, {{c: {{model: mu/4, stem: none}}}}]
overrides: [{{if: {condition}, set: {{optim.lr: 0.5}}}}]
"""
    )
    plan = expand.plan_from_words(["mine"], store=folder / "runs")[0]
    assert [cell.spec.tree["optim"]["lr"] for cell in plan.cells] == rates


def test_a_plan_says_how_many_weights_begin_as_the_baselines(folder, tmp_path):
    """By name and by value: equal constructors share all, another width what hangs on no draw."""
    plan, _ = expand.plan_from_words(
        ["model=nets.own:Net", "model.width=8,9", "seeds=1"], store=Path("runs")
    )
    runs = {cell.row: build_run(cell.spec.with_seed(0).tree) for cell in plan.cells}
    told_of = {(row, ""): told(run, tmp_path) for row, run in runs.items()}
    (line,) = shared_weights(plan, told_of)
    every = sum(p.numel() for p in build(runs["width=9"]).parameters())
    assert line.startswith(f"width=9: 0 of {every} weights begin as the baseline's ")
    (line,) = shared_weights(plan, dict.fromkeys(told_of, told_of["width=9", ""]))
    assert line.startswith(f"width=9: {every} of {every} weights")
    vits, _ = expand.plan_from_words(["model=mu/4", "norm=layernorm,rmsnorm"], store=Path("runs"))
    assert shared_weights(vits, {(c.row, c.column): {} for c in vits.cells}) == []


def test_any_kernel_of_attention_that_fits_is_right(folder):
    cpu = torch.device("cpu")
    kernels = [kernel(own("Net", f"train.precision={p}"), cpu) for p in ("bf16", "fp32", "fp64")]
    assert kernels == ["flash or math", "efficient or math", "math"]


@pytest.mark.faults
@pytest.mark.slow
def test_a_convnext_against_a_vit_killed_and_resumed(shell, oracle):
    """The command of the page, smaller: the same table as if nothing had happened."""
    words = next(w for w in commands("docs/extending.md") if "timm:convnext_atto" in " ".join(w))
    words = [word.replace("convnext_atto", "test_convnext") for word in words[:-1]]
    small = [*words, "seeds=1", "train.steps=60", "--as", "nets"]
    plan = shell("plan", *small[1:], "launcher=inline").out
    assert "test_convnext: 0 of 207,010 weights begin as the baseline's of the same name" in plan
    driver = shell.start(*small, "launcher.checkpoint_s=0.1")
    wait_for(lambda: [*shell.folder.glob("runs/runs/*/checkpoint-*")])
    kill([driver.pid, *workers(shell.folder)])
    driver.wait()
    shell(*small, "launcher=inline")
    envs = "".join(path.read_text() for path in shell.folder.glob("runs/runs/*/env.json"))
    assert re.search(r'"from_step": [1-9]', envs)
    assert "timm:test_convnext" in shell("table", "nets", "--format", "tidy").out
    frame = ablate.Store(shell.folder / "runs").sweep("nets").to_pandas()
    assert list(frame["model"]) == ["mu/4", "timm:test_convnext"]
    again = shell("verify", "--rerun", "timm:test_convnext#0", "launcher=inline")
    assert "the same bits" in again.out
