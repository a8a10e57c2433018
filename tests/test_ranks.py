"""A step's micro-batches, summed in one order: the same bits on one rank and on several."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nvidia
import pytest
import tiny
import torch
from conftest import Shell, wait_for
from support.images import png
from support.masks import SEGMENT_WORDS, image_and_mask, write_masks
from support.ranks import GROUP, QUICK, children, predictions, results_by_run, train_on_ranks
from support.tables import PLANTED_TWO, make_plan, notes_of, plant, tabulate

from ablate.planning.expand import plan_from_words as planned
from ablate.run.rundir import RunDir
from ablate.run.spec import RunSpec
from ablate.running import world_sizes
from ablate.running.gpus import Gpu, GpuSet
from ablate.shared.errors import UserError
from ablate.training import worker
from ablate.training.calibrate import random_split
from ablate.training.model.norm import BatchNorm
from ablate.training.ranks import unequal
from ablate.training.training import Training

pytestmark = pytest.mark.whole

CPU = torch.device("cpu")


def begun(changes, split=None) -> Training:
    run = tiny.run({"train.batch": 16, **changes})
    torch.manual_seed(0)  # of the images alone
    return Training(run, split or random_split(run.data, 32, CPU), CPU)


def gradients(training: Training, rows: slice) -> list[torch.Tensor]:
    """Of one micro-batch, by autograd alone."""
    training.optimizer.zero_grad()
    images, target = training.inputs()
    share = (rows.stop - rows.start) / len(images)
    (training.part(images, target, rows) * share).backward()
    found = [p.grad for p in training.model.parameters() if p.grad is not None]
    training.optimizer.zero_grad()
    return found


def summed(parts: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """In a balanced tree, by its definition."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    left, right = summed(parts[:half]), summed(parts[half:])
    return [a + b for a, b in zip(left, right, strict=True)]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("micro", [16, 8, 4, 2, 1])
def test_a_steps_gradient_is_a_balanced_tree_of_its_micro_batches(micro):
    training = begun({"train.micro_batch": micro, "model.depth": 1})
    parts = [gradients(training, rows) for rows in training.micro_batches()]
    training.task.backward(training, *training.inputs(), {})
    found = [p.grad for p in training.model.parameters()]
    assert same(found, summed(parts))
    if micro == 2:  # else this would say nothing of the order
        folded = [sum(rest, first) for first, *rest in zip(*parts, strict=True)]
        assert not same(found, folded)


BEFORE = {  # ids of runs from before sums were trees, by their micro-batch
    **{None: "8d3b0db00bbea811", 6: "c959821e5d9d51e3", 4: "330733efb87b5f38"},
    **{3: "d507543ee89b5c4c", "auto": "e2f7adefbb972e80"},
}


@pytest.mark.parametrize("micro", BEFORE)
def test_runs_of_four_micro_batches_have_ids_of_their_own(micro):
    """Their bits changed when sums became trees; those of two or three micro-batches did not."""
    tree = tiny.run({"train.batch": 12, "train.micro_batch": micro}).spec.tree
    del tree["seed"]
    assert (RunSpec.of(tree).ids([0])[0] == BEFORE[micro]) == (micro in (None, 6, 4))


@pytest.mark.parametrize("norm", ["batchnorm", "switchnorm"])
def test_running_statistics_are_taken_in_by_the_order_of_the_micro_batches(norm):
    training = begun({"norm": norm, "train.micro_batch": 4, "model.depth": 1})
    seen = {m: [] for m in training.model.modules() if hasattr(m, "momentum")}
    for module in seen:
        module.register_forward_pre_hook(
            lambda module, inputs: seen[module].append(inputs[0].detach().double().flatten(0, -2))
        )
    training.step()
    for module, rows in seen.items():
        assert len(rows) == 4
        mean = torch.zeros(rows[0].shape[1], dtype=torch.float64)
        var = torch.ones_like(mean)
        for values in rows:
            mean = 0.9 * mean + 0.1 * values.mean(0)
            var = 0.9 * var + 0.1 * values.var(0)
        torch.testing.assert_close(module.mean.double(), mean)
        if isinstance(module, BatchNorm):
            torch.testing.assert_close(module.var.double(), var)


