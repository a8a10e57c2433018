"""Runs that start from runs: their ids, their order, their weights, and what a lost parent does."""

import contextlib
import dataclasses
import json
import random
import re
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import tiny
import torch
from conftest import Shell, contents, records, wait_for
from safetensors import safe_open
from safetensors.torch import load_file
from support.processes import kill, workers

import ablate
from ablate.analysis import english
from ablate.analysis.captions import parent_words
from ablate.planning.design import ONE_PARENT
from ablate.planning.expand import plan_from_words as make_plan
from ablate.run.build import build_run
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.shared.errors import UserError
from ablate.store.store import Store
from ablate.training.model import build
from ablate.training.model.vit import resize
from ablate.training.starting_weights import begin
from ablate.training.task import make_task

FROM = ("from.train.steps=30", "train.steps=20")
SWEEP = ("sweep", "stem=none,dpn", *FROM, "seeds=2", "--as", "tuned", "launcher=inline")
WEIGHTS = ("optim.wd=0.05,0.5", "train.steps=20", "seeds=[1]", "launcher=inline")


@pytest.fixture
def planned(here):
    """`planned(words)`: the plan of a folder of one's own."""
    return lambda *words, **options: make_plan(words, store=here / "runs", **options)[0]


def ids(plan) -> set[str]:
    return {run.id for run in plan.runs()}


def child(plan):
    return next(run for run in plan.runs() if not run.above).run()


# --- Ids and plans ------------------------------------------------------------------------------


def test_a_run_s_id_holds_its_parent_s_and_the_parent_is_a_run_like_any_other(planned):
    plan = planned("stem=none,dpn", *FROM, "seeds=2")
    runs = {run.label: run for run in plan.runs()}
    assert all(run.run().id == run.id for run in runs.values())  # as run.json will have it
    alone = planned("stem=none,dpn", "train.steps=30", "seeds=2")
    assert {runs[f"{run.label}.from"].id for run in alone.runs()} == ids(alone)
    assert not ids(planned("stem=none,dpn", "from.train.steps=31", FROM[1], "seeds=2")) & ids(plan)


def test_parents_come_before_their_children_and_once(planned):
    plan = planned("optim.lr=0.001,0.003", "from.from.train.steps=5", *FROM, "seeds=2")
    order = [run.id for run in plan.runs()]
    assert len(order) == len(set(order)) == 8  # 2 rows share 2 parents, and those 2 their own
    for run in plan.runs():
        if (parent := run.parent()) is not None:
            assert order.index(parent.id) < order.index(run.id)
            assert parent.seed == run.seed
    assert [run.label for run in plan.runs()][:2] == ["lr=0.001#0.from.from", "lr=0.001#0.from"]


def test_one_parent_is_that_of_its_seed(planned):
    plan = planned("stem=none,dpn", *FROM, "from.seed=1", "seeds=3")
    free = planned("stem=none,dpn", *FROM, "seeds=3")
    assert Counter(run.above for run in plan.runs()) == {0: 6, 1: 2}
    assert all(run.run().id == run.id for run in plan.runs())
    one, every = ({run.label: run.id for run in p.runs()} for p in (plan, free))
    assert one["none#1.from"] == every["none#1.from"]
    assert one["none#1"] == every["none#1"]  # it would have started from there anyway
    assert one["none#0"] != every["none#0"]
    assert plan.conditions == (ONE_PARENT,)
    assert not free.conditions


def test_a_child_has_its_parent_s_model_and_a_recipe_of_its_own(planned):
    words = ("model.depth=1,2", "from.model.dropout=0.3", "optim.lr=0.5", "from.optim.lr=0.25")
    plan = planned(*words, "from.block=normformer", "seeds=1")
    for run in (run.run() for run in plan.runs() if not run.above):
        assert run.model.depth == run.parent.model.depth
        assert run.block == run.parent.block
        assert run.block.name == "normformer"
        assert (run.model.dropout, run.parent.model.dropout) == (0.0, 0.3)
        assert (run.optim.lr, run.parent.optim.lr) == (0.5, 0.25)


