"""Python files of the user's own and of installed packages, read as text: nothing of them runs.

The code of a user's file includes what it imports from its folder. An import by a computed name
(`importlib.import_module(name)`) is not seen.

Used by plans (run/plugin.py, run/trainer.py, planning/analysis_keys.py), by `ablate export`
(audit/export.py) and by workers (training/plugin.py). A change of the hash of code changes the ids
of runs with such code.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.run.parts import part_name
from ablate.shared import UserError, unknown_value

Definition = ast.ClassDef | ast.FunctionDef


def source_file(folder: Path, name: str) -> Path | None:
    """Return the file of `module:name` in `folder`; None where there is none."""
    return module_file(folder, name.partition(":")[0].split("."))


def find_source(key: str, name: str, folder: Path) -> Path:
    """Return the file of `module:name` in `folder`, as `source_file` does. Raise UserError where
    there is none."""
    if (file := source_file(folder, name)) is None:
        raise missing_module(key, name, folder)
    return file


def missing_module(
    key: str, name: str, folder: Path, other_places: str = "", instead: str = ""
) -> UserError:
    """Make the error for a module that is neither in `folder` nor in the other places that
    `other_places` names."""
    file = f"{name.partition(':')[0].replace('.', '/')}.py"
    return UserError(
        f"{key}: {name}: no {file} in {folder}{other_places}; start ablate where it lies{instead}"
    )


def parse_source(file: Path, place: str = "") -> ast.Module:
    """Return the syntax tree of a file. Raise UserError, which `place` begins, for a file that is
    no Python."""
    try:
        return _parsed(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{place}{file}: {error}") from error


@functools.cache  # by content: a sweep reads the same files thousands of times
def _parsed(content: bytes, file: str) -> ast.Module:
    return ast.parse(content, file)


def find_definition(key: str, name: str, file: Path, *kinds: type[Definition]) -> Definition:
    """Return the class or function `module:name` of a file. Raise UserError where there is none."""
    body = parse_source(file, f"{key}: {name}: ").body
    definitions = {node.name: node for node in body if isinstance(node, kinds)}
    if part_name(name) not in definitions:
        kind_words = " or ".join(WORDS[kind] for kind in kinds)
        raise unknown_value(
            f"{key}: {name}: {file}", part_name(name), definitions, f"a {kind_words} among"
        )
    return definitions[part_name(name)]


def literal_value(node: ast.expr, place: str) -> Any:
    """Return the value of a literal expression. Raise UserError, which `place` begins, for any
    expression that has to be run."""
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UserError(f"{place} is to be a plain value, got {ast.unparse(node)}") from error


WORDS = {ast.ClassDef: "class", ast.FunctionDef: "function"}


def code_hash(file: Path, folder: Path) -> str:
    """Return 12 hex digits of a hash of all `local_files`, wherever the folder lies; for a file
    that imports nothing from its folder, of its content alone. Raise UserError as `local_files`
    does."""
    files = local_files(file, folder)
    if len(files) == 1:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    text = hashlib.sha256()
    for path in files:
        name = path.relative_to(folder).as_posix()
        text.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return text.hexdigest()[:12]


def local_files(file: Path, folder: Path) -> list[Path]:
    """List the file, then every module of the folder that it imports directly or indirectly,
    sorted. The import of the file itself also runs the packages that it is in; an `__init__.py`
    without content runs nothing, and is not listed for that.

    Imports within functions count, too. The folder is last on the import path: a name that is
    installed, or Python's own, is not taken from it. Raise UserError for a file that is no Python.
    """
    packages = [folder / inside / "__init__.py" for inside in file.relative_to(folder).parents[:-1]]
    modules = {file, *(path for path in packages if path.is_file() and path.stat().st_size)}
    waiting = list(modules)
    while waiting:
        importer = waiting.pop()
        for module in _imported(importer, folder):
            if module not in modules:
                modules.add(module)
                waiting.append(module)
    return [file, *sorted(modules - {file})]


def distributions(files: Iterable[Path], folder: Path) -> dict[str, str | None]:
    """Return {name: version} of the distributions that provide the installed modules which these
    files import, sorted. The version is None where none is installed, and leaves out the build
    (`+cpu`), which differs between machines."""
    tops = {
        module[0]
        for file in files
        for level, module, _ in _statements(parse_source(file))
        if not level
    }
    names = {
        name
        for top in tops - {*sys.stdlib_module_names, "ablate"}
        if _is_elsewhere(top, folder) or module_file(folder, [top]) is None
        for name in _brought_by().get(top, [top])
    }
    return {name: _version(name) for name in sorted(names)}


def imported_modules(files: Iterable[Path]) -> set[str]:
    """Return the top-level names of the modules that files import, without Python's own. A file
    that can't be read, or is no Python, adds none."""
    tops: set[str] = set()
    for file in files:
        with contextlib.suppress(UserError, OSError):
            tops |= {module[0] for level, module, _ in _statements(parse_source(file)) if not level}
    return tops - sys.stdlib_module_names


