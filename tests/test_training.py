"""One run being trained: its step, its state, and the tasks behind it."""

from __future__ import annotations

import ast
import os
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import tiny
import torch
from conftest import REPOSITORY, Shell, records

from ablate.data.splits import Split
from ablate.run.build import build_run
from ablate.run.metrics import DEFAULT_TASK, TASKS
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.shared.errors import UserError
from ablate.training import calibrate
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.task.classify import prior_loss
from ablate.training.task.segment import Segment
from ablate.training.training import Training

CPU = torch.device("cpu")
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch can use no GPU")
CUDA = pytest.param("cuda", marks=NO_GPU)
RUNS = {
    "everything": {
        **{"model.dropout": 0.1, "model.drop_path": 0.2, "model.depth": 2, "stem": "dpn"},
        **{"augment.flip": True, "augment.crop_pad": 1, "augment.mixup": 0.5, "train.ema": 0.9},
        **{"train.loss": "sigmoid", "train.micro_batch": 4, "probe": ["gradnorm"]},
    },
    "batch statistics, momentum": {"norm": "powernorm", "optim.name": "sgd", "optim.clip": None},
    "lion": {"optim.name": "lion", "optim.lr_mult": {"stem": 0}},
    "lamb": {"optim.name": "lamb", "optim.lr_mult": {"stem": 0}, "model.depth": 2},
    "muon": {"optim.name": "muon", "train.ema": 0.9, "train.micro_batch": 4},
    "adafactor": {"optim.name": "adafactor", "optim.decay": "independent"},
    "adafactor_bv": {"optim.name": "adafactor_bv", "model.width": 64},
    "contrastive": {
        **{"task": "contrastive", "optim.lr_mult": {"image": 0}, "train.ema": 0.9},
        **{"stem": "dpn", "model.dropout": 0.1, "augment.flip": True, "train.micro_batch": 4},
        "text": tiny.TEXT,
    },
    "bf16": {"train.precision": "bf16", "train.label_smoothing": 0.1},
}


@pytest.fixture(params=RUNS)
def run(request):
    return tiny.run({"train.batch": 8, "train.epochs": 4, **RUNS[request.param]})


@pytest.mark.parametrize("name", ["cpu", CUDA])
def test_images_that_are_on_the_device_are_evaluated_where_they_are(name, monkeypatch):
    """A tensor is on "cuda:0", which torch tells from "cuda"."""
    run, device = tiny.run({"train.batch": 8}), device_of(name)
    split = random_split(run.data, 24, device)
    training = Training(run, split, device)
    monkeypatch.setattr(Split, "gather", None)
    assert training.evaluate(split)[0]["n"] == 24


def test_a_gpu_has_its_index():
    names = ("cpu", "cuda", "cuda:1", "meta")
    assert [str(device_of(name)) for name in names] == ["cpu", "cuda:0", "cuda:1", "meta"]


def test_a_training_completes_its_device(monkeypatch):
    """Of "cuda" its splits are on "cuda:0", and it would look for them on the host."""
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr("ablate.training.training.device_of", {gpu: cpu}.__getitem__)
    run = tiny.run()
    assert Training(run, random_split(run.data, 32, cpu), gpu).device == cpu