# --- Several processes ----------------------------------------------------------------------------

SPLIT = ("train.micro_batch=16", "from.train.micro_batch=16", "from.train.steps=4")


MIXED = ("augment.mixup=0.5", "augment.cutmix=0.5", "train.ema=0.9", "train.micro_batch=16")
TASKS = {
    "mixed": (*QUICK, *MIXED, "norm=layernorm,batchnorm,switchnorm"),
    "augmented": (
        *(*QUICK, "train.micro_batch=8", "stem=none,whiten", "augment.randaug=2"),
        *("augment.style=timm", "augment.crop_area=0.3", "augment.erase=0.5", "augment.mixup=0.2"),
        *("model.dropout=0.1", "model.drop_path=0.1", "eval.batch=100", "probe=[gradnorm,tokens]"),
    ),
    "fine-tuned": (*QUICK, *SPLIT, "stem=none,dpn", "optim.lr=0.001"),
    "few-shot": (
        *(*QUICK[:3], *SPLIT[1:], "seeds=1"),
        *("task=fewshot", "stem=none,dpn", "eval.batch=50"),
    ),
    "contrastive": (
        *("table4", "--scale", "smoke", "train.steps=4", "optim.warmup_steps=1", "seeds=1"),
        *("from.train.steps=2", *SPLIT[:2]),
    ),
}


LONGER = ("fine-tuned", "few-shot", "contrastive")  # for `make soak`


@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[pytest.mark.slow] * (t in LONGER)) for t in TASKS]
)
def test_two_and_four_ranks_have_the_bits_of_one(task, tmp_path):
    """Results and predictions, byte for byte."""
    alone = train_on_ranks(1, tmp_path, *TASKS[task])
    assert len(alone) >= 2
    for ranks in (2, 4) if task == "mixed" else (4,):
        assert train_on_ranks(ranks, tmp_path, *TASKS[task]) == alone


@pytest.mark.slow
def test_segmentation_on_four_ranks_has_the_bits_of_one(tmp_path):
    words = [
        word for word in SEGMENT_WORDS if not word.startswith(("stem", "train.micro", "data.path"))
    ]
    pairs = [image_and_mask(60 + n, 80 - n) for n in range(20)]
    write_masks(tmp_path / "train.parquet", *([png(one[n]) for one in pairs] for n in (0, 1)))
    words += [f"data.path={tmp_path}", "stem=none,dpn", "train.micro_batch=1", "train.steps=4"]
    words += ["from.train.micro_batch=16", "seeds=1"]
    assert train_on_ranks(1, tmp_path, *words) == train_on_ranks(4, tmp_path, *words)


TWO, THREE = "launcher.cores_per_run=2", "launcher.cores_per_run=3"
OF_SLURM = ("launcher=slurm", "launcher.gpus=2", "launcher.gpus_per_run=2")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((TWO, "train.micro_batch=null"), "2 ranks can't share the 1 micro-batch of a step"),
        ((*OF_SLURM, "train.micro_batch=null"), "2 ranks can't share the 1 micro-batch"),
        ((TWO, "train.batch=48", "train.micro_batch=16"), "a power of two of micro-batches"),
        ((TWO, "norm=layernorm,powernorm"), "powernorm reads in each micro-batch what"),
        (
            (TWO, "norm=layernorm,batchnorm", "train.micro_batch=32"),
            "train.micro_batch: running statistics of 2 micro-batches can't be gathered; give at "
            "most 16, or one rank (row batchnorm)",
        ),
        ((THREE,), "launcher.cores_per_run: expected one of auto, 1, 2, 4, 8, got 3"),
        (("launcher=inline", TWO), "launcher.cores_per_run: is a setting of launcher=local"),
    ],
)
def test_what_can_not_be_the_same_is_refused_with_its_reason(words, why, shell):
    rows = () if any("norm=" in word for word in words) else ("stem=none,dpn",)
    parts = () if any("micro_batch" in word for word in words) else ("train.micro_batch=16",)
    for command in ("plan", *["sweep"] * ("batchnorm" in why)):
        said = shell(command, *QUICK, *rows, *parts, *words, code=2).err
        assert why in said
        assert said.count("\n") == 1
    assert not list((shell.folder / "runs").glob("runs/*"))


