"""The rate over a run, and the run's lengths in steps."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, isfinite, nan, pi, sqrt
from typing import NamedTuple

from ablate.shared.errors import UserError
from ablate.shared.parts import SCHEDULE
from ablate.shared.recipe import Optim, Train
from ablate.training.plugin import blame, make_part

Factor = Callable[[int, int], float]  # of a step behind the warm-up, and how many there are


class Lengths(NamedTuple):
    """Steps of a run: in all, of the warm-up that begins it, of the cooldown that ends it."""

    total: int
    warmup: int
    cooldown: int


def lengths(optim: Optim, train: Train, epoch: int) -> Lengths:
    """The lengths of a run whose epoch has `epoch` steps, cut to fit into it.

    An epoch is floor(n / batch) steps, timm's count where the last batch is dropped; examples are
    counted as in big_vision/utils.py steps, round(examples / batch). So 300 epochs of 1,268,355
    images at 4096 are 92,700 steps, and as 380,506,500 examples big_vision's 92,897.
    """

    def steps(steps: int | None, examples: int | None, epochs: float) -> int:
        if steps is not None:
            return steps
        return round(epochs * epoch if examples is None else examples / train.batch)

    total = max(1, steps(train.steps, train.examples, train.epochs))
    warmup = steps(optim.warmup_steps, optim.warmup_examples, optim.warmup_epochs)
    cooldown = steps(optim.cooldown_steps, None, optim.cooldown_epochs)
    warmup = min(warmup, total)
    return Lengths(total, warmup, min(cooldown, total - warmup))


def learning_rate(optim: Optim, step: int, lengths: Lengths, own: Factor | None = None) -> float:
    """The rate of step 0, 1, ... total - 1: a linear warm-up, the schedule, the cooldown. `own`:
    the schedule's `own_factor`, if it is one by import path.

    big_vision/utils.py create_learning_rate_schedule: s(0) = 0, s(warmup) = 1, s(total) = 0; rsqrt
    and constant take a linear factor in the cooldown. With `warmup_lr` and `min_lr` timm.scheduler:
    cosine (warmup_prefix) and linear end before the cooldown, rsqrt never falls below `min_lr`. So
    it is with one by import path, which takes a linear factor in the cooldown, too. poly is
    (1 - share done)^0.9, as in Segmenter's engine and mmsegmentation's poly policy.
    """
    total, warmup, cooldown = lengths
    after = step - warmup
    if after < 0:
        return optim.warmup_lr + (optim.lr - optim.warmup_lr) * (step / warmup)
    start, done = optim.lr, min(1.0, after / max(total - cooldown - warmup, 1))
    left = min(1.0, (total - step) / cooldown) if cooldown else 1.0
    if optim.schedule == "rsqrt":
        start = max(start / sqrt(1 + after / optim.timescale), optim.min_lr)
    elif own is not None:
        start = max(start * own(after, total - warmup), optim.min_lr)
    shares = {
        "cosine": 0.5 * (1 + cos(pi * done)),
        "linear": 1 - done,
        "poly": (1 - done) ** 0.9,
    }
    share = shares.get(optim.schedule, left)
    return optim.min_lr + (start - optim.min_lr) * share


def own_factor(optim: Optim) -> Factor | None:
    """What a schedule by import path gives, checked; None: it is one of ours. Raises UserError
    where it can't be made and, when it is called, for what is no factor."""
    if (used := SCHEDULE.one(optim)) is None:
        return None
    schedule = make_part(used)

    def factor(step: int, total: int) -> float:
        with blame(used):
            given = schedule(step, total)
        try:
            number = float(given)
        except (TypeError, ValueError):
            number = nan
        if not (isfinite(number) and number >= 0):
            raise UserError(
                f"{used.key}: {used.name}: gives {given!r} at step {step} of {total}; "
                f"give a factor on optim.lr, 0 or more"
            )
        return number

    return factor


TRIED = 1000  # steps of a schedule, at most, when it is planned


def check_schedule(optim: Optim, lengths: Lengths) -> None:
    """Call a schedule by import path at steps of the whole run. Raises UserError as it does."""
    if (own := own_factor(optim)) is not None:
        total = lengths.total - lengths.warmup
        for step in {*range(0, total, -(-total // TRIED)), total - 1} if total else ():
            learning_rate(optim, lengths.warmup + step, lengths, own)