class Placed(torch.Tensor):
    """Stands in for a GPU's tensor: whatever is computed of it is one, until `cpu` makes it plain.
    `calls` are the functions that computed there."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = function.__name__
        cls.calls.append(name)
        made = super().__torch_function__(function, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return made.as_subclass(torch.Tensor) if name == "cpu" else made


def test_a_gpu_compiles_nothing_for_the_priors_loss(monkeypatch):
    """torch compiles entr for a GPU when it is called there, which fails where NVRTC does, with all
    steps of the run done."""
    monkeypatch.setattr(Placed, "calls", [])
    labels = torch.tensor([0, 1, 1, 1])
    found = prior_loss(labels.as_subclass(Placed), 2, kind="sigmoid")
    assert found == prior_loss(labels, 2, kind="sigmoid") == pytest.approx(1.12467, abs=1e-5)
    task, counts = SimpleNamespace(_smoothing=0.1, _classes=2), torch.tensor([[1, 0], [0, 3]])
    of_pixels = [
        Segment.prior_loss(task, SimpleNamespace(labels=each))
        for each in (counts.as_subclass(Placed), counts)
    ]
    assert of_pixels[0] == of_pixels[1]
    assert {*Placed.calls} <= {"bincount", "__len__", "sum", "cpu"}


def begun(run, steps: int = 0) -> Training:
    torch.manual_seed(0)  # of the images alone
    training = Training(run, random_split(run.data, 3 * run.train.batch, CPU), CPU)
    return stepped(training, steps)


def stepped(training: Training, steps: int) -> Training:
    for _ in range(steps):
        training.step()
    return training


def bits(training: Training) -> dict[str, bytes]:
    tensors, state = training.state()
    state.seconds = 0.0
    numbers = torch.tensor([float(value) for value in vars(state).values()])
    return {
        name: tensor.detach().clone().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in {**tensors, "state": numbers}.items()
    }


@pytest.mark.whole
@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_a_state_that_is_loaded_goes_on_as_if_nothing_had_been(run, at):
    straight, stopped = begun(run, 6), begun(run, at)
    tensors, state = stopped.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    stepped(stopped, 2)  # what is kept is no view of what goes on
    for other in (begun(run), stopped):  # one that is new, one that was elsewhere
        other.load(kept, state)
        assert other.steps == at
        assert bits(stepped(other, 6 - at)) == bits(straight)


def test_to_evaluate_moves_nothing(run):
    training = begun(run)
    split = random_split(run.data, 20, CPU)
    for _ in range(3):
        before = bits(stepped(training, 1))
        first, second = training.evaluate(split), training.evaluate(split)
        assert first[0] == second[0]
        np.testing.assert_array_equal(first[1], second[1])
        assert bits(training) == before
    assert bits(training) == bits(begun(run, 3))


def test_what_is_no_state_of_the_model_changes_nothing():
    training = begun(tiny.run({"model.depth": 2}))
    tensors, state = begun(tiny.run({"model.depth": 1}), 2).state()
    before = bits(training)
    with pytest.raises(ValueError, match=r"model\.blocks\.1\..*: not as this training has it"):
        training.load(tensors, state)
    assert bits(training) == before


def test_calibration_and_the_search_for_a_micro_batch_take_the_step_that_trains(monkeypatch):
    taken, limits = [], []
    for name in ("step", "part"):
        real = getattr(Training, name)
        spy = lambda self, *given, name=name, real=real: taken.append(name) or real(self, *given)  # noqa: E731
        monkeypatch.setattr(Training, name, spy)
    run = tiny.run({"train.micro_batch": "auto"})
    monkeypatch.setattr(calibrate, "LONGEST_S", 0.0)
    assert calibrate.seconds_per_step(run, run.train.batch, CPU) > 0
    assert taken == ["step", "part"]
    taken.clear()
    calibrate.micro_batch(begun(run))
    assert taken == ["part"]  # a CPU's is computed: too much is not refused there, but kills
    taken.clear()
    training = begun(run)
    before = bits(training)
    share = lambda share, device: limits.append(share)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.5)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", share)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    assert calibrate._tried(
        4, training
    )  # a GPU's is tried: two steps, in less memory than there is
    assert taken == 2 * ["step", "part", "part"]
    assert bits(training) == before
    assert limits == [calibrate.MARGIN * 0.5, 0.5]


def calls(tree: ast.AST) -> set[str]:
    return {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


@pytest.mark.whole
def test_nobody_else_types_a_step():
    """Who calls backward on our models calls it through Training.step, whose task takes the
    gradients: but for timm's own loops, and a norm alone."""
    others = {"runs.py", "step.py", "variants.py", "gpu.py"}  # theirs; the last two: of a part
    task = REPOSITORY / "ablate/training/task"
    files = [*(REPOSITORY / "ablate").rglob("*.py"), *(REPOSITORY / "benchmarks").glob("*.py")]
    found = {path for path in files if "backward" in calls(ast.parse(path.read_text()))}
    tasks = {task / "__init__.py", task / "contrastive.py"}  # by default; of pairs
    assert {path.name for path in found - tasks} - others == {"training.py"}
    assert tasks <= found


