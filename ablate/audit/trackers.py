"""Reads the folders of experiment trackers, by the trackers' own libraries, into lines of a sheet:
MLflow's file store and TensorBoard's event files.

Used by audit/sheet.py, for `ablate import FOLDER` and when an imported sheet is verified.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ablate.audit.sheet_forms import RUN, Line, with_column
from ablate.run import read_events
from ablate.shared import UserError, install_command

RUN_NAME = "run_name"  # the column of the name of MLflow's run, which need not be unique
EVENTS = "*tfevents*"  # the files of TensorBoard
ALLOWED = "MLFLOW_ALLOW_FILE_STORE"  # without it MLflow refuses folders, and means new ones
PAGE = 1000  # runs, or experiments, that MLflow hands out at once


def is_mlflow(folder: Path) -> bool:
    """Return whether the folder is a file store of MLflow, with a folder for each experiment."""
    return any(folder.glob("*/meta.yaml"))


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
        except (MlflowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{folder}: MLflow can't read it ({reason:.200})") from error
    return lines


def _runs_of(client: Any) -> Iterator[tuple[Any, str]]:
    """Yield the runs of all experiments, in the order in which they began, each with the name of
    its experiment."""
    experiments = list(_paged(client.search_experiments))
    for experiment in sorted(experiments, key=lambda experiment: experiment.creation_time or 0):
        search = partial(
            client.search_runs, [experiment.experiment_id], order_by=["attributes.start_time ASC"]
        )
        for run in _paged(search):
            yield run, experiment.name


def _paged(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield all that a search of MLflow finds, which hands out PAGE at once."""
    page = search(max_results=PAGE)
    yield from page
    while page.token:
        page = search(max_results=PAGE, page_token=page.token)
        yield from page


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


def read_tensorboard(folder: Path) -> list[Line]:
    """Return a line for each step of each run: the scalars of this step, by tag.

    A run is a folder with event files, as in TensorBoard itself; settings of `add_hparams` are
    columns of the lines. Raises UserError where tensorboard is not installed.
    """
    lines: list[Line] = []
    for run_folder in sorted({path.parent for path in folder.rglob(EVENTS)}):
        run = run_folder.relative_to(folder).as_posix()
        events = read_events(sorted(run_folder.glob(EVENTS)), str(folder))
        settings = with_column(events.settings, RUN, run, f"run {run}")
        for step, values in events.by_step.items():
            lines.append((f"run {run}: step {step}", {**settings, "step": step, **values}))
    return lines