def test_where_a_parent_s_data_lies_is_no_part_of_a_sweep_s_name(planned, here):
    (here / "d").mkdir()
    for split in ("train", "test"):
        (here / "d" / f"{split}.parquet").write_text(split)
    words = ("stem=none,dpn", "from.data=mnist", "model.arch=mu/4", "data=mnist")
    plan = planned(*words, f"data.path={here}/d", f"from.data.path={here}/d")
    assert plan.name == "stem-none-dpn"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("from.train.stps=3",), "from.train.stps: "),
        (("from.nosuch=3",), "from.nosuch: "),
        (("from.train.steps=0",), "from.train.steps: "),
        (("from.weights=none.safetensors",), "from.weights: none.safetensors: no such file"),
        (("from.weights=a", "from.recipe=quick"), "from.recipe: "),
        (("from.weights=a", "model.head_bias=-6.9"), "model.head_bias: -6.9 "),
        (("parent.seed=1",), "parent.seed: no such key"),
        (
            ("from.train.steps=3", "model.depth=1", "from.model.depth=2"),
            "model.depth is 1, but from.model.depth is 2: a run has the model",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(planned, words, said):
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        planned("stem=none,dpn", *words)


DEEPER = "model.depth is 1, but from.model.depth is 2"


@pytest.mark.parametrize(
    ("base", "above", "scale", "said"),
    [
        ("model.depth: 1", "model.depth: 2", "", DEEPER),
        ("stem: dpn", "norm: rmsnorm, stem: none", "", "stem is 'dpn', but from.stem is 'none'"),
        (
            "train.steps: 1",
            "norm: rmsnorm, from: {norm: layernorm}",
            "",
            "from.norm is 'rmsnorm', but from.from.norm is 'layernorm'",
        ),
        ("model.depth: 1", "model.depth: 1, train.steps: 3", "", None),
        ("model.dropout: 0.1", "model.dropout: 0.2", "", None),  # each run's own
        ("model.depth: 1", "train.steps: 3", "from: {model.depth: 2}", None),  # over it
        (
            "train.steps: 1",
            "train.steps: 3",
            "base: {model.depth: 1}, from: {model.depth: 2}",
            f"scales.s: {DEEPER}",
        ),
    ],
)
def test_base_and_from_of_a_file_give_a_key_of_the_model_one_value(
    planned, base, above, scale, said
):
    text = f"base: {{{base}}}\nfrom: {{{above}}}\nvariants: [a: {{}}, b: {{optim.lr: 0.1}}]\n"
    Path("mine.yaml").write_text(text + f"scales: {{s: {{{scale}}}}}\n" * bool(scale))
    refused = pytest.raises(UserError, match="^mine.yaml: .*" + re.escape(said or ""))
    with refused if said else contextlib.nullcontext():
        planned("mine.yaml", scale="s" if scale else None)


def test_a_sweep_file_says_it_and_a_scale_says_it_over(planned):
    variants = "variants: [{a: {}}, {b: {stem: dpn}}]\n"
    Path("mine.yaml").write_text(
        "base: {train.steps: 3}\n"
        "from: {train.steps: 4, optim.lr: 0.1, from: {train.steps: 5}}\n"
        f"{variants}scales: {{small: {{from: {{train.steps: 2}}}}}}\n"
    )
    for scale, steps in ((None, 4), ("small", 2)):
        parent = child(planned("mine", scale=scale)).parent
        assert (parent.train.steps, parent.optim.lr) == (steps, 0.1)
        assert parent.parent.train.steps == 5
    Path("mine.yaml").write_text("from: {nosuch: 1}\n" + variants)
    with pytest.raises(UserError, match=r"mine\.yaml: from: from\.nosuch: "):
        planned("mine")


# --- Weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(7, 14), (14, 7), (4, 9), (3, 3), (1, 5)])
def test_positions_are_resized_as_scipy_does(old, new):
    table = torch.randn(1, old * old, 6, generator=torch.Generator().manual_seed(1)).double()
    grid = table.reshape(old, old, 6).numpy()
    expected = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
    assert np.abs(resize(table, new * new).reshape(new, new, 6).numpy() - expected).max() < 1e-6


@pytest.mark.parametrize(
    "variant", [{}, {"model.rep": True}, {"norm": "batchnorm"}, {"stem": "dpn"}]
)
def test_all_but_the_head_is_taken_over(variant):
    run = tiny.run({"model.head_bias": -6.9, **variant})
    first, second = build(run), build(dataclasses.replace(run, seed=5))
    for tensor in first.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.5)
    begin(second, first.state_dict())
    for name, tensor in second.state_dict().items():
        if name.startswith("head."):
            assert not tensor.any()
        else:
            assert torch.equal(tensor, first.state_dict()[name])


