"""What a run has by import path, `module:name`, read as text: nothing of it runs here.

The file is looked for in the folder that the user works in; that of a part (`parts.PARTS`) among
installed packages, too. Its settings are the keyword-only parameters of a norm, stem or block; of a
part, all that ablate doesn't give itself. So they are checked before torch is loaded.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.shared.choices import CHOICES
from ablate.shared.errors import UserError, unknown
from ablate.shared.imports import code_hash, distribution, module_file
from ablate.shared.parts import OPTIMIZER, PARTS, PartKey, called, is_plugin
from ablate.shared.schema import Param, check_keys, same_keys, settings_of
from ablate.shared.spec import PLUGIN_KEYS

_TYPES = {"float": float, "int": int, "bool": bool, "str": str, "None": None}


@dataclass(frozen=True)
class Declared:
    """What a class or function says of itself: its settings, its version; None: it says none."""

    params: Mapping[str, Param]
    version: str | None


def find(kind: str, name: str, folder: Path) -> Path:
    """The file of `module` in `folder`. Raises UserError where there is none."""
    module = name.partition(":")[0]
    if (file := module_file(folder, module.split("."))) is not None:
        return file
    raise UserError(
        f"{kind}: {name}: no {module.replace('.', '/')}.py in {folder}; start ablate where it lies"
    )


def by_path(tree: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """What the completed plain tree of a run names by import path: (path, folder), None of an
    installed package."""
    for kind in (*CHOICES, "model"):
        chosen: Mapping[str, Any] = tree.get(kind) or {}
        if is_plugin(chosen.get("name")):
            yield chosen["name"], chosen.get("folder")
    probes: Mapping[str, Any] = tree.get("own_probes") or {}
    for name in probes.get("versions") or ():
        yield name, probes["folder"]
    for part in PARTS:
        section: Mapping[str, Any] = tree.get(part.section) or {}
        value: Any = section.get(part.field)
        folder: Any = section.get(part.computed[1])
        if _is_used(part, value):
            for name in value if part.several else [value]:
                yield name, (folder or {}).get(called(name)) if part.several else folder


def own_code(tree: Mapping[str, Any]) -> str:
    """A hash of the files of the user's own that the completed plain tree of a run names: a class
    may declare its version, and what it imports has none. "" where there are none."""
    own = [(name, Path(folder)) for name, folder in by_path(tree) if folder]
    return "+".join(code_hash(find("", name, folder), folder) for name, folder in own)


def complete(kind: str, section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section of a class of the user's own, every setting given, its version and folder.

    The version is what the class declares (`version = "2"`), or a hash of its file and of what that
    imports of the folder, where it declares none: then every edit makes new runs. Raises UserError
    for a file or class that is not there or can't be read, and for settings that the class does not
    take.
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
    version = version_of(kind, name, str(folder))
    return {"name": name, "folder": str(folder), "version": version, **settings}


def complete_parts(tree: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """The sections of a run that have a part by import path, with its settings, version and folder.

    Of a class or a function of the user's own the version is as `complete` has it; of an installed
    package, that of the distribution. Raises UserError as `complete` does.
    """
    made: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        section = made.get(part.section, tree.get(part.section))
        if isinstance(section, Mapping) and _is_used(part, section.get(part.field)):
            made[part.section] = {**section, **_completed(part, section, folder)}
    return made


def _is_used(part: PartKey, value: Any) -> bool:
    if part.several:
        return isinstance(value, list) and bool(value) and all(map(is_plugin, value))
    return is_plugin(value)


def _completed(part: PartKey, section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The three fields beside a part."""
    value, place = section[part.field], f"{part.section}.{part.settings}"
    for key in part.computed:
        if section.get(key) is not None:
            shown = f"[{', '.join(value)}]" if part.several else value
            raise UserError(f"{part.section}.{key}: is read from {shown}; leave it out")
    given = section.get(part.settings) or {}
    if not isinstance(given, Mapping):
        raise UserError(f"{place}: expected settings (key: value), got {given!r}")
    if not part.several:
        fields = _beside(part, value, given, place, section, folder)
        return dict(zip((part.settings, *part.computed), fields, strict=True))
    names = [called(name) for name in value]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{part.key}: two are called {name!r}; rename one of them")
    check_keys(place, given, names, what="a name among")
    each = {
        own: _beside(part, name, given.get(own) or {}, f"{place}.{own}", section, folder)
        for own, name in zip(names, value, strict=True)
    }
    settings, versions, folders = (
        {own: fields[n] for own, fields in each.items() if fields[n] is not None} for n in range(3)
    )
    return {
        part.settings: settings or None,
        part.computed[0]: versions,
        part.computed[1]: folders or None,
    }


def _beside(
    part: PartKey,
    name: str,
    given: Any,
    place: str,
    section: Mapping[str, Any],
    folder: Path,
) -> tuple[dict[str, Any] | None, str, str | None]:
    """The settings of one import path, its version, its folder."""
    module, _, attribute = name.partition(":")
    own = module_file(folder, module.split("."))
    file = own or _installed(module)
    if file is None:
        raise UserError(
            f"{part.key}: {name}: no {module.replace('.', '/')}.py in {folder}, and no installed "
            f"package has its Python source; start ablate where it lies, install it, or call it in "
            f"a function of a file there"
        )
    if own is None:
        file, attribute = _home(file, attribute)
    params = dict(read(part.key, f"{module}:{attribute}", file, part).params)
    if not isinstance(given, Mapping):
        raise UserError(f"{place}: expected settings (key: value), got {given!r}")
    if part is OPTIMIZER:
        _without_rates(name, params, given, section)
    whole = {key: param.default for key, param in params.items()} | dict(given)
    same_keys(place, whole, params)
    checked = settings_of(place, params, whole)
    settings = {
        k: list(v) if isinstance(v, tuple) else v for k, v in checked.items() if v is not ...
    }
    origin = None if own is None else str(folder)
    return settings or None, version_of(part.key, name, origin, part), origin


