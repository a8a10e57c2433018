"""A run of a training loop of the user's own: what its plain tree holds, what of it is in its id,
and the task that it declares.

Such a tree stands for itself: whoever makes tables of it or checks it, years later, needs no file
of the user's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.shared.errors import UserError, unknown
from ablate.shared.files import is_number
from ablate.shared.metrics import Metric, TaskChoice
from ablate.shared.schema import check_keys

TRAINER = "trainer"  # the group, and the section that the tree of such a run has and no other


@dataclass(frozen=True)
class OwnRun:
    """One training by a function of the user's own. The fields are the sections of its tree.

    trainer: `name` ("module:function") and its settings; keys: what each of these may be; metrics:
    what it measures; code: the files that are run (by path, a hash), the distributions that they
    import, the folder in which they lie, and whether a process with torch loaded may run them.
    """

    trainer: Mapping[str, Any]
    keys: Mapping[str, Mapping[str, Any]]
    metrics: tuple[Mapping[str, Any], ...]
    code: Mapping[str, Any]
    seed: int


def is_own(tree: Mapping[str, Any]) -> bool:
    """Is it the plain tree of such a run?"""
    return TRAINER in tree


def name_of(tree: Mapping[str, Any]) -> str:
    """ "module:function" of such a tree."""
    return str(tree[TRAINER]["name"])


READS = (
    "key",
    "direction",
    "range",
    "chance",
)  # of a metric: by which a run's own result is judged


def identity(tree: Mapping[str, Any]) -> str:
    """Canonical JSON of everything in the id but the seed. Where files lie is no part of it, nor
    how a metric is called and printed."""
    kept = {
        TRAINER: tree[TRAINER],
        "code": {key: tree["code"][key] for key in ("files", "packages")},
        "metrics": [{name: said[name] for name in READS} for said in tree["metrics"]],
    }
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def hashed(content: bytes) -> str:
    """Of a file of code, as `code.files` has it."""
    return hashlib.sha256(content).hexdigest()[:16]


# --- What it measures ---------------------------------------------------------------------------

DIRECTIONS = {"more": 1, "less": -1}
# Names that mean something else where values stand, or columns of a table.
TAKEN = (
    *("step", "epoch", "predictions", "auc"),
    *("gain", "ci", "pm", "n", "verdict", "params", "macs", "cost", "chosen", "paper"),
)


def metric_said(key: Any, said: Any) -> dict[str, Any]:
    """A metric as a yaml declares it, every field given. Raises UserError, one line."""
    place = f"{TRAINER}.metrics.{key}"
    if not (isinstance(key, str) and key.isidentifier()) or key in TAKEN:
        raise UserError(f"{place}: expected a name such as accuracy, got {key!r}")
    if not isinstance(said, Mapping):
        raise UserError(f"{place}: expected {{direction: more|less, ...}}, got {said!r}")
    unit = said.get("unit", "")
    percent = unit == "%"
    whole = {
        "name": key.replace("_", " "),
        "unit": unit,
        "points": "points" if percent else unit or "units",
        "direction": None,
        "range": None,
        "chance": None,
        "scale": 100.0 if percent else 1.0,
        "decimals": 2 if percent else 4,
        "how": "",
    }
    check_keys(place, said, whole)
    whole |= said
    for name in ("name", "unit", "points", "how"):
        if not isinstance(whole[name], str) or "\n" in whole[name]:
            raise UserError(f"{place}.{name}: expected a text of one line, got {whole[name]!r}")
    if whole["direction"] not in DIRECTIONS:
        if whole["direction"] is None:
            raise UserError(f"{place}.direction: missing; which values are better: more or less?")
        raise unknown(f"{place}.direction", whole["direction"], DIRECTIONS)
    for name in ("scale", "chance"):
        if whole[name] is not None or name == "scale":
            whole[name] = _number(whole[name], f"{place}.{name}")
    if not whole["scale"] > 0:
        raise UserError(f"{place}.scale: must be more than 0, got {whole['scale']:g}")
    decimals = whole["decimals"]
    if not isinstance(decimals, int) or isinstance(decimals, bool) or not 0 <= decimals <= 9:
        raise UserError(f"{place}.decimals: expected a whole number from 0 to 9, got {decimals!r}")
    whole["range"] = _range(whole["range"], f"{place}.range")
    if whole["chance"] is not None and not in_range(whole, whole["chance"]):
        raise UserError(f"{place}.chance: {whole['chance']:g} lies outside its range")
    return {"key": key, **whole}


def _number(value: Any, place: str) -> float:
    if not is_number(value):
        raise UserError(f"{place}: expected a number, got {value!r}")
    return float(value)


def _range(said: Any, place: str) -> list[float | None] | None:
    if said is None:
        return None
    if not isinstance(said, list | tuple) or len(said) != 2:
        raise UserError(f"{place}: expected [least, most], either of them null, got {said!r}")
    low, high = (None if end is None else _number(end, place) for end in said)
    if low is not None and high is not None and not low < high:
        raise UserError(f"{place}: expected [least, most], got [{low:g}, {high:g}]")
    return [low, high]


def in_range(said: Mapping[str, Any], value: float) -> bool:
    """Does a raw value lie where the metric says that all do?"""
    low, high = said["range"] or (None, None)
    return (low is None or value >= low) and (high is None or value <= high)


def no_better_than_chance(said: Mapping[str, Any], value: float) -> bool:
    """Of a raw value; never of a metric that declares no chance."""
    chance = said["chance"]
    return chance is not None and DIRECTIONS[said["direction"]] * (value - chance) <= 0


def worst_of(tree: Mapping[str, Any], key: str) -> float | None:
    """The raw value that what diverged counts as in a search: chance, else the worse end of the
    range; None where neither is declared."""
    said = next(said for said in tree["metrics"] if said["key"] == key)
    low, high = said["range"] or (None, None)
    return said["chance"] if said["chance"] is not None else low if _is_more(said) else high


def _is_more(said: Mapping[str, Any]) -> bool:
    return DIRECTIONS[said["direction"]] > 0


# --- Its task -----------------------------------------------------------------------------------


def task_name(tree: Mapping[str, Any]) -> str:
    """Equal for runs that measure the same, in the same way; for sentences."""
    content = json.dumps(tree["metrics"], sort_keys=True)
    keys = ", ".join(said["key"] for said in tree["metrics"])
    return f"trainer ({keys}; declared as {hashed(content.encode())[:6]})"


def task(tree: Mapping[str, Any]) -> TaskChoice:
    """The task that the tree declares. Raises as reading a malformed tree does."""
    return _task(name_of(tree), json.dumps(tree["metrics"]))


@functools.cache  # so that a metric of it equals itself
def _task(name: str, metrics: str) -> TaskChoice:
    return TaskChoice(
        line=f"what {name} declares",
        path=name,
        metrics=tuple(
            metric_of(said["key"], said, said["name"], how=said["how"])
            for said in json.loads(metrics)
        ),
        score=_not_made_again,
        outputs=lambda classes: classes,
        prior="guessing",
        keeps="what the trainer gave as predictions",
        examples="examples",
        collapse="ended no better than guessing",
        untested="tested by their trainer",
        clock="step",
    )


def _not_made_again(table: Any, classes: int) -> dict[str, float]:
    raise NotImplementedError("only its trainer knows what its predictions say")


def metric_of(key: str, said: Mapping[str, Any], name: str, **more: Any) -> Metric:
    """The metric of this key, from what it says of itself; called `name`, if it says no other. One
    without a direction is neutral: rows are told to be higher or lower, not to help."""
    unit, direction = said.get("unit", ""), said.get("direction")
    scale = said.get("scale", 100.0 if unit == "%" else 1.0)
    low, high = said.get("range") or (None, None)
    return Metric(
        key=key,
        name=said.get("name", name.replace("_", " ")),
        short=said.get("short", name),
        unit=unit,
        points=said.get("points", "points" if unit == "%" else unit or "units"),
        scale=scale,
        decimals=said.get("decimals", 2 if unit == "%" else 4),
        chance=_Chance(said.get("chance")),
        sign=DIRECTIONS.get(str(direction), 1),
        most=scale * high if low == 0 and high is not None else None,
        neutral=direction is None,
        **more,
    )


@dataclass(frozen=True)
class _Chance:
    """What guessing gets, however many classes there are. Equal where the value is."""

    value: float | None

    def __call__(self, classes: int) -> float | None:
        return self.value


# --- What its result says -----------------------------------------------------------------------


def said_by(tree: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What of a finished run's result its `metrics.jsonl` says: the last values on validation, the
    test, whether it collapsed. The last line is that of the test."""
    keys = [said["key"] for said in tree["metrics"]]
    last = lines[-1] if lines else {}
    validation: dict[str, float] = {}
    for line in lines[:-1]:
        validation |= {key: line[f"val_{key}"] for key in keys if f"val_{key}" in line}
    test = {key: last[f"test_{key}"] for key in ("n", *keys) if f"test_{key}" in last}
    judged = tree["metrics"][0]
    return {
        "step": last.get("step"),
        "validation": validation,
        "test": test,
        "collapsed": no_better_than_chance(judged, test.get(keys[0], math.nan)),
    }
