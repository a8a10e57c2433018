"""AdamW with the decay on dense kernels only, and the learning rate over a run."""

from __future__ import annotations

from math import cos, pi

import torch
from torch import nn

from ablate.spec import Optim


def decayed(model: nn.Module) -> set[str]:
    """Names of the parameters that decay: the kernels of dense and convolutional layers.

    No decay on biases, norms, class token and positions (big_vision: `*/kernel` only).
    """
    return {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    }


def adamw(model: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """AdamW (Loshchilov, Hutter 2019): each step takes lr * wd of a decaying weight."""
    decays = decayed(model)
    parameters = dict(model.named_parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for name, p in parameters.items() if name in decays],
                "weight_decay": optim.wd,
            },
            {
                "params": [p for name, p in parameters.items() if name not in decays],
                "weight_decay": 0.0,
            },
        ],
        lr=optim.lr,
        betas=(optim.b1, optim.b2),
        eps=optim.eps,
        fused=True,
    )


def learning_rate(optim: Optim, step: int, warmup: int, total: int) -> float:
    """The rate of step 0, 1, ... total - 1: linear warm-up, then cosine to 0 or constant.

    big_vision/utils.py create_learning_rate_schedule: s(0) = 0, s(warmup) = 1, s(total) = 0.
    """
    rate = min(1.0, step / warmup) if warmup else 1.0
    if optim.schedule == "cosine":
        done = (step - warmup) / max(total - warmup, 1)
        rate *= 0.5 * (1 + cos(pi * min(max(done, 0.0), 1.0)))
    return optim.lr * rate
