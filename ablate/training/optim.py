"""How weights move: the optimisers, and the average of the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ablate.shared.errors import UserError, unknown
from ablate.shared.parts import OPTIMIZER
from ablate.shared.recipe import Optim
from ablate.training.adafactor import AdafactorBV, axes
from ablate.training.borrowed import as_tensors, construct
from ablate.training.model.host import Host
from ablate.training.model.whole import decaying
from ablate.training.plugin import blamed


def decayed(model: nn.Module) -> set[str]:
    """Names of the parameters that decay: the kernels of dense and convolutional layers; of a whole
    model see `whole.decaying`.

    No decay on biases, norms, class token and positions (big_vision: `*/kernel` only).
    """
    if not isinstance(model, Host):
        return decaying(model)
    return {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    }


class Optimizer:
    """AdamW or SGD by torch's fused kernels: what torch.optim computes with `fused=True`, bit for
    bit, and keeps by the same names; or Lion, which torch has not.

    torch.optim's own load the whole of torch.compile with the first step, which no run uses: as
    much as torch itself, in time and in memory, paid at every start.
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]], optim: Optim) -> None:
        """`groups`: each with `params`, its parameters, `scale`, a factor on the rate, and
        `weight_decay`."""
        self.param_groups = [dict(group) for group in groups]
        device = self.param_groups[0]["params"][0].device
        # Tensors, which a captured step reads, in the type that the kernels take.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self._rates: dict[float, Tensor] = {}  # by scale
        for group in self.param_groups:
            rate = torch.empty((), dtype=dtype, device=device)
            group["lr"] = self._rates.setdefault(group["scale"], rate)
        self.set_rate(optim.lr)
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # of those that have had a gradient
        self._optim = optim

    def set_rate(self, rate: float) -> None:
        """Move by this learning rate, times the scale of a group, from now on."""
        for scale, tensor in self._rates.items():
            tensor.fill_(rate * scale)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient, at its group's `lr`."""
        move = {"adamw": self._adamw, "sgd": self._sgd, "lion": self._lion}[self._optim.name]
        begun = self._begin()
        for group in self.param_groups:
            alike: dict[Any, list[Tensor]] = {}  # a kernel takes what has one type, one history
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.device, p.dtype, p in begun), []).append(p)
            for (*_, first), parameters in alike.items():
                move(group, parameters, first)

    def _begin(self) -> set[Tensor]:
        """Count the step of each parameter that has a gradient; those that have their first one."""
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        begun = [p for p in moved if p not in self.state]
        if self._optim.name == "adamw":
            for p in begun:
                step = torch.zeros((), dtype=torch.float32, device=p.device)
                moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
                self.state[p] = {"step": step, **moments}
            torch._foreach_add_([self.state[p]["step"] for p in moved], 1)
        elif self._optim.name == "lion":
            self.state |= {p: {"exp_avg": torch.zeros_like(p)} for p in begun}
        elif self._optim.b1:
            self.state |= {p: {"momentum_buffer": torch.empty_like(p)} for p in begun}
        return set(begun)

    def _adamw(self, group: Mapping[str, Any], parameters: list[Tensor], first: bool) -> None:
        steps, averages, squares = self._kept(parameters, "step", "exp_avg", "exp_avg_sq")
        torch._fused_adamw_(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            averages,
            squares,
            [],  # of amsgrad
            steps,
            lr=group["lr"],
            beta1=self._optim.b1,
            beta2=self._optim.b2,
            weight_decay=group["weight_decay"],
            eps=self._optim.eps,
            amsgrad=False,
            maximize=False,
        )

    def _sgd(self, group: Mapping[str, Any], parameters: list[Tensor], first: bool) -> None:
        """Without momentum it keeps nothing, and each step is a first one."""
        keeps = self._optim.b1 != 0
        torch._fused_sgd_(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            *(self._kept(parameters, "momentum_buffer") if keeps else [[]]),
            weight_decay=group["weight_decay"],
            momentum=self._optim.b1,
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first and keeps,
        )

    def _lion(self, group: Mapping[str, Any], parameters: list[Tensor], first: bool) -> None:
        (averages,) = self._kept(parameters, "exp_avg")
        gradients = [p.grad for p in parameters if p.grad is not None]
        moves = torch._foreach_lerp(averages, gradients, 1 - self._optim.b1)
        torch._foreach_sign_(moves)
        torch._foreach_mul_(moves, group["lr"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(parameters, moves)
        torch._foreach_lerp_(averages, gradients, 1 - self._optim.b2)

    def counts(self) -> list[dict[str, Any]]:
        """See Borrowed: its groups keep nothing."""
        return []

    def recount(self, counts: Sequence[Mapping[str, Any]]) -> None:
        pass

    def _kept(self, parameters: list[Tensor], *names: str) -> list[list[Tensor]]:
        return [[self.state[p][name] for p in parameters] for name in names]


_MOVES = {"params", "lr", "scale"}  # of a group: what is set from outside


class Borrowed:
    """An optimiser of torch.optim's, and ours for the parameters that it doesn't take. The first
    step loads all of torch.compile, which only runs that have asked for such a one pay for."""

    def __init__(self, own: torch.optim.Optimizer, rest: Optimizer | None = None) -> None:
        """`own`: its groups have a `scale`, too, as those of `rest` have."""
        self._own, self._rest = own, rest
        self.param_groups = [*own.param_groups, *(rest.param_groups if rest else ())]
        self.state: dict[Tensor, dict[str, Any]] = own.state
        self._began = deepcopy([_settings(group) for group in own.param_groups])
        if rest is not None:
            rest.state = self.state

    def set_rate(self, rate: float) -> None:
        """See Optimizer."""
        for group in self._own.param_groups:
            group["lr"] = rate * group["scale"]
        if self._rest is not None:
            self._rest.set_rate(rate)

    def zero_grad(self) -> None:
        self._own.zero_grad()
        if self._rest is not None:
            self._rest.zero_grad()

    def step(self) -> None:
        """See Optimizer."""
        self._own.step()
        if self._rest is not None:
            self._rest.step()

    def counts(self) -> list[dict[str, Any]]:
        """By group: what it keeps there that steps have changed."""
        return [
            {k: v for k, v in _settings(group).items() if not _equal(v, began.get(k, ...))}
            for group, began in zip(self._own.param_groups, self._began, strict=True)
        ]

    def recount(self, counts: Sequence[Mapping[str, Any]]) -> None:
        """Go on with these `counts`."""
        for n, (group, began) in enumerate(zip(self._own.param_groups, self._began, strict=True)):
            for key in group.keys() - began.keys() - _MOVES:
                del group[key]
            group.update(deepcopy(began), **(counts[n] if n < len(counts) else {}))


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimiser may change there itself."""
    return {key: value for key, value in group.items() if key not in _MOVES}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


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
    with blamed(used):
        for step in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
            optimizer.set_rate(optim.lr)
            optimizer.step()
        for kept in (*optimizer.state.values(), *optimizer.counts()):
            as_tensors(kept, optim, model.weight.device)


def make_optimizer(model: nn.Module, optim: Optim) -> Optimizer | Borrowed:
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
    decays, scales = decayed(model), factors(model, optim)
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
        return Borrowed(own)
    if optim.name == "adafactor_bv":
        b1, b2, decay = optim.b1, optim.b2, optim.beta2_decay
        views = axes(model)
        return Borrowed(
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
        return Borrowed(own, Optimizer(rest, replace(optim, name="adamw")) if rest else None)
    if (used := OPTIMIZER.one(optim)) is not None:
        return Borrowed(construct(groups(scales), optim, used))
    return Optimizer(groups(scales), optim)


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
