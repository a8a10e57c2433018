"""Reads a folder of jobs, of which each left a file of numbers, into the lines of a sheet.

The folders below it that have the file are its jobs: those of a Hydra multirun, the versions of
Lightning's CSVLogger, the output folders of a trainer. The settings of a job are read from
`.hydra/overrides.yaml` or `hparams.yaml`, if it is there; the column `run` has the path of its
folder, or the column `folder` where a job has a `run` itself.

Used by audit/sheet.py, for `ablate import FOLDER --result FILE` and when an imported sheet is
verified.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.audit.sheet_files import file_within
from ablate.audit.sheet_forms import (
    NO_LINE,
    Line,
    check_shallow,
    check_text_options,
    decoded_text,
    flat,
    read_content,
    read_lines,
    with_run_column,
    with_settings,
)
from ablate.audit.sheet_lines import named_columns
from ablate.audit.sheet_values import value_text
from ablate.planning import SheetKeys
from ablate.shared import MOST_BYTES, UserError

OVERRIDES = Path(".hydra", "overrides.yaml")
HYPERPARAMETERS = "hparams.yaml"  # as Lightning's loggers write them
_DIGITS = re.compile(r"([0-9]+)")
MOST_JOB_BYTES = 1 << 20  # of a yaml of a job: numbers by name, and words


def is_multirun(folder: Path) -> bool:
    """Return whether a job of Hydra left its overrides below the folder."""
    return any(folder.rglob(str(OVERRIDES)))


def read_jobs(folder: Path, result: str, keys: SheetKeys) -> tuple[list[Line], str, str]:
    """Return the lines of a folder of jobs, the name of their column of paths, and a hash of all
    files that were read.

    Raises UserError where no job left a file named `result`, where a job of Hydra lacks it, where a
    file can't be read, and where a setting has the name of a result that `keys` names.
    """
    lines_by_run: dict[str, list[Line]] = {}
    option_columns = named_columns(keys)
    hashed = hashlib.sha256()
    for job in _jobs(folder, result):
        run = job.relative_to(folder).as_posix()
        place = f"job {run}"
        settings: Mapping[str, Any] = {}
        if os.path.lexists(job / OVERRIDES):
            content = _read_file(job, str(OVERRIDES), f"{folder}: {place}", MOST_JOB_BYTES)
            hashed.update(hashlib.sha256(content).digest())
            settings = _settings(_yaml(content, f"{folder}: {place}: {OVERRIDES}", list))
        elif os.path.lexists(job / HYPERPARAMETERS):
            content = _read_file(job, HYPERPARAMETERS, f"{folder}: {place}", MOST_JOB_BYTES)
            hashed.update(hashlib.sha256(content).digest())
            if content.strip() not in (b"", b"{}"):
                name = f"{folder}: {place}: {HYPERPARAMETERS}"
                settings = flat(_yaml(content, name, dict), name)
        is_yaml = result.endswith((".yaml", ".yml"))
        most_bytes = MOST_JOB_BYTES if is_yaml else MOST_BYTES
        content = _read_file(job, result, f"{folder}: {place}", most_bytes)
        hashed.update(hashlib.sha256(content).digest())
        name = f"{folder}: {place}: {result}"
        if is_yaml:
            check_text_options(keys, result)
            results: list[Line] = [("", flat(_yaml(content, name, dict), name))]
        else:
            results = read_lines(content, name, keys) or [NO_LINE]
        for line_place, values in results:
            whole_place = f"{place}: {line_place}" if len(results) > 1 else place
            joined = with_settings(settings, values, option_columns, f"{folder}: {place}", result)
            lines_by_run.setdefault(run, []).append((whole_place, joined))
    return *with_run_column(lines_by_run), hashed.hexdigest()


def _jobs(folder: Path, result: str) -> Iterator[Path]:
    """Return the folders of the jobs by name, numbers in their order: version_2 before version_10.

    Raises UserError for none, and for a `result` that is no name of a file within a folder.
    """
    jobs = {path.parent.parent for path in folder.rglob(str(OVERRIDES))}
    if not jobs:
        parts = Path(result).parts
        if not parts or Path(result).is_absolute() or ".." in parts:
            raise UserError(
                f"--result {shlex.quote(result)}: expected a file in the folder of each job, such "
                f"as metrics.csv"
            )
        jobs = {path.parents[len(parts) - 1] for path in folder.rglob(glob.escape(result))}
    if not jobs:
        raise UserError(f"--result {shlex.quote(result)}: no folder below {folder} has such a file")

    def order(job: Path) -> list[tuple[int, str]]:
        parts = _DIGITS.split(job.relative_to(folder).as_posix())  # text, digits, text, ...
        return [(int(part) if part.isdecimal() else 0, part) for part in parts]

    return iter(sorted(jobs, key=order))


def _read_file(job: Path, name: str, place: str, most_bytes: int) -> bytes:
    if not os.path.lexists(job / name):
        raise UserError(f"{place}: has no {name}; remove the job, or let it end")
    return read_content(file_within(job, name, place), f"{place}: {name}", most_bytes)


def _settings(words: list[Any]) -> dict[str, str]:
    """Return the overrides of a job, by key.

    Values are labels, so they stay texts as typed: `lr=0.10` is "0.10", as in a csv.
    """
    parts = (str(word).lstrip("+~").partition("=") for word in words)
    return {key: _unquoted(value) for key, _, value in parts}


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


@functools.cache
def _plain_loader() -> Any:
    """Return the loader of yaml whose values are texts.

    An alias (*name) is an error: a few bytes could stand for any number of values, or for
    themselves. So is a key that a mapping has twice, whose last value yaml would take in silence.
    """
    import yaml

    class PlainLoader(yaml.BaseLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("an alias, such as *name, is no value here")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                keys = [str(key.value) for key, _ in node.value]
                repeated = next(key for key in keys if keys.count(key) > 1)
                raise yaml.YAMLError(f"the key {repeated!r:.80} is there twice")
            return mapping

    return PlainLoader


def _yaml(content: bytes, place: str, kind: type) -> Any:
    """Parse yaml into a tree whose values are texts, as they were written.

    Raises UserError for an alias, and for a tree that is not of type `kind`.
    """
    import yaml

    text = decoded_text(content, place)
    try:
        tree = yaml.load(text, _plain_loader())
    except (ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{place}: can't be read ({reason:.80})") from error
    check_shallow(tree, place)
    if not isinstance(tree, kind):
        noun = "keys and values" if kind is dict else "a list"
        raise UserError(f"{place}: expected {noun}, got {value_text(text.strip())}")
    return tree