def _without_rates(
    name: str, params: dict[str, Param], given: Mapping[str, Any], optim: Mapping[str, Any]
) -> None:
    """Takes an optimiser's rate and decay out of its parameters: they are ours."""
    for key, ours in (("lr", "lr"), ("weight_decay", "wd")):
        if key in given:
            raise UserError(f"optim.settings.{key}: is optim.{ours} in every optimiser; give that")
        if params.pop(key, None) is None and optim.get(ours) != 0:
            raise UserError(f"optim.{ours}: {name} takes no {key}" + "; give 0" * (ours == "wd"))


def version_of(key: str, name: str, folder: str | None, part: PartKey | None = None) -> str:
    """The version that stands for the code of an import path, as its files are now. `folder`: None
    of an installed package. Raises UserError as `complete` does."""
    if folder is None:
        if (brought := distribution(module := name.partition(":")[0])) is None:
            raise UserError(f"{key}: {module}: is of no installed distribution")
        return brought
    file = find(key, name, Path(folder))
    return read(key, name, file, part).version or code_hash(file, Path(folder))


def _installed(module: str) -> Path | None:
    """The file of an installed module, which is not imported for that."""
    top, *rest = module.split(".")
    try:
        found = importlib.util.find_spec(top)  # of a name without dots: nothing runs
    except ValueError:
        return None
    if found is None:
        return None
    if rest and (places := found.submodule_search_locations):
        return module_file(Path(places[0]), rest)
    file = Path(found.origin or "")
    return file if file.suffix == ".py" else None


@functools.cache  # an installed package stays as it is
def _home(file: Path, name: str) -> tuple[Path, str]:
    """`_defined`; where that finds none, what was asked for: who reads it says what is missing."""
    return _defined(file, name, set()) or (file, name)


def _defined(file: Path, name: str, seen: set[tuple[Path, str]]) -> tuple[Path, str] | None:
    """The file in which a class or function stands that an installed module has, from another in
    most cases, and its name there. `seen`: where it was looked for."""
    if (file, name) in seen:
        return None
    seen.add((file, name))
    tree = ast.parse(file.read_bytes())
    if any(isinstance(node, _CALLED) and node.name == name for node in tree.body):
        return file, name
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            wanted = names.get(name, name if "*" in names else None)
            if wanted is None:
                continue
            parts = (node.module or "").split(".") if node.module else []
            near = module_file(file.parents[node.level - 1], parts) if node.level else None
            other = near or (None if node.level else _installed(".".join(parts)))
            if other is not None and (found := _defined(other, wanted, seen)) is not None:
                return found
    return None


def read(key: str, name: str, file: Path, part: PartKey | None = None) -> Declared:
    """What the class or, of a part, the function says of itself. Raises UserError as `complete`."""
    return _read(key, name, file, part, file.read_bytes())


_CALLED = (ast.ClassDef, ast.FunctionDef)


@functools.cache  # by content: a sweep reads the same class thousands of times
def _read(key: str, name: str, file: Path, part: PartKey | None, content: bytes) -> Declared:
    place = f"{key}: {name}"
    try:
        tree = ast.parse(content, str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{place}: {file}: {error}") from error
    kinds = ast.ClassDef if part in (None, OPTIMIZER) else _CALLED
    known = {node.name: node for node in tree.body if isinstance(node, kinds)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if called(name) not in known:
        what = "a class" if kinds is ast.ClassDef else "a class or function"
        raise unknown(f"{place}: {file}", called(name), known, f"{what} among")
    wanted = known[called(name)]
    if isinstance(wanted, ast.FunctionDef):
        assert part is not None
        return Declared(dict(_params(wanted, place, part.given)), None)
    lineage = list(_lineage(wanted, classes))
    version: object = None
    for node in reversed(lineage):
        version = _constants(node).get("version", version)
    inits = [
        item
        for node in lineage
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    skipped = None if part is None else 1 + part.making
    params = dict(_params(inits[0], place, skipped)) if inits else {}
    for reserved in ("name", *PLUGIN_KEYS) if part is None else ():
        if reserved in params:
            raise UserError(f"{place}: a setting can't be called {reserved!r}; rename it")
    return Declared(params, None if version is None else str(version))


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


def _params(
    function: ast.FunctionDef, place: str, skipped: int | None
) -> Iterator[tuple[str, Param]]:
    """The keyword-only parameters; one without a default has to be given. `skipped`: those that may
    be given by position, too, but for so many of the first; then a default that is no plain value
    is `...`, left to the code."""
    said = list(zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True))
    if skipped is not None:
        plain, defaults = function.args.args, function.args.defaults
        none: list[ast.expr | None] = [None] * (len(plain) - len(defaults))
        first = max(0, skipped - len(function.args.posonlyargs))
        said = [*zip(plain, [*none, *defaults[-len(plain) :]], strict=False)][first:] + said
    for parameter, default in said:
        value: Any = "???"
        if default is not None:
            try:
                value = ast.literal_eval(default)
            except ValueError as error:
                if skipped is not None:
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