# --- Tasks --------------------------------------------------------------------------------------


@pytest.mark.whole
def test_only_the_task_knows_its_metrics_by_name():
    """As texts in code; the columns of the published file are words of its own."""
    own = {"run/metrics/classify.py", "training/task/classify.py"}
    # Of another task, which has a loss of its own; the field of predictions; the key train.loss.
    own |= {"run/metrics/contrastive.py", "training/task/contrastive.py"}
    own |= {"run/parts.py"}
    # The heading of the training loss, which every task has.
    own |= {"report/live.py", "report/watch/curves.py"}
    names = {metric.key for metric in TASKS[DEFAULT_TASK].metrics}
    names |= {f"val_{name}" for name in names}
    found = {}
    for path in (REPOSITORY / "ablate").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        if names & texts:
            found[path.relative_to(REPOSITORY / "ablate").as_posix()] = names & texts
    assert found.keys() == own, found


@pytest.mark.parametrize("name", TASKS)
def test_a_declaration_is_whole(name):
    task = TASKS[name]
    keys = [metric.key for metric in task.metrics]
    assert len({*keys}) == len(keys)
    assert not task.metrics[0].needs  # the one that tables are of is always there
    for metric in task.metrics:
        assert task.find(metric.key) is metric
        assert isinstance(metric.chance(10), float)
        assert metric.sign in (-1, 1)
    assert task.find("auc").of_curve
    assert task.find("nosuch") is None


def test_thresholds_of_a_curve_lie_where_its_metric_does():
    task = TASKS["classify"]
    assert task.find("epochs_to:0.9").name == "epochs to 90 % validation top-1"
    assert task.find("epochs_to:1") is not None
    for name in ("epochs_to:0", "epochs_to:1.5", "epochs_to:nan", "epochs_to:x", "epochs_to"):
        assert task.find(name) is None
    assert task.find("epochs_to:0.1").chance(10) == 0.0  # guessing is good enough
    assert task.find("epochs_to:0.2").chance(10) is None


def test_a_run_says_its_task_where_it_is_another():
    tree = tiny.run().spec.tree
    assert "task" not in tree
    identity = RunSpec.of(tree).identity
    assert RunSpec.of({**tree, "task": "classify"}).identity == identity
    assert build_run({**tree, "task": "classify"}) == build_run(tree)
    with pytest.raises(UserError, match=r"task: expected one of classify, .*, got 'clasify'"):
        build_run({**tree, "task": "clasify"})
    assert RunSpec.of({**tree, "task": "other"}).identity != identity


