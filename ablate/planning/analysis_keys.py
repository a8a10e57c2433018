"""The section `analysis:` of a sweep file: how a table is computed.

The user's own metrics and probes are read as text; none of their code runs here. The function of a
metric, `module:function`, is looked for in a file of the working folder, then among the installed
packages. Its file states its attributes as `function.attribute = value`. The plan keeps them, so a
table has names and units even where the file is missing. The class of a probe, `module:Class`,
states `version = 1`, and its scalar numbers (those that it keeps as arrays without a shape) in
`numbers = {"distance": {"unit": ...}}`, with the attributes of a metric.

Used by `planning/declaration.py`, which reads `analysis:`, and `planning/plan.py` (metrics), for
every command that makes a plan. A new key of `Analysis` also needs its row in docs/sweep-files.md
and, unless its type is plain, a reader in `planning/declaration.py` (`ANALYSIS`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from ablate.planning.contrasts import ACROSS_COLUMNS, BETWEEN_ROWS, RowContrast
from ablate.run import (
    CROSSING,
    METRIC_ATTRIBUTES,
    PROBE,
    PROBE_METRICS,
    TASKS,
    Key,
    Metric,
    check_shares,
    code_hash,
    distribution_of,
    find_definition,
    find_source,
    is_plugin,
    literal_value,
    missing_module,
    own,
    parse_source,
    part_name,
    read_attribute,
    source_file,
    version_of,
)
from ablate.shared import UserError, unknown_value

# What a plan keeps of a metric: where it lies, its version, its attributes.
MetricDeclaration = Mapping[str, Any]

# Those that a function may have: "how" is for trainers only.
FUNCTION_ATTRIBUTES = [name for name in METRIC_ATTRIBUTES if name != "how"]


def is_own(name: str) -> bool:
    """Return whether a metric's name is the import path of a function of the user's own.

    The names of our own numbers (PROBE_METRICS, CROSSING) have the same form; they don't count.
    """
    return is_plugin(name) and name.partition(":")[0] not in {*PROBE_METRICS, CROSSING}


def read_own_metric(name: str, folder: Path, place: str) -> dict[str, Any]:
    """Read what a metric's function declares about itself, without running it.

    Return its attributes as plain values, with `folder` and `version`. `version` is a hash of the
    function's file and of every file of the folder that this one imports; for an installed package,
    `folder` is None and `version` is that of its distribution. Raises UserError where there is no
    such function, where an attribute is not in FUNCTION_ATTRIBUTES, and where its value does not
    fit.
    """
    function, file = part_name(name), source_file(folder, name)
    if file is None:
        if (version := distribution_of(name.partition(":")[0])) is None:
            raise missing_module(place, name, folder, ", and no installed package has it")
        return {"folder": None, "version": version}
    location = f"{place}: {name}: {file}"
    tree = parse_source(file, f"{place}: {name}: ")
    names = dict.fromkeys(_names(tree))
    if function not in names:
        raise unknown_value(location, function, names, "a function among")
    declaration = attributes(dict(_assignments(tree, function, location)), location)
    return {"folder": str(folder), "version": code_hash(file, folder), **declaration}


def attributes(declaration: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the attributes that a metric declares, checked, as JSON has them.

    Raises UserError, `place` first, for a name that is not in FUNCTION_ATTRIBUTES and for a value
    that does not fit.
    """
    for name in declaration:
        if name not in FUNCTION_ATTRIBUTES:
            raise unknown_value(place, name, FUNCTION_ATTRIBUTES, "an attribute among")
    values = {
        name: read_attribute(name, value, f"{place}: {name}") for name, value in declaration.items()
    }
    check_shares(values, f"{place}: ")
    return values


def own_metrics_now(
    plan_metrics: Mapping[str, MetricDeclaration], names: Iterable[str], place: str
) -> dict[str, MetricDeclaration]:
    """Return `plan_metrics` with the current declarations of the metrics `names`.

    A declaration is read from the metric's file in the working folder, or else in the folder where
    the file was. Where the file lies in neither, the kept declaration stays; that of a metric from
    a bundle (`folder`: "") always does. Raises UserError as `read_own_metric` does.
    """
    declarations = dict(plan_metrics)
    for name in filter(is_own, names):
        declaration, working_folder = plan_metrics.get(name), Path.cwd()
        if declaration is None or declaration["folder"] is None:
            declarations[name] = read_own_metric(name, working_folder, place)
            continue
        folders = [working_folder, Path(declaration["folder"])] if declaration["folder"] else []
        source_folder = next((folder for folder in folders if source_file(folder, name)), None)
        declarations[name] = (
            declaration if source_folder is None else read_own_metric(name, source_folder, place)
        )
    return declarations


def metric_of(name: str, declaration: MetricDeclaration) -> Metric:
    """Return the metric of this name, built from its declaration."""
    probe, version = declaration.get("probe", ""), declaration["version"]
    description = "" if probe else f"{name} is a function of the predictions, code {version}."
    on = f"what the probe {probe} kept" if probe else ""
    return own.metric_of(name, {**declaration, "how": description}, own=version, probe=probe, on=on)


def parse_own_metrics(tree: Any) -> dict[str, dict[str, Any]]:
    """Return the declarations of metrics that a plan's file holds, checked.

    Raises ValueError for one that neither `read_own_metric` nor `number_of` can have returned.
    """
    for name, metric in tree.items():
        values = {key: metric[key] for key in metric if key not in ("folder", "version", "probe")}
        folder, version, probe = metric["folder"], metric["version"], metric.get("probe", "")
        if not (is_own(name) and isinstance(version, str) and isinstance(folder, str | None)):
            raise ValueError(name)
        if probe != "" and not is_plugin(probe):
            raise ValueError(name)
        try:
            attributes(values, name)
        except UserError as error:
            raise ValueError(name) from error
    return dict(tree)


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file binds at its top level.

    These are the names of functions and classes, of `from ... import`, and of assignments.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (part.id for part in node.targets if isinstance(part, ast.Name))


