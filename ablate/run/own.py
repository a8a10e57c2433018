"""The declarations of a training loop of the user's own: metrics, and the task that they make.

Used by plans (run/trainer.py, planning/analysis_keys.py), by `ablate import` (audit/importing.py)
and by workers (training/own/). A new metric attribute also needs a field of `Metric` in
run/metrics/metric.py, or its use in `metric_of`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.run.metrics import Metric, TaskChoice
from ablate.run.metrics.metric import PERCENTS, SHARES
from ablate.shared import UserError, is_number, unknown_value

TRAINER = "trainer"  # the group, and the section that the tree of such a run has and no other


def code_file_hash(content: bytes) -> str:
    """Return the hash of a code file's content as `code.files` holds it: 16 hex digits of its
    sha256."""
    return hashlib.sha256(content).hexdigest()[:16]


# --- What it measures ---------------------------------------------------------------------------

DIRECTIONS = {"more": 1, "less": -1}
# Of a declared metric: its name in the result of a program, only where it is another one.
RESULT_KEY = "result_key"
# Names with another meaning among values, or as columns of a table.
TAKEN_NAMES = (
    *("step", "epoch", "predictions", "auc"),
    *("gain", "ci", "pm", "n", "verdict", "params", "macs", "cost", "chosen", "paper"),
)


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and "\n" not in value


def _is_range(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    numbers = [end for end in value if end is not None]
    return all(map(is_number, numbers)) and sorted(set(numbers)) == numbers


# The attributes of a metric of the user's own: a check of the values that fit, and its words.
METRIC_ATTRIBUTES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("name", "short", "unit", "points", "how"), (_is_line, "a text of one line")),
    "scale": (lambda value: is_number(value) and value > 0, "a number above 0"),
    "decimals": (
        lambda value: type(value) is int and 0 <= value <= 12,
        "a whole number from 0 to 12",
    ),
    "direction": (lambda value: value in (*DIRECTIONS, None), "'more', 'less' or None"),
    "range": (_is_range, "[least, most], either of them null or None"),
    "chance": (is_number, "a number"),
}
PRINTED = ("name", "short", "unit", "points", "scale", "decimals", "how")


def read_attribute(name: str, value: Any, place: str) -> Any:
    """Return the value of a metric's attribute in the form of JSON. Raise UserError for one that
    doesn't fit."""
    fits, form = METRIC_ATTRIBUTES[name]
    if not fits(value):
        raise UserError(f"{place}: expected {form}, got {value!r}")
    return list(value) if isinstance(value, tuple) else value


# --- Shares and percents ---


def is_share(attributes: Mapping[str, Any]) -> bool:
    """Return whether a metric, by its attributes, has the unit % and raw values that are shares."""
    return attributes.get("unit") == "%" and attributes.get("scale", 100) != 1


def check_shares(attributes: Mapping[str, Any], place: str) -> None:
    """Raise UserError for a metric in % whose range or chance is in percents though its values are
    declared to be shares, or whose scale fits neither shares nor percents.

    `place`: that of the metric, up to the name of an attribute: "PLACE." in a yaml, "PLACE: " in
    Python.
    """
    if not is_share(attributes):
        return
    if (scale := attributes.get("scale", 100)) != 100:
        raise UserError(f"{place}scale: {scale!r}: expected 100 or 1: {SHARES}; {PERCENTS}")
    numbers = {"range": attributes.get("range") or (), "chance": (attributes.get("chance"),)}
    for name, values in numbers.items():
        if any(value is not None and value > 1 for value in values):
            raise UserError(
                f"{place}{name}: {attributes[name]!r} goes above 1, but {SHARES}; {PERCENTS}"
            )


def _unsaid(key: str, unit: Any) -> dict[str, Any]:
    """Return the attributes of a metric that declares its unit and nothing else."""
    percent = unit == "%"
    return {
        "name": key.rpartition(":")[2].replace("_", " "),
        "unit": unit,
        "points": "points" if percent else unit or "units",
        "direction": None,
        "range": None,
        "chance": None,
        "scale": 100.0 if percent else 1.0,
        "decimals": 2 if percent else 4,
        "how": "",
    }


@dataclass(frozen=True)
class _Chance:
    """The raw value that guessing gets, the same for any number of classes. Two are equal where
    their values are."""

    value: float | None

    def __call__(self, classes: int) -> float | None:
        return self.value


def metric_of(key: str, attributes: Mapping[str, Any], **fields: Any) -> Metric:
    """Make the metric of this name from what it declares; `fields`: its other fields. A metric
    without a direction is neutral: its rows are called higher or lower, never better."""
    declaration = {
        **_unsaid(key, attributes.get("unit", "")),
        "short": key.rpartition(":")[2],
        **attributes,
    }
    low, high = declaration["range"] or (None, None)
    return Metric(
        key=key,
        chance=_Chance(declaration["chance"]),
        guessed=declaration["chance"] is not None,
        sign=DIRECTIONS.get(declaration["direction"], 1),
        most=declaration["scale"] * high if low == 0 and high is not None else None,
        neutral=declaration["direction"] is None,
        **{name: declaration[name] for name in PRINTED},
        **{"of_shares": is_share(declaration) and declaration["range"] is None, **fields},
    )


