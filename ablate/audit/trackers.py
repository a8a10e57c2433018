"""Reads the folders of experiment trackers, by the trackers' own libraries, into lines of a sheet:
MLflow's file store and TensorBoard's event files.

Used by audit/sheet.py, for `ablate import FOLDER` and when an imported sheet is verified.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ablate.audit.sheet_forms import (
    RUN,
    Line,
    read_content,
    with_run_column,
    with_settings,
)
from ablate.run import Events, read_events
from ablate.shared import UserError, install_command

RUN_NAME = "run_name"  # the column of the name of MLflow's run, which need not be unique
EVENTS = "*tfevents*"  # the files of TensorBoard
ALLOWED = "MLFLOW_ALLOW_FILE_STORE"  # without it MLflow refuses folders, and means new ones
DESCRIPTION = "meta.yaml"  # MLflow's, in the folder of each experiment and run
MOST_META_BYTES = 1 << 20  # of such a file
PAGE = 1000  # runs, or experiments, that MLflow hands out at once
_TIME = re.compile(r"[0-9]+\.[0-9]+")  # a folder that `add_hparams` named by time.time()


def is_part_of_mlflow(folder: Path) -> bool:
    """Return whether the folder is that of one experiment or run in a file store of MLflow."""
    description = folder / DESCRIPTION
    if not description.is_file():
        return False
    return b"experiment_id" in read_content(description, str(description), MOST_META_BYTES)


def is_mlflow(folder: Path) -> bool:
    """Return whether the folder is a file store of MLflow, with a folder for each experiment."""
    return any(folder.glob(f"*/{DESCRIPTION}"))


def is_tensorboard(folder: Path) -> bool:
    """Return whether event files of TensorBoard lie below the folder."""
    return any(folder.rglob(EVENTS))


# --- MLflow ---------------------------------------------------------------------------------------


def read_mlflow(folder: Path, *, history: bool) -> list[Line]:
    """Return a line for each run of MLflow's file store, with the last value of each metric; with
    `history` a line for each step of a run.

    Columns have MLflow's names: `params.lr`, `metrics.acc`, `tags.stage`, `status`. Raises
    UserError where MLflow is not installed, and for what it can't read.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        command = install_command("mlflow")
        raise UserError(f"{folder}: mlflow is not installed, which reads it; {command}") from None
    lines: list[Line] = []
    with _file_store_allowed():
        try:
            client = MlflowClient(tracking_uri=folder.absolute().as_uri())
            for run, experiment in _runs_of(client):
                place = f"run {run.info.run_name} {run.info.run_id[:8]}"
                settings = {
                    RUN: run.info.run_id,
                    RUN_NAME: run.info.run_name,
                    "experiment": experiment,
                    "status": run.info.status,
                    **{f"params.{key}": value for key, value in run.data.params.items()},
                    **{
                        f"tags.{key}": value
                        for key, value in run.data.tags.items()
                        if not key.startswith("mlflow.")
                    },
                }
                if not history:
                    metrics = {f"metrics.{k}": value for k, value in run.data.metrics.items()}
                    lines.append((place, {**settings, **metrics}))
                    continue
                by_step: dict[int, dict[str, float]] = defaultdict(dict)
                for key in run.data.metrics:
                    for metric in client.get_metric_history(run.info.run_id, key):
                        by_step[metric.step][f"metrics.{key}"] = metric.value
                for step, values in sorted(by_step.items()):
                    lines.append((f"{place}: step {step}", {**settings, "step": step, **values}))
                if not by_step:  # the run is refused for its missing metric, or left out
                    lines.append((place, settings))
        except (MlflowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{folder}: MLflow can't read it ({reason:.200})") from error
    return lines


def _runs_of(client: Any) -> Iterator[tuple[Any, str]]:
    """Yield the runs of all experiments, in the order in which they began, each with the name of
    its experiment."""
    from mlflow.utils import get_results_from_paginated_fn

    def all_of(search: Callable[..., Any]) -> list[Any]:
        return get_results_from_paginated_fn(  # type: ignore[no-any-return]
            lambda size, token: search(max_results=size, page_token=token), PAGE
        )

    experiments = all_of(client.search_experiments)
    for experiment in sorted(experiments, key=lambda experiment: experiment.creation_time or 0):
        search = partial(
            client.search_runs, [experiment.experiment_id], order_by=["attributes.start_time ASC"]
        )
        for run in all_of(search):
            yield run, experiment.name


@contextmanager
def _file_store_allowed() -> Iterator[None]:
    """Let MLflow 3 open a folder, which it refuses to those who would write into it."""
    old_setting = os.environ.get(ALLOWED)
    os.environ[ALLOWED] = "true"
    try:
        yield
    finally:
        if old_setting is None:
            del os.environ[ALLOWED]
        else:
            os.environ[ALLOWED] = old_setting


# --- TensorBoard ----------------------------------------------------------------------------------


def read_tensorboard(folder: Path, option_columns: Collection[str]) -> tuple[list[Line], str]:
    """Return a line for each step of each run, with the scalars of this step by tag, and the name
    of the column of their runs. A run without scalars has one line.

    A run is a folder with event files, as in TensorBoard itself; settings of `add_hparams` are
    columns of the lines. `option_columns`: the columns that the user's options name. Raises
    UserError where tensorboard is not installed, and for a setting with the name of such a tag.
    """
    event_runs = {
        path: read_events(sorted(path.glob(EVENTS)), str(folder))
        for path in sorted({file.parent for file in folder.rglob(EVENTS)})
    }
    _join_settings_folders(event_runs)
    lines_by_run: dict[str, list[Line]] = {}
    for path, event_run in event_runs.items():
        run = path.relative_to(folder).as_posix()
        place = f"run {run}"
        lines: list[Line] = []
        for step, scalars in event_run.by_step.items():
            results = {"step": step, **scalars}
            joined = with_settings(
                event_run.settings, results, option_columns, f"{folder}: {place}", "its scalars"
            )
            lines.append((f"{place}: step {step}", joined))
        lines_by_run[run] = lines or [(place, event_run.settings)]
    return with_run_column(lines_by_run)


def _join_settings_folders(event_runs: dict[Path, Events]) -> None:
    """Give each run what `add_hparams` wrote into a folder below that of the run.

    torch names that folder by the time unless the caller names it. It is no run of its own then;
    nor is one that has settings only. A run that has settings, or several such folders, stays as it
    is. A folder without scalars that has several such folders is no run.
    """
    children: dict[Path, list[Path]] = defaultdict(list)
    for path in event_runs:
        children[path.parent].append(path)
    for path, event_run in list(event_runs.items()):
        below = [child for child in children[path] if child in event_runs and child != path]
        with_own_settings = [child for child in below if event_runs[child].settings]
        if event_run.settings:
            continue
        if len(with_own_settings) != 1:
            if with_own_settings and not event_run.by_step:
                del event_runs[path]
            continue
        [child] = with_own_settings
        if event_runs[child].by_step and not _TIME.fullmatch(child.name):
            continue
        child_run = event_runs.pop(child)
        event_run.settings.update(child_run.settings)
        for step, scalars in child_run.by_step.items():
            event_run.by_step.setdefault(step, {}).update(scalars)
