"""Metrics and probes of the user's own, read as text: nothing of them runs here.

The function of a metric, `module:function`, is looked for in a file of the folder that the user
works in, then among installed packages. What it says of itself stands in its file as
`function.attribute = value`; the plan keeps that, so a table has names and units where the file is
not there. The class of a probe, `module:Class`, says `version = 1`, and the numbers that it keeps
as arrays without a shape in `numbers = {"distance": {"unit": ...}}`, with the attributes of a
metric.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.shared import own
from ablate.shared.errors import UserError, expected
from ablate.shared.files import is_number
from ablate.shared.imports import code_hash, distribution, module_file
from ablate.shared.metrics import Metric
from ablate.shared.metrics.metric import CROSSING
from ablate.shared.metrics.probed import PROBED, called
from ablate.shared.parts import is_plugin

Said = Mapping[
    str, Any
]  # what a plan keeps of a metric: where it lies, its version, its attributes

WORDS = ("name", "short", "unit", "points")
ATTRIBUTES = (*WORDS, "scale", "decimals", "direction", "range", "chance")


def is_own(name: str) -> bool:
    """Is it the import path of a function of the user's own, and no number of ours?"""
    return is_plugin(name) and name.partition(":")[0] not in {*PROBED, CROSSING}


def read(name: str, folder: Path, place: str) -> dict[str, Any]:
    """What the function says of itself, as plain values, with its folder and its version.

    `version`: a hash of its file and of every file of the folder that this imports; of an installed
    package (`folder`: None) that of its distribution. Raises UserError where there is no such
    function, or an attribute is none of ATTRIBUTES or has no such value.
    """
    function, file = name.partition(":")[2], file_of(folder, name)
    if file is None:
        if (version := distribution(module := name.partition(":")[0])) is None:
            raise UserError(
                f"{place}: {name}: no {module.replace('.', '/')}.py in {folder}, and no installed "
                f"package has it; start ablate where it lies"
            )
        return {"folder": None, "version": version}
    where = f"{place}: {name}: {file}"
    tree = _parsed(file, where)
    names = dict.fromkeys(_names(tree))
    if function not in names:
        raise UserError(f"{where}: {expected(function, names, 'a function among')}")
    said = attributes(dict(_said(tree, function, where)), where)
    return {"folder": str(folder), "version": code_hash(file, folder), **said}


def attributes(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What something says of itself as a metric. Raises UserError for what is none of ATTRIBUTES,
    or has no such value."""
    return {key: _checked(key, value, where) for key, value in said.items()}


def now(known: Mapping[str, Said], names: Iterable[str], place: str) -> dict[str, Said]:
    """What those known say of themselves, of these metrics now. One whose file lies neither in
    the folder that we are in nor where it was is as known; a bundle's (`folder`: "") always is."""
    found = dict(known)
    for name in filter(is_own, names):
        said, here = known.get(name), Path.cwd()
        if said is None or said["folder"] is None:
            found[name] = read(name, here, place)
            continue
        folders = [here, Path(said["folder"])] if said["folder"] else []
        there = next((folder for folder in folders if file_of(folder, name)), None)
        found[name] = said if there is None else read(name, there, place)
    return found


def metric_of(name: str, said: Said) -> Metric:
    """The metric of this name, from what it says of itself."""
    probe, version = said.get("probe", ""), said["version"]
    return own.metric_of(
        name,
        said,
        name.partition(":")[2],
        own=version,
        probe=probe,
        on=f"what the probe {probe} kept" if probe else "",
        how="" if probe else f"{name} is a function of the predictions, code {version}.",
    )


def kept(tree: Any) -> dict[str, dict[str, Any]]:
    """What a plan's file has of its metrics. Raises ValueError where `read` can't have said it."""
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


def file_of(folder: Path, name: str) -> Path | None:
    """The file of `module:function` in `folder`, None where there is none."""
    return module_file(folder, name.partition(":")[0].split("."))


def _parsed(file: Path, where: str) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error


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
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == function
            ):
                try:
                    yield target.attr, ast.literal_eval(node.value)
                except ValueError as error:
                    raise UserError(
                        f"{where}, line {node.lineno}: {function}.{target.attr} is to be a plain "
                        f"value, got {ast.unparse(node.value)}"
                    ) from error