@pytest.mark.parametrize("classes", [1000, 102])
def test_the_first_loss_of_a_sigmoid_head_is_n_ln_2(classes):
    """big_vision's transfer.py as executed: 693.147 at 1000 classes, 70.7 at 102."""
    parent = tiny.run({"model.head_bias": -6.9, "train.loss": "sigmoid"})
    run = dataclasses.replace(parent, data=dataclasses.replace(parent.data, classes=classes))
    model = build(run)
    begin(model, build(parent).state_dict())
    images, labels = torch.rand(4, 8, 8, 3), torch.arange(4)
    loss = make_task(run).loss(model(images), labels)
    assert loss.item() == pytest.approx({1000: 693.147, 102: 70.701}[classes], abs=1e-3)


def test_other_names_and_shapes_are_refused_by_name_and_change_nothing():
    model = build(tiny.run({}))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = dict(build(tiny.run({})).state_dict())
    wrong = {
        "blocks.0.attn.pre.weight": {k: v for k, v in whole.items() if "attn.pre.weight" not in k},
        "extra.weight": whole | {"extra.weight": torch.zeros(1)},
        "norm.weight": whole | {"norm.weight": torch.zeros(3)},
    }
    for name, tensors in wrong.items():
        with pytest.raises(UserError, match=name.replace(".", r"\.")):
            begin(model, tensors)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# --- Sweeps -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("parents"))
    shell(*SWEEP)
    return shell


@pytest.fixture
def copy(trained, shell):
    shutil.copytree(trained.folder / "runs", shell.folder / "runs")
    return shell


def folder(shell, label: str, sweep: str = "tuned") -> RunDir:
    """Of a run of a sweep."""
    store = Store(shell.folder / "runs")
    plan = store.read_plan(sweep)
    return store.rundir(next(run.id for run in plan.runs() if run.label == label))


def taken(shell, label: str, name: str = "w.safetensors") -> Path:
    """A copy of a run's weights."""
    return Path(shutil.copy(folder(shell, label).weights, shell.folder / name))


def same(one: RunDir, other: RunDir) -> bool:
    """To the last bit."""
    keys = ("test", "weights_sha256")
    return [one.read_result()[k] for k in keys] == [other.read_result()[k] for k in keys]


@pytest.mark.whole
def test_a_file_of_the_parent_s_weights_is_as_good_as_the_parent(copy, monkeypatch):
    file = taken(copy, "dpn#1.from")
    words = ("stem=dpn", "from.weights=w.safetensors", *WEIGHTS)
    copy("sweep", *words, "--as", "file")
    run = folder(copy, "wd=0.05#1", "file")
    assert same(run, folder(copy, "dpn#1"))
    assert "the weights of a file" in copy("table", "file").out
    with open(file, "r+b") as content:  # another file is another run
        content.seek(-1, 2)
        content.write(b"x")
    monkeypatch.chdir(copy.folder)
    assert run.id not in ids(make_plan(words, store=copy.folder / "runs")[0])


@pytest.mark.whole
def test_weights_go_to_timm_and_come_back(copy, oracle):
    """timm's own model with the exported weights says what ours says; a child that starts from the
    file is the child of the run, to the last bit."""
    run, file = folder(copy, "none#1.from"), copy.folder / "w.safetensors"
    copy("export", "w.safetensors", "--weights", "none#1.from", "--names", "timm")
    with safe_open(file, "pt") as opened:
        arguments = json.loads(opened.metadata()["VisionTransformer"])
    arguments["norm_layer"] = partial(torch.nn.LayerNorm, eps=1e-6)
    theirs = oracle("timm.models.vision_transformer").VisionTransformer(**arguments).eval()
    theirs.load_state_dict(load_file(file))
    ours = build(build_run(run.read_spec())).eval()
    ours.load_state_dict(load_file(run.weights))
    images = torch.rand(4, 8, 8, 1)
    with torch.no_grad():
        assert torch.allclose(theirs(images.permute(0, 3, 1, 2)), ours(images), atol=1e-5)
    words = ("from.weights=w.safetensors", "from.names=timm", *WEIGHTS)
    copy("sweep", *words, "--as", "back")
    assert same(folder(copy, "wd=0.05#1", "back"), folder(copy, "none#1"))