TOY = """
import numpy as np
from ablate.run.metrics import TASKS, Metric, TaskChoice

def score(table, classes):
    off = np.abs(table["said"] - table["label"])
    return {"n": len(table), "mae": float(off.mean()), "mse": float((off**2).mean())}

TASKS["regress"] = TaskChoice(
    line="which digit it is, as a number",
    path="toy_task:Regress",
    metrics=(
        Metric("mae", "test mean absolute error", "error", "digits", "digits", 1.0, 3,
               lambda classes: classes / 4, sign=-1),
        Metric("mse", "test squared error", "squared error", "", "squares", 1.0, 3,
               lambda classes: (classes**2 - 1) / 12, sign=-1),
    ),
    score=score,
    outputs=lambda classes: 1,
    prior="the mean digit",
    keeps="what was said, the label",
)
"""
TOY_TASK = """
import numpy as np
from toy import score
from ablate.training.task import Task

class Regress(Task):
    def __init__(self, run):
        self.classes = run.data.classes

    def inputs(self, batches, step, dtype):
        images, labels = batches.at(step)
        return images.to(dtype), labels.to(dtype)

    def loss(self, outputs, target):
        return (outputs.float()[:, 0] - target).square().mean()

    def prior_loss(self, train):
        return float(train.labels.double().var(correction=0))

    def evaluate(self, predict, batches):
        rows = []
        for images, labels in batches:
            part = np.empty(len(labels), [("said", "<f8"), ("label", "<i4")])
            part["said"], part["label"] = predict(images)[:, 0].double(), labels
            rows.append(part)
        table = np.concatenate(rows)
        return score(table, self.classes), table
"""
SWEEP = """
title: a number
base: {recipe: quick, task: regress, train.epochs: 8, train.batch: 64, optim.lr: 2.0e-2,
       optim.warmup_epochs: 1, eval.every: 2}
seeds: 2
baseline: moves
variants:
  - moves: {stem: none}
  - still: {optim.lr: 1.0e-12}
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A folder whose `ablate` has a second task, registered as Python starts."""
    place = tmp_path_factory.mktemp("toy")
    (place / "toy.py").write_text(TOY)
    (place / "toy_task.py").write_text(TOY_TASK)
    (place / "sitecustomize.py").write_text("import toy")
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path}


LINES = {
    "sweep": ("sweep", "number.yaml", "--yes"),
    "csv": ("table", "--format", "tidy"),
    "table": ("table", "--show", "accuracy,gain,ci,mse,auc,epochs_to:2"),
    "show": ("show", "moves#0"),
    "verify": ("verify",),
    "top5": ("table", "--show", "top5"),
    "mixed": ("plan", "task=classify,regress"),
}


@pytest.fixture(scope="module")
def swept(toy, tmp_path_factory):
    """The store's runs, and what each of the commands says."""
    shell = Shell(tmp_path_factory.mktemp("regress"))
    (shell.folder / "number.yaml").write_text(SWEEP)
    told = dict(zip(LINES, shell.several(*LINES.values(), **toy), strict=True))
    assert [done.code for done in told.values()] == [0, 0, 0, 0, 0, 2, 2], told
    return shell.folder / "runs" / "runs", told


@pytest.mark.whole
def test_a_task_is_a_registration_and_a_class(swept):
    """A toy that says a digit as a number: its own head, metrics and unit, and less is better."""
    folders, said = swept
    lines = records(said["csv"].out)
    told = {(line["row"], line["quantity"], line["seed"]): line["value"] for line in lines}
    tested = []
    for folder in folders.iterdir():
        result = RunDir(folder).read_result()
        table = np.load(folder / "predictions.npy")
        off = np.abs(table["said"] - table["label"])
        assert result["test"] == {"n": 300, "mae": off.mean(), "mse": (off**2).mean()}
        tested.append(result["test"]["mae"])
    runs = {key: float(value) for key, value in told.items() if key[1] == "mae.run"}
    assert sorted(runs.values()) == sorted(tested)
    rows = ("moves", "still")
    moved, still = (np.mean([v for k, v in runs.items() if k[0] == row]) for row in rows)
    assert moved < 2 < still
    assert float(told["still", "gain", ""]) == pytest.approx(moved - still)  # less is better
    assert float(told["still", "runs.collapsed", ""]) == 2
    for words in (
        "Test mean absolute error: mean over seeds",
        "in digits, lower being better",
        "mae digits [95 % CI]",
        "no lower than the loss of the mean digit",
        "epochs_to:2 [95 % CI]",
    ):
        assert words in said["table"].out
    assert "val_mae" in said["show"].out
    assert said["verify"].out.startswith("verified: 4 runs")


@pytest.mark.whole
def test_a_metric_of_another_task_is_refused_and_tasks_are_not_mixed(swept):
    said = swept[1]["top5"].err
    assert said == "ablate: --show: expected one of mae, mse, auc, epochs_to:SHARE, got 'top5'\n"
    said = swept[1]["mixed"].err
    assert said.startswith("ablate: task: the runs of a sweep have one task, got classify (")
