"""A step waits for no device and launches few kernels: counted operator by operator, in the form
that a GPU runs, on tensors that hold nothing and say that they are on one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.planning.compose import resolve
from ablate.shared.build import build_run
from ablate.training.data.batches import Batches, ImageView
from ablate.training.data.cached import Split
from ablate.training.keyed import Draws
from ablate.training.task import make_task

# On it item(), tolist(), nonzero(), a boolean index and a copy to the host all fail.
GPU = torch.device("meta")
STEPS = 64
LOOKS = ("empty", "new_empty", "_unsafe_view", "detach")  # at memory, or take some
MOST = {  # kernels of a step's input, the mean of STEPS
    "augreg": 385,
    "cifar": 250,
    "deit": 490,
    "dtn": 310,
    "mnist_bn": 140,
    "quick": 8,
    "s16_plus": 385,
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


def make(recipe: str, size: int, batch: int) -> tuple[Batches, object]:
    arch = "S/16" if recipe == "augreg" else "mu/4"
    words = [f"recipe={recipe}", f"model.arch={arch}", "data.channels=3", f"data.size={size}"]
    run = build_run(resolve([*words, f"train.batch={batch}"], Path("runs"))[0])
    shape = (batch * (STEPS + 1), size, size, 3)
    split = Split(
        torch.zeros(shape, dtype=torch.uint8, device=GPU),
        torch.zeros(shape[0], dtype=torch.int64, device=GPU),
        torch.ones(shape[0], device=GPU),
    )
    view = ImageView(size, run.model.input)
    return Batches(split, batch, run.augment, Draws(0, GPU), view), make_task(run)


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
