"""The place where a program leaves its result, as `result:` of its yaml declares it.

    result: {file: result.json}                     # a JSON object
    result: {file: metrics.csv}                     # a table (csv, jsonl): its last line
    result: {file: metrics.csv, best: {key: val_acc, direction: more}}
    result: {tensorboard: tb}                       # event files: the last step
    result: {lines: 'loss=(?P<loss>\\S+)'}          # on the output: the last match

The `key` of a metric names its key of the object, its column, tag or group.

Used by run/program.py, which reads the yaml; training/own/ reads the result. A new place also needs
its reading in training/own/outcome.py, and whether an earlier attempt's is set aside in
training/own/command.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.run.own import DIRECTIONS, TRAINER, result_key
from ablate.shared import UserError, unknown_value

TABLES = (".csv", ".jsonl", ".ndjson")  # endings of files with a row for each line
OBJECTS = (".json", "")  # endings of files with an object of metrics
PLACES = ("file", "tensorboard", "lines")
EXAMPLES = "{file: result.json}, {file: metrics.csv}, {tensorboard: FOLDER} or {lines: PATTERN}"


@dataclass(frozen=True)
class Best:
    """The choice of a table's row by the values on validation data in one of its columns."""

    key: str
    direction: str


@dataclass(frozen=True)
class Result:
    """The place of a result; exactly one of `PLACES` is given.

    file, tensorboard: within the run's folder; a pattern such as `logs/*/metrics.csv` has to match
    exactly one; lines: regular expressions whose groups are named by metrics; step: the column by
    which rows of a table are joined; best: which row counts instead of the last one.
    """

    file: str | None = None
    tensorboard: str | None = None
    lines: str | tuple[str, ...] | None = None
    step: str | None = None
    best: Best | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """The plain tree, with what is given alone."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def path(self) -> str | None:
        """The file or folder in the run's folder; None where the output has the result."""
        return self.tensorboard if self.file is None else self.file

    @property
    def is_table(self) -> bool:
        """Return whether the result is a row of a table, which has one for each step."""
        return self.tensorboard is not None or (
            self.file is not None and Path(self.file).suffix.lower() in TABLES
        )

    @property
    def is_pattern(self) -> bool:
        """Return whether the name of the file or folder is a pattern."""
        return self.path is not None and not {*"*?["}.isdisjoint(self.path)

    def keys(self, metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the name that each declared metric has in the result."""
        return {metric["key"]: result_key(metric) for metric in metrics}

    @property
    def patterns(self) -> tuple[str, ...]:
        """The regular expressions for the output."""
        return (self.lines,) if isinstance(self.lines, str) else self.lines or ()


def check_result(result: Result, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError, one line, where a result is at no place or at several, or its keys do not
    fit one another and the declared metrics."""
    place = f"{TRAINER}.result"
    places = [name for name in PLACES if getattr(result, name) is not None]
    if len(places) != 1:
        raise UserError(
            f"{place}: expected one of {EXAMPLES}, got {' and '.join(places) or 'none'}"
        )
    if result.path is not None:
        check_pattern(result.path, f"result.{places[0]}")
    if result.file is not None and Path(result.file).suffix.lower() not in (*TABLES, *OBJECTS):
        raise UserError(
            f"{place}.file: {result.file}: expected a .json (an object of metrics), a .csv or a "
            f".jsonl (tables); write one of them, or read the output by result: {{lines: ...}}"
        )
    for name in ("step", "best"):
        if getattr(result, name) is not None and not result.is_table:
            raise UserError(
                f"{place}.{name}: {places[0]} has no rows; it is for a table: a .csv, a .jsonl, or "
                f"tensorboard"
            )
    if result.step is not None and result.tensorboard is not None:
        raise UserError(f"{place}.step: event files of TensorBoard have their steps; leave it out")
    if result.best is not None:
        _check_best(result.best, result.keys(metrics))
    _check_groups(result, result.keys(metrics))


def check_pattern(pattern: str, key: str) -> None:
    """Raise UserError for a pattern of files that none can match; `key`: of the yaml."""
    for part in Path(pattern).parts:
        if "**" in part and part != "**":
            raise UserError(
                f"{TRAINER}.{key}: {pattern}: ** is for folders, and stands alone between "
                f"slashes, such as **/metrics.csv; within a name write *"
            )


def _check_best(best: Best, keys: Mapping[str, str]) -> None:
    place = f"{TRAINER}.result.best"
    if best.direction not in DIRECTIONS:
        raise unknown_value(f"{place}.direction", best.direction, DIRECTIONS)
    for metric, key in keys.items():
        if _path(key) == _path(best.key):
            raise UserError(
                f"{place}.key: {best.key}: is the metric {metric} itself, and the best of "
                f"several values is better than the model; name a column of validation data, or "
                f"leave `best` out for the last row"
            )


def _path(key: str) -> list[str]:
    """Return the parts of a key, which may be joined by / or a dot."""
    return re.split(r"[/.]", key)


def _check_groups(result: Result, keys: Mapping[str, str]) -> None:
    if not result.patterns:
        return
    place, groups = f"{TRAINER}.result.lines", list[str]()
    for pattern in result.patterns:
        try:
            groups += re.compile(pattern).groupindex
        except re.error as error:
            raise UserError(f"{place}: {pattern!r}: {error}") from error
    for name in groups:
        if groups.count(name) > 1:
            raise UserError(f"{place}: two patterns have a group {name}; one may have it")
    for metric, key in keys.items():
        if key not in groups:
            raise UserError(f"{place}: has no group (?P<{key}>...) for the metric {metric}")