def _checked(key: str, value: Any, where: str) -> Any:
    if key not in ATTRIBUTES:
        raise UserError(f"{where}: {expected(key, ATTRIBUTES, 'an attribute among')}")
    if key in WORDS:
        fits, form = isinstance(value, str), "a text"
    elif key == "direction":
        fits, form = value in (*own.DIRECTIONS, None), "'more', 'less' or None"
    elif key == "range":
        ends = list(value) if isinstance(value, list | tuple) else []
        fits, form = _is_range(ends), "(least, most), either of them None"
    elif key == "decimals":
        fits, form = type(value) is int and 0 <= value <= 12, "a whole number from 0 to 12"
    elif key == "chance":
        fits, form = is_number(value), "a number"
    else:
        fits, form = is_number(value) and value > 0, "a number above 0"
    if not fits:
        raise UserError(f"{where}: {key}: expected {form}, got {value!r}")
    return list(value) if isinstance(value, tuple) else value


def _is_range(ends: list[Any]) -> bool:
    numbers = [end for end in ends if end is not None]
    return len(ends) == 2 and all(map(is_number, numbers)) and sorted(set(numbers)) == numbers


# --- Probes ---------------------------------------------------------------------------------------


def complete_probes(names: Iterable[Any], folder: Path) -> dict[str, Any] | None:
    """The section `own_probes` of a run with these probes; None where none is the user's own."""
    own = {name: _read_probe(name, folder)["version"] for name in names if is_plugin(name)}
    return {"folder": str(folder), "versions": dict(sorted(own.items()))} if own else None


def own_probes(spec: Mapping[str, Any]) -> Iterable[tuple[str, Path]]:
    """The user's own probes of a run's tree, and the folders of their files."""
    own = spec.get("own_probes") or {"versions": ()}
    return [(name, Path(own["folder"] or Path.cwd())) for name in own["versions"]]


def number_of(key: str, probe: str, folder: Path, place: str) -> dict[str, Any]:
    """What a probe says of its number `Class:number`, as a plan keeps it. Raises UserError for a
    number that it does not declare, and where its file is not there."""
    numbers, number = _read_probe(probe, folder)["numbers"], key.partition(":")[2]
    if number not in numbers:
        names = [f"{called(probe)}:{name}" for name in numbers]
        raise UserError(f"{place}: {expected(key, names, f'a number of {probe}, among')}")
    return {"folder": "", "version": "", "probe": probe, **numbers[number]}


def _read_probe(name: str, folder: Path) -> dict[str, Any]:
    """`version` and `numbers` of a class. Raises UserError where it can't be read."""
    file, cls = file_of(folder, name), name.partition(":")[2]
    if file is None:
        module = name.partition(":")[0].replace(".", "/")
        raise UserError(f"probe: {name}: no {module}.py in {folder}; start ablate where it lies")
    where = f"probe: {name}: {file}"
    tree = _parsed(file, where)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if cls not in classes:
        raise UserError(f"{where}: {expected(cls, classes, 'a class among')}")
    said = {
        target.id: node
        for node in classes[cls].body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, Any] = {"version": code_hash(file, folder), "numbers": {}}
    for key in found.keys() & said.keys():
        try:
            found[key] = ast.literal_eval(said[key].value)
        except ValueError as error:
            line = said[key].lineno
            raise UserError(f"{where}, line {line}: {key} is to be a plain value") from error
    numbers = found["numbers"]
    if not isinstance(numbers, Mapping) or not all(
        isinstance(key, str) and isinstance(more, Mapping) for key, more in numbers.items()
    ):
        raise UserError(f"{where}: numbers: expected {{NAME: {{attribute: value}}}}")
    checked = {key: attributes(more, f"{where}: numbers: {key}") for key, more in numbers.items()}
    return {"version": str(found["version"]), "numbers": checked}
