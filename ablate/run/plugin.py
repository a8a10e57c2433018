"""The parts of a run given by import path, `module:name`, read as text: none of their code runs
here.

The file is looked for in the working folder. A part that is a field (`parts.FIELD_KINDS`), unlike a
whole section, may also come from an installed package. `parts` has the form of an import path. The
settings of a norm, stem, block or whole model are its keyword-only
parameters; those of a part, all parameters that ablate doesn't pass itself. So settings are checked
before torch is loaded.

Used by every plan (planning/compose.py); training/plugin.py, where the worker imports the code,
compares versions by it. What each kind of part passes is in run/parts.py.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ablate.run.build import PLUGIN_KEYS
from ablate.run.parts import (
    MODEL,
    PART_KINDS,
    PartKind,
    part_name,
)
from ablate.run.schema import Param, check_keys, read_settings, same_keys
from ablate.run.source import (
    Definition,
    code_hash,
    distribution_of,
    find_definition,
    find_source,
    literal_value,
    local_files,
    missing_module,
    module_file,
    parse_source,
    source_file,
)
from ablate.run.spec import OwnSpec, RunSpec
from ablate.shared import UserError, install_command

_TYPES = {"float": float, "int": int, "bool": bool, "str": str, "None": None}
# The arguments of a timm model's constructor that the run, or `from.weights`, gives.
RUN_ARGUMENTS = {
    "num_classes": "is the number of classes of the data",
    "in_chans": "is data.channels",
    "img_size": "is data.size",
    "pretrained": "weights come from a file, by from.weights=FILE",
    "checkpoint_path": "weights come from a file, by from.weights=FILE",
}


def is_whole_name(name: Any) -> bool:
    """Return whether `model=NAME` names a whole model, not a size of the shipped one."""
    return MODEL.accepts(name)


def own_code(spec: RunSpec) -> str:
    """Return a hash of the user's own files that a spec names; "" where there are none. Versions do
    not suffice: a class may declare its own, and what it imports has none. Raise UserError for a
    file that is missing or is no Python."""
    hashes = []
    for used in spec.own_parts:
        if used.folder:
            folder = Path(used.folder)
            hashes.append(code_hash(find_source(used.key, used.name, folder), folder))
    return "+".join(hashes)


def code_sources(spec: RunSpec, folder: Path) -> dict[str, Path]:
    """Return the user's own files in `folder` that the runs of a spec are trained from, by their
    paths there: of a trainer of the user's own, those by which its runs are known; else those of
    parts by import path, also of the runs that these start from. Raise UserError as `local_files`
    does."""
    sources: dict[str, Path] = {}
    for part_spec in (spec, *spec.ancestors()):
        if isinstance(part_spec, OwnSpec):
            sources |= {name: folder / name for name in part_spec.tree["code"]["files"]}
        for used in part_spec.own_parts:
            if used.folder == str(folder):
                for file in local_files(find_source(used.key, used.name, folder), folder):
                    sources[file.relative_to(folder).as_posix()] = file
    return sources


def complete(tree: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a run with a part by import path, completed by its settings, version
    and folder.

    The version is the one that a class declares (`version = "2"`). Where it declares none, it is a
    hash of its file and of what that imports from the folder, so that every edit makes new runs;
    for an installed package, it is that of the distribution. Raise UserError for a file or class
    that is missing or can't be read, and for settings that it does not take.
    """
    sections: dict[str, dict[str, Any]] = {}
    for kind in PART_KINDS:
        section = sections.get(kind.section, tree.get(kind.section))
        if isinstance(section, Mapping) and _is_used(kind, section.get(kind.field)):
            completed = _section if kind.is_section else _fields
            sections[kind.section] = completed(kind, section, folder)
    return sections


