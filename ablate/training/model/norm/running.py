"""Running statistics: which modules keep them from step to step, our own norms and torch's."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ablate.training.model.norm.mixing import BatchNorm, SwitchNorm


def has_statistics(model: nn.Module) -> bool:
    """Has a module of the model any?"""
    return any(running(module) is not None for module in model.modules())


def running(module: nn.Module) -> tuple[float, list[Tensor]] | None:
    """The share that a new value has in a module's running ones, and these."""
    if isinstance(module, BatchNorm):
        return module.momentum, [module.mean, module.var]
    if isinstance(module, SwitchNorm):
        return 1 - module.momentum, [module.mean, module.var]
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        assert module.running_var is not None
        if module.momentum is not None:  # else a mean over all steps, which torch counts itself
            return module.momentum, [module.running_mean, module.running_var]
    return None
