"""Gradient norms by step (Dual PatchNorm, arXiv 2302.01327, Fig. 2 and 4).

Used by `probe=[gradnorm]`, through run/choices.py `PROBES`. run/metrics/probed.py reads the arrays,
for tables and `ablate plot`: it knows the names of groups, and its `GRADNORM_STEPS` must equal
`LAST_STEPS` here.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from ablate.run import Run
from ablate.training.model import Host
from ablate.training.optim import decay_names
from ablate.training.probes.probe import Probe

# Recorded: each of the first FIRST_STEPS; then every INTERVAL steps, or the least multiple of that
# for which RECORDS suffice; and every INTERVAL in the LAST_STEPS, over which Fig. 2 averages.
FIRST_STEPS = 10
INTERVAL = 10
RECORDS = 1000
LAST_STEPS = 1000


def steps_to_record(total: int) -> list[int]:
    """Return the steps to record in a run of `total` steps, in order."""
    interval = INTERVAL * ceil(total / (INTERVAL * RECORDS))
    steps = set(range(min(FIRST_STEPS, total)))
    steps.update(range(0, total, interval))
    steps.update(step for step in range(0, total, INTERVAL) if step >= total - LAST_STEPS)
    return sorted(steps)


def groups(model: nn.Module) -> list[list[str]]:
    """Return a list [group, parameter, ...] of names for each group. Every parameter is in one
    group, which is named by the place in the model.

    `embedding`: kernels and biases of the stem; `stem.norms`: the rest of the stem;
    `blocks.I.attn`, `blocks.I.mlp`, ...: all of a block's sublayer, including its norms; else the
    first part of the name (`head`, `norm`, `posemb`, ...). The norm of several groups together,
    such as those of a block, is the root of the sum of their squares.
    """
    with_kernels = {name.rpartition(".")[0] for name in decay_names(model)}
    members: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        top, *rest = name.split(".")
        group = top
        if top in ("blocks", "layers"):  # the MLP host has layers
            group = ".".join([top, *rest[:2]])
        elif top == "stem":
            group = "embedding" if name.rpartition(".")[0] in with_kernels else "stem.norms"
        members.setdefault(group, []).append(name)
    return [[group, *names] for group, names in members.items()]


class GradNorm(Probe):
    """||g||_2 of each group of parameters, before clipping, in some steps.

    Arrays: steps int64 (R,), from 0; groups, names (G,); norms float32 (R, G).
    """

    def __init__(self, run: Run, model: Host, total: int) -> None:
        listing = groups(model)
        parameters = dict(model.named_parameters())
        self.groups = []
        self.parameters = []
        group_numbers = []  # of each parameter
        for number, (group, *names) in enumerate(listing):
            self.groups.append(group)
            for name in names:
                self.parameters.append(parameters[name])
                group_numbers.append(number)
        self.steps = steps_to_record(total)
        self._row = {step: row for row, step in enumerate(self.steps)}
        device, dtype = self.parameters[0].device, self.parameters[0].dtype
        is_in_group = nn.functional.one_hot(torch.tensor(group_numbers)).T
        self._is_in_group = is_in_group.to(device, dtype)  # (G, parameters)
        self.norms = torch.zeros(len(self.steps), len(listing), device=device)

    def kept(self) -> dict[str, Tensor]:
        return {"norms": self.norms}

    @torch.no_grad()
    def gradients(self, step: int) -> None:
        row = self._row.get(step)
        if row is not None:  # nothing here waits for the device
            grads = []
            for parameter in self.parameters:
                grad = parameter.grad
                grads.append(torch.zeros_like(parameter) if grad is None else grad)
            norms = torch.stack(torch._foreach_norm(grads))
            self.norms[row] = (self._is_in_group @ norms.square()).sqrt()

    def arrays(self, steps: int) -> dict[str, np.ndarray]:
        recorded_steps = [step for step in self.steps if step < steps]
        return {
            "steps": np.array(recorded_steps, np.int64),
            "groups": np.array(self.groups),
            "norms": self.norms[: len(recorded_steps)].cpu().numpy(),
        }
