"""Ten programs of people who never heard of us, and two that installed packages bring, as trainers:
what a sweep of each has is what the program gives when somebody types its command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import REPOSITORY, Shell, wait_for
from support.processes import kill, workers
from support.programs import RESUMES, TRAIN, attempts, results

from ablate.run.rundir import RunDir
from ablate.training.own import processes

pytestmark = pytest.mark.faults

PROGRAMS = REPOSITORY / "tests" / "programs"


@dataclass(frozen=True)
class Case:
    """A program: its command, what stands for its keys as somebody types it, the words of two
    variants, which file or line has the metric."""

    command: str
    keys: object
    vary: str
    metric: str
    where: str
    more: Mapping[str, object] = field(default_factory=dict)


CASES = {
    "plain_argparse": Case(
        "python train_mlp.py --outdir {folder} --lr {lr} --hidden {hidden} --seed {seed}",
        *({"lr": 0.05, "hidden": 48}, "lr=0.05,0.01", "test_acc", "final.json"),
        {"curves": {"file": "log.csv", "step": "epoch"}, "predictions": "correct.npy"},
    ),
    "forest": Case(
        "python rf_digits.py {folder} {seed} {trees}",
        *({"trees": 40}, "trees=40,4", "accuracy", r"accuracy: (?P<accuracy>\S+)"),
    ),
    "shell": Case(
        "bash fit.sh {folder} {seed} {rate} {steps}",
        *({"rate": 0.01, "steps": 1600}, "rate=0.01,0.02", "mse", r"final mse=(?P<mse>\S+)"),
    ),
    "stubborn": Case(
        "python main.py --save_dir {folder} --learning_rate {lr} --random_seed {seed}",
        *({"lr": 0.003}, "lr=0.003,0.001", "test_mse", "metrics.json"),
    ),
    "late": Case(
        "python rff.py -o {folder} -s {seed} -g {g}",
        *({"g": 0.15}, "g=0.15,0.3", "rmse", r"^test rmse (?P<rmse>\S+)"),
        {"predictions": "predictions.npy"},
    ),
    "loud": Case(
        "python factorize.py {folder} --eta {eta} -s {seed}",
        *({"eta": 0.05}, "eta=0.05,0.02", "loss", r"RESULT loss=(?P<loss>\S+)"),
    ),
    "forker": Case(
        "python ensemble.py -o {folder} --seed {seed} --rate {rate}",
        *({"rate": 0.1}, "rate=0.1,0.01", "nll", "ensemble.json"),
    ),
    "self_resuming": Case(
        "python train.py --folder {folder} --seed {seed} --step-size {lr}",
        *({"lr": 0.05}, "lr=0.05,0.01", "test_mse", "result.json"),
    ),
    "wrong_resuming": Case(
        "python train.py --output-dir {folder} --seed {seed} --lr {lr}",
        *({"lr": 0.01}, "lr=0.01,0.02", "reconstruction_error", "summary.json"),
        {"resume": "--resume {folder}/checkpoint.pt"},
    ),
    "hydra_app": Case(
        "python train.py {overrides} seed={seed} hydra.run.dir={folder}",
        *("hydra", "model=small,big", "test_loss", "results.json"),
    ),
}


@pytest.fixture
def shell(shell, monkeypatch) -> Shell:
    """In a git repository, as programs are; `python` is that of the environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    subprocess.run(["git", "init", "-q", str(shell.folder)], check=True)
    return shell


def declare(shell: Shell, case: Case, program: str = "") -> None:
    if program:
        shutil.copytree(PROGRAMS / program, shell.folder, dirs_exist_ok=True)
    yaml = {
        **{"command": case.command, "keys": case.keys, **case.more},
        "result": {"file" if case.where.endswith(".json") else "lines": case.where},
        "metrics": {case.metric: {"direction": "less"}},
    }
    (shell.folder / "conf" / "trainer").mkdir(parents=True, exist_ok=True)
    (shell.folder / "conf" / "trainer" / "it.yaml").write_text(json.dumps(yaml))


def typed(case: Case, folder: Path, copy: Path) -> float:
    """The metric of the program as somebody types its command, in a folder of its own."""
    shutil.copytree(folder, copy)
    keys = {"overrides": "model=small optim=sgd"} if case.keys == "hydra" else case.keys
    words = shlex.split(case.command.format(folder="out", seed=1, **keys))
    env = {**os.environ, processes.TAG: str(copy)}
    said = {"check": True, "capture_output": True, "text": True}
    printed = subprocess.run(words, cwd=copy, env=env, **said).stdout
    processes.end_processes(str(copy))
    if case.where.endswith(".json"):
        return float(json.loads((copy / "out" / case.where).read_text())[case.metric])
    return float(re.findall(case.where, printed.replace("\r", "\n"), re.M)[-1])


