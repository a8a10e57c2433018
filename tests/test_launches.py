"""A step waits for no device and launches few kernels: counted operator by operator, in the form
that a GPU runs, on tensors that hold nothing and say that they are on one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.data.batches import Batches
from ablate.data.draws import Draws
from ablate.data.image_changes import ImageView
from ablate.data.splits import Split
from ablate.planning.compose import resolve_run
from ablate.planning.expand import plan_from_words
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.running import devices, estimate
from ablate.running.work import launches_of_step
from ablate.store.store import Store
from ablate.training import answers, training
from ablate.training.model import sublayers
from ablate.training.model.count import describe
from ablate.training.model.drop import StepKey
from ablate.training.task import make_task

# On it item(), tolist(), nonzero(), a boolean index and a copy to the host all fail.
GPU = torch.device("meta")
STEPS = 64
LOOKS = ("empty", "new_empty", "_unsafe_view", "detach")  # at memory, or take some
MOST = {  # kernels of a step's input, the mean of STEPS
    "augreg": 358,
    "cifar": 250,
    "deit": 463,
    "dtn": 283,
    "mnist_bn": 140,
    "quick": 8,
    "s16_plus": 358,
}


class Launches(TorchDispatchMode):
    """How often each operator ran on the device that does something there."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.moved = 0  # from the host to the device

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        name = operator.overloadpacket.__name__
        inside = list(arguments[0]) if name in ("stack", "cat") else arguments
        devices = {x.device for x in (*inside, result) if isinstance(x, torch.Tensor)}
        if GPU in devices and not operator.is_view and not name.startswith(LOOKS):
            self.counts[name] += 1
        if name in ("_to_copy", "copy_") and len(devices) > 1:
            self.moved += 1
        return result


def recipe_run(recipe: str, arch: str, size: int, batch: int, *words: str) -> Run:
    said = [f"recipe={recipe}", f"model.arch={arch}", "data.channels=3", f"data.size={size}"]
    return build_run(resolve_run([*said, f"train.batch={batch}", *words], Path("runs"))[0])


def arch_of(recipe: str) -> str:
    return "S/16" if recipe == "augreg" else "mu/4"


def split(images: int, size: int, channels: int = 3) -> Split:
    return Split(
        torch.zeros((images, size, size, channels), dtype=torch.uint8, device=GPU),
        torch.zeros(images, dtype=torch.int64, device=GPU),
        torch.ones(images, device=GPU),
    )


def make(recipe: str, size: int, batch: int) -> tuple[Batches, object]:
    run = recipe_run(recipe, arch_of(recipe), size, batch)
    view = ImageView(size, run.model.input)
    shown = split(batch * (STEPS + 1), size)
    return Batches(shown, batch, run.augment, Draws(0, GPU), view), make_task(run)


@pytest.mark.whole
@pytest.mark.parametrize("recipe", MOST)
def test_inputs_wait_for_no_device_and_take_few_kernels(recipe: str) -> None:
    """What goes to the device goes once for many steps: an epoch's order, constants, mixtures. So
    are numbers drawn, and what hangs on them alone: at this batch for `STEPS` at least."""
    batches, task = make(recipe, 32, 512)
    seen = []
    for step in (0, 1, STEPS - 1):
        with Launches() as launches:
            images, _ = task.inputs(batches, step, torch.float32)
        seen.append(launches)
    first, *others = seen
    assert images.device == GPU
    assert [one.moved for one in others] == [0, 0]
    assert others[0].counts == others[1].counts  # whatever was drawn, and nothing drawn anew
    each = others[0].counts.total()
    assert each + (first.counts.total() - each) / STEPS <= MOST[recipe], others[0].counts


class Autocast(TorchFunctionMode):
    """What autocast does to a dense layer on a GPU; the device that stands for one has none."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.nn.functional.linear:
            arguments = [x if x is None else x.to(torch.bfloat16) for x in arguments]
        return function(*arguments, **(options or {}))


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That a step on `GPU` is one on a GPU: torch has no form without data of some operators."""
    missing = torch.library.Library("aten", "IMPL", "Meta")
    for name in ("_fused_adamw_", "_fused_sgd_"):
        missing.impl(f"{name}.tensor_lr", lambda *arguments, **options: None)
    monkeypatch.setattr(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *where: True)
    monkeypatch.setitem(sublayers.KERNELS, "sdpa", flash)
    monkeypatch.setattr(training, "arithmetic", lambda device, dtype: Autocast())
    # As a kernel does, torch's own takes one launch each way.
    monkeypatch.setattr(StepKey, "dropout", lambda key, site, x, share: nn.functional.dropout(x))
    yield
    missing._destroy()