def test_a_batch_of_fewer_images_than_eight_may_be_shared(tmp_path):
    words = ["stem=none,dpn", "train.batch=4", "train.micro_batch=auto"]
    cell = planned(words, store=tmp_path)[0].cells[0]
    assert world_sizes.open_to([cell], [4], {}) == {("", False): [4]}
    assert world_sizes.open_to([cell], [1, 2, 4, 8], {}) == {("", False): [1, 2, 4]}
    with pytest.raises(UserError, match="8 ranks can't share the 4 micro-batches of a step"):
        world_sizes.open_to([cell], [8], {})


COUNTING = """
import torch

class Norm(torch.nn.LayerNorm):
    def __init__(self, shape):
        super().__init__(shape.width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)
"""


def test_a_class_of_ones_own_that_changes_as_it_is_called_is_refused_by_its_run(shell):
    (shell.folder / "counting.py").write_text(COUNTING)
    words = ("norm=layernorm,counting:Norm", "train.micro_batch=16", TWO)
    said = shell("sweep", *QUICK, *words, "--yes", code=1)
    assert re.search(r"model: Norm \(.*calls\) changes as it is called", said.err + said.out)


@pytest.mark.parametrize(
    ("models", "across", "why"),
    [
        (["H100"] * 2, "true, auto", ""),
        (["H100"] * 2, "true, false", "false runs on 2 ranks {}train.deterministic=false)"),
        (["H100", "A100"], "true, auto", "true, auto runs on 2 ranks {}GPUs differ: H100, A100)"),
        ([], "true, false", ""),  # a CPU
    ],
)
def test_a_plan_says_where_ranks_do_not_promise_the_bits_of_one(models, across, why, tmp_path):
    gpus = GpuSet(tuple(Gpu(f"{n}", f"GPU-{n}", model, "") for n, model in enumerate(models)))
    launcher = SimpleNamespace(worlds=[2], device="cuda" if models else "cpu", devices=gpus)
    (tmp_path / "two.yaml").write_text(
        "base: {data: digits}\nvariants: [{none: {stem: none}}, {dpn: {stem: dpn}}]\n"
        f"across: {{train.deterministic: [{across}]}}\n"
    )
    cells = planned([str(tmp_path / "two.yaml")], store=tmp_path)[0].cells
    said = [why.format("equal those on one up to rounding (")] if why else []
    assert world_sizes.rounding_lines(cells, launcher) == said
    launcher.worlds = [1]
    assert world_sizes.rounding_lines(cells, launcher) == []


def test_a_table_says_where_ranks_do_not_promise_the_bits_of_one():
    plan = make_plan(["base", "near"], ("S", "B"))
    alone = plant(plan, PLANTED_TWO)

    def told(of="@B", on="cpu", **noted: object) -> list[dict]:
        """Of runs on four ranks; what is noted is in those whose ids have `of`."""
        four = {"ranks": 4, "deterministic": True, "device": on}
        found = {run: {**one, **four, **(noted if of in run else {})} for run, one in alone.items()}
        return [note.values for note in notes_of(tabulate(plan, found), "rounding")]

    assert told() == told(ranks=1, deterministic=False) == []
    assert told(deterministic=False) == []  # on a CPU
    off = told(deterministic=False, device="H100")
    assert off == [{"columns": ["B"], "nondeterministic": True, "devices": []}]
    [differing] = told(device="H100, A100")
    assert differing == {"columns": ["B"], "nondeterministic": False, "devices": ["H100, A100"]}
    [differing] = told("near", "A", device="B")
    assert differing == {"columns": ["S", "B"], "nondeterministic": False, "devices": ["A", "B"]}


