"""A step that can be captured, and one that is compiled: it is the same step, goes on from the same
checkpoints, and is chosen where it repays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import tiny
import torch
from conftest import Shell
from test_kill import kill, wait_for, workers
from test_resume import digits, go, outcome

from ablate.shared import choices
from ablate.shared.errors import UserError
from ablate.shared.rundir import RunDir
from ablate.shared.sections import Chosen, Plugin
from ablate.training import numerics
from ablate.training.calibrate import random_split
from ablate.training.numerics import check_compile, missing, repays
from ablate.training.training import Training

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, capturing
CPU = torch.device("cpu")
LONG = 1_000_000  # steps

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


def test_auto_compiles_runs_that_repay_it_on_a_cpu():
    run = tiny.run({"train.batch": 64})
    own = replace(run, norm=Chosen("a:B", {}, Plugin("here", "1")))
    assert repays(run, LONG, 10**7, CPU)
    assert not repays(run, 1000, 10**7, CPU)
    assert not repays(run, 1000 * LONG, 10**5, CPU)  # its steps are short
    assert not repays(run, LONG, 10**7, torch.device("cuda"))
    assert not repays(own, LONG, 10**7, CPU)
    for slower in ({"train.precision": "bf16"}, {"model.dropout": 0.1}):
        assert not repays(tiny.run({"train.batch": 64, **slower}), LONG, 10**7, CPU)


def test_a_run_that_is_trained_again_is_trained_as_it_was(tmp_path, monkeypatch):
    training, asked = made({}), []
    monkeypatch.setattr(Training, "compile", lambda self: asked.append(self))
    monkeypatch.setattr(numerics, "_hindered", lambda training: None)
    for repaid, execution, wanted in ((True, "eager", 0), (False, "compiled", 1), (True, None, 2)):
        monkeypatch.setattr(numerics, "repays", lambda *planned, repaid=repaid: repaid)
        how = (tmp_path, lambda **notes: None, print, execution)
        numerics.compile_step(training, 1, *how)
        assert len(asked) == wanted


def test_the_choice_is_in_the_id_but_for_auto():
    ids = [tiny.run({"train.compile": choice}).id for choice in ("auto", True, False)]
    assert ids[0] == tiny.run().id
    assert len(set(ids)) == 3
    with pytest.raises(UserError, match=r"^train\.compile: expected one of auto, true, false, got"):
        tiny.run({"train.compile": "yes"})


def test_without_a_compiler_auto_is_silent_and_true_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(numerics, "repays", lambda *planned: True)
    assert missing(CPU) == "a C++ compiler (g++; CXX names another)"
    with pytest.raises(UserError, match=r"^train\.compile: true needs a C\+\+ compiler .*=auto$"):
        check_compile(tiny.run({"train.compile": True}), CPU)
    training, said = made({}), []
    numerics.compile_step(training, 1, tmp_path, lambda **notes: None, said.append)
    assert (training.compiled, said) == (False, [])


def test_what_can_not_be_compiled_is_not_and_nothing_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(numerics, "repays", lambda *planned: True)

    def compile(self):
        self._loss = lambda *arguments: 1 / 0

    monkeypatch.setattr(Training, "compile", compile)
    plain, training, said = made({"norm": "batchnorm"}), made({"norm": "batchnorm"}), []
    numerics.compile_step(training, 1, tmp_path, lambda **notes: None, said.append)
    assert said == ["not compiled: ZeroDivisionError: division by zero"]
    expected, got = after(plain), after(training)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


# --- Going on -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_straight_equals_stopped_and_resumed(tmp_path, captured, monkeypatch):
    """What was decided at the start is kept, whatever is decided by then."""
    changes = {"train.epochs": 1, "model.drop_path": 0.5, "model.dropout": 0.1, **DEEP}
    monkeypatch.setattr(numerics, "repays", lambda *planned: True)
    run, cache = digits(**changes), tmp_path / "cache"
    straight = go(run, tmp_path / "a", cache)
    assert go(run, tmp_path / "b", cache, stop_at=3) is None
    monkeypatch.setattr(numerics, "repays", lambda *planned: False)
    resumed = go(run, tmp_path / "b", cache)
    assert straight["execution"] == resumed["execution"] == "compiled"
    assert outcome(tmp_path / "a", straight) == outcome(tmp_path / "b", resumed)
    assert go(run, tmp_path / "c", cache)["execution"] == "eager"


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
    tables = [each("table", "killed", "--format", "csv").out for each in (calm, shell)]
    assert tables[0] == tables[1]
    assert tables[0].count("\n") > 2
    results = [RunDir(path.parent) for path in shell.folder.glob("runs/runs/*/result.json")]
    assert {rundir.read_result()["execution"] for rundir in results} == {"compiled"}