@pytest.mark.whole
def test_weights_that_timm_has_not_are_refused(copy):
    text = copy("export", "w", "--weights", "dpn#1", "--names", "timm", code=2).err
    assert text.startswith("ablate: stem: ")
    assert "--names" in copy("export", "w", "--weights", "dpn#1", "--names", "x", code=2).err
    assert not (copy.folder / "w").exists()


@pytest.mark.whole
def test_a_parent_serves_each_of_its_children_and_two_sweeps(copy):
    runs = Store(copy.folder / "runs")
    before = runs.folders()
    out = copy("sweep", "optim.lr=0.01,0.02", *FROM, "seeds=2", "launcher=inline").out
    assert ".from" not in out  # trained already
    assert len(runs.folders() - before) == 4
    parent = folder(copy, "dpn#1.from").id
    assert f"starts from dpn#1.from, run {parent}" in copy("show", "dpn#1").out
    assert "status: finished" in copy("show", "dpn#1.from").out


@pytest.mark.whole
def test_parents_are_no_rows_of_frames_and_tables_of_runs(copy):
    """They have the row and the seed of a child: a mean over both would be of neither."""
    sweep = ablate.Store(copy.folder / "runs").sweep("tuned")
    frame = sweep.to_pandas()
    rows = [("dpn", 0), ("dpn", 1), ("none", 0), ("none", 1)]
    assert sorted(zip(frame.row, frame.seed, strict=True)) == rows
    assert set(sweep.to_pandas(curves=True).id) == set(frame.id)
    assert {run.id for run in sweep.runs()} == set(frame.id)
    copy("export", "tuned", "out")
    listed = records((copy.folder / "out" / "runs.csv").read_text())
    assert {row["id"] for row in listed} == set(frame.id)
    assert "nothing wrong" in copy("verify", "out").out


@pytest.mark.whole
def test_an_anonymous_bundle_names_no_file_of_weights(copy):
    secret = taken(copy, "dpn#0.from", "whose.safetensors")
    words = ("stem=dpn", "optim.wd=0.05,0.5", "train.steps=3", "seeds=2", "launcher=inline")
    copy("sweep", *words, f"from.weights={secret}", "--as", "w")
    copy("export", "w", "out", "--anonymous")
    assert not any(b"whose" in content for content in contents(copy.folder / "out").values())
    assert "nothing wrong" in copy("verify", "out").out


def test_a_file_of_another_model_is_refused_before_anything_trains(copy):
    taken(copy, "dpn#0.from")
    words = ("stem=none", "optim.wd=0.05,0.5", "from.weights=w.safetensors", "seeds=1")
    said = copy("sweep", *words, "--as", "w", "launcher=inline", code=2).err
    assert said == "ablate: from: has weights stem.after.bias, which this model has not\n"
    assert "'w'" in copy("status", "w", code=2).err  # nothing is recorded of it


def test_children_are_trained_again_to_the_same_bits(copy):
    assert "the same bits" in copy("verify", "--rerun", "dpn#1").out
    assert "nothing wrong" in copy("verify").out


def test_a_child_of_other_weights_than_its_parent_has_now_is_found(copy):
    """Such as when the parent was trained again elsewhere, to other bits."""
    parent, child = folder(copy, "dpn#0.from"), folder(copy, "dpn#0")
    result = child.read_result()
    assert result["start_sha256"] == parent.read_result()["weights_sha256"]
    child.result.write_text(json.dumps({**result, "start_sha256": "0" * 64}))
    said = f"{child.id} dpn#0: result.json: started from other weights"
    assert said in copy("verify", code=1).out


