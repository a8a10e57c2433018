"""MLflow: a run of MLflow for each run, in an experiment of the sweep's name.

What was handed on is asked of MLflow itself: each run has its id as a tag, and its values have
their steps. So there is nothing to keep beside it, wherever its server is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.running.loggers.page import Page
from ablate.shared.files import make_folder

RUN, SEAL = "ablate.run", "ablate.seal"  # tags: the run's id, and of one that has ended its seal
PART = 100  # values of a request at most


class MLflow:
    """See `Logger`."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        from mlflow.tracking import MlflowClient

        uri = settings["uri"] or _database(folder.absolute())
        self._client = MlflowClient(tracking_uri=uri)
        self._experiments: dict[str, str] = {}
        self._had: dict[
            str, tuple[str, dict[tuple[str, int], float]]
        ] = {}  # by run: MLflow's, values

    def done(self, sweep: str) -> dict[str, str]:
        """See `Logger`."""
        found = self._search(sweep, f"tags.`{SEAL}` != ''")
        return {run.data.tags[RUN]: run.data.tags[SEAL] for run in found}

    def hand_on(self, page: Page) -> None:
        """See `Logger`."""
        from mlflow.entities import Metric

        wanted = {
            (key, step): float(value)
            for step, values in page.lines.items()
            for key, value in values.items()
        }
        last = max(page.lines, default=0)
        wanted |= {(key, last): float(value) for key, value in page.final().items()}
        if page.run.id not in self._had:
            self._had[page.run.id] = self._found(page) or self._begun(page)
        name, had = self._had[page.run.id]
        whole = page.result is not None
        if any(wanted.get(at, None if whole else value) != value for at, value in had.items()):
            self._client.delete_run(name)  # it was handed on before the run went another way
            self._had[page.run.id] = name, had = self._begun(page)
        new = [place for place in wanted if place not in had]
        at = int(1000 * page.started)
        for part in _parts([Metric(key, wanted[key, step], at, step) for key, step in new]):
            self._client.log_batch(name, metrics=part)
        had |= {place: wanted[place] for place in new}
        if page.result is not None:
            self._client.set_tag(name, "ablate.status", page.result["status"])
            self._client.set_terminated(name, "FINISHED")
            self._client.set_tag(name, SEAL, page.seal)

    def _begun(self, page: Page) -> tuple[str, dict[tuple[str, int], float]]:
        """A new run of MLflow. One without its parameters, by a kill, gets them in `_found`."""
        facts = {f"ablate.{key}": str(value) for key, value in page.facts().items()}
        made = self._client.create_run(
            self._experiment(page.sweep),
            start_time=int(1000 * page.started),
            tags=facts,
            run_name=page.run.label,
        )
        self._describe(made.info.run_id, page)
        return made.info.run_id, {}

    def _found(self, page: Page) -> tuple[str, dict[tuple[str, int], float]] | None:
        """The one that an earlier process left."""
        for found in self._search(page.sweep, f"tags.`{RUN}` = '{page.run.id}'"):
            name = found.info.run_id
            self._describe(name, page)
            return name, {
                (key, metric.step): metric.value
                for key in found.data.metrics
                for metric in self._client.get_metric_history(name, key)
            }
        return None

    def _describe(self, name: str, page: Page) -> None:
        from mlflow.entities import Param

        settings = page.configuration().items()
        params = [Param(key, str(value)[:500]) for key, value in settings if value is not None]
        for part in _parts(params):
            self._client.log_batch(name, params=part)

    def _search(self, sweep: str, filter: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment(sweep)], filter, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _experiment(self, sweep: str) -> str:
        if sweep not in self._experiments:
            found = self._client.get_experiment_by_name(sweep)
            self._experiments[sweep] = (
                found.experiment_id if found else self._client.create_experiment(sweep)
            )
        return self._experiments[sweep]


def _database(folder: Path) -> str:
    """That of the folder. MLflow makes one in many steps, and none of them twice: a kill among them
    leaves another file, which nobody reads."""
    from mlflow.tracking import MlflowClient

    path, new = folder / "mlflow.db", folder / ".mlflow.db"
    if not path.exists():
        make_folder(folder)
        new.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{new}").search_experiments()
        os.replace(new, path)
    return f"sqlite:///{path}"


def _parts(entries: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(entries), PART):
        yield entries[begin : begin + PART]
