"""Probes of the user's own, `module:Class`, read as text: nothing of them runs here.

A class says `version = 1`, and the numbers that it keeps as arrays without a shape in
`numbers = {"distance": {"unit": ...}}`, with the attributes of a metric of the user's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ablate.planning.own_metric import attributes, file_of
from ablate.shared.errors import UserError, expected
from ablate.shared.imports import code_hash
from ablate.shared.metrics.probed import called
from ablate.shared.parts import is_plugin


def complete(names: Iterable[Any], folder: Path) -> dict[str, Any] | None:
    """The section `own_probes` of a run with these probes; None where none is the user's own."""
    own = {name: _read(name, folder)["version"] for name in names if is_plugin(name)}
    return {"folder": str(folder), "versions": dict(sorted(own.items()))} if own else None


def own_probes(spec: Mapping[str, Any]) -> Iterable[tuple[str, Path]]:
    """The user's own probes of a run's tree, and the folders of their files."""
    own = spec.get("own_probes") or {"versions": ()}
    return [(name, Path(own["folder"] or Path.cwd())) for name in own["versions"]]


def number_of(key: str, probe: str, folder: Path, place: str) -> dict[str, Any]:
    """What a probe says of its number `Class:number`, as a plan keeps it. Raises UserError for a
    number that it does not declare, and where its file is not there."""
    numbers, number = _read(probe, folder)["numbers"], key.partition(":")[2]
    if number not in numbers:
        names = [f"{called(probe)}:{name}" for name in numbers]
        raise UserError(f"{place}: {expected(key, names, f'a number of {probe}, among')}")
    return {"folder": "", "version": "", "probe": probe, **numbers[number]}


def _read(name: str, folder: Path) -> dict[str, Any]:
    """`version` and `numbers` of a class. Raises UserError where it can't be read."""
    file, cls = file_of(folder, name), name.partition(":")[2]
    if file is None:
        module = name.partition(":")[0].replace(".", "/")
        raise UserError(f"probe: {name}: no {module}.py in {folder}; start ablate where it lies")
    where = f"probe: {name}: {file}"
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
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