def test_a_parent_removed_by_hand_is_trained_again_and_gc_keeps_it(copy):
    table = copy("table", "tuned", "--format", "tidy").out
    copy("gc", "--yes")
    for label in ("dpn#0.from", "dpn#0"):
        shutil.rmtree(folder(copy, label).path)
    copy(*SWEEP)
    assert copy("table", "tuned", "--format", "tidy").out == table


@pytest.mark.whole
def test_a_parent_whose_weights_were_edited_is_named(copy):
    weights = folder(copy, "dpn#0.from").weights
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    shutil.rmtree(folder(copy, "dpn#0").path)
    told = copy(*SWEEP, code=1).err
    assert f"{weights.relative_to(copy.folder)} was edited since the run ended" in told
    assert told.count("\n") == 1
    assert "finished: dpn#0.from" in copy(*SWEEP, "--retry", "damaged").out


NORM = """\
from pathlib import Path
from torch import nn
class Norm(nn.LayerNorm):
    version = '1'
    def __init__(self, shape):
        super().__init__(shape.width)
    def forward(self, x):
        if len(x) > 4 and not Path('ok').exists():  # not where it is planned
            raise RuntimeError('not yet')
        return super().forward(x)
"""


@pytest.mark.whole
def test_children_of_a_failed_parent_are_blocked_and_start_once_it_is_retried(shell):
    (shell.folder / "mine.py").write_text(NORM)
    words = ("sweep", "norm=layernorm,mine:Norm", *FROM, "seeds=1", "--as", "b", "launcher=inline")
    assert "1 failed, 1 blocked" in shell(*words, code=1).err
    status = shell("status", "b").out
    assert "blocked: mine:Norm#0: mine:Norm#0.from, which it starts from, failed" in status
    (shell.folder / "ok").touch()
    assert "blocked" in shell(*words, code=1).err  # nobody retried
    shell(*words, "--retry", "failed")
    assert "blocked" not in shell("status", "b").out


@pytest.mark.whole
def test_one_parent_has_no_verdict(copy):
    words = ("sweep", "stem=none,dpn", *FROM, "seeds=3", "launcher=inline", "--as")
    copy(*words, "one", "from.seed=0")
    rows = copy.facts("one")
    assert {row["text"] for row in rows if row["quantity"] == "verdict"} <= {"", "-", "baseline"}
    condition = english.write("condition", {"factor": "parent"})
    assert condition in copy("table", "one").out
    copy(*words, "free")
    assert condition not in copy("table", "free").out


# --- Faults -------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_between_and_during_parents_and_children(shell, kills):
    """Driver, workers or both at random moments, then on to the end: the calm table."""
    words = ("sweep", "stem=none,dpn", "from.train.epochs=4", "train.epochs=4", "model.depth=2")
    words += ("seeds=2", "launcher.checkpoint_s=0.2", "launcher.attempts=1000", "--as", "killed")
    shell(*words, "launcher=inline")
    calm = shell("table", "killed", "--format", "tidy").out
    for name in ("runs", "sweeps"):
        shutil.rmtree(shell.folder / "runs" / name)
    for path in (shell.folder / "runs").glob("ledger.db*"):
        path.unlink()
    moment = random.Random(7)
    for _ in range(kills):
        driver = shell.start(*words)
        time.sleep(moment.uniform(0.5, 3.0))
        kill([driver.pid, *(workers(shell.folder) if moment.random() < 0.5 else [])])
        driver.wait()
    wait_for(lambda: not workers(shell.folder))
    shell(*words, "launcher=inline")
    assert shell("table", "killed", "--format", "tidy").out == calm


@pytest.mark.parametrize(("epochs", "said"), [(1.0, "1 epoch"), (1.5, "1.5 epochs")])
def test_a_caption_counts_what_a_parent_was_trained_for(epochs, said):
    parent = {"data": {"name": "mnist5k"}, "train": {"steps": None, "examples": None}}
    parent["train"]["epochs"] = epochs
    words = parent_words(RunSpec.of({"parent": parent}))
    assert words == f"the weights of a run on mnist5k ({said}) with the same seed"
