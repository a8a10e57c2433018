"""MLflow: a run of MLflow for each run, in an experiment of the sweep's name.

MLflow itself says what was handed on: each of its runs has our run's id as a tag, and values have
their steps. So nothing else has to be kept, wherever its server is.

Used by `ablate sweep logger=mlflow`: named in planning/logger.py `LOGGERS`, run by loggers/feed.py.
A new setting also needs its `Param` there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.running.loggers.pages import Page
from ablate.shared import make_folder

RUN, SEAL = "ablate.run", "ablate.seal"  # tags: the run's id, and of one that has ended its seal
PART = 100  # values of a request at most


Values = dict[tuple[str, int], float]  # by key and step


class MLflow:
    """A logger of MLflow: see `Logger`."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=settings["uri"] or _database(folder.absolute()))
        self._runs: dict[str, tuple[str, Values]] = {}  # by run: MLflow's id, and what it has

    def seals(self, sweep: str) -> dict[str, str]:
        """See `Logger`."""
        tags = [run.data.tags for run in self._search(sweep, f"tags.`{SEAL}` != ''")]
        return {tag[RUN]: tag[SEAL] for tag in tags}

    def hand_on(self, page: Page) -> None:
        """See `Logger`."""
        from mlflow.entities import Metric

        lines = page.lines.items()
        page_values = {
            (_key(name), step): float(line[name]) for step, line in lines for name in line
        }
        last_step = max(page.lines, default=0)
        page_values |= {(_key(name), last_step): float(x) for name, x in page.final().items()}
        name, logged = self._runs.get(page.run.id) or self._open(page)
        is_final = page.result is not None
        if any(
            page_values.get(point, None if is_final else value) != value
            for point, value in logged.items()
        ):
            self._client.delete_run(name)  # it was handed on before the run went another way
            name, logged = self._open(page)
        new = {point: value for point, value in page_values.items() if point not in logged}
        timestamp_ms = int(1000 * page.started)
        for part in _parts(
            [Metric(key, value, timestamp_ms, step) for (key, step), value in new.items()]
        ):
            self._client.log_batch(name, metrics=part)
        self._runs[page.run.id] = name, logged | new
        if page.result is not None:
            self._client.set_tag(name, "ablate.status", page.result["status"])
            self._client.set_terminated(name, "FINISHED")
            self._client.set_tag(name, SEAL, page.seal)

    def _open(self, page: Page) -> tuple[str, Values]:
        """Return MLflow's run that an earlier process left, perhaps without its parameters; or make
        one."""
        from mlflow.entities import Param

        run = next(self._search(page.sweep, f"tags.`{RUN}` = '{page.run.id}'"), None)
        if run is None:
            run = self._client.create_run(
                self._experiment(page.sweep),
                start_time=int(1000 * page.started),
                tags={f"ablate.{key}": str(value) for key, value in page.facts().items()},
                run_name=page.run.label,
            )
        name = run.info.run_id
        params = {
            _key(key): str(value)[:500]
            for key, value in page.configuration().items()
            if value is not None
        }
        # MLflow changes no parameter, and a folder of data may have been moved since.
        new = [Param(key, params[key]) for key in params if key not in run.data.params]
        for part in _parts(new):
            self._client.log_batch(name, params=part)
        histories = [self._client.get_metric_history(name, key) for key in run.data.metrics]
        return name, {(m.key, m.step): m.value for history in histories for m in history}

    def _search(self, sweep: str, filter: str) -> Iterator[Any]:
        experiments, token = [self._experiment(sweep)], None
        while True:
            page = self._client.search_runs(experiments, filter, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _experiment(self, sweep: str) -> str:
        experiment = self._client.get_experiment_by_name(sweep)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(self._client.create_experiment(sweep))


def _database(folder: Path) -> str:
    """Return the URI of the folder's database. MLflow makes one in many steps, and repeats none of
    them: a kill in between leaves a file of another name, which nobody reads."""
    from mlflow.tracking import MlflowClient

    path, new = folder / "mlflow.db", folder / ".mlflow.db"
    if not path.exists():
        make_folder(folder)
        new.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{new}").search_experiments()
        os.replace(new, path)
    return f"sqlite:///{path}"


def _key(name: str) -> str:
    """Return the name of a metric or a parameter with "_" for each character that MLflow
    refuses."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _parts(entries: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(entries), PART):
        yield entries[begin : begin + PART]
