"""How weights move: the optimisers, and the average of the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ablate.shared.errors import UserError, unknown
from ablate.shared.parts import OPTIMIZER
from ablate.shared.recipe import Optim
from ablate.training.adafactor import AdafactorBV, axes
from ablate.training.fused import Fused
from ablate.training.model.host import Host
from ablate.training.model.whole_model import kernel_names
from ablate.training.plugin import blame
from ablate.training.torch_optim import Wrapped, as_tensors, construct, from_tensor


def decay_names(model: nn.Module) -> set[str]:
    """Names of the parameters that decay: the kernels of dense and convolutional layers; of a whole
    model see `whole_model.kernel_names`.

    No decay on biases, norms, class token and positions (big_vision: `*/kernel` only).
    """
    if not isinstance(model, Host):
        return kernel_names(model)
    return {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    }


def factors(model: nn.Module, optim: Optim) -> dict[str, float]:
    """By parameter: what its rate is multiplied with, by the longest path of `optim.lr_mult` that
    it lies below. Raises UserError for a path that has no parameters."""
    paths = optim.lr_mult or {}
    names = [name for name, _ in model.named_parameters()]
    for path in paths:
        if not any(f"{name}.".startswith(f"{path}.") for name in names):
            tops = dict.fromkeys(name.partition(".")[0] for name in names)
            raise unknown(f"optim.lr_mult.{path}", path, tops, "a path of parameters below one of")
    found = dict.fromkeys(names, 1.0)
    for path in sorted(paths, key=len):
        below = (name for name in names if f"{name}.".startswith(f"{path}."))
        found |= dict.fromkeys(below, paths[path])
    return found


def check_optimizer(optim: Optim) -> None:
    """Make an optimiser by import path, and let it take two steps. Raises UserError where it can't,
    or keeps what no checkpoint holds."""
    if (used := OPTIMIZER.one(optim)) is None:
        return
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, replace(optim, lr_mult=None))
    with blame(used):
        for step in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
            optimizer.set_rate(optim.lr)
            optimizer.step()
        for kept in (*optimizer.state.values(), *optimizer.counts()):
            as_tensors(kept, optim, model.weight.device)


def make_optimizer(model: nn.Module, optim: Optim) -> Fused | Wrapped:
    """The optimiser of a model, as `optim` says; s is the step's rate over `optim.lr`.

    adamw (Loshchilov, Hutter 2019): p <- p - s lr (Adam + wd p); with `decay: independent`
    p <- p - s (lr Adam + wd p), as big_vision/optax.py.
    sgd: heavy ball, m <- b1 m + g + wd p, p <- p - s lr m: torch's, where the decay runs through
    the momentum. Without decay that is big_vision's momentum_hp, its buffer in float32.
    lion (Chen et al. 2023): p <- p - s lr (sign(b1 m + (1 - b1) g) + wd p), then
    m <- b2 m + (1 - b2) g. adafactor and muon are torch.optim's, their decay as adamw's; muon moves
    the kernels in blocks, adamw the rest at the same rate. adafactor_bv: see `AdafactorBV`.

    `lr_mult` scales lr, and so by_lr's decay, of some parameters. Frozen ones have no gradient:
    they are outside the clipped norm, and nothing decays (big_vision: schedule None).
    """
    decays, scales = decay_names(model), factors(model, optim)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(scales[name] != 0)
    if not any(scales.values()):
        raise UserError("optim.lr_mult: freezes every parameter; leave one path out")

    def groups(names: Collection[str]) -> list[dict[str, Any]]:
        found: dict[tuple[float, bool], list[Tensor]] = {}
        for decay in (True, False):  # the order of the kernels' calls
            for name, parameter in model.named_parameters():
                if name in names and (name in decays) == decay and scales[name]:
                    found.setdefault((scales[name], decay), []).append(parameter)
        return [
            {"params": kept, "scale": scale, "weight_decay": decay_of(scale) if decay else 0.0}
            for (scale, decay), kept in found.items()
        ]

    def decay_of(scale: float) -> float:
        return optim.wd / (optim.lr * scale) if optim.decay == "independent" else optim.wd

    if optim.name == "adafactor":
        own: torch.optim.Optimizer = torch.optim.Adafactor(
            groups(scales), lr=optim.lr, beta2_decay=optim.beta2_decay, d=optim.clip_threshold
        )
        return Wrapped(own)
    if optim.name == "adafactor_bv":
        b1, b2, decay = optim.b1, optim.b2, optim.beta2_decay
        views = axes(model)
        return Wrapped(
            AdafactorBV(groups(scales), optim.lr, b1=b1, b2=b2, decay=decay, views=views)
        )
    if optim.name == "muon":
        matrices = {
            name
            for name, parameter in model.named_parameters()
            if name in decays and name.startswith("blocks.") and parameter.ndim == 2
            if scales[name]
        }
        if not matrices:
            raise UserError("optim.name: muon: every matrix in blocks is frozen; give adamw")
        own = torch.optim.Muon(
            groups(matrices),
            lr=optim.lr,
            momentum=optim.momentum,
            adjust_lr_fn=optim.adjust_lr,
        )
        rest = groups(scales.keys() - matrices)
        return Wrapped(own, Fused(rest, replace(optim, name="adamw")) if rest else None)
    if (used := OPTIMIZER.one(optim)) is not None:
        return Wrapped(construct(groups(scales), optim, used))
    return Fused(groups(scales), optim)


def tensors_of(optimizer: Fused | Wrapped, model: nn.Module, optim: Optim) -> dict[str, Tensor]:
    """What an optimiser keeps, by its names in files: `optim.KEY.PARAMETER`, and `group.NUMBER.KEY`
    of a group. The tensors themselves, where it keeps tensors."""
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for key, value in as_tensors(state, optim, parameter.device).items():
            tensors[f"optim.{key}.{name}"] = value
    device = next(model.parameters()).device
    for number, group in enumerate(optimizer.counts()):
        for key, value in as_tensors(group, optim, device).items():
            tensors[f"group.{number}.{key}"] = value
    return tensors


def restore(optimizer: Fused | Wrapped, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Have it keep what `tensors_of` gave, and nothing else."""
    optimizer.zero_grad()
    optimizer.state.clear()
    parameters = dict(model.named_parameters())
    device = next(model.parameters()).device
    counts: list[dict[str, Any]] = [{} for _ in optimizer.param_groups]
    for path, tensor in tensors.items():
        if path.startswith("optim."):
            _, key, name = path.split(".", 2)
            if (parameter := parameters.get(name)) is not None:
                key, value = from_tensor(key, tensor, parameter.device)
                optimizer.state.setdefault(parameter, {})[key] = value
        elif path.startswith("group."):
            _, number, key = path.split(".", 2)
            key, value = from_tensor(key, tensor, device)
            counts[int(number)][key] = value
    optimizer.recount(counts)


class Average:
    """The weights that are measured and saved: the model's own, or an exponential average of them.

    After each step a <- keep a + (1 - keep) p, from the initial weights on (timm.utils.ModelEmaV3
    without its warm-up); buffers are the model's own. `keep` None: there is no average.
    """

    def __init__(self, model: nn.Module, keep: float | None) -> None:
        self._model = model
        self._keep = keep
        averaged = model.named_parameters() if keep is not None else ()
        self.weights = {name: p.detach().clone() for name, p in averaged}  # by parameter's name

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights that a step has left."""
        if self._keep is not None:
            own: list[Tensor] = list(self._model.parameters())
            torch._foreach_lerp_(list(self.weights.values()), own, 1 - self._keep)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside, the model has the averaged weights. They change places by their values: a
        captured step goes on with the tensors that it knows."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, p in self._model.named_parameters():
            if (average := self.weights.get(name)) is not None:
                own = p.clone()
                p.copy_(average)
                average.copy_(own)
