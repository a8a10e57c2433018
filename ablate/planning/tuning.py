"""`tune:` of a sweep file, or `from.tune` of the parents, read: what is searched, how often, how
long, and by which sampler."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablate.planning.cell import Tune, TuningStage
from ablate.planning.declaration import key_at, list_at, mapping_at, plain_at, settings_at
from ablate.planning.design import Design
from ablate.planning.parents import FROM
from ablate.shared.errors import UserError, unknown
from ablate.shared.schema import check_keys, fits, read, value_of

STAGE_KEYS = ("space", "trials", "at")
OWN = ("repeats", "sampler", "pruner", "seed", "round")
KEYS = (*STAGE_KEYS, "stages", *OWN)
RANGES = ("log", "uniform", "int")
FORM = "{KEY: {log: [low, high]} or {choices: [...]}}"
TRIALS = 24  # of the declared searches together
LEAST_SEARCHES = 3
LEAST_TRIALS = 5  # that a sampled search chooses of: with three, luck decides (docs/tuning.md)


def tuning(
    section: str,
    raw: Mapping[str, Any],
    words: Mapping[str, Any],
    place: str,
    seeds: int,
    design: Design,
) -> Tune:
    """The searches of a file's `tune` or `from.tune`, the `section`, a scale's already over it,
    under `SECTION.KEY=VALUE` of the command line; `seeds`: how many are declared there;
    `design`: does it give out more? Raises UserError for whatever is no search.

    A stage's trials are what the declared searches share; of the Tune they are those of one. So
    what a search is depends on nothing but what is declared: more seeds are more such searches.
    """
    place = f"{place}: {section}"
    check_keys(place, raw, KEYS)
    check_keys(section, words, ("trials", *OWN), what="one of")
    given = {key: (f"{place}.{key}", raw[key]) for key in OWN if key in raw}
    given |= {key: (f"{section}.{key}", words[key]) for key in OWN if key in words}
    own = {
        key: value_of(Tune, key, value, where)
        for key, (where, value) in given.items()
        if value is not None
    }
    tune = Tune((), **own)
    searches = tune.repeats or max(LEAST_SEARCHES, seeds)
    stage = (
        _grid
        if tune.sampler == "grid"
        else functools.partial(_shared, section, searches, design.grows)
    )
    if "stages" in raw:
        if both := [key for key in STAGE_KEYS if key in raw]:
            raise UserError(f"{place}: {both[0]}: belongs into each of the stages")
        if "trials" in words:
            raise UserError(f"{section}.trials: each of the stages has its own, in the file")
        form = "a list of {space: ..., trials: ...}"
        stages = tuple(
            stage(mapping_at(part, f"{place}.stages[{n}]", form), f"{place}.stages[{n}]")
            for n, part in enumerate(list_at(raw["stages"], f"{place}.stages", form))
        )
    else:
        asked = {"trials": words["trials"]} if "trials" in words else {}
        stages = (stage({k: raw[k] for k in STAGE_KEYS if k in raw} | asked, place),)
    if section == "tune":
        return replace(tune, stages=stages)
    return replace(tune, stages=tuple(map(_of_parents, stages)), parents=True)


def _of_parents(stage: TuningStage) -> TuningStage:
    """Its keys as a child says them."""
    space, at = ({f"{FROM}{k}": v for k, v in part.items()} for part in (stage.space, stage.at))
    return replace(stage, space=space, at=at)


def _shared(
    section: str, searches: int, grows: bool, raw: Mapping[str, Any], place: str
) -> TuningStage:
    """Sampled: its trials are shared equally by the searches."""
    stage = _stage(raw, place, TRIALS)
    each = stage.trials // searches
    if each < LEAST_TRIALS:
        makes = f"{searches} searches of {each}" if searches > 1 else f"a search of {each}"
        enough = stage.trials >= LEAST_TRIALS and not grows
        once = f", or {section}.repeats=1" if enough else ""
        raise UserError(
            f"{place}.trials: {stage.trials} make {makes}, and of fewer than {LEAST_TRIALS} luck "
            f"chooses: give at least {searches * LEAST_TRIALS}{once}"
        )
    return replace(stage, trials=each)


def _grid(raw: Mapping[str, Any], place: str) -> TuningStage:
    """Every search covers it."""
    stage = _stage(raw, place, 1)
    for key, values in stage.space.items():
        if "choices" not in values:
            raise UserError(f"{place}: sampler: grid needs choices for {key}, not a range")
    points = math.prod(len(values["choices"]) for values in stage.space.values())
    if "trials" in raw and stage.trials != points:
        raise UserError(
            f"{place}.trials: the grid has {points} points, which every search covers, got "
            f"{stage.trials}; leave trials out"
        )
    return replace(stage, trials=points)


def _stage(raw: Mapping[str, Any], place: str, default: int) -> TuningStage:
    check_keys(place, raw, STAGE_KEYS)
    space = {
        key_at(key, f"{place}.space"): _range(value, f"{place}.space.{key}")
        for key, value in mapping_at(raw.get("space"), f"{place}.space", FORM).items()
    }
    if not space:
        raise UserError(f"{place}.space: expected {FORM}, got nothing")
    trials = value_of(TuningStage, "trials", raw.get("trials", default), f"{place}.trials")
    at = settings_at(raw.get("at", {}), f"{place}.at")
    for key in (*space, *at):
        if key.startswith(FROM):
            raise UserError(
                f"{place}: {key}: is a setting of what a trial starts from; parents are searched "
                f"by `from: {{tune: ...}}`"
            )
    for key in at:
        if key in space:
            raise UserError(f"{place}.at: {key} is searched; give it once")
    return TuningStage(space, trials, at)


def _range(raw: Any, place: str) -> dict[str, tuple[Any, ...]]:
    form = "{log: [low, high]}, {uniform: [low, high]}, {int: [low, high]} or {choices: [...]}"
    if len(mapping_at(raw, place, form)) != 1:
        raise UserError(f"{place}: expected one of {form}")
    [(kind, values)] = raw.items()
    if kind == "choices":
        choices = tuple(plain_at(v, place, place) for v in list_at(values, place, form))
        if len(set(map(repr, choices))) < len(choices):
            raise UserError(f"{place}: a choice counts once, got {list(choices)!r}")
        return {kind: choices}
    if kind not in RANGES:
        raise unknown(place, str(kind), (*RANGES, "choices"))
    numbers = tuple[int, int] if kind == "int" else tuple[float, float]
    if not fits(list_at(values, place, form), numbers):
        what = "whole numbers" if kind == "int" else "numbers"
        raise UserError(f"{place}: expected {{{kind}: [low, high]}} of {what}, got {values!r}")
    low, high = read(values, numbers, place)
    if not low < high or (kind == "log" and low <= 0):
        above = "0 < low < high" if kind == "log" else "low < high"
        raise UserError(f"{place}: expected {above}, got {values!r}")
    return {kind: (low, high)}
