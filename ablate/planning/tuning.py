"""Reading of `tune:` of a sweep file, or of `from.tune` for parents.

It says what is searched, how often, how long, and by which sampler. Here are also the ranges that a
search may choose from, and the points in them.

Used by `planning/sweep_file.py`, which reads the section, and `planning/search.py`, which proposes
trials. A new entry of `TUNER_KEYS` also needs a field of `Tune` in `planning/cell.py`, and every
new key its row in docs/tuning.md.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.planning.cell import Tune, TuningStage
from ablate.planning.declaration import key_at, list_at, mapping_at, settings_at
from ablate.planning.design import Design
from ablate.planning.parents import FROM_PREFIX, trees_of
from ablate.planning.settings import LR_FACTORS, plain
from ablate.run import (
    RunSpec,
    check_keys,
    fits_type,
    read_field,
    read_value,
)
from ablate.shared import UserError, count_text, spelling, unknown_value

STAGE_KEYS = ("space", "trials", "at")
TUNER_KEYS = ("repeats", "sampler", "pruner", "seed", "round")
KEYS = (*STAGE_KEYS, "stages", *TUNER_KEYS)
RANGES = ("log", "uniform", "int")
FORM = "{KEY: {log: [low, high]} or {choices: [...]}}"
DEFAULT_TRIALS = 24  # shared by the declared searches
LEAST_SEARCHES = 3
LEAST_TRIALS = 5  # of a sampled search; with three, luck decides (docs/tuning.md)


def tuning(
    section: str,
    raw: Mapping[str, Any],
    words: Mapping[str, Any],
    place: str,
    seeds: int,
    design: Design,
) -> Tune:
    """Return the searches of a file's `tune` or `from.tune`, the `section`.

    `raw`: the section, with that of a scale already over it. `words`: `SECTION.KEY=VALUE` of the
    command line, which wins. `seeds`: how many the file declares. `design`: may give out more.
    Raises UserError for whatever is no search.

    In the file, a stage's trials are shared by all declared searches; in the Tune they are those of
    one. So what a search is depends on nothing but what is declared: more seeds are more such
    searches.
    """
    place = f"{place}: {section}"
    check_keys(place, raw, KEYS)
    check_keys(section, words, ("trials", *TUNER_KEYS), expectation="one of")
    entries = {key: (f"{place}.{key}", raw[key]) for key in TUNER_KEYS if key in raw}
    entries |= {key: (f"{section}.{key}", words[key]) for key in TUNER_KEYS if key in words}
    tuner_settings = {
        key: read_field(Tune, key, value, location)
        for key, (location, value) in entries.items()
        if value is not None
    }
    tune = Tune((), **tuner_settings)
    searches = tune.repeats or max(LEAST_SEARCHES, seeds)
    stage = (
        _grid
        if tune.sampler == "grid"
        else functools.partial(_shared_stage, section, searches, design.grows)
    )
    if "stages" in raw:
        if both := [key for key in STAGE_KEYS if key in raw]:
            raise UserError(f"{place}: {both[0]}: belongs into each of the stages")
        if "trials" in words:
            raise UserError(f"{section}.trials: each of the stages has its own, in the file")
        form = "a list of {space: ..., trials: ...}"
        parts = list_at(raw["stages"], f"{place}.stages", form)
        places = [f"{place}.stages[{n}]" for n in range(len(parts))]
        stages = tuple(
            stage(mapping_at(part, stage_place, form), stage_place, f"{stage_place}.trials")
            for part, stage_place in zip(parts, places, strict=True)
        )
    else:
        trials = {"trials": words["trials"]} if "trials" in words else {}
        trials_place = f"{section if trials else place}.trials"
        content = {key: raw[key] for key in STAGE_KEYS if key in raw} | trials
        stages = (stage(content, place, trials_place),)
    if section == "tune":
        return replace(tune, stages=stages)
    return replace(tune, stages=tuple(map(_of_parents, stages)), parents=True)


def _of_parents(stage: TuningStage) -> TuningStage:
    """Return the stage with its keys as a child says them: `from.KEY`."""
    space, fixed_settings = (
        {f"{FROM_PREFIX}{k}": v for k, v in part.items()} for part in (stage.space, stage.at)
    )
    return replace(stage, space=space, at=fixed_settings)


def _shared_stage(
    section: str,
    searches: int,
    grows: bool,
    raw: Mapping[str, Any],
    place: str,
    trials_place: str,
) -> TuningStage:
    """Return a stage of sampled searches, which share its trials equally.

    `trials_place`: where the number of trials is declared. Raises UserError where a search would
    have fewer than LEAST_TRIALS.
    """
    stage = _stage(raw, place, trials_place, DEFAULT_TRIALS)
    share = stage.trials // searches
    if share < LEAST_TRIALS:
        counts = f"{count_text(stage.trials, 'trial')} for {count_text(searches, 'search')}"
        enough = stage.trials >= LEAST_TRIALS and not grows
        once = f", or {section}.repeats=1" if enough else ""
        raise UserError(
            f"{trials_place}: {counts}, and of fewer than {LEAST_TRIALS} each luck chooses: give "
            f"at least {searches * LEAST_TRIALS}{once}"
        )
    return replace(stage, trials=share)


def _grid(raw: Mapping[str, Any], place: str, trials_place: str) -> TuningStage:
    """Return a stage of a grid, which every search covers."""
    stage = _stage(raw, place, trials_place, 1)
    for key, values in stage.space.items():
        if "choices" not in values:
            raise UserError(f"{place}: sampler: grid needs choices for {key}, not a range")
    points = math.prod(len(values["choices"]) for values in stage.space.values())
    if "trials" in raw and stage.trials != points:
        raise UserError(
            f"{trials_place}: the grid has {count_text(points, 'point')}, which every search "
            f"covers, got {stage.trials}; leave trials out"
        )
    return replace(stage, trials=points)


def _stage(raw: Mapping[str, Any], place: str, trials_place: str, default: int) -> TuningStage:
    check_keys(place, raw, STAGE_KEYS)
    space = {
        key_at(key, f"{place}.space"): _range(value, f"{place}.space.{key}")
        for key, value in mapping_at(raw.get("space"), f"{place}.space", FORM).items()
    }
    if not space:
        raise UserError(f"{place}.space: expected {FORM}, got nothing")
    trials = read_field(TuningStage, "trials", raw.get("trials", default), trials_place)
    fixed_settings = settings_at(raw.get("at", {}), f"{place}.at")
    for key in (*space, *fixed_settings):
        if key.startswith(FROM_PREFIX):
            raise UserError(
                f"{place}: {key}: is a setting of what a trial starts from; parents are searched "
                f"by `from: {{tune: ...}}`"
            )
    for key in fixed_settings:
        if key in space:
            raise UserError(f"{place}.at: {key} is searched; give it once")
    return TuningStage(space, trials, fixed_settings)


def _range(raw: Any, place: str) -> dict[str, tuple[Any, ...]]:
    form = "{log: [low, high]}, {uniform: [low, high]}, {int: [low, high]} or {choices: [...]}"
    if len(mapping_at(raw, place, form)) != 1:
        raise UserError(f"{place}: expected one of {form}")
    [(kind, values)] = raw.items()
    if kind == "choices":
        try:
            choices = tuple(plain(value, place) for value in list_at(values, place, form))
        except UserError as error:
            raise UserError(f"{place}: expected plain choices, got {values!r}") from error
        if len(set(map(repr, choices))) < len(choices):
            raise UserError(f"{place}: a choice counts once, got {list(choices)!r}")
        return {kind: choices}
    if kind not in RANGES:
        raise unknown_value(place, str(kind), (*RANGES, "choices"))
    numbers = tuple[int, int] if kind == "int" else tuple[float, float]
    if not fits_type(list_at(values, place, form), numbers):
        noun = "whole numbers" if kind == "int" else "numbers"
        raise UserError(f"{place}: expected {{{kind}: [low, high]}} of {noun}, got {values!r}")
    low, high = read_value(values, numbers, place)
    if not low < high or (kind == "log" and low <= 0):
        above = "0 < low < high" if kind == "log" else "low < high"
        raise UserError(f"{place}: expected {above}, got {values!r}")
    return {kind: (low, high)}


EDGE = 0.02  # the part of a range at each end that counts as its edge
SPREAD = 8  # trials after the default that are spread evenly, whatever the results are


def default_of(spec: RunSpec, key: str, values: Mapping[str, tuple[Any, ...]]) -> Any:
    """Return the baseline's own value of a key, for trial 0.

    Raises UserError where the space lacks it.
    """
    trees, own_key = trees_of(spec, key)
    section, _, leaf = own_key.rpartition(".")
    settings = trees[0].get(section) if trees else None
    if trees and own_key.startswith(LR_FACTORS):
        settings, leaf = {own_key: _factor(trees[0], own_key.removeprefix(LR_FACTORS))}, own_key
    if not isinstance(settings, Mapping) or leaf not in settings:
        raise UserError(f"tune.space: {key}: no such key; `ablate config` prints all")
    value = settings[leaf]
    if remedy := _remedy(key, value, values):
        raise UserError(
            f"tune.space: {key}: the baseline has {spelling(value)}, which every search begins "
            f"with; {remedy}"
        )
    return value


def _remedy(key: str, value: Any, values: Mapping[str, tuple[Any, ...]]) -> str:
    """Return what to change so that a range or choices have the baseline's value; "" where they
    have it."""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        listing = ", ".join(map(spelling, bounds))
        return "" if value in bounds else f"add it to the choices [{listing}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        number = f"set {key} to a number in `base:`, or " if value is None else ""
        return f"{number}search {{choices: [{spelling(value)}, ...]}}"
    low, high = bounds
    if low <= value <= high:
        return ""
    if kind == "log" and value <= 0:
        return (
            f"no log range has it: give {{uniform: [{value:g}, {high:g}]}}, or set {key} in `base:`"
        )
    return f"widen [{low:g}, {high:g}] to have it"


def _factor(tree: Mapping[str, Any], path: str) -> float:
    """Return the factor of the learning rate below a path: that of the longest path that is given.

    It is 1 where none is.
    """
    factors: Mapping[str, float] = tree["optim"].get("lr_mult") or {}
    above = [prefix for prefix in factors if f"{path}.".startswith(f"{prefix}.")]
    return factors[max(above, key=len)] if above else 1.0


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
    """Return a sampler whose draws depend on its key alone, whatever came before."""
    import numpy as np
    from optuna import samplers

    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    if tune.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    if tune.sampler == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=1 + SPREAD)
    return samplers.RandomSampler(seed=seed)


def spread_points(stage: TuningStage, count: int, key: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return `count` points of a scrambled Sobol sequence over the whole space.

    Each range is on its own scale: of the first four points one lies in every quarter, of eight one
    in every eighth.
    """
    import numpy as np
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of counts that are no power of 2
        sequence = qmc.Sobol(len(stage.space), seed=np.random.default_rng(key))
        draws = sequence.random(count)
    return [
        {k: _placed(float(u), v) for u, (k, v) in zip(draw, stage.space.items(), strict=True)}
        for draw in draws
    ]


