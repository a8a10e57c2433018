"""A norm, stem or block of the user's own, `module:Class`, read as text: nothing of it runs here.

The file is looked for in the folder that the user works in and nowhere else. Its settings are the
keyword-only parameters of the class, so they are checked before torch is loaded.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.shared.build import PLUGIN_KEYS, same_keys, settings_of
from ablate.shared.choices import Param
from ablate.shared.errors import UserError, unknown

_TYPES = {"float": float, "int": int, "bool": bool, "str": str, "None": None}


@dataclass(frozen=True)
class Declared:
    """What a class says of itself: its settings, and the version that stands for its code."""

    params: Mapping[str, Param]
    version: str


def find(kind: str, name: str, folder: Path) -> Path:
    """The file of `module` in `folder`. Raises UserError where there is none."""
    module = name.partition(":")[0]
    place = folder.joinpath(*module.split("."))
    for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if file.is_file():
            return file
    raise UserError(
        f"{kind}: {name}: no {module.replace('.', '/')}.py in {folder}; start ablate where it lies"
    )


def complete(kind: str, section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section of a class of the user's own, every setting given, its version and folder.

    The version is what the class declares (`version = "2"`), or a hash of its file where it
    declares none: then every edit makes new runs. Raises UserError for a file or class that is not
    there or can't be read, and for settings that the class does not take.
    """
    name = section["name"]
    for key in PLUGIN_KEYS:
        if key in section:
            raise UserError(f"{kind}.{key}: is read from {name}; leave it out")
    file = find(kind, name, folder)
    declared = read(kind, name, file)
    defaults = {key: param.default for key, param in declared.params.items()}
    whole = {**defaults, **{key: value for key, value in section.items() if key != "name"}}
    same_keys(kind, whole, declared.params)
    settings = settings_of(kind, declared.params, whole)
    return {"name": name, "folder": str(folder), "version": declared.version, **settings}


def read(kind: str, name: str, file: Path) -> Declared:
    """What the class says of itself. Raises UserError as `complete` does."""
    return _read(kind, name, file, file.read_bytes())


@functools.cache  # by content: a sweep reads the same class thousands of times
def _read(kind: str, name: str, file: Path, content: bytes) -> Declared:
    place = f"{kind}: {name}"
    try:
        tree = ast.parse(content, str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{place}: {file}: {error}") from error
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted = name.partition(":")[2]
    if wanted not in classes:
        raise unknown(f"{place}: {file}", wanted, classes, "a class among")
    lineage = list(_lineage(classes[wanted], classes))
    version: object = hashlib.sha256(content).hexdigest()[:12]
    for node in reversed(lineage):
        version = _constants(node).get("version", version)
    inits = [
        item
        for node in lineage
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    params = dict(_params(inits[0], place)) if inits else {}
    for key in ("name", *PLUGIN_KEYS):
        if key in params:
            raise UserError(f"{place}: a setting can't be called {key!r}; rename it")
    return Declared(params, str(version))


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """The class and, of its bases, those that stand in the same file; nearest first."""
    yield node
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and classes[base.id] is not node:
            yield from _lineage(classes[base.id], classes)


def _constants(node: ast.ClassDef) -> dict[str, object]:
    """`name = constant` in the body of a class."""
    return {
        target.id: item.value.value
        for item in node.body
        if isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(item.value, ast.Constant)
        for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
        if isinstance(target, ast.Name)
    }


def _params(init: ast.FunctionDef, place: str) -> Iterator[tuple[str, Param]]:
    """The keyword-only parameters; one without a default has to be given."""
    for parameter, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        value: Any = "???"
        if default is not None:
            try:
                value = ast.literal_eval(default)
            except ValueError as error:
                raise UserError(
                    f"{place}: line {default.lineno}: the default of {parameter.arg} is to be a "
                    f"plain value, got {ast.unparse(default)}"
                ) from error
        yield parameter.arg, Param(_type(parameter.annotation), value, "")


def _type(node: ast.expr | None) -> Any:
    """float, int, bool, str, Literal[...], and unions of the first four with None; else Any."""
    if isinstance(node, ast.Name) and node.id in _TYPES:
        return _TYPES[node.id]
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [_type(part) for part in (node.left, node.right)]
        return Any if Any in parts or parts == [None, None] else parts[0] | parts[1]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
        values = ast.literal_eval(node.slice)
        return Literal[values]
    return Any
