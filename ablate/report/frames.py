"""Makes tidy pandas frames of the runs and curves of a sweep; `ablate.Sweep.to_pandas` names the
columns.

Used by `Sweep.to_pandas` (api/nouns.py) and audit/export.py (runs.csv and the curves of a bundle).
A new column also needs its name in the docstring of `Sweep.to_pandas`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ablate.analysis import own_metrics, with_own_metrics
from ablate.planning import FROM_PREFIX, Cell, Column, Plan, PlannedRun, Row, value_at
from ablate.run import probe_numbers
from ablate.store import RunRecord, Store

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("sweep", "row", "column", "seed", "id")
MEASURED = ("step", "train_loss", "collapsed", "seconds", "device", "parameters", "multiply_adds")

# sections of a spec that are no choices
VALUES = ("model", "optim", "train", "augment", "eval", "trainer")
GROUPS = ("data", "norm", "stem", "block")


def runs_frame(plan: Plan, runs: Sequence[RunRecord], trials: bool = False) -> pd.DataFrame:
    """Make one row for each planned run, in the plan's order. `trials`: tuning trials, too, but
    without test scores: nothing may be chosen by test scores."""
    runs = _selected_runs(runs, trials)
    families = {row.label: row.family for row in plan.rows}
    keys = _keys(plan, [record.run.cell for record in runs])
    probed = {record.run.id: _probed(record) for record in runs}
    measured = dict.fromkeys(key for numbers in probed.values() for key in numbers)
    sets = dict.fromkeys(test_set["name"] for cell in plan.cells for test_set in cell.spec.also)
    rows = []
    for record in runs:
        result, cell = record.result, record.run.cell
        is_parent = plan.tune is not None and plan.tune.parents and record.run.trial is not None
        tree = cell.spec.tree
        if is_parent:
            tree = {**tree, "parent": tree}
        test = (result.get("test") or {}) if record.run.trial is None else {}
        also_results = (result.get("also") or {}) if record.run.trial is None else {}
        rows.append(
            {
                **_place(plan, record),
                "family": families[cell.row],
                **(_search(record.run, trials) if plan.tune else {}),
                **{key: _scalar(_setting(tree, key)) for key in keys},
                "status": record.status,
                **{key: test.get(key) for key in _tested(plan)},
                "test_n": test.get("n"),
                **{key: probed[record.run.id].get(key) for key in measured},
                **_also_metrics(plan, sets, also_results),
                **{name: result.get(name) for name in MEASURED},
            }
        )
    return _frame(rows)


def measured_records(plan: Plan, store: Store, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records, with the plan's metrics of the user's own in their results. Raises as
    `analysis.own.with_own_metrics`."""
    results = with_own_metrics(plan, {r.run.id: r.result for r in runs}, store, plan.own)
    return [replace(record, result=results[record.run.id] or {}) for record in runs]


def _probed(record: RunRecord) -> dict[str, float]:
    """Return the numbers of the probes of a run that has test scores; trials show neither."""
    spec, numbers = record.run.cell.spec, dict[str, float]()
    if record.status == "finished" and record.run.trial is None:
        for probe in spec.probes:
            numbers |= probe_numbers(probe, record.folder.read_probe(probe), spec.tree)
    return numbers


def _also_metrics(plan: Plan, sets: Iterable[str], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test metrics of the sets of `eval.also`, by keys such as "top1@dark" and
    "test_n@dark", which is a number of images."""
    tests = {name: results.get(name, {}).get("test", {}) for name in sets}
    keys = {**{key: key for key in _tested(plan)}, "test_n": "n"}
    return {f"{k}@{name}": test.get(n) for name, test in tests.items() for k, n in keys.items()}


def _tested(plan: Plan) -> list[str]:
    """Metrics of a test set: declared ones, then the user's own."""
    return [*(metric.key for metric in plan.task.metrics), *own_metrics(plan)]


def _selected_runs(runs: Sequence[RunRecord], trials: bool) -> Sequence[RunRecord]:
    """Leave out runs that others start from, and tuning trials unless the caller includes them."""
    own_runs = (record for record in runs if not record.run.above)
    return [record for record in own_runs if trials or record.run.trial is None]


def _keys(plan: Plan, cells: Sequence[Cell]) -> list[str]:
    """List the keys that rows, columns or tuning set, then other keys that differ between runs."""
    parts: list[Row | Column] = [*plan.rows, *plan.columns]
    keys = [key for part in parts for key in part.settings]
    keys += [key for stage in (plan.tune.stages if plan.tune else ()) for key in stage.space]
    values: dict[str, set[str]] = {}
    for cell in cells:
        for key in _settings(cell.spec.tree):
            values.setdefault(key, set()).add(repr(_setting(cell.spec.tree, key)))
    return [*dict.fromkeys([*keys, *(key for key in values if len(values[key]) > 1)])]


def _settings(tree: Mapping[str, Any]) -> Iterator[str]:
    for section in VALUES:
        yield from (f"{section}.{key}" for key in tree.get(section, ()))
    yield from (group for group in GROUPS if group in tree)


def _setting(tree: Mapping[str, Any], key: str) -> Any:
    """Look up a key of a sweep file in a spec's tree: a group by its name; None if absent."""
    while key.startswith(FROM_PREFIX):
        key, tree = key.removeprefix(FROM_PREFIX), tree.get("parent", {})
    value = value_at(tree, key)
    # A model is called by its name, or the shipped one by its size: `model=mu/4,timm:NAME`.
    return value.get("name", value.get("arch")) if isinstance(value, Mapping) else value


def _search(run: PlannedRun, trials: bool) -> dict[str, Any]:
    """Name the search of a trial, or the search whose winner a run has."""
    if (trial := run.trial) is not None:
        return {"search": trial.search, "trial": trial.number, "score": trial.score}
    searches = (choice.search for choice in run.cell.chosen if run.seed in choice.seeds)
    of_trials = {"trial": None, "score": None} if trials else {}
    return {"search": next(searches, None), **of_trials}


def curves_frame(plan: Plan, runs: Sequence[RunRecord], trials: bool = False) -> pd.DataFrame:
    """Make one row for each line of metrics.jsonl of each run; `trials`: of tuning trials, too."""
    import pandas as pd

    rows = [
        {**_place(plan, record), **{key: value for key, value in line.items() if _is_plain(value)}}
        for record in _selected_runs(runs, trials)
        if not record.withheld
        for line in record.folder.read_metrics()
    ]
    return pd.DataFrame(rows, columns=None if rows else [*PLACE, "step"])


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a frame in which columns of integers with gaps stay integers."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in frame.columns:
        kinds = {type(row[name]) for row in rows}
        if kinds == {int, type(None)}:
            frame[name] = pd.array([row[name] for row in rows], dtype="Int64")
    return frame


def _place(plan: Plan, record: RunRecord) -> dict[str, Any]:
    run = record.run
    place = plan.name, run.cell.row, run.cell.column, run.seed, run.id
    return dict(zip(PLACE, place, strict=True))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _scalar(value: Any) -> Any:
    return value if _is_plain(value) else json.dumps(value)
