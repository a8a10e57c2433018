"""A norm, stem, block or optimiser of the user's own, `module:Class`, read as text: nothing of it
runs here.

The file is looked for in the folder that the user works in; that of an optimiser among installed
packages, too. Its settings are the keyword-only parameters of the class, of an optimiser all but
the first, so they are checked before torch is loaded.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.shared.build import PLUGIN_KEYS, is_plugin, same_keys, settings_of
from ablate.shared.choices import CHOICES, Param
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
    if (file := _file(folder, module.split("."))) is not None:
        return file
    raise UserError(
        f"{kind}: {name}: no {module.replace('.', '/')}.py in {folder}; start ablate where it lies"
    )


def _file(folder: Path, parts: Sequence[str]) -> Path | None:
    place = folder.joinpath(*parts)
    files = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def is_own(tree: Mapping[str, Any]) -> bool:
    """Does the plain tree of a run name a class by its import path?"""
    names = [tree["optim"].get("name"), *(tree[kind]["name"] for kind in CHOICES)]
    return any(map(is_plugin, names))


def own_code(tree: Mapping[str, Any]) -> str:
    """A hash of the files beside the classes of the user's own that the plain tree of a run names,
    their own among them: a class may declare its version, and what it imports has none. "" where
    there are no such classes."""
    parts = [tree["optim"], *(tree[kind] for kind in CHOICES)]
    code = hashlib.sha256()
    for part in parts:
        folder, name = part.get("folder"), part.get("name")
        file = _file(Path(folder), name.partition(":")[0].split(".")) if folder else None
        for beside in sorted(file.parent.glob("*.py")) if file else ():
            code.update(beside.name.encode() + b"\0" + beside.read_bytes())
    return code.hexdigest()[:16] if any(part.get("folder") for part in parts) else ""


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


OPTIMIZER = "optim.name"


def complete_optimizer(optim: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section of an optimiser `module:Class` of the user's own, or of an installed package,
    whose version is then that of the distribution. Raises UserError as `complete` does, and where
    it takes no rate, or no decay and there is one."""
    name = optim["name"]
    for key in PLUGIN_KEYS:
        if optim.get(key) is not None:
            raise UserError(f"optim.{key}: is read from {name}; leave it out")
    module, _, cls = name.partition(":")
    own = _file(folder, module.split("."))
    file = own or _installed(module)
    if file is None:
        raise UserError(
            f"{OPTIMIZER}: {name}: no {module.replace('.', '/')}.py in {folder}, and no installed "
            f"package has it; start ablate where it lies, or install it"
        )
    if own is None:
        file, cls = _defined(file, cls)
    declared = read(OPTIMIZER, f"{module}:{cls}", file)
    params = dict(declared.params)
    given = optim.get("settings") or {}
    if not isinstance(given, Mapping):
        raise UserError(f"optim.settings: expected settings (key: value), got {given!r}")
    for key, ours in (("lr", "lr"), ("weight_decay", "wd")):
        if key in given:
            raise UserError(f"optim.settings.{key}: is optim.{ours} in every optimiser; give that")
        if params.pop(key, None) is None and optim.get(ours) != 0:
            raise UserError(f"optim.{ours}: {name} takes no {key}" + "; give 0" * (ours == "wd"))
    whole = {key: param.default for key, param in params.items()} | dict(given)
    same_keys("optim.settings", whole, params)
    checked = settings_of("optim.settings", params, whole)
    settings = {
        k: list(v) if isinstance(v, tuple) else v for k, v in checked.items() if v is not ...
    }
    version = declared.version if own else _distribution(module)
    return {
        **optim,
        "settings": settings or None,
        "version": version,
        "folder": str(folder) if own else None,
    }


def _installed(module: str) -> Path | None:
    """The file of an installed module, which is not imported for that."""
    top, *rest = module.split(".")
    try:
        found = importlib.util.find_spec(top)  # of a name without dots: nothing runs
    except ValueError:
        return None
    if found is None or not found.origin:
        return None
    places = found.submodule_search_locations
    return _file(Path(places[0]), rest) if rest and places else Path(found.origin)


def _defined(file: Path, cls: str) -> tuple[Path, str]:
    """The file in which a class stands that an installed module has from another, and its name."""
    for _ in range(9):  # files that say `from .other import Class`
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ImportFrom):
                names = {alias.asname or alias.name: alias.name for alias in node.names}
                parts = (node.module or "").split(".") if node.module else []
                near = _file(file.parents[node.level - 1], parts) if node.level else None
                other = near or (None if node.level else _installed(".".join(parts)))
                if cls in names and other is not None:
                    file, cls = other, names[cls]
                    break
        else:
            break
    return file, cls


def _distribution(module: str) -> str:
    """ "timm 1.0.31": what brings an installed module; without the build, which differs."""
    top = module.partition(".")[0]
    named = importlib.metadata.packages_distributions().get(top, [top])[0]
    try:
        return f"{named} {importlib.metadata.version(named).partition('+')[0]}"
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"{OPTIMIZER}: {module}: is of no installed distribution") from None


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
    params = dict(_params(inits[0], place, kind == OPTIMIZER)) if inits else {}
    for key in () if kind == OPTIMIZER else ("name", *PLUGIN_KEYS):
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


def _params(init: ast.FunctionDef, place: str, every: bool) -> Iterator[tuple[str, Param]]:
    """The keyword-only parameters; one without a default has to be given. `every`: those that may
    be given by position, too, but for self and the first; then a default that is no plain value is
    `...`, left to the class."""
    said = list(zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True))
    if every:
        plain, defaults = init.args.args, init.args.defaults
        none: list[ast.expr | None] = [None] * (len(plain) - len(defaults))
        said = [*zip(plain, [*none, *defaults], strict=True)][2:] + said
    for parameter, default in said:
        value: Any = "???"
        if default is not None:
            try:
                value = ast.literal_eval(default)
            except ValueError as error:
                if every:
                    yield parameter.arg, Param(Any, ..., "")
                    continue
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