def _assignments(tree: ast.Module, function: str, location: str) -> Iterator[tuple[str, Any]]:
    """Yield (attribute, value) for each `function.attribute = value` of a file.

    Raises UserError, with the line, for a value that is no literal.
    """
    for node in (statement for statement in tree.body if isinstance(statement, ast.Assign)):
        for target in node.targets:
            owner, _, key = ast.unparse(target).rpartition(".")
            if owner == function:
                place = f"{location}, line {node.lineno}: {owner}.{key}"
                yield key, literal_value(node.value, place)


# --- Probes ---------------------------------------------------------------------------------------


def complete_probes(names: Iterable[Any], folder: Path) -> dict[str, Any] | None:
    """Return the section `own_probes` of a run with these probes.

    Return None where none is the user's own. Raises UserError where the `numbers` of one can't be
    read.
    """
    versions = {}
    for name in filter(is_plugin, names):
        _numbers(name, folder)
        versions[name] = version_of(PROBE, name, str(folder))
    return {"folder": str(folder), "versions": dict(sorted(versions.items()))} if versions else None


def number_of(key: str, probe: str, folder: Path, place: str) -> dict[str, Any]:
    """Return the declaration of a probe's number `Class:number`, as a plan keeps it.

    Raises UserError for a number that the probe does not declare, and where its file is missing.
    """
    numbers, number = _numbers(probe, folder), part_name(key)
    if number not in numbers:
        names = [f"{part_name(probe)}:{name}" for name in numbers]
        raise unknown_value(place, key, names, f"a number of {probe}, among")
    return {"folder": "", "version": "", "probe": probe, **numbers[number]}


def _numbers(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the `numbers` of a probe's class, with checked attributes; {} where it has none.

    Raises UserError where they can't be read.
    """
    file = find_source("probe", name, folder)
    location, numbers = f"probe: {name}: {file}", {}
    for node in find_definition("probe", name, file, ast.ClassDef).body:
        if isinstance(node, ast.Assign) and "numbers" in map(ast.unparse, node.targets):
            numbers = literal_value(node.value, f"{location}, line {node.lineno}: numbers")
    if not isinstance(numbers, Mapping) or not all(
        isinstance(key, str) and isinstance(declaration, Mapping)
        for key, declaration in numbers.items()
    ):
        raise UserError(f"{location}: numbers: expected {{NAME: {{attribute: value}}}}")
    return {
        key: attributes(declaration, f"{location}: numbers: {key}")
        for key, declaration in numbers.items()
    }


METRICS = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.names))


def is_metric(name: str) -> bool:
    return any(task.find(name) for task in TASKS.values()) or is_own(name)


@dataclass(frozen=True)
class Analysis:
    """The settings of a table's analysis (docs/statistics.md); fixed before results exist."""

    # "" stands for the first metric that the task declares.
    metric: Annotated[
        str, Key("what is compared: a metric of the test set, PROBE:NUMBER, or module:function")
    ] = ""
    spread: Annotated[
        Literal["auto", "paired"],
        Key(
            "noise of a gain: auto, from test images or from all rows; paired, from each row's own"
        ),
    ] = "auto"
    family: Annotated[
        Literal["column", "table"], Key("which contrasts an interval is simultaneous over")
    ] = "column"
    margin: Annotated[
        float | None, Key("points: adds the verdicts no worse than and same within", above=0)
    ] = None
    alpha: Annotated[float, Key("the error of a family", above=0, below=1)] = 0.05
    looks: Annotated[
        tuple[int, ...], Key("declared numbers of seeds at which a verdict is read")
    ] = ()
    diverged: Annotated[
        Literal["omit", "chance"], Key("a diverged run is left out, or scored at chance")
    ] = "omit"
    contrasts: Annotated[
        Mapping[str, Mapping[str, Any]],
        Key("differences of two rows, and by how much gains change between two columns"),
    ] = field(default_factory=dict)
    target: Annotated[
        float | None,
        Key("a number that the mean of each row is judged against; no row is a baseline"),
    ] = None

    @property
    def plain(self) -> dict[str, Any]:
        """The keys and values that plans and looks keep, without a target where there is none: so
        they stay as older versions wrote them."""
        values = {key.name: getattr(self, key.name) for key in fields(self)}
        if self.target is None:
            del values["target"]
        return values

    @property
    def row_contrasts(self) -> list[RowContrast]:
        """The contrasts between rows; none under a target, which has no differences of rows."""
        if self.target is not None:
            return []
        return [
            RowContrast(name, contrast["to"], contrast["from"])
            for name, contrast in self.contrasts.items()
            if set(contrast) == BETWEEN_ROWS
        ]

    @property
    def unused(self) -> list[str]:
        """The keys that were set and are of gains, which a target has none of."""
        if self.target is None:
            return []
        return [key for key in ("margin", "contrasts") if getattr(self, key)]

    @property
    def column_contrasts(self) -> dict[str, Mapping[str, Any]]:
        """The contrasts between columns, by name."""
        contrasts = self.contrasts.items()
        return {name: contrast for name, contrast in contrasts if set(contrast) == ACROSS_COLUMNS}
