"""A step that can be captured, and one that is compiled: it is the same step, and goes on from the
same checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import tiny
import torch
from conftest import Shell, wait_for
from support.processes import kill, workers
from support.trainings import digits, outcome, train_until

from ablate.run import choices
from ablate.run.rundir import RunDir
from ablate.shared.errors import UserError
from ablate.training import numerics
from ablate.training.calibrate import random_split
from ablate.training.numerics import check_compile, missing
from ablate.training.training import Training

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, capturing
CPU = torch.device("cpu")

# Each choice once, and what is not one, among them every autograd function of our own.
DEEP = {"model.depth": 2}
CHOSEN: list[dict[str, Any]] = [
    *({"norm": norm, **tiny.LATE, **DEEP} for norm in choices.NORMS),
    *({"stem": stem, **DEEP} for stem in choices.STEMS),
    *({"block": block} for block in choices.BLOCKS),
    {"model.arch": "mlp/2x32", "model.kind": "mlp"},
    {"train.precision": "bf16", "norm": "powernorm", "optim.name": "sgd"},
    {"train.precision": "bf16", "norm": "dtn", "train.loss": "sigmoid", **tiny.LATE, **DEEP},
    {"train.precision": "bf16", "stem": "conv", "model.pool": "gap", **DEEP},
    {"train.precision": "fp64", "model.rep": True, "augment.mixup": 0.8},
    {"model.dropout": 0.1, **DEEP},
]
MIXED = {  # what goes together in one step
    **{"train.precision": "bf16", "train.micro_batch": 4, "train.ema": 0.9, "norm": "scalenorm"},
    **{"model.drop_path": 0.5, "optim.lr_mult": {"posemb": 0.0}, **DEEP},
}


def made(changes: Mapping[str, Any]) -> Training:
    run = tiny.run({"train.batch": 8, "train.steps": 4, **changes})
    torch.manual_seed(0)
    training = Training(run, random_split(run.data, 24, CPU), CPU)
    training.model.fit([tiny.images(64, run, seed=1)])
    return training


def after(training: Training, steps: int = 3) -> dict[str, torch.Tensor]:
    for _ in range(steps):
        training.step()
    return training.state()[0]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiling stops where the graphs are made, and runs them as they are."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


EACH = [MIXED, *(pytest.param(changes, marks=pytest.mark.slow) for changes in CHOSEN)]


@pytest.mark.whole
@pytest.mark.parametrize("changes", EACH, ids=tiny.names)
def test_a_step_is_one_graph_which_no_later_step_changes(changes, captured):
    """Whatever is drawn, whichever rows a micro-batch has: `fullgraph` refuses a break."""
    eager, graph = made(changes), made(changes)
    graph.compile()
    expected, got = after(eager), after(graph)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for name, tensor in expected.items():  # dtn's sums are ordered otherwise
        torch.testing.assert_close(got[name], tensor, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_update_is_one_graph_whatever_the_rate(name, captured):
    """Clipping, optimiser and average. Torch has no form without data of two of its operators, nor
    one that leaves what they change: so the graph is run as Dynamo has it."""
    with torch.library._scoped_library("aten", "IMPL", "Meta") as library:
        for operator in ("_fused_adamw_", "_fused_sgd_"):
            library.impl(f"{operator}.tensor_lr", lambda *arguments, **options: None)
        changes = {"optim.name": name, "train.ema": 0.9}
        eager, graph = made(changes), made(changes)
        after(eager, 1), after(graph, 1)  # the first has moments to make
        graph.update = torch.compile(graph.update, fullgraph=True, backend="eager")
        expected, got = after(eager), after(graph)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert all(torch.equal(got[key], tensor) for key, tensor in expected.items())


# Relative to the largest weight of a tensor, after three steps: sums are ordered otherwise.
WITHIN = {"fp32": 2e-5, "bf16": 2e-2, "fp64": 1e-12}
FOUR = [
    {"model.depth": 3, "block.attn": "pre+post", "model.dropout": 0.1, "model.drop_path": 0.3},
    {"norm": "dtn", "stem": "dpn", **tiny.LATE, **DEEP},
    {"stem": "conv", "block": "normformer_full", "norm": "powernorm", **DEEP},
    {"train.precision": "bf16", "train.micro_batch": 4, "train.ema": 0.9, **DEEP},
    {"train.precision": "fp64", "model.rep": True, "norm": "switchnorm", **DEEP},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", FOUR, ids=tiny.names)
def test_compiled_steps_are_the_eager_ones_within_rounding(changes, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    changes = {"optim.name": "sgd", "optim.lr": 0.1, **changes}  # Adam's first step is a sign
    eager, code = made(changes), made(changes)
    torch._dynamo.reset()
    code.compile()
    expected, got = after(eager), after(code)
    within = WITHIN[eager.run.train.precision]
    for name, tensor in expected.items():
        scale = tensor.double().abs().max().item()
        difference = (got[name].double() - tensor.double()).abs().max().item()
        assert difference <= within * max(scale, 1e-3), name
    assert list(tmp_path.rglob("*.so"))


# --- Choosing -----------------------------------------------------------------------------------


def test_a_step_is_compiled_where_the_run_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(numerics, "missing", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    for choice, lines in ((False, []), (True, ["steps are compiled"])):
        training, said = made({"train.compile": choice}), []
        numerics.compile_step(training, tmp_path, lambda **notes: None, said.append)
        assert (training.compiled, said) == (choice, lines)


def test_a_compiled_run_has_an_id_of_its_own_and_auto_is_no_choice():
    ids = {choice: tiny.run({"train.compile": choice}).id for choice in (False, True)}
    assert ids[False] == tiny.run().id != ids[True]
    with pytest.raises(UserError, match=r"^train\.compile: expected .*true.*, got 'auto'"):
        tiny.run({"train.compile": "auto"})


def test_without_a_compiler_true_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing(CPU) == "a C++ compiler (g++; CXX names another)"
    with pytest.raises(UserError, match=r"^train\.compile: true needs a C\+\+ compiler .*=false$"):
        check_compile(tiny.run({"train.compile": True}), CPU)
    check_compile(tiny.run(), CPU)


# --- Going on -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_straight_equals_stopped_and_resumed(tmp_path, captured):
    changes = {"train.epochs": 1, "model.drop_path": 0.5, "model.dropout": 0.1, **DEEP}
    run, cache = digits(**changes, **{"train.compile": True}), tmp_path / "cache"
    straight = train_until(run, tmp_path / "a", cache)
    assert train_until(run, tmp_path / "b", cache, stop_at=3) is None
    resumed = train_until(run, tmp_path / "b", cache)
    assert straight["execution"] == resumed["execution"] == "compiled"
    assert outcome(tmp_path / "a", straight) == outcome(tmp_path / "b", resumed)
    assert train_until(digits(**changes), tmp_path / "c", cache)["execution"] == "eager"


@pytest.mark.slow
def test_killed_workers_go_on_with_compiled_steps(tmp_path_factory):
    """Forked from the server, killed by SIGKILL: the calm sweep's table, from the code in the
    store's cache."""
    words = ("sweep", "block.attn=pre,post", "train.epochs=300", "train.compile=true", "seeds=1")
    words = (*words, "--as", "killed", "launcher.checkpoint_s=0.2", "launcher.attempts=1000")
    calm, shell = (Shell(tmp_path_factory.mktemp(name)) for name in ("calm", "killed"))
    assert calm.end(calm.start(*words), timeout=1200).code == 0
    shutil.copytree(calm.folder / "runs" / "cache", shell.folder / "runs" / "cache")
    assert list((calm.folder / "runs" / "cache" / "compiled").rglob("*.so"))
    driver = shell.start(*words)
    metrics = "runs/runs/*/metrics.jsonl"
    lines = lambda: [p.read_bytes().count(b"\n") for p in shell.folder.glob(metrics)]  # noqa: E731
    for epochs in (30, 100, 200):
        wait_for(lambda epochs=epochs: max(lines(), default=0) > epochs, 300)
        killed = workers(shell.folder)[:1]
        assert killed
        kill(killed)
    assert shell.end(driver, timeout=1200).code == 0
    tables = [each("table", "killed", "--format", "tidy").out for each in (calm, shell)]
    assert tables[0] == tables[1]
    assert tables[0].count("\n") > 2
    results = [RunDir(path.parent) for path in shell.folder.glob("runs/runs/*/result.json")]
    assert {rundir.read_result()["execution"] for rundir in results} == {"compiled"}