def _placed(share: float, values: Mapping[str, tuple[Any, ...]]) -> Any:
    """Return the value at a share, from 0 to below 1, of its range."""
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
    """Return the share of a range, on its scale, between the least and the greatest value tried.

    For choices, it is the share that was tried.
    """
    [(kind, bounds)] = values.items()
    if kind == "choices":
        return len({repr(value) for value in tried}) / len(bounds)
    scale = math.log if kind == "log" else float
    return (scale(max(tried)) - scale(min(tried))) / (scale(bounds[1]) - scale(bounds[0]))


def grid_points(stage: TuningStage, default: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every point of the grid, the default first."""
    choices = [values["choices"] for values in stage.space.values()]
    points = [dict(zip(stage.space, point, strict=True)) for point in itertools.product(*choices)]
    return [dict(default), *(point for point in points if point != default)]


def is_at_edge(value: Any, values: Mapping[str, tuple[Any, ...]]) -> bool:
    """Return whether a choice is so near the end of its range that the best may lie beyond."""
    [(kind, bounds)] = values.items()
    if kind == "choices":
        numbers = [v for v in bounds if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(bounds) > 2 and value in (min(numbers), max(numbers))
    scale = math.log if kind == "log" else float
    low, high = (scale(bound) for bound in bounds)
    return not EDGE < (scale(value) - low) / (high - low) < 1 - EDGE
