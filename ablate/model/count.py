"""What only torch can tell of a run, told without weights, data or arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ablate import spec
from ablate.model import build


def describe(run: spec.Run) -> dict[str, Any]:
    """Of the run's model: `parameters`, `multiply_adds` of one image's forward, and `groups`.

    `groups` is {path of a norm: how many values it normalises together}. Multiply-adds are those
    of matrix products (and convolutions), as papers print them. A combination of choices that
    cannot be built raises spec.UserError.
    """
    model = build(run, device="meta").eval()
    image = torch.empty(1, run.data.size, run.data.size, run.data.channels, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "multiply_adds": counter.get_total_flops() // 2,
        "groups": {
            path: module.group for path, module in model.named_modules() if hasattr(module, "group")
        },
    }