@pytest.mark.slow
def test_an_automatic_micro_batch_leaves_eight_to_share(tmp_path):
    words = (*QUICK, "stem=none,dpn", "train.micro_batch=auto")
    two = train_on_ranks(2, tmp_path, *words)
    assert {json.loads(result)["micro_batch"] for result, _ in two.values()} == {8}
    assert train_on_ranks(8, tmp_path, *words) == two


@pytest.fixture
def machine(tmp_path, monkeypatch) -> nvidia.Machine:
    """Two GPUs. They and CUDA are a stand-in, by the same code over gloo: not a word of NCCL."""
    for key in SEEN:
        monkeypatch.delenv(key, raising=False)
    return nvidia.Machine(tmp_path / "machine", nvidia.gpu(0), nvidia.gpu(1))


def test_a_group_of_gpus_is_handed_to_the_ranks_of_a_run(shell, machine, tmp_path):
    words = (*QUICK, "stem=none,dpn", "train.micro_batch=16")
    given = ("--yes", "launcher.gpus_per_run=2", "launcher.attempts=1")
    assert shell.end(shell.start("sweep", *words, *given, **machine.stand_in)).code == 0
    assert {visible for what, visible, _ in machine.touched() if what == "run"} == {GROUP}
    alone = train_on_ranks(1, tmp_path / "alone", *words, "launcher.devices=cpu")
    assert predictions(results_by_run(shell)) == predictions(alone)


# --- Trainers of one's own ------------------------------------------------------------------------

SEEN = "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"
PROGRAM = f"""
import json, os, sys
seen = [os.environ.get(key) for key in {SEEN!r}]
json.dump({{"gpus": int(sys.argv[1]), "n": 1}}, open(f"{{sys.argv[2]}}/result.json", "w"))
json.dump(seen, open(f"{{sys.argv[2]}}/seen.json", "w"))
"""
FUNCTION = """
import multiprocessing, os
import torch
from torch import distributed

def live(rank, totals):
    os.environ["RANK"] = str(rank)
    distributed.init_process_group("gloo")  # by what torchrun sets
    total = torch.tensor([rank + 1])
    distributed.all_reduce(total)
    totals.put(total.item())

def main(settings, run):
    fork = multiprocessing.get_context("fork")
    totals = fork.Queue()
    for rank, _ in enumerate(run.devices):
        fork.Process(target=live, args=(rank, totals)).start()
    run.result(sum=sum(totals.get() for _ in run.devices), cpus=run.devices.count("cpu"))
"""


def own(shell: Shell, text: str, setting: str, metrics: str, env=None, **declared: object) -> Path:
    """Train a trainer of one's own once; the folder of its run."""
    sweep = {"base": {"trainer": "pair"}, "variants": [{"one": {}}], "seeds": 1}
    declared["metrics"] = {key: {"direction": "more"} for key in metrics.split()}
    if "command" in declared:
        declared |= {"result": {"file": "result.json"}, "code": ["pair.py"]}
    for folder, tree in {"conf/trainer/pair": declared, "sweeps/one": sweep}.items():
        (shell.folder / folder).parent.mkdir(parents=True)
        (shell.folder / f"{folder}.yaml").write_text(json.dumps(tree))
    (shell.folder / "pair.py").write_text(text)
    done = shell.end(shell.start("sweep", "one", setting, "--quiet", "--yes", **(env or {})))
    assert done.code == 0, done.out + done.err
    (made,) = (shell.folder / "runs" / "runs").iterdir()
    return made


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_command_is_given_the_gpus_of_its_group(number, shell, machine):
    command = "python pair.py {gpus} {folder}"
    given = (PROGRAM, f"launcher.gpus_per_run={number}", "gpus", machine.stand_in)
    folder = own(shell, *given, command=command)
    result = RunDir(folder).read_result()
    assert (result["test"]["gpus"], result["ranks"]) == (number, number)
    seen = [None, None, nvidia.gpu(0)["uuid"]] if number == 1 else ["2", "2", GROUP]
    assert json.loads((folder / "scratch" / "seen.json").read_text()) == seen