def trained(run: Run, steps: int = 2) -> tuple[training.Training, Launches]:
    """What its last of some steps launched, its input apart."""
    shown = split(4 * run.train.batch, run.data.size, run.data.channels)
    made = training.Training(run, shown, GPU)
    made.micro_batch = made.micro_batch or run.train.batch
    inputs = made.inputs()
    made.inputs = lambda: inputs  # type: ignore[method-assign]
    for _ in range(steps):
        with Launches() as launches:
            made.step()
    return made, launches


@pytest.mark.whole
@pytest.mark.parametrize(("arch", "most"), [("Ti/4", 462), ("mu/4", 77)])
def test_a_model_takes_few_kernels(arch: str, most: int, pretending: None) -> None:
    """In bfloat16, with stochastic depth, a soft target and a clipped norm. A block of Ti is 35."""
    _, launches = trained(recipe_run("cifar", arch, 32, 8))
    assert launches.counts.total() <= most, launches.counts


QUICK = ("deit", "finetune")
WHOLE = [
    pytest.param(recipe, marks=[] if recipe in QUICK else pytest.mark.slow)
    for recipe in (*MOST, "finetune")
]


@pytest.mark.whole
@pytest.mark.parametrize("recipe", WHOLE)
def test_a_step_waits_for_no_device(recipe: str, pretending: None) -> None:
    """Of every recipe: clipped or not, averaged or not, in two micro-batches."""
    words = ["train.micro_batch=4", "model.dropout=0.1", "model.depth=2"]
    made, launches = trained(recipe_run(recipe, arch_of(recipe), 16, 8, *words))
    assert made.steps == 2
    assert launches.moved == 0
    with pytest.raises((RuntimeError, NotImplementedError)):
        made.bad_step()  # to look at a loss is to wait


def kernels_of_a_step(run: Run) -> int:
    """Its input, forward, backward and update."""
    shown = split(4 * run.train.batch, run.data.size, run.data.channels)
    batches = Batches(shown, run.train.batch, run.augment, Draws(0, GPU), ImageView.from_run(run))
    make_task(run).inputs(batches, 0, torch.float32)  # draws for many steps
    with Launches() as inputs:
        make_task(run).inputs(batches, 1, torch.float32)
    return inputs.counts.total() + trained(run)[1].counts.total()


@pytest.mark.whole
@pytest.mark.parametrize("recipe", [*MOST, "finetune", "dropout"])
def test_what_a_plan_takes_a_step_to_launch_is_about_right(recipe: str, pretending: None) -> None:
    words = ["model.depth=2", *["model.dropout=0.1"] * (recipe == "dropout")]
    recipe = "cifar" if recipe == "dropout" else recipe
    run = recipe_run(recipe, arch_of(recipe), 32, 8, *words)
    told = launches_of_step(run.spec, describe(run)["launches"])
    counted = kernels_of_a_step(run)
    assert counted / 2 < told < 2 * counted


def test_a_plan_of_small_runs_is_near_what_they_launch(tmp_path: Path, pretending: None) -> None:
    """The quick start on other hardware, beside one that only starts and launches its kernels."""
    made, _ = plan_from_words(["quickstart"], store=tmp_path)

    def ask(verb: str, question: dict) -> dict:
        return answers.answer(verb, question, lambda done, total: None)

    launcher = SimpleNamespace(device="cpu", most=2, remote=False, ask=ask)
    on = devices.Devices.parse("h100:8", None, {})
    costs = estimate.estimate_costs(made, Store(tmp_path), launcher, {}, {}, on=on)
    cell = made.cells[0]
    run = build_run(cell.spec.with_seed(0).tree)
    examples = costs.described[cell.row, cell.column]["examples"]
    steps = round(run.train.epochs * (examples["train"] // run.train.batch))
    forward = describe(run)["launches"]
    evaluations = run.train.epochs * examples["validation"] + examples["test"]
    kernels = steps * kernels_of_a_step(run) + forward * evaluations / run.eval.batch
    stand_in = 6 * (devices.START_S + kernels * devices.LAUNCH_S)  # 48 runs on 8 devices
    assert stand_in / 3 < costs.wall_s < 3 * stand_in
    launched = costs.seconds[cell.row, cell.column] - devices.START_S
    assert kernels * devices.LAUNCH_S / 3 < launched < 3 * kernels * devices.LAUNCH_S