def _section(kind: PartKind, section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Complete a section that holds its settings itself. Only timm knows the settings of its
    models: they are checked where the model is built."""
    name, reserved_keys = section["name"], ("name", *kind.reserved)
    settings = {key: value for key, value in section.items() if key not in reserved_keys}
    timm = kind.of_library(name)
    for key in settings:
        if key in PLUGIN_KEYS:
            raise UserError(f"{kind.key}.{key}: is read from {name}; leave it out")
        if timm and key in RUN_ARGUMENTS:
            raise UserError(f"model.{key}: {RUN_ARGUMENTS[key]}; leave it out")
    if not timm:
        settings, version, place = _completed(kind, name, settings, kind.key, section, folder)
    elif (version := distribution_of("timm") or "") == "":
        raise UserError(f"model: {name}: timm is not installed; {install_command('timm')}")
    else:
        place = None
    return {
        **{key: section[key] for key in reserved_keys},
        "folder": place,
        "version": version,
        **settings,
    }


def _is_used(kind: PartKind, value: Any) -> bool:
    if kind.several:
        return isinstance(value, list) and bool(value) and all(map(kind.accepts, value))
    return kind.accepts(value)


def _fields(kind: PartKind, section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Complete a section with the three fields next to a part."""
    value, place = section[kind.field], f"{kind.section}.{kind.settings}"
    for key in kind.computed:
        if section.get(key) is not None:
            value_text = f"[{', '.join(value)}]" if kind.several else value
            raise UserError(f"{kind.section}.{key}: is read from {value_text}; leave it out")
    keys, given_settings = (kind.settings, *kind.computed), section.get(kind.settings) or {}
    if not isinstance(given_settings, Mapping):
        raise UserError(f"{place}: expected settings (key: value), got {given_settings!r}")
    if not kind.several:
        settings, *code = _completed(kind, value, given_settings, place, section, folder)
        return {**section, **dict(zip(keys, (_plain(settings), *code), strict=True))}
    names = [part_name(name) for name in value]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{kind.key}: two are called {name!r}; rename one of them")
    check_keys(place, given_settings, names, expectation="a name among")
    fields: list[dict[str, Any]] = [{}, {}, {}]
    for short_name, name in zip(names, value, strict=True):
        settings, *code = _completed(
            kind,
            name,
            given_settings.get(short_name) or {},
            f"{place}.{short_name}",
            section,
            folder,
        )
        for field, part_value in zip(fields, (_plain(settings), *code), strict=True):
            field |= {} if part_value is None else {short_name: part_value}
    return {**section, **{key: field or None for key, field in zip(keys, fields, strict=True)}}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings as JSON holds them, without those that are left to the code; None where
    none remain."""
    json_settings = {
        k: list(v) if isinstance(v, tuple) else v for k, v in settings.items() if v is not ...
    }
    return json_settings or None


def _completed(
    kind: PartKind, name: str, settings: Any, place: str, section: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], str, str | None]:
    """Return the settings of one import path, its version and its folder."""
    file, defined, origin = _located(kind, name, folder)
    params, _ = read_definition(kind, defined, file)
    if not isinstance(settings, Mapping):
        raise UserError(f"{place}: expected settings (key: value), got {settings!r}")
    _without_passed(kind, name, params, settings, section)
    all_settings = {key: param.default for key, param in params.items()} | dict(settings)
    same_keys(place, all_settings, params)
    return read_settings(place, params, all_settings), version_of(kind, name, origin), origin


def _located(kind: PartKind, name: str, folder: Path) -> tuple[Path, str, str | None]:
    """Return the file that defines it, its import path there, and its folder; None: it is
    installed."""
    if kind.is_section or source_file(folder, name):
        return find_source(kind.key, name, folder), name, str(folder)
    module, _, attribute = name.partition(":")
    if (file := _installed(module)) is None:
        source = ", and no installed package has its Python source"
        instead = ", install it, or call it in a function of a file there"
        raise missing_module(kind.key, name, folder, source, instead)
    file, attribute = _home(file, attribute)
    return file, f"{module}:{attribute}", None


def _without_passed(
    kind: PartKind,
    name: str,
    params: dict[str, Param],
    settings: Mapping[str, Any],
    section: Mapping[str, Any],
) -> None:
    """Remove from the parameters of a class those that fields of the section set, such as an
    optimiser's rate and decay. Raise UserError where they are given as settings, and where the
    section sets one that the class does not take."""
    for key, ours in kind.passed:
        if key in settings:
            raise UserError(
                f"{kind.section}.{kind.settings}.{key}: is {kind.section}.{ours} in every "
                f"{kind.name}; give that"
            )
        if params.pop(key, None) is None and section.get(ours) != 0:
            remedy = "; give 0" * (ours == "wd")
            raise UserError(f"{kind.section}.{ours}: {name} takes no {key}{remedy}")


def version_of(kind: PartKind, name: str, folder: str | None) -> str:
    """Return the version that stands for the code of an import path, as its files are now.
    `folder`: None for an installed package. Raise UserError as `complete` does."""
    if folder is not None:
        file = find_source(kind.key, name, Path(folder))
        return read_definition(kind, name, file)[1] or code_hash(file, Path(folder))
    module = name.partition(":")[0]
    if (version := distribution_of(module)) is None:
        raise UserError(f"{kind.key}: {module}: is of no installed distribution")
    return version


def _installed(module: str) -> Path | None:
    """Return the file of an installed module without importing the module; None where it has no
    Python file."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # of a name without dots: nothing runs
    except ValueError:
        return None
    if spec is None:
        return None
    if rest and (places := spec.submodule_search_locations):
        return module_file(Path(places[0]), rest)
    file = Path(spec.origin or "")
    return file if file.suffix == ".py" else None


@functools.cache  # an installed package stays as it is
def _home(file: Path, name: str) -> tuple[Path, str]:
    """Return what `_defined` finds, else its arguments unchanged: whoever reads the file says what
    is missing."""
    return _defined(file, name, set()) or (file, name)


def _defined(file: Path, name: str, places: set[tuple[Path, str]]) -> tuple[Path, str] | None:
    """Find the definition of a class or function that an installed module offers, often from
    another module. Return (file, its name there), or None. `places`: those already searched."""
    if (file, name) in places:
        return None
    places.add((file, name))
    tree = parse_source(file)
    if any(isinstance(node, Definition) and node.name == name for node in tree.body):
        return file, name
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            imported_name = names.get(name, name if "*" in names else None)
            if imported_name is None:
                continue
            parts = (node.module or "").split(".") if node.module else []
            near = module_file(file.parents[node.level - 1], parts) if node.level else None
            imported_file = near or (None if node.level else _installed(".".join(parts)))
            if (
                imported_file is not None
                and (definition := _defined(imported_file, imported_name, places)) is not None
            ):
                return definition
    return None


def read_definition(kind: PartKind, name: str, file: Path) -> tuple[dict[str, Param], str | None]:
    """Return the settings of a class or function, and the version that it declares, if any. Raise
    UserError as `complete` does."""
    place = f"{kind.key}: {name}"
    either = (ast.ClassDef,) if kind.call_arguments is None else (ast.ClassDef, ast.FunctionDef)
    definition = find_definition(kind.key, name, file, *either)
    if isinstance(definition, ast.FunctionDef):
        return dict(_params(definition, place, kind.call_arguments)), None
    classes = {
        node.name: node for node in parse_source(file).body if isinstance(node, ast.ClassDef)
    }
    lineage = list(_lineage(definition, classes))
    version: object = None
    for node in reversed(lineage):
        version = _version(node, version)
    inits = [
        item
        for node in lineage
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    skipped = None if kind.build_arguments is None else 1 + kind.build_arguments
    params = dict(_params(inits[0], place, skipped)) if inits else {}
    reserved = ("name", *PLUGIN_KEYS, *kind.reserved) if kind.is_section else ()
    for key in reserved:
        if key in params:
            raise UserError(f"{place}: a setting can't be called {key!r}; rename it")
    return params, None if version is None else str(version)


def _lineage(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield the class, then those of its bases that are defined in the same file, nearest first."""
    yield node
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and classes[base.id] is not node:
            yield from _lineage(classes[base.id], classes)


def _version(node: ast.ClassDef, base_version: object) -> object:
    """Return the constant of `version = constant` in the body of a class; `base_version`, its
    bases' version, where there is none."""
    for item in node.body:
        if isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(item.value, ast.Constant):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if "version" in map(ast.unparse, targets):
                base_version = item.value.value
    return base_version


def _params(
    function: ast.FunctionDef, place: str, skipped: int | None
) -> Iterator[tuple[str, Param]]:
    """Yield (name, Param) of each keyword-only parameter; one without a default has to be given.

    `skipped`: also yield parameters that may be given by position, except so many of the first. A
    default that is no plain value is then `...`, left to the code.
    """
    pairs = list(zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True))
    if skipped is not None:
        args, defaults = function.args.args, function.args.defaults
        padding: list[ast.expr | None] = [None] * (len(args) - len(defaults))
        start = max(0, skipped - len(function.args.posonlyargs))
        pairs = [*zip(args, [*padding, *defaults[-len(args) :]], strict=False)][start:] + pairs
    for parameter, default in pairs:
        value: Any = "???"
        if default is not None:
            try:
                line = f"{place}: line {default.lineno}"
                value = literal_value(default, f"{line}: the default of {parameter.arg}")
            except UserError:
                if skipped is None:
                    raise
                yield parameter.arg, Param(Any, ..., "")
                continue
        yield parameter.arg, Param(_type(parameter.annotation), value, "")


def _type(node: ast.expr | None) -> Any:
    """Return the annotated type if it is float, int, bool, str, Literal[...] of plain values or a
    union of the first four with None; else Any."""
    if isinstance(node, ast.Name) and node.id in _TYPES:
        return _TYPES[node.id]
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [_type(part) for part in (node.left, node.right)]
        return Any if Any in parts or parts == [None, None] else parts[0] | parts[1]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
        try:
            return Literal[ast.literal_eval(node.slice)]
        except ValueError:  # a name among them has to be run
            return Any
    return Any