TORCHRUN = """
import json, sys
import torch
from torch import distributed

distributed.init_process_group("gloo")
total = torch.tensor([distributed.get_rank() + 1])
distributed.all_reduce(total)
if distributed.get_rank() == 0:
    json.dump({"sum": total.item(), "n": 1}, open(f"{sys.argv[1]}/result.json", "w"))
distributed.destroy_process_group()
"""


@pytest.mark.faults
def test_torchrun_itself_starts_a_process_for_each_gpu_of_the_group(shell, machine, monkeypatch):
    """What it sets for its processes stands, whatever its own process was given."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    launch = "python -m torch.distributed.run --standalone --nproc-per-node {gpus}"
    given = (TORCHRUN, "launcher.gpus_per_run=2", "sum", machine.stand_in)
    folder = own(shell, *given, command=f"{launch} pair.py {{folder}}")
    assert RunDir(folder).read_result()["test"]["sum"] == 1 + 2


def test_processes_of_a_trainer_find_one_another_by_what_torchrun_sets(shell):
    folder = own(shell, FUNCTION, "launcher.cores_per_run=2", "sum cpus", name="pair:main")
    test = RunDir(folder).read_result()["test"]
    assert (test["sum"], test["cpus"]) == (2 * (1 + 2), 2)


# Prints how many threads a call of set_num_threads starts in a forked process: those of a pool that
# is replaced by then, or none. Before the fork the process counts its threads, as workers do: after
# that torch's own handler of forks replaces nothing.
FORKED = """
import os, sys
import torch

def started():
    before = len(os.listdir("/proc/self/task"))
    torch.set_num_threads(3)
    return len(os.listdir("/proc/self/task")) - before

torch.get_num_threads()
torch.set_num_threads(3)
"""
RANKS = """
from ablate.training.ranks import Children, Loss

def live(ranks):
    os.write(2, f"{started()}".encode())
    ranks.hear()

def stop(*what):
    os._exit(1)

children = Children(2, lambda rank: torch.device("cpu"), live, stop, stop, Loss(1, "", ""))
children.ranks.tell("end")
os.waitpid(children.pids[0], 0)
os._exit(0)
"""
PLAIN = """
if not os.fork():
    os.write(2, f"{started()}".encode())
    os._exit(0)
os.wait()
"""
TRAINER = """
def main(settings, run):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, b"%d" % started())
        os._exit(0)
    os.wait()
    run.result(started=int(os.read(read, 8)))
"""


def threads_started(script: str) -> int:
    """What FORKED and a script print to their standard error."""
    words, alone = [sys.executable, "-c", FORKED + script], {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        words, env={**os.environ, **alone}, capture_output=True, text=True, check=True
    )
    return int(done.stderr)


@pytest.mark.slow
def test_a_forked_rank_has_threads_of_its_own_before_it_computes(shell):
    """Autograd starts a thread for each GPU, and all of them call set_num_threads at once: where
    the pool is still the parent's, the process aborts ("Invalid thread pool!")."""
    assert threads_started(PLAIN) == 2  # so the test would see it
    assert threads_started(RANKS) == 0
    folder = own(shell, FORKED + TRAINER, "launcher.cores_per_run=1", "started", name="pair:main")
    assert RunDir(folder).read_result()["test"]["started"] == 0


def test_a_result_names_the_devices_of_all_ranks(monkeypatch):
    names = {torch.device("cuda", n): f"GPU {n // 2}" for n in range(4)}
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    assert worker._names([*names]) == "GPU 0, GPU 1"
    assert worker._names([*names][:2]) == "GPU 0"
    assert worker._names([CPU, CPU]) == "cpu"


