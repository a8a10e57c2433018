"""Pages: the content that a logger hands on of one run, read from its folder alone.

While a run trains, its page has what its newest checkpoint has, since the run can't go back behind
that; once it has ended, the page has everything. Each step occurs once. A logger's file is a
function of the page alone, so nothing else has to remember what was handed on.

Used by every logger of this folder and by loggers/feed.py, in `ablate sweep logger=NAME`. A new
field of `Page` reaches a service only where that logger's file hands it on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ablate.planning import PlannedRun, sweep_file_name
from ablate.run import RunDir, parse_lines
from ablate.shared import (
    is_number,
    make_folder,
    read_file,
    write_whole,
)


@dataclass(frozen=True)
class Page:
    """The content of one run that a logger hands on.

    `started`: seconds since 1970. `lines`: values by step, in the order of steps. `result`: None
    while the run has none.
    """

    sweep: str
    run: PlannedRun
    started: float
    lines: Mapping[int, Mapping[str, float]]
    result: Mapping[str, Any] | None

    @property
    def seal(self) -> str:
        """The identity of its end; "" while it has not ended."""
        return "" if self.result is None else seal_of(self.result)

    def configuration(self) -> dict[str, Any]:
        """Return everything that was set, as values by dotted keys."""
        return dict(_dotted(self.run.spec.tree))

    def facts(self) -> dict[str, Any]:
        """Return the facts by which a reader sorts runs."""
        cell = self.run.cell
        return {
            "run": self.run.id,
            "label": self.run.label,
            "row": cell.row,
            "column": cell.column,
            "seed": self.run.seed,
            "sweep": self.sweep,
        }

    def final(self) -> dict[str, float]:
        """Return the scores on the test set, by `test_METRIC`, and the cost of a run that has
        ended."""
        result = self.result or {}
        scores = {f"test_{key}": value for key, value in (result.get("test") or {}).items()}
        for name, tested in (result.get("also") or {}).items():
            scores |= {f"test_{name}_{key}": value for key, value in tested["test"].items()}
        costs = {key: result.get(key) for key in ("seconds", "parameters", "multiply_adds")}
        return numbers({**scores, **costs})


class Logger(Protocol):
    """A logger hands pages on to a service. It is built from its settings, with `folder` where it
    may write."""

    def seals(self, sweep: str) -> Mapping[str, str]:
        """Return the seals of the pages that are handed on in full, by run."""

    def hand_on(self, page: Page) -> None:
        """Complete the service's page to this one, whatever an earlier process left of it: no step
        twice, none missing. It may be called again with more of the same run. May raise any
        error."""


def seal_of(result: Mapping[str, Any]) -> str:
    """Return the identity of a run's curves and end: a run that is trained again has another seal
    if its bits differ."""
    return f"{result['status']} {result.get('metrics_sha256')}"


def page_of(
    sweep: str,
    run: PlannedRun,
    folder: RunDir,
    result: Mapping[str, Any] | None,
    step: int | None,
) -> Page:
    """Read the page of a run with this result, or of a run without one up to the checkpoint of
    `step`, which was looked up before the lines are read."""
    began = [attempt.get("at") for attempt in folder.read_attempts()[:1]]
    started = began[0] if began and is_number(began[0]) else 0.0
    lines: dict[int, dict[str, float]] = {}
    for line in parse_lines(folder.metrics_content()):
        line_step = line.pop("step", None)
        if isinstance(line_step, int) and (step is None or line_step <= step):
            lines.setdefault(line_step, {}).update(numbers(line))
    return Page(sweep, run, started, lines, result)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in values.items() if is_number(value)}


def _dotted(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping):
        yield key, tree
        return
    for name, part in tree.items():
        yield from _dotted(part, f"{key}.{name}" if key else str(name))


class PageFiles:
    """The files of a logger: a folder for each sweep, and in it `done.jsonl`, which lists the
    complete pages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_sweep(self, sweep: str) -> Path:
        return self._folder / sweep_file_name(sweep)

    def seals(self, sweep: str) -> dict[str, str]:
        """See `Logger`."""
        with contextlib.suppress(FileNotFoundError):
            lines = parse_lines(read_file(self.of_sweep(sweep) / "done.jsonl"))
            return {line["run"]: line["seal"] for line in lines if {"run", "seal"} <= line.keys()}
        return {}

    def note_done(self, page: Page) -> None:
        """Note that the files have the whole page, if its run has ended. A line cut short by a kill
        is ignored."""
        if page.result is None:
            return
        path = self.of_sweep(page.sweep) / "done.jsonl"
        line = json.dumps({"run": page.run.id, "seal": page.seal}).encode()
        make_folder(path.parent)
        with open(path, "ab") as file:
            file.write(b"\n" + line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def of_run(self, page: Page, suffix: str = "") -> Path:
        """Return the file or folder of a run, named by its label, as far as a file name allows, and
        its id. A file with an earlier label is renamed."""
        label = re.sub(r"[^\w.+=@#,-]+", "-", page.run.label)[:100]
        path = self.of_sweep(page.sweep) / f"{label}-{page.run.id}{suffix}"
        make_folder(path.parent)
        for old_path in path.parent.glob(f"*-{page.run.id}{suffix}"):
            if old_path != path and not path.exists():
                os.rename(old_path, path)
        return path


def bring(path: Path, content: bytes, final: bool) -> None:
    """Give a file this content by appending what it lacks, so that whoever follows it reads on. A
    kill damages its end at most, which is mended here. A file with other bytes is written anew.

    `final`: no more will come. Without it a longer file stays: its run has gone back, and will
    reach that point again.
    """
    try:
        existing = read_file(path)
    except FileNotFoundError:
        existing = None
    if existing is None or not (content.startswith(existing) or existing.startswith(content)):
        write_whole(path, content)
    elif len(existing) < len(content):
        with open(path, "ab") as file:
            file.write(content[len(existing) :])
            file.flush()
            os.fsync(file.fileno())
    elif len(existing) > len(content) and final:
        write_whole(path, content)