def declared_metric(key: Any, attributes: Any) -> dict[str, Any]:
    """Return the attributes of a metric that a yaml declares, with every field given. Raise
    UserError, one line."""
    place = f"{TRAINER}.metrics.{key}"
    if not (isinstance(key, str) and key.isidentifier()) or key in TAKEN_NAMES:
        raise UserError(f"{place}: expected a name such as accuracy, got {key!r}")
    if not isinstance(attributes, Mapping):
        raise UserError(f"{place}: expected {{direction: more|less, ...}}, got {attributes!r}")
    declaration = _unsaid(key, attributes.get("unit", ""))
    attributes = dict(attributes)
    place_in_result = attributes.pop("key", key)
    if not isinstance(place_in_result, str) or not place_in_result or "\n" in place_in_result:
        raise UserError(
            f"{place}.key: expected the name of a value in the result, such as test/acc, got "
            f"{place_in_result!r}"
        )
    for name in attributes:
        if name not in declaration:
            raise unknown_value(f"{place}.{name}", name, ["key", *declaration], "a key among")
    if (direction := attributes.get("direction")) is None:
        raise UserError(f"{place}.direction: missing; which values are better: more or less?")
    if direction not in DIRECTIONS:
        raise unknown_value(f"{place}.direction", direction, DIRECTIONS)
    declaration |= {
        name: read_attribute(name, value, f"{place}.{name}")
        for name, value in attributes.items()
        if value is not None or declaration[name] is not None
    }
    for name in ("scale", "chance"):
        declaration[name] = None if declaration[name] is None else float(declaration[name])
    if declaration["range"] is not None:
        declaration["range"] = [None if end is None else float(end) for end in declaration["range"]]
    if declaration["chance"] is not None and not in_range(declaration, declaration["chance"]):
        raise UserError(f"{place}.chance: {declaration['chance']:g} lies outside its range")
    check_shares(declaration, f"{place}.")
    record = {"key": key, **declaration}
    if place_in_result != key:
        record[RESULT_KEY] = place_in_result
    return record


def result_key(metric: Mapping[str, Any]) -> str:
    """Return the name that a declared metric has in the result of its program."""
    return str(metric.get(RESULT_KEY, metric["key"]))


def in_range(attributes: Mapping[str, Any], value: float) -> bool:
    """Return whether a raw value lies within the range that the metric declares, if any."""
    low, high = attributes.get("range") or (None, None)
    return (low is None or value >= low) and (high is None or value <= high)


class WrongUnit(UserError):
    """A metric gave percents, and its declaration says shares: so will every run of the sweep."""


def check_range(attributes: Mapping[str, Any], value: float, place: str, remark: str = "") -> None:
    """Raise UserError for a raw value outside the declared range, WrongUnit where it is a percent
    and the metric declares shares. `remark`: what the line ends with."""
    if in_range(attributes, value):
        return
    low, high = attributes["range"]
    line = f"{place}: {value:g} lies outside its range [{low}, {high}]"
    if is_share(attributes) and value > 1:
        remedy = f"{SHARES}; {PERCENTS}, and give its range in percents, too"
        raise WrongUnit(f"{line}; {remedy}{remark}")
    raise UserError(line + remark)


def no_better_than_chance(attributes: Mapping[str, Any], value: float) -> bool:
    """Return whether a raw value is no better than guessing; False for a metric that declares no
    chance."""
    chance = attributes["chance"]
    return chance is not None and DIRECTIONS[attributes["direction"]] * (value - chance) <= 0


# --- Its task -----------------------------------------------------------------------------------


def task(trainer: str, declarations: Sequence[Mapping[str, Any]], *, of_sheet: bool) -> TaskChoice:
    """Return the task of a trainer that declares these metrics. `of_sheet`: they are those of a
    sheet. A malformed declaration raises the errors of reading it."""
    # Whoever imports a sheet chooses the scale by its values, which may be differences of shares.
    fields = {"of_shares": False} if of_sheet else {}
    metrics = []
    for declaration in declarations:
        attributes = {"short": declaration["name"], **declaration}
        metrics.append(metric_of(declaration["key"], attributes, **fields))
    return TaskChoice(
        line=f"what {trainer} declares",
        path=trainer,
        metrics=tuple(metrics),
        score=_not_made_again,
        prior="guessing",
        keeps="what the trainer gave as predictions",
        examples="examples",
        collapse="ended no better than guessing",
        untested="tested by their trainer",
        clock="step",
    )


def _not_made_again(table: Any, classes: int) -> dict[str, float]:
    raise NotImplementedError("only its trainer knows what its predictions say")


# --- What its result says -----------------------------------------------------------------------


def last_validation(keys: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the last validation value of each key that any line has."""
    return {key: line[f"val_{key}"] for line in lines for key in keys if f"val_{key}" in line}


# --- Trained elsewhere --------------------------------------------------------------------------
#
# The tree of a run that was imported is that of a trainer which nobody here has. Its id hashes the
# sheet's name, its place in the sheet and what its metrics mean, never a number.

IMPORTED = "imported "  # begins the trainer's name; one of the user's own is module:function
IMPORT_EVENT = (
    "imported"  # of the event of a result: where in which file it stands, and its numbers
)
PREDICTS = "predictions"  # of its code: does the sheet name files of right and wrong?
_KEY = {"type": "str", "choices": None, "nullable": False}


def imported_tree(
    sheet: str,
    row: str,
    column: str,
    metrics: Sequence[Mapping[str, Any]],
    predicts: bool,
) -> dict[str, Any]:
    """Return the plain tree of the runs in this place of a sheet, without the seed. `metrics`: each
    as `declared_metric` gives it. `predicts`: whether the runs have predictions that say of each
    example whether it is right; the id does not depend on it."""
    return {
        TRAINER: {"name": f"{IMPORTED}{sheet}", "row": row, "column": column},
        "keys": {"row": _KEY, "column": _KEY},
        "metrics": list(metrics),
        "code": {
            "files": {},
            "packages": [],
            "folder": "",
            "fork_safe": False,
            PREDICTS: predicts,
        },
    }