def test_unequal_ranks_are_named():
    assert unequal([[1, 2], [1, 2]], 5) is None
    assert unequal([[1, 2], [1, 3]], 5) == "ranks 0 and 1 of 2: weights differ at step 5"
    three = "rank 2 of 4: weights differ from the others' at step 5"
    assert unequal([[1], [1], [7], [1]], 5) == three


# --- Deaths ---------------------------------------------------------------------------------------

LONG = (*QUICK[:3], "stem=none,dpn", "train.micro_batch=16", "train.steps=500", "seeds=1")
OFTEN = ("launcher.checkpoint_s=0.2", "launcher.attempts=9")


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict[str, tuple]:
    return train_on_ranks(1, tmp_path_factory.mktemp("calm"), *LONG)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "how"),
    [
        pytest.param(signal.SIGKILL, "died (signal SIGKILL)", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "is stopped", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_dies_or_stops_is_named_and_its_run_goes_on(number, how, shell, calm):
    driver = shell.start("sweep", *LONG, *OFTEN, "launcher.cores_per_run=4", "--yes")
    victims = wait_for(lambda: children(shell))
    os.kill(victims[1], number)
    wait_for(lambda: all(map(gone, victims)), 15)
    done = shell.end(driver)
    assert done.code == 0
    assert f"rank 2 of 4 {how}" in done.out + done.err
    assert results_by_run(shell) == calm


@pytest.mark.faults
def test_ranks_die_with_the_first_and_its_run_goes_on_alone(shell, calm):
    driver = shell.start("sweep", *LONG, *OFTEN, "launcher.cores_per_run=4", "--yes")
    victims = wait_for(lambda: children(shell))
    first = Path(f"/proc/{victims[0]}/stat").read_text().rpartition(")")[2].split()[1]
    driver.kill()
    os.kill(int(first), signal.SIGKILL)
    wait_for(lambda: all(map(gone, victims)), 5)
    driver.wait()
    shell("sweep", *LONG, "--yes")
    assert results_by_run(shell) == calm


@pytest.mark.faults
def test_a_stop_is_the_first_ones_to_answer_and_another_number_goes_on(shell, calm):
    driver = shell.start("sweep", *LONG, "launcher.cores_per_run=4", "--yes")
    wait_for(lambda: [*(shell.folder / "runs").glob("runs/*/metrics.jsonl")])
    time.sleep(1)
    driver.send_signal(signal.SIGTERM)
    assert shell.end(driver).code != 0
    assert [*(shell.folder / "runs").glob("runs/*/checkpoint-*")]
    shell("sweep", *LONG, "launcher.cores_per_run=2", "--yes")
    assert results_by_run(shell) == calm


UNEQUAL = """
from ablate.training import ranks, training

whole = training.Training.step

def step(self):
    whole(self)
    if self.ranks.rank == 1 and self.steps == 277 and not TRIED.exists():
        TRIED.touch()
        next(self.model.parameters()).data.view(-1)[0] += 1e-3

training.Training.step = step
"""


@pytest.mark.slow
@pytest.mark.faults
def test_ranks_that_are_made_unequal_are_named_and_nothing_is_lost(shell, calm):
    place = shell.folder / "site"
    place.mkdir()
    tried = f"from pathlib import Path\nTRIED = Path({str(shell.folder / 'tried')!r})\n"
    (place / "unequal.py").write_text(tried + UNEQUAL)
    (place / "sitecustomize.py").write_text(
        "import sys\nif 'ablate.running.launchers.server' in sys.orig_argv: import unequal\n"
    )
    words = (*LONG, *OFTEN, "launcher.cores_per_run=4", "--yes")
    done = shell.end(shell.start("sweep", *words, PYTHONPATH=str(place)))
    assert done.code == 0
    assert (shell.folder / "tried").exists()
    assert "rank 1 of 4: weights differ from the others'" in done.out + done.err
    assert results_by_run(shell) == calm
