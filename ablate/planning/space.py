"""What a search may choose from: its ranges, and the points in them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.planning.cell import Tune, TuningStage
from ablate.planning.parents import trees_of
from ablate.shared.errors import UserError

EDGE = 0.02  # of a range, from its ends
FACTORS = "optim.lr_mult."  # before a path of parameters
SPREAD = 8  # trials after the default that only search: spread evenly, whatever the results are


def default_of(tree: Mapping[str, Any], key: str, values: Mapping[str, tuple[Any, ...]]) -> Any:
    """The baseline's own value of a key: trial 0. Raises UserError where the space lacks it."""
    trees, own = trees_of(tree, key)
    section, _, leaf = own.rpartition(".")
    found = trees[0].get(section) if trees else None
    if trees and own.startswith(FACTORS):
        found, leaf = {own: _factor(trees[0], own.removeprefix(FACTORS))}, own
    if not isinstance(found, Mapping) or leaf not in found:
        raise UserError(f"tune.space: {key}: no such key; `ablate config` prints all")
    value = found[leaf]
    [(kind, bounds)] = values.items()
    if kind == "choices":
        if value not in bounds:
            raise UserError(
                f"tune.space: {key}: the baseline has {value!r}, which every search begins with; "
                f"add it to the choices {list(bounds)}"
            )
    elif not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
        raise UserError(
            f"tune.space: {key}: the baseline has {value!r}, which every search begins with; "
            f"widen [{bounds[0]:g}, {bounds[1]:g}] to have it"
        )
    return value


def _factor(tree: Mapping[str, Any], path: str) -> float:
    """What the learning rate below a path is multiplied with: by the longest path that is given."""
    given: Mapping[str, float] = tree["optim"].get("lr_mult") or {}
    above = [other for other in given if f"{path}.".startswith(f"{other}.")]
    return given[max(above, key=len)] if above else 1.0


def distribution(values: Mapping[str, tuple[Any, ...]]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    [(kind, bounds)] = values.items()
    if kind == "choices":
        return CategoricalDistribution(bounds)
    if kind == "int":
        return IntDistribution(bounds[0], bounds[1])
    low, high = bounds
    return FloatDistribution(low, high, log=kind == "log")


def make_sampler(tune: Tune, key: tuple[int, ...]) -> Any:
    """A sampler whose draws are those of its key, whatever came before."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    if tune.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    if tune.sampler == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=1 + SPREAD)
    return samplers.RandomSampler(seed=seed)


def spread_points(stage: TuningStage, count: int, key: tuple[int, ...]) -> list[dict[str, Any]]:
    """Points of a scrambled Sobol sequence over the whole space, each range on its own scale: of
    the first four one lies in every quarter, of eight one in every eighth."""
    import numpy as np
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of counts that are no power of 2
        sequence = qmc.Sobol(len(stage.space), seed=np.random.default_rng(key))
        draws = sequence.random(count)
    return [
        {k: _placed(float(u), v) for u, (k, v) in zip(draw, stage.space.items(), strict=True)}
        for draw in draws
    ]


def _placed(share: float, values: Mapping[str, tuple[Any, ...]]) -> Any:
    """The value at a share, below 1, of its range."""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        return bounds[int(share * len(bounds))]
    low, high = bounds
    if kind == "int":
        return low + int(share * (high - low + 1))
    if kind == "log":
        return min(high, low * math.exp(share * math.log(high / low)))
    return min(high, low + share * (high - low))


def explored(tried: Sequence[Any], values: Mapping[str, tuple[Any, ...]]) -> float:
    """The share of a range, on its scale, between the least and the greatest that were tried; of
    choices, the share that was."""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        return len({repr(value) for value in tried}) / len(bounds)
    scale = math.log if kind == "log" else float
    return (scale(max(tried)) - scale(min(tried))) / (scale(bounds[1]) - scale(bounds[0]))


def grid_points(stage: TuningStage, default: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every point of the grid, the default first."""
    choices = [values["choices"] for values in stage.space.values()]
    points = [dict(zip(stage.space, point, strict=True)) for point in itertools.product(*choices)]
    return [dict(default), *(point for point in points if point != default)]


def is_at_edge(value: Any, values: Mapping[str, tuple[Any, ...]]) -> bool:
    """Is a choice so near the end of its range that the best may lie beyond?"""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        numbers = [v for v in bounds if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(bounds) > 2 and value in (min(numbers), max(numbers))
    scale = math.log if kind == "log" else float
    low, high = (scale(bound) for bound in bounds)
    return not EDGE < (scale(value) - low) / (high - low) < 1 - EDGE
