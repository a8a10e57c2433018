"""The movement of weights: the optimisers, the rate over a run, its lengths in steps, and the
average of the weights.

Used by training/training.py in every run of `ablate sweep`, and by training/answers.py, which
checks a sweep's optimisers and schedules before it starts. A new optimiser also needs its entry in
run/choices.py `OPTIMIZERS`, a new schedule its name in run/sections.py (`Optim.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from math import ceil, cos, isfinite, nan, pi, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ablate.run import (
    Optim,
    Train,
    UsedPart,
    own_part,
)
from ablate.shared import UserError, unknown_value
from ablate.training.adafactor import AdafactorBV, flax_shapes
from ablate.training.fused import Fused
from ablate.training.lamb import Lamb
from ablate.training.model.host import Host
from ablate.training.model.whole_model import kernel_names
from ablate.training.plugin import blame, load, make_part, settings_of


def decay_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters that decay: the kernels of dense and convolutional layers;
    for a whole model see `whole_model.kernel_names`.

    Biases, norms, class token and positions don't decay (big_vision: `*/kernel` only).
    """
    if not isinstance(model, Host):
        return kernel_names(model)
    names = set()
    for path, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            names.add(f"{path}.weight".removeprefix("."))
    return names


def factors(model: nn.Module, optim: Optim) -> dict[str, float]:
    """Return the factor on the rate of each parameter, by its name: that of the longest path of
    `optim.lr_mult` that contains it, else 1. Raises UserError for a path that has no parameters."""
    paths = optim.lr_mult or {}
    names = [name for name, _ in model.named_parameters()]
    for path in paths:
        if not any(_is_below(name, path) for name in names):
            raise _unknown_path(path, names)
    multipliers = dict.fromkeys(names, 1.0)
    for path in sorted(paths, key=len):
        for name in names:
            if _is_below(name, path):
                multipliers[name] = paths[path]
    return multipliers


def _unknown_path(path: str, names: Sequence[str]) -> UserError:
    """Return the error for a path without parameters: it names the first part that the model lacks,
    and those that it has there."""
    above = path
    while above and not any(_is_below(name, above) for name in names):
        above, _, part = above.rpartition(".")
    start = f"{above}." if above else ""
    rests = [name.removeprefix(start) for name in names if name.startswith(start)]
    siblings = dict.fromkeys(rest.partition(".")[0] for rest in rests)
    expectation = f"a part of {above or 'the model'}, one of"
    return unknown_value(f"optim.lr_mult.{path}", part, siblings, expectation)


def _is_below(name: str, path: str) -> bool:
    """Return whether the parameter `name` is `path` or lies below it."""
    return f"{name}.".startswith(f"{path}.")


def check_optimizer(optim: Optim) -> None:
    """Construct an optimiser by import path, and let it take two steps. Raises UserError where that
    fails, or where it keeps state that no checkpoint can hold."""
    used = own_part("optim.name", optim)
    if used is None:
        return
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, replace(optim, lr_mult=None))
    with blame(used):
        for step in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
            optimizer.set_rate(optim.lr)
            optimizer.step()
        for state in optimizer.state.values():
            as_tensors(state, optim, model.weight.device)
        for changes in optimizer.changed_settings():
            as_tensors(changes, optim, model.weight.device)


