"""Python files of the user's own and of installed packages, read as text: nothing of them runs.

A file of the user's own is made of more than itself: of what of its folder it imports. An import by
a computed name (`importlib.import_module(name)`) is not seen.
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

from ablate.shared.errors import UserError, unknown_value
from ablate.shared.parts import part_name

Definition = ast.ClassDef | ast.FunctionDef


def source_file(folder: Path, name: str) -> Path | None:
    """The file of `module:name` in `folder`; None where there is none."""
    return module_file(folder, name.partition(":")[0].split("."))


def find_source(key: str, name: str, folder: Path) -> Path:
    """`file_of`. Raises UserError where there is none."""
    if (file := source_file(folder, name)) is None:
        raise missing_module(key, name, folder)
    return file


def missing_module(
    key: str, name: str, folder: Path, where: str = "", instead: str = ""
) -> UserError:
    """The error for a module that is not in `folder`, nor `where` it may be besides."""
    file = f"{name.partition(':')[0].replace('.', '/')}.py"
    return UserError(
        f"{key}: {name}: no {file} in {folder}{where}; start ablate where it lies{instead}"
    )


def parse_source(file: Path, place: str = "") -> ast.Module:
    """The syntax tree of a file. Raises UserError, `place` first, for what is no Python."""
    try:
        return _parsed(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{place}{file}: {error}") from error


@functools.cache  # by content: a sweep reads the same files thousands of times
def _parsed(content: bytes, file: str) -> ast.Module:
    return ast.parse(content, file)


def find_definition(key: str, name: str, file: Path, *kinds: type[Definition]) -> Definition:
    """The class or function `module:name` of a file. Raises UserError where there is none."""
    body = parse_source(file, f"{key}: {name}: ").body
    known = {node.name: node for node in body if isinstance(node, kinds)}
    if part_name(name) not in known:
        what = " or ".join(WORDS[kind] for kind in kinds)
        raise unknown_value(f"{key}: {name}: {file}", part_name(name), known, f"a {what} among")
    return known[part_name(name)]


def literal_value(node: ast.expr, what: str) -> Any:
    """The value that stands there. Raises UserError, `what` first, for one that has to be run."""
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UserError(f"{what} is to be a plain value, got {ast.unparse(node)}") from error


WORDS = {ast.ClassDef: "class", ast.FunctionDef: "function"}


def code_hash(file: Path, folder: Path) -> str:
    """12 hex digits of all `local_files`, wherever the folder lies; of a file that imports none of
    its folder, those of its content alone. Raises UserError as `local_files` does."""
    files = local_files(file, folder)
    if len(files) == 1:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    text = hashlib.sha256()
    for each in files:
        name = each.relative_to(folder).as_posix()
        text.update(name.encode() + b"\0" + hashlib.sha256(each.read_bytes()).digest())
    return text.hexdigest()[:12]


def local_files(file: Path, folder: Path) -> list[Path]:
    """The file, then every module of the folder that it imports, and what these import, sorted.

    An import counts wherever it stands, in a function, too. The folder is last on the import path:
    a name that is installed, or Python's own, is not the folder's. Raises UserError for a file that
    is no Python.
    """
    found = {file}
    waiting = [file]
    while waiting:
        importer = waiting.pop()
        for other in _imported(importer, folder):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return [file, *sorted(found - {file})]


def distributions(files: Iterable[Path], folder: Path) -> dict[str, str | None]:
    """{name: version} of what brings the installed modules that these files import, sorted; None
    where it is not installed. Without the build (`+cpu`), which differs between machines."""
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
    """The modules by their first names, Python's own left out, that files import; of one that is
    no Python none."""
    tops: set[str] = set()
    for file in files:
        with contextlib.suppress(UserError, OSError):
            tops |= {module[0] for level, module, _ in _statements(parse_source(file)) if not level}
    return tops - sys.stdlib_module_names


def distribution_of(module: str) -> str | None:
    """ "timm 1.0.31": what brings an installed module; None: nothing does."""
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
    """The file of a module by the parts of its name, as Python finds it: a package before a module
    beside it. None where the folder has none."""
    place = folder.joinpath(*parts)
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """The files of the folder that the statements of one file run. A package runs with each of its
    modules."""
    for level, module, names in _statements(parse_source(file)):
        package: tuple[str, ...] = ()
        if level:
            inside = file.relative_to(folder).parts
            package = inside[: max(0, len(inside) - level)]
        whole = (*package, *module)
        if not level and _is_elsewhere(whole[0], folder):
            continue
        wanted = [whole[:n] for n in range(1, len(whole) + 1)]
        wanted += [(*whole, name) for name in names]
        for parts in wanted:
            if (other := module_file(folder, parts)) is not None:
                yield other


@functools.cache
def _statements(tree: ast.Module) -> tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...]:
    """Of each import in a file: its dots, the module's parts, the names taken from it."""
    found: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, tuple(alias.name.split(".")), ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            names = tuple(alias.name for alias in node.names if alias.name != "*")
            found.append((node.level, module, names))
    return tuple(found)


@functools.cache
def _is_elsewhere(top: str, folder: Path) -> bool:
    """Is a module of this name Python's own, ablate's, or installed outside the folder?"""
    if top in sys.stdlib_module_names or top == "ablate":
        return True
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if found is None:
        return False
    places = [found.origin, *(found.submodule_search_locations or ())]
    home = folder.resolve()
    return not any(Path(place).resolve().is_relative_to(home) for place in places if place)


# --- Where it went wrong ------------------------------------------------------------------------


def own_frame(error: BaseException, folders: Sequence[str]) -> traceback.FrameSummary | None:
    """The last line of the user's own that an error came through; None: there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if any(is_own_file(Path(frame.filename), Path(folder)) for folder in folders):
            return frame
    return None


def own_line(error: BaseException, folders: Sequence[str]) -> str | None:
    """ "FILE, line 7": that of `own_frame`."""
    frame = own_frame(error, folders)
    return frame and f"{frame.filename}, line {frame.lineno}"


def raising_line(error: BaseException) -> str:
    """ "FILE, line 7": where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"


def is_own_file(file: Path, folder: Path) -> bool:
    """Is it the user's? What an environment in the same folder has is not, nor is what is ours."""
    if not file.is_relative_to(folder) or file.is_relative_to(_OURS):
        return False
    inside = file.relative_to(folder).parts
    return "site-packages" not in inside and not inside[0].startswith(".")


_OURS = Path(__file__).parents[1]
