"""Computes metrics of the user's own from the predictions of runs, each time that they are read.

Nothing of them is stored in a run: another version of the function is another analysis of the same
runs. A bundle has the values, since nobody runs the code of a stranger to read a table.

Used by `reading.py` (tables), `seeding.py` and report/frames.py, for
`analysis.metric=module:function`; audit/export.py and audit/bundle_check.py write and check the
values of bundles.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.analysis.scores import Results
from ablate.planning import Plan, PlannedRun
from ablate.run import (
    check_range,
    own_line,
    raising_line,
    source_file,
)
from ablate.shared import (
    Failure,
    UserError,
    is_number,
    short_error,
)
from ablate.store import Store, retry_remedy

Measured = dict[str, dict[str, float]]  # run -> value by the set of `eval.also`, "" of its own test


def with_own_metrics(
    plan: Plan, results: Results, store: Store, also: Iterable[str] = ()
) -> Results:
    """Return the results with the plan's metric and those of `also`, where they are the user's own,
    added to the metrics of their test sets.

    Raises UserError, one line with the file and the line, where a function can't be loaded, raises,
    or gives no finite number; Failure where predictions are not what their run left.
    """
    names = [name for name in (plan.analysis.metric, *also) if name in own_metrics(plan)]
    measured_values: dict[str, Measured] = {}
    for name in names:
        stored_values = store.own_values(name)
        measured_values[name] = (
            measure_own(plan, results, store, name) if stored_values is None else stored_values
        )
    if not measured_values:
        return results
    return {
        run: result
        and _with_values(
            result, {name: by_run.get(run, {}) for name, by_run in measured_values.items()}
        )
        for run, result in results.items()
    }


def own_metrics(plan: Plan) -> list[str]:
    """Return the plan's metrics that a function of the user computes; its other own metrics are
    numbers of probes."""
    return [name for name, declaration in plan.own.items() if "probe" not in declaration]


def measure_own(plan: Plan, results: Results, store: Store, name: str) -> Measured:
    """Compute one of the plan's own metrics by its function, for every finished run that is no
    trial. Raises as `with_own_metrics`."""
    function = _load(name, plan.own[name])

    def by_set(run: PlannedRun, result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        also_results = result.get("also") or {}
        sets = [
            test_set["name"] for test_set in run.cell.spec.also if test_set["name"] in also_results
        ]
        for set_name, set_result in (
            ("", result),
            *((set_name, also_results[set_name]) for set_name in sets),
        ):
            on = f" on {set_name}" * bool(set_name)
            table = store.predictions(run.id, set_name, set_result.get("predictions_sha256"))
            if table is None:
                raise Failure(f"{run.label}: its predictions{on} are missing; {retry_remedy(plan)}")
            place = f"{name}: {run.label}{on}"
            yield (
                set_name,
                _called(function, table, run.cell.spec.classes, place, plan.own[name]),
            )

    measured_values: Measured = {}
    for run in plan.runs():
        result = results.get(run.id)
        if run.trial is None and not run.above and result and result["status"] == "finished":
            measured_values[run.id] = dict(by_set(run, result))
    return measured_values


def _with_values(
    result: Mapping[str, Any], values: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return a result with `values`, by metric and set, added to its test set and to the sets of
    `eval.also`."""

    def on(set_result: Mapping[str, Any], set_name: str) -> dict[str, Any]:
        set_values = {
            name: by_set[set_name] for name, by_set in values.items() if set_name in by_set
        }
        return {**set_result, "test": {**set_result["test"], **set_values}}

    if "test" not in result:
        return dict(result)
    also = {
        set_name: on(set_result, set_name)
        for set_name, set_result in (result.get("also") or {}).items()
    }
    return {**on(result, ""), **({"also": also} if also else {})}


def _called(
    function: Callable[..., Any],
    table: Any,
    classes: int,
    place: str,
    declaration: Mapping[str, Any],
) -> float:
    """Return the value of the user's function for a table of predictions, and for the number of
    classes if the function takes it. Raises UserError where the function raises, or where the value
    is no finite number or out of the metric's range."""
    fields = table.dtype.names or ()
    contents = f"predictions.npy has {', '.join(fields)}"
    with _blamed(place, declaration, f"; {contents}"):
        value = function(table, **_named_arguments(function, classes))
        value = value.item() if hasattr(value, "item") else value
    if not is_number(value):
        raise UserError(f"{place}: expected a finite number, got {value!r}; {contents}")
    check_range(declaration, value, place, f"; {contents}")
    return float(value)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some that are compiled have none
        return inspect.signature(lambda predictions: None)


def _named_arguments(function: Callable[..., Any], classes: int) -> dict[str, int]:
    """Return the arguments that a function gets by name: `classes`, if it has such a parameter."""
    return {"classes": classes} if "classes" in _signature(function).parameters else {}


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    """Raise UserError for a function that doesn't accept the arguments that it will be given."""
    signature, function_name = _signature(function), name.rpartition(":")[2]
    try:
        signature.bind(None, **_named_arguments(function, 0))
    except TypeError as error:
        raise UserError(
            f"{name}: expected {function_name}(predictions) or "
            f"{function_name}(predictions, classes), got {function_name}{signature}"
        ) from error


@contextlib.contextmanager
def _blamed(place: str, declaration: Mapping[str, Any], suffix: str = "") -> Iterator[None]:
    """Raise what the user's code raises in this context as a UserError that names `place` and the
    file and line of the code. `suffix` ends the message. What the code prints goes to standard
    error, so never into a table."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        spot = own_line(
            error, [declaration["folder"]] if declaration["folder"] else []
        ) or raising_line(error)
        line = short_error(f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise UserError(f"{place}: {line} ({spot}){suffix}") from error


def _load(name: str, declaration: Mapping[str, Any]) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    if declaration["folder"] is None:
        file = None
    elif (file := source_file(Path(declaration["folder"]), name)) is None:
        raise UserError(
            f"{name}: no {module.replace('.', '/')}.py in "
            f"{declaration['folder'] or 'this folder'} any more; start ablate where it lies, or "
            f"give another analysis.metric"
        )
    with _blamed(name, declaration):
        loaded = getattr(_imported(module, file, declaration["version"]), function)
    if not callable(loaded):
        raise UserError(f"{name}: is no function, but {loaded!r}")
    _check_signature(name, loaded)
    metric_function: Callable[..., Any] = loaded
    return metric_function


@functools.cache
def _imported(module: str, file: Path | None, version: str) -> Any:
    """Import a module from its file under a name of its own, so that an installed module keeps its
    name. Its imports are searched for in its folder last."""
    if file is None:
        return importlib.import_module(module)
    folder = file.parents[len(module.split(".")) - (file.name != "__init__.py")]
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"{module}@{version}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