def distribution_of(module: str) -> str | None:
    """Return the distribution that provides an installed module, as "timm 1.0.31"; None where there
    is none."""
    top = module.partition(".")[0]
    name = _brought_by().get(top, [top])[0]
    return (version := _version(name)) and f"{name} {version}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache  # it reads the list of files of every distribution
def _brought_by() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def module_file(folder: Path, parts: Sequence[str]) -> Path | None:
    """Return the file of a module, given by the parts of its name. As in Python, a package comes
    before a module of the same name. None where the folder has neither."""
    place = folder.joinpath(*parts)
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the folder that a file's import statements run. An import of a module also
    runs the packages that it is in."""
    for level, module, names in _statements(parse_source(file)):
        package: tuple[str, ...] = ()
        if level:
            inside = file.relative_to(folder).parts
            package = inside[: max(0, len(inside) - level)]
        full_name = (*package, *module)
        if not level and _is_elsewhere(full_name[0], folder):
            continue
        candidates = [full_name[:n] for n in range(1, len(full_name) + 1)]
        candidates += [(*full_name, name) for name in names]
        for parts in candidates:
            if (imported_file := module_file(folder, parts)) is not None:
                yield imported_file


@functools.cache
def _statements(tree: ast.Module) -> tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...]:
    """Return (number of leading dots, parts of the module's name, names taken from it) for each
    import in a file."""
    imports: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, tuple(alias.name.split(".")), ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            names = tuple(alias.name for alias in node.names if alias.name != "*")
            imports.append((node.level, module, names))
    return tuple(imports)


@functools.cache
def _is_elsewhere(top: str, folder: Path) -> bool:
    """Return whether a module of this name is Python's own, ablate's, or installed outside the
    folder."""
    if top in sys.stdlib_module_names or top == "ablate":
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    home = folder.resolve()
    return not any(Path(place).resolve().is_relative_to(home) for place in places if place)


# --- Where it went wrong ------------------------------------------------------------------------


def own_frame(error: BaseException, folders: Sequence[str]) -> traceback.FrameSummary | None:
    """Return the innermost frame of an error's traceback that is in the user's own code; None where
    there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if any(is_own_file(Path(frame.filename), Path(folder)) for folder in folders):
            return frame
    return None


def own_line(error: BaseException, folders: Sequence[str]) -> str | None:
    """Return the place of `own_frame` as "FILE, line 7"; None where there is no such frame."""
    frame = own_frame(error, folders)
    return frame and f"{frame.filename}, line {frame.lineno}"


def raising_line(error: BaseException) -> str:
    """Return the place where an error was raised, as "FILE, line 7"."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}, line {frame.lineno}"


def is_own_file(file: Path, folder: Path) -> bool:
    """Return whether a file in `folder` is the user's own: not part of an environment in the same
    folder, nor of ablate."""
    if not file.is_relative_to(folder) or file.is_relative_to(_OURS):
        return False
    inside = file.relative_to(folder).parts
    return "site-packages" not in inside and not inside[0].startswith(".")


_OURS = Path(__file__).parents[1]
