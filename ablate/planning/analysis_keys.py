"""`analysis:` of a sweep file: how its table is computed.

Metrics and probes of the user's own are read as text: nothing of them runs here. The function of a
metric, `module:function`, is looked for in a file of the folder that the user works in, then among
installed packages. What it says of itself stands in its file as `function.attribute = value`; the
plan keeps that, so a table has names and units where the file is not there. The class of a probe,
`module:Class`, says `version = 1`, and the numbers that it keeps as arrays without a shape in
`numbers = {"distance": {"unit": ...}}`, with the attributes of a metric.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ablate.shared import (
    CROSSING,
    METRIC_ATTRIBUTES,
    PROBE,
    PROBE_METRICS,
    TASKS,
    Key,
    Metric,
    UserError,
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
    unknown_value,
    version_of,
)

Said = Mapping[
    str, Any
]  # what a plan keeps of a metric: where it lies, its version, its attributes

SAID = [name for name in METRIC_ATTRIBUTES if name != "how"]  # which only a trainer's say


def is_own(name: str) -> bool:
    """Is it the import path of a function of the user's own, and no number of ours?"""
    return is_plugin(name) and name.partition(":")[0] not in {*PROBE_METRICS, CROSSING}


def read_own_metric(name: str, folder: Path, place: str) -> dict[str, Any]:
    """What the function says of itself, as plain values, with its folder and its version.

    `version`: a hash of its file and of every file of the folder that this imports; of an installed
    package (`folder`: None) that of its distribution. Raises UserError where there is no such
    function, or an attribute is none of SAID or has no such value.
    """
    function, file = part_name(name), source_file(folder, name)
    if file is None:
        if (version := distribution_of(name.partition(":")[0])) is None:
            raise missing_module(place, name, folder, ", and no installed package has it")
        return {"folder": None, "version": version}
    where = f"{place}: {name}: {file}"
    tree = parse_source(file, f"{place}: {name}: ")
    names = dict.fromkeys(_names(tree))
    if function not in names:
        raise unknown_value(where, function, names, "a function among")
    said = attributes(dict(_said(tree, function, where)), where)
    return {"folder": str(folder), "version": code_hash(file, folder), **said}


def attributes(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What something says of itself as a metric. Raises UserError for what is none of SAID, or has
    no such value."""
    for name in said:
        if name not in SAID:
            raise unknown_value(where, name, SAID, "an attribute among")
    known = {name: read_attribute(name, value, f"{where}: {name}") for name, value in said.items()}
    check_shares(known, f"{where}: ")
    return known


def own_metrics_now(known: Mapping[str, Said], names: Iterable[str], place: str) -> dict[str, Said]:
    """What those known say of themselves, of these metrics now. One whose file lies neither in
    the folder that we are in nor where it was is as known; a bundle's (`folder`: "") always is."""
    found = dict(known)
    for name in filter(is_own, names):
        said, here = known.get(name), Path.cwd()
        if said is None or said["folder"] is None:
            found[name] = read_own_metric(name, here, place)
            continue
        folders = [here, Path(said["folder"])] if said["folder"] else []
        there = next((folder for folder in folders if source_file(folder, name)), None)
        found[name] = said if there is None else read_own_metric(name, there, place)
    return found


def metric_of(name: str, said: Said) -> Metric:
    """The metric of this name, from what it says of itself."""
    probe, version = said.get("probe", ""), said["version"]
    how = "" if probe else f"{name} is a function of the predictions, code {version}."
    on = f"what the probe {probe} kept" if probe else ""
    return own.metric_of(name, {**said, "how": how}, own=version, probe=probe, on=on)


def parse_own_metrics(tree: Any) -> dict[str, dict[str, Any]]:
    """What a plan's file has of its metrics. Raises ValueError where `read_own_metric` can't have
    said it."""
    for name, said in tree.items():
        others = {key: said[key] for key in said if key not in ("folder", "version", "probe")}
        folder, version, probe = said["folder"], said["version"], said.get("probe", "")
        if not (is_own(name) and isinstance(version, str) and isinstance(folder, str | None)):
            raise ValueError(name)
        if probe != "" and not is_plugin(probe):
            raise ValueError(name)
        try:
            attributes(others, name)
        except UserError as error:
            raise ValueError(name) from error
    return dict(tree)


def _names(tree: ast.Module) -> Iterator[str]:
    """What a file calls by a name: functions, what it imports, what it assigns."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (part.id for part in node.targets if isinstance(part, ast.Name))


def _said(tree: ast.Module, function: str, where: str) -> Iterator[tuple[str, Any]]:
    """`function.attribute = value` of a file."""
    for node in (each for each in tree.body if isinstance(each, ast.Assign)):
        for target in node.targets:
            of, _, key = ast.unparse(target).rpartition(".")
            if of == function:
                yield key, literal_value(node.value, f"{where}, line {node.lineno}: {of}.{key}")


# --- Probes ---------------------------------------------------------------------------------------


def complete_probes(names: Iterable[Any], folder: Path) -> dict[str, Any] | None:
    """The section `own_probes` of a run with these probes; None where none is the user's own."""
    own = {}
    for name in filter(is_plugin, names):
        _numbers(name, folder)
        own[name] = version_of(PROBE, name, str(folder))
    return {"folder": str(folder), "versions": dict(sorted(own.items()))} if own else None


def number_of(key: str, probe: str, folder: Path, place: str) -> dict[str, Any]:
    """What a probe says of its number `Class:number`, as a plan keeps it. Raises UserError for a
    number that it does not declare, and where its file is not there."""
    numbers, number = _numbers(probe, folder), part_name(key)
    if number not in numbers:
        names = [f"{part_name(probe)}:{name}" for name in numbers]
        raise unknown_value(place, key, names, f"a number of {probe}, among")
    return {"folder": "", "version": "", "probe": probe, **numbers[number]}


def _numbers(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """`numbers` of a class. Raises UserError where it can't be read."""
    file = find_source("probe", name, folder)
    where, numbers = f"probe: {name}: {file}", {}
    for node in find_definition("probe", name, file, ast.ClassDef).body:
        if isinstance(node, ast.Assign) and "numbers" in map(ast.unparse, node.targets):
            numbers = literal_value(node.value, f"{where}, line {node.lineno}: numbers")
    if not isinstance(numbers, Mapping) or not all(
        isinstance(key, str) and isinstance(more, Mapping) for key, more in numbers.items()
    ):
        raise UserError(f"{where}: numbers: expected {{NAME: {{attribute: value}}}}")
    return {key: attributes(more, f"{where}: numbers: {key}") for key, more in numbers.items()}


METRICS = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.names))


def is_metric(name: str) -> bool:
    return any(task.find(name) for task in TASKS.values()) or is_own(name)


@dataclass(frozen=True)
class Analysis:
    """How the table is computed (docs/statistics.md); fixed before results exist."""

    # "": the first that the task declares.
    metric: Annotated[
        str, Key("what is compared: a metric of the test set, PROBE:NUMBER, or module:function")
    ] = ""
    spread: Annotated[
        Literal["auto", "paired"],
        Key("spread of a gain: auto, told by images or shared by rows; paired: each row's own"),
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
        Mapping[str, Mapping[str, Any]], Key("by how much gains change between columns")
    ] = field(default_factory=dict)