def make_optimizer(model: nn.Module, optim: Optim) -> Fused | Wrapped:
    """Return the optimiser of a model, as `optim` says; s is the step's rate over `optim.lr`.

    adamw (Loshchilov, Hutter 2019): p <- p - s lr (Adam + wd p); with `decay: independent`
    p <- p - s (lr Adam + wd p), as big_vision/optax.py.

    sgd: heavy ball, m <- b1 m + g + wd p, p <- p - s lr m. It is torch's, where the decay runs
    through the momentum; without decay that is big_vision's momentum_hp, its buffer in float32.

    lion (Chen et al. 2023): p <- p - s lr (sign(b1 m + (1 - b1) g) + wd p), then
    m <- b2 m + (1 - b2) g.

    adafactor and muon are torch.optim's, with decay as in adamw; muon moves the kernels in blocks,
    adamw the rest at the same rate. adafactor_bv: see `AdafactorBV`; lamb: see `Lamb`.

    `lr_mult` scales lr, and so by_lr's decay, of some parameters. Frozen ones have no gradient:
    they are outside the clipped norm, and nothing decays (big_vision: schedule None).
    """
    decays, scales = decay_names(model), factors(model, optim)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(scales[name] != 0)
    if not any(scales.values()):
        raise UserError("optim.lr_mult: freezes every parameter; leave one path out")

    def groups(names: Collection[str]) -> list[dict[str, Any]]:
        parameter_groups: dict[tuple[float, bool], list[Tensor]] = {}
        for decay in (True, False):  # the order of the groups, and so of the GPU kernels
            for name, parameter in model.named_parameters():
                if name in names and (name in decays) == decay and scales[name]:
                    parameter_groups.setdefault((scales[name], decay), []).append(parameter)
        settings = []
        for (scale, decay), parameters in parameter_groups.items():
            weight_decay = decay_of(scale) if decay else 0.0
            settings.append({"params": parameters, "scale": scale, "weight_decay": weight_decay})
        return settings

    def decay_of(scale: float) -> float:
        if optim.decay == "independent":
            return optim.wd / (optim.lr * scale)
        return optim.wd

    if optim.name == "adafactor":
        optimizer: torch.optim.Optimizer = torch.optim.Adafactor(
            groups(scales), lr=optim.lr, beta2_decay=optim.beta2_decay, d=optim.clip_threshold
        )
        return Wrapped(optimizer)
    if optim.name == "adafactor_bv":
        optimizer = AdafactorBV(
            groups(scales),
            optim.lr,
            b1=optim.b1,
            b2=optim.b2,
            decay=optim.beta2_decay,
            views=flax_shapes(model),
        )
        return Wrapped(optimizer)
    if optim.name == "lamb":
        betas = optim.b1, optim.b2
        return Wrapped(Lamb(groups(scales), optim.lr, betas=betas, eps=optim.eps))
    if optim.name == "muon":
        matrices = set()
        for name, parameter in model.named_parameters():
            is_kernel = name in decays and parameter.ndim == 2
            if is_kernel and name.startswith("blocks.") and scales[name]:
                matrices.add(name)
        if not matrices:
            raise UserError("optim.name: muon: every matrix in blocks is frozen; give adamw")
        optimizer = torch.optim.Muon(
            groups(matrices),
            lr=optim.lr,
            momentum=optim.momentum,
            adjust_lr_fn=optim.adjust_lr,
        )
        rest = groups(scales.keys() - matrices)
        if not rest:
            return Wrapped(optimizer)
        return Wrapped(optimizer, Fused(rest, replace(optim, name="adamw")))
    used = own_part("optim.name", optim)
    if used is not None:
        return Wrapped(construct(groups(scales), optim, used))
    return Fused(groups(scales), optim)


def tensors_of(optimizer: Fused | Wrapped, model: nn.Module, optim: Optim) -> dict[str, Tensor]:
    """Return what an optimiser keeps, by its names in files: `optim.KEY.PARAMETER`, and
    `group.NUMBER.KEY` for a group. Where it keeps tensors these are returned, not copies."""
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for key, value in as_tensors(state, optim, parameter.device).items():
            tensors[f"optim.{key}.{name}"] = value
    device = next(model.parameters()).device
    for number, group in enumerate(optimizer.changed_settings()):
        for key, value in as_tensors(group, optim, device).items():
            tensors[f"group.{number}.{key}"] = value
    return tensors