LONGER = ("hydra_app", "wrong_resuming", "late", "self_resuming", "forker")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONGER)) for name in CASES]
)
def test_a_sweep_of_a_program_has_what_the_program_gives(name, shell, tmp_path):
    case = CASES[name]
    declare(shell, case, name)
    shell("sweep", "trainer=it", f"trainer.{case.vary}", "seeds=[1, 2]")
    found = {
        (tree["spec"]["seed"], json.dumps(tree["spec"]["trainer"])): result["test"][case.metric]
        for run, result in results(shell.folder).items()
        for tree in [json.loads((shell.folder / "runs" / "runs" / run / "run.json").read_text())]
    }
    assert len(found) == 4
    key, _, values = case.vary.partition("=")
    first = json.dumps(values.split(",")[0]) if key == "model" else values.split(",")[0]
    said = f'"{key}": {first}'
    [ours] = [value for (seed, own), value in found.items() if seed == 1 and said in own]
    assert ours == typed(case, PROGRAMS / name, tmp_path / "typed")
    assert len({*found.values()}) > 2  # other settings and seeds are others
    assert "nothing wrong" in shell("verify").out
    for run in (shell.folder / "runs" / "runs").iterdir():
        assert processes.processes_of(processes.tag_of(RunDir(run))) == []  # nor a heart that beats


def test_a_program_that_resumes_by_itself_goes_on(shell):
    declare(shell, case := CASES["self_resuming"], "self_resuming")
    words = ("sweep", "trainer=it", f"trainer.{case.vary}", "seeds=[1]", "launcher.attempts=99")
    driver = shell.start(*words)
    wait_for(lambda: any(shell.folder.glob("runs/runs/*/scratch/checkpoint.pkl")))
    kill([driver.pid, *workers(shell.folder)])
    driver.wait()
    shell(*words)
    killed = {run: each["test"] for run, each in results(shell.folder).items()}
    assert any(each["from_step"] for each in attempts(shell.folder))
    shutil.rmtree(shell.folder / "runs")
    shell(*words)
    assert {run: each["test"] for run, each in results(shell.folder).items()} == killed


def test_doctor_finds_a_program_that_resumes_wrongly(shell):
    declare(shell, CASES["wrong_resuming"], "wrong_resuming")
    done = shell("doctor", "trainer=it", "launcher=inline", code=1)
    assert "what it saves lacks some state" in done.out


@pytest.mark.slow
def test_doctor_finds_a_program_that_saves_what_it_can_not_load(shell):
    """As one does that is killed while it writes a checkpoint under the name that it loads."""
    declare(shell, CASES["wrong_resuming"], "wrong_resuming")
    train, renames = shell.folder / "train.py", '(args.output_dir / "new.pt").replace'
    train.write_text(train.read_text().replace(renames, "(lambda to: to.touch())"))
    done = shell("doctor", "trainer=it", "launcher=inline", code=1)
    assert "a run that is killed does not go on: RuntimeError: the command ended" in done.out
    assert "with exit code 1: EOFError; a kill cuts" in done.out
    assert "under another name and then renames it" in done.out


def test_programs_that_packages_bring(shell):
    """Python's own `timeit` as a judge of two statements; torch's launcher of ranks, which starts
    the training as a child."""
    command = "python -m timeit -n {n} -r 1 -u usec {statement}"
    keys = {"n": 1000, "statement": "sum(range(100))"}
    declare(shell, Case(command, keys, "", "usec", r"(?P<usec>[\d.e+]+) usec per loop"))
    (shell.folder / "sweeps").mkdir()
    rows = [{"short": {}}, {"long": {"trainer.statement": "sum(range(100_000))", "trainer.n": 9}}]
    sweep = {"base": {"trainer": "it"}, "variants": rows, "seeds": 1}
    (shell.folder / "sweeps" / "times.yaml").write_text(json.dumps(sweep))
    shell("sweep", "times")
    short, long = sorted(each["test"]["usec"] for each in results(shell.folder).values())
    assert long > 20 * short
    shutil.rmtree(shell.folder / "runs")
    (shell.folder / "train.py").write_text(TRAIN)
    words = "--lr {lr} --seed {seed} --steps 2 --pause 0 --out {folder}"
    launch = f"python -m torch.distributed.run --standalone --nproc-per-node 1 train.py {words}"
    declare(shell, Case(launch, {"lr": 0.1}, "", "loss", "result.json", RESUMES))
    shell("sweep", "trainer=it", "trainer.lr=0.1,0.2", "seeds=1")
    assert [each["test"]["n"] for each in results(shell.folder).values()] == [7, 7]
