"""A step's micro-batches, summed in one order: the same bits on one rank and on several."""

from __future__ import annotations

import pytest
import tiny
import torch

from ablate.shared.spec import ids_of, to_tree
from ablate.training.calibrate import random_split
from ablate.training.model.norm import BatchNorm
from ablate.training.training import Training

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


@pytest.mark.parametrize("micro", [16, 8, 4, 2, 1])
def test_a_steps_gradient_is_a_balanced_tree_of_its_micro_batches(micro):
    training = begun({"train.micro_batch": micro, "model.depth": 1})
    parts = [gradients(training, rows) for rows in training.micro_batches()]
    images, target = training.inputs()
    training.task.backward(training, images, target, {})
    found = [p.grad for p in training.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(found, summed(parts), strict=True))
    if micro == 2:  # else this would say nothing of the order
        folded = parts[0]
        for part in parts[1:]:
            folded = [a + b for a, b in zip(folded, part, strict=True)]
        assert not all(torch.equal(a, b) for a, b in zip(found, folded, strict=True))


BEFORE = {  # ids of runs from before sums were trees, by their micro-batch
    **{None: "8d3b0db00bbea811", 6: "c959821e5d9d51e3", 4: "330733efb87b5f38"},
    **{3: "d507543ee89b5c4c", "auto": "e2f7adefbb972e80"},
}


@pytest.mark.parametrize("micro", BEFORE)
def test_runs_of_four_micro_batches_have_ids_of_their_own(micro):
    """Their bits changed when sums became trees; those of two or three micro-batches did not."""
    tree = to_tree(tiny.run({"train.batch": 12, "train.micro_batch": micro}))
    del tree["seed"]
    assert (ids_of(tree, [0])[0] == BEFORE[micro]) == (micro in (None, 6, 4))


@pytest.mark.parametrize("norm", ["batchnorm", "switchnorm"])
def test_running_statistics_are_taken_in_by_the_order_of_the_micro_batches(norm):
    training = begun({"norm": norm, "train.micro_batch": 4, "model.depth": 1})
    norms = [m for m in training.model.modules() if hasattr(m, "momentum")]
    seen, kept = [[] for _ in norms], 0.9
    for module, rows in zip(norms, seen, strict=True):
        module.register_forward_pre_hook(
            lambda _, inputs, rows=rows: rows.append(inputs[0].detach().double().flatten(0, -2))
        )
    training.step()
    for module, rows in zip(norms, seen, strict=True):
        assert len(rows) == 4
        mean = torch.zeros(rows[0].shape[1], dtype=torch.float64)
        var = torch.ones_like(mean) * isinstance(module, BatchNorm)
        for values in rows:
            mean = kept * mean + (1 - kept) * values.mean(0)
            if isinstance(module, BatchNorm):
                var = kept * var + (1 - kept) * values.var(0)
        torch.testing.assert_close(module.mean.double(), mean)
        if isinstance(module, BatchNorm):
            torch.testing.assert_close(module.var.double(), var)
