"""Answers about the run of a trial: how far it is, what it counts as when it diverged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.shared import Metric, OwnRun, OwnSpec, Run, build_own, build_run


def share_done(tree: Mapping[str, Any], line: Mapping[str, Any]) -> float:
    """Return the share of its whole training that a run had done at a line of its metrics.

    It is 1 for a trainer of the user's own, which alone knows how long its training is.
    """
    if isinstance(tree, OwnSpec):  # only its trainer knows how long that is
        return 1.0
    train = tree["train"]
    if train["steps"] is not None:
        return float(line["step"] / train["steps"])
    if train["examples"] is not None:
        return float(line["step"] * train["batch"] / train["examples"])
    return float(line["epoch"] / train["epochs"])


def worst_of(tree: Mapping[str, Any], metric: Metric) -> float | None:
    """Return the raw value that a diverged run of the plain tree counts as in a search: guessing.

    It is None for a trainer of the user's own that declares neither chance nor range.
    """
    return tree.worst(metric.key) if isinstance(tree, OwnSpec) else metric.chance(tree.guesses)


def any_run(tree: Mapping[str, Any]) -> Run | OwnRun:
    """Return the validated run of a plain tree, whoever trains it.

    Raises UserError as `build_run` does.
    """
    return build_own(tree) if isinstance(tree, OwnSpec) else build_run(tree)
