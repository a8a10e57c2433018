"""What a logger hands on of one run: read from its folder, and from nowhere else.

While a run trains, that is what its newest checkpoint has, which it won't go back behind; all of it
once it has ended. Each step is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ablate.planning.cell import PlannedRun
from ablate.shared.files import is_number
from ablate.shared.rundir import RunDir, parse_lines


@dataclass(frozen=True)
class Page:
    """One run of a sweep. `started`: seconds since 1970. `lines`: values by step, in the order of
    steps. `result`: None while it has none."""

    sweep: str
    run: PlannedRun
    started: float
    lines: Mapping[int, Mapping[str, float]]
    result: Mapping[str, Any] | None

    @property
    def seal(self) -> str:
        """What it says in the end; "" while it has not ended."""
        return "" if self.result is None else seal_of(self.result)

    def configuration(self) -> dict[str, Any]:
        """Key, dotted, and value of everything that was set."""
        return dict(_dotted(self.run.spec()))

    def facts(self) -> dict[str, Any]:
        """What a reader sorts runs by."""
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
        """Scores on the test set, by `test_METRIC`, and the cost of a run that has ended."""
        result = self.result or {}
        scores = {f"test_{key}": value for key, value in (result.get("test") or {}).items()}
        for name, tested in (result.get("also") or {}).items():
            scores |= {f"test_{name}_{key}": value for key, value in tested["test"].items()}
        costs = {key: result.get(key) for key in ("seconds", "parameters", "multiply_adds")}
        return numbers({**scores, **costs})


class Logger(Protocol):
    """Hands pages on to a service. Built from its settings, with `folder` where it may write."""

    def done(self, sweep: str) -> Mapping[str, str]:
        """The seals of the pages that are handed on in full, by run."""

    def hand_on(self, page: Page) -> None:
        """Bring the service's page to this one, from whatever an earlier process left of it: no
        step twice, none missing. Called again with more of the same run. Raises anything."""


def seal_of(result: Mapping[str, Any]) -> str:
    """The same for the same curves and end: a run that is trained again has another, if its bits
    are others."""
    return f"{result['status']} {result.get('metrics_sha256')}"


def page_of(
    sweep: str,
    run: PlannedRun,
    folder: RunDir,
    result: Mapping[str, Any] | None,
    step: int | None,
) -> Page:
    """The page of a run with this result; of one that has none, up to the checkpoint of `step`,
    which was looked for before this reads the lines."""
    began = [attempt.get("at") for attempt in folder.read_attempts()[:1]]
    started = began[0] if began and is_number(began[0]) else 0.0
    lines: dict[int, dict[str, float]] = {}
    for line in parse_lines(folder.metrics_content()):
        at = line.pop("step", None)
        if isinstance(at, int) and (step is None or at <= step):
            lines.setdefault(at, {}).update(numbers(line))
    return Page(sweep, run, started, lines, result)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in values.items() if is_number(value)}


def _dotted(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping):
        yield key, tree
        return
    parts: Iterable[tuple[Any, Any]] = tree.items()
    for name, part in parts:
        yield from _dotted(part, f"{key}.{name}" if key else str(name))
