"""Reads the folder of a Hydra multirun into the lines of a sheet.

Each job left its overrides and a file of numbers.

Used by audit/sheet.py, for `ablate import FOLDER` and when an imported sheet is verified.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.audit.sheet import Line, check_shallow, decoded_text, flat, read_object
from ablate.audit.sheet_files import file_within
from ablate.audit.sheet_values import value_text
from ablate.shared import NotRegular, UserError, read_file

OVERRIDES = Path(".hydra", "overrides.yaml")
MOST_JOB_BYTES = 1 << 20  # of a file of a job: numbers by name, and words


def read_multirun(folder: Path, result: str | None) -> tuple[list[Line], str]:
    """Return the lines of a multirun, one per job, and a hash of all files that were read.

    The jobs are those below the folder that left overrides and a file named `result`. Raises
    UserError where there is none, or where a file is missing or can't be read.
    """
    jobs = sorted(path.parent.parent for path in folder.rglob(str(OVERRIDES)))
    if not jobs:
        raise UserError(f"{folder}: no job of a Hydra multirun, with {OVERRIDES}, lies there")
    if result is None:
        raise UserError(f"{folder}: --result FILE: missing; which file has each job's numbers?")
    lines: list[Line] = []
    hashed = hashlib.sha256()
    jobs.sort(key=lambda job: [(len(part), part) for part in job.relative_to(folder).parts])
    for job in jobs:
        place = f"job {job.relative_to(folder)}"
        contents = [
            _read_file(job, name, f"{folder}: {place}") for name in (str(OVERRIDES), result)
        ]
        for content in contents:
            hashed.update(hashlib.sha256(content).digest())
        words = _yaml(contents[0], f"{folder}: {place}: {OVERRIDES}", list)
        numbers = _numbers(contents[1], f"{folder}: {place}: {result}")
        lines.append((place, {**flat(numbers), **_settings(words)}))
    return lines, hashed.hexdigest()


def _read_file(job: Path, name: str, place: str) -> bytes:
    if not os.path.lexists(job / name):
        raise UserError(f"{place}: has no {name}; remove the job, or let it end")
    path = file_within(job, name, place)
    try:
        if (size := path.stat().st_size) > MOST_JOB_BYTES:
            raise UserError(
                f"{place}: {name}: has {size:,} bytes; expected at most {MOST_JOB_BYTES:,}"
            )
        return read_file(path)
    except NotRegular as error:
        raise UserError(f"{place}: {name}: {error.strerror}") from error


def _settings(words: list[Any]) -> dict[str, str]:
    """Return the overrides of a job, by key.

    Values are labels, so they stay texts as typed: `lr=0.10` is "0.10", as in a csv.
    """
    parts = (str(word).lstrip("+~").partition("=") for word in words)
    return {key: _unquoted(value) for key, _, value in parts}


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _numbers(content: bytes, place: str) -> Mapping[str, Any]:
    if place.endswith(".json"):
        return read_object(decoded_text(content, place), place)
    tree: Mapping[str, Any] = _yaml(content, place, dict)
    return tree


def _yaml(content: bytes, place: str, kind: type) -> Any:
    """Parse yaml into a tree whose values are texts, as they were written.

    An alias (*name) is refused: a few bytes could stand for any number of values, or for
    themselves. Raises UserError for that, and for a tree that is not of type `kind`.
    """
    import yaml

    class PlainLoader(yaml.BaseLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("an alias, such as *name, is no value here")
            return super().compose_node(parent, index)

    text = decoded_text(content, place)
    try:
        tree = yaml.load(text, PlainLoader)
    except (ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{place}: can't be read ({reason:.80})") from error
    check_shallow(tree, place)
    if not isinstance(tree, kind):
        noun = "keys and values" if kind is dict else "a list"
        raise UserError(f"{place}: expected {noun}, got {value_text(text.strip())}")
    return tree