def restore(optimizer: Fused | Wrapped, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimiser the state that `tensors_of` returned, and no other."""
    optimizer.zero_grad()
    optimizer.state.clear()
    parameters = dict(model.named_parameters())
    device = next(model.parameters()).device
    changes: list[dict[str, Any]] = [{} for _ in optimizer.param_groups]
    for path, tensor in tensors.items():
        if path.startswith("optim."):
            _, key, name = path.split(".", 2)
            parameter = parameters.get(name)
            if parameter is not None:
                key, value = from_tensor(key, tensor, parameter.device)
                optimizer.state.setdefault(parameter, {})[key] = value
        elif path.startswith("group."):
            _, number, key = path.split(".", 2)
            key, value = from_tensor(key, tensor, device)
            changes[int(number)][key] = value
    optimizer.restore_settings(changes)


class Average:
    """The weights that are measured and saved: the model's own, or an exponential average of them.

    After each step a <- keep a + (1 - keep) p, starting from the initial weights
    (timm.utils.ModelEmaV3 without its warm-up); buffers are the model's own. `keep` None: there is
    no average.
    """

    def __init__(self, model: nn.Module, keep: float | None) -> None:
        self._model = model
        self._parameters: list[Tensor] = list(model.parameters())
        self._keep = keep
        self.weights: dict[str, Tensor] = {}  # by parameter's name
        if keep is not None:
            self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Average in the weights after a step."""
        if self._keep is not None:
            torch._foreach_lerp_(list(self.weights.values()), self._parameters, 1 - self._keep)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights within the block. Values are exchanged, not tensors:
        a captured step still uses the tensors that it knows."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, p in self._model.named_parameters():
            average = self.weights.get(name)
            if average is not None:
                trained_values = p.clone()
                p.copy_(average)
                average.copy_(trained_values)


# --- Optimisers of torch.optim, also by import path -----------------------------------------------

_SET_FROM_OUTSIDE = {"params", "lr", "scale"}  # keys of a group that are no state of the optimiser


class Wrapped:
    """An optimiser of torch.optim, and ours for the parameters that it doesn't take. The first step
    loads all of torch.compile; only runs that choose such an optimiser pay for that."""

    def __init__(self, wrapped: torch.optim.Optimizer, rest: Fused | None = None) -> None:
        """The groups of `wrapped`, like those of `rest`, have a `scale`."""
        self._wrapped, self._rest = wrapped, rest
        self.param_groups = list(wrapped.param_groups)
        self.state: dict[Tensor, dict[str, Any]] = wrapped.state
        self._began = deepcopy([_settings(group) for group in wrapped.param_groups])
        if rest is not None:
            self.param_groups += rest.param_groups
            rest.state = self.state

    def set_rate(self, rate: float) -> None:
        """See `Fused`."""
        for group in self._wrapped.param_groups:
            group["lr"] = rate * group["scale"]
        if self._rest is not None:
            self._rest.set_rate(rate)

    def zero_grad(self) -> None:
        self._wrapped.zero_grad()
        if self._rest is not None:
            self._rest.zero_grad()

    def step(self) -> None:
        """See `Fused`."""
        self._wrapped.step()
        if self._rest is not None:
            self._rest.step()

    def changed_settings(self) -> list[dict[str, Any]]:
        """Return, for each group, the settings that steps have changed."""
        changes = []
        for group, began in zip(self._wrapped.param_groups, self._began, strict=True):
            changed = {}
            for key, value in _settings(group).items():
                if not _equal(value, began.get(key, ...)):
                    changed[key] = value
            changes.append(changed)
        return changes

    def restore_settings(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Restore the groups' settings as first set, changed by `changes`."""
        pairs = zip(self._wrapped.param_groups, self._began, strict=True)
        for number, (group, began) in enumerate(pairs):
            for key in group.keys() - began.keys() - _SET_FROM_OUTSIDE:
                del group[key]
            group.update(deepcopy(began))
            if number < len(changes):
                group.update(changes[number])


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group that the optimiser itself may change."""
    return {key: value for key, value in group.items() if key not in _SET_FROM_OUTSIDE}


def _equal(value: Any, initial: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(initial, Tensor):
        return value.dtype == initial.dtype and torch.equal(value, initial)
    return type(value) is type(initial) and bool(value == initial)


def construct(groups: list[dict[str, Any]], optim: Optim, used: UsedPart) -> torch.optim.Optimizer:
    """Return the optimiser `module:Class` for these groups, with its settings. Raises UserError
    where it can't be imported or made, or is no torch.optim.Optimizer."""
    with blame(used):
        cls = load(used)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise UserError(
                f"{used.key}: {used.name}: is no torch.optim.Optimizer; name a class that is one"
            )
        make: Callable[..., torch.optim.Optimizer] = cls
        return make(groups, lr=optim.lr, **settings_of(used))


NUMBERS = {"bool": bool, "int": int, "float": float}
HOST = "host"  # a tensor that is kept off the GPU of its parameter, such as torch's own `step`


def as_tensors(state: Mapping[str, Any], optim: Optim, device: torch.device) -> dict[str, Tensor]:
    """Return the state of a parameter or a group as tensors. A suffix of the name marks a number by
    its type, and a tensor that is not on `device`; None is left out. Raises UserError for a value
    that a checkpoint can't hold."""
    tensors = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            name = key if value.device == device else f"{key}:{HOST}"
            tensors[name] = value
        elif type(value) in NUMBERS.values():
            kind = torch.float64 if isinstance(value, float) else None
            tensors[f"{key}:{type(value).__name__}"] = torch.tensor(value, dtype=kind)
        elif value is not None:
            raise UserError(
                f"optim.name: {optim.name}: keeps {key}, a {type(value).__name__}, which no "
                f"checkpoint holds; keep tensors and numbers"
            )
    return tensors


def from_tensor(key: str, value: Tensor, device: torch.device) -> tuple[str, Any]:
    """Return the key and the value from which `as_tensors` made this tensor."""
    name, _, kind = key.partition(":")
    if kind in NUMBERS:
        return name, NUMBERS[kind](value.item())
    return name, value.to("cpu" if kind == HOST else device, copy=True)


Factor = Callable[[int, int], float]  # of a step behind the warm-up, and how many there are


class Lengths(NamedTuple):
    """Numbers of steps: of the whole run, of its warm-up at the start, and of its cooldown at the
    end."""

    total: int
    warmup: int
    cooldown: int


def lengths(optim: Optim, train: Train, epoch: int) -> Lengths:
    """Return the lengths of a run whose epoch has `epoch` steps, cut to fit into it.

    An epoch is floor(n / batch) steps, timm's count where the last batch is dropped; examples are
    counted as in big_vision/utils.py steps, round(examples / batch). So 300 epochs of 1,268,355
    images at 4096 are 92,700 steps, and as 380,506,500 examples big_vision's 92,897.
    """

    def to_steps(steps: int | None, examples: int | None, epochs: float) -> int:
        if steps is not None:
            return steps
        if examples is not None:
            return round(examples / train.batch)
        return round(epochs * epoch)

    total = max(1, to_steps(train.steps, train.examples, train.epochs))
    warmup = to_steps(optim.warmup_steps, optim.warmup_examples, optim.warmup_epochs)
    cooldown = to_steps(optim.cooldown_steps, None, optim.cooldown_epochs)
    warmup = min(warmup, total)
    return Lengths(total, warmup, min(cooldown, total - warmup))


def learning_rate(
    optim: Optim, step: int, lengths: Lengths, user_factor: Factor | None = None
) -> float:
    """Return the rate of step 0, 1, ... total - 1: a linear warm-up, the schedule, the cooldown.
    `user_factor` is the `own_factor` of a schedule by import path.

    big_vision/utils.py create_learning_rate_schedule: s(0) = 0, s(warmup) = 1, s(total) = 0; rsqrt
    and constant take a linear factor in the cooldown. `warmup_lr` and `min_lr` work as they do in
    timm.scheduler: cosine (warmup_prefix) and linear end before the cooldown, and rsqrt never falls
    below `min_lr`. The same holds for a schedule by import path, which takes a linear factor in the
    cooldown, too. poly is (1 - share done)^0.9, as in Segmenter's engine and mmsegmentation's poly
    policy.
    """
    total, warmup, cooldown = lengths
    elapsed = step - warmup
    if elapsed < 0:
        return optim.warmup_lr + (optim.lr - optim.warmup_lr) * (step / warmup)
    if optim.schedule == "constant" and not cooldown:  # `min_lr` has no effect, to the last bit
        return optim.lr
    start = optim.lr
    scheduled_steps = max(total - cooldown - warmup, 1)
    progress = min(1.0, elapsed / scheduled_steps)
    cooldown_factor = 1.0
    if cooldown:
        cooldown_factor = min(1.0, (total - step) / cooldown)
    if optim.schedule == "rsqrt":
        start = max(start / sqrt(1 + elapsed / optim.timescale), optim.min_lr)
    elif user_factor is not None:
        start = max(start * user_factor(elapsed, total - warmup), optim.min_lr)
    shares = {
        "cosine": 0.5 * (1 + cos(pi * progress)),
        "linear": 1 - progress,
        "poly": (1 - progress) ** 0.9,
    }
    share = shares.get(optim.schedule, cooldown_factor)
    return optim.min_lr + (start - optim.min_lr) * share


def own_factor(optim: Optim) -> Factor | None:
    """Return a function that calls a schedule by import path and checks its factor; None where the
    schedule is one of ours. Raises UserError where the schedule can't be made; the function raises
    it for a value that is no factor."""
    used = own_part("optim.schedule", optim)
    if used is None:
        return None
    schedule = make_part(used)

    def factor(step: int, total: int) -> float:
        with blame(used):
            value = schedule(step, total)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = nan
        if not (isfinite(number) and number >= 0):
            raise UserError(
                f"{used.key}: {used.name}: gives {value!r} at step {step} of {total}; "
                f"give a factor on optim.lr, 0 or more"
            )
        return number

    return factor


TRIED = 1000  # steps of a schedule, at most, when it is planned


def check_schedule(optim: Optim, lengths: Lengths) -> None:
    """Call a schedule by import path at steps of the whole run. Raises UserError as `own_factor`
    does."""
    user_factor = own_factor(optim)
    total = lengths.total - lengths.warmup
    if user_factor is None or not total:
        return
    stride = ceil(total / TRIED)
    for step in {*range(0, total, stride), total - 1}:
        learning_rate(optim, lengths.warmup + step, lengths, user_factor)
