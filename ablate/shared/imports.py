"""Which files a file of the user's own is made of: it, and what of its folder it imports.

Read as text, nothing of it runs. An import by a computed name (`importlib.import_module(name)`) is
not seen.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ablate.shared.errors import UserError


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
        for level, module, _ in _statements(file, file.read_bytes())
        if not level
    }
    found: dict[str, str | None] = {}
    for top in tops - {*sys.stdlib_module_names, "ablate"}:
        if not _is_elsewhere(top, folder) and module_file(folder, [top]) is not None:
            continue
        for name in dict.fromkeys(_brought_by().get(top, [top])):
            try:
                found[name] = re.sub(r"\+.*", "", importlib.metadata.version(name))
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
    return dict(sorted(found.items()))


@functools.cache  # it reads the list of files of every distribution
def _brought_by() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def distribution(module: str) -> str | None:
    """ "timm 1.0.31": what brings an installed module; without the build, which differs. None where
    no distribution does."""
    top = module.partition(".")[0]
    named = _brought_by().get(top, [top])[0]
    try:
        return f"{named} {importlib.metadata.version(named).partition('+')[0]}"
    except importlib.metadata.PackageNotFoundError:
        return None


def module_file(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file of a module by the parts of its name, as Python finds it: a package before a module
    beside it. None where the folder has none."""
    place = folder.joinpath(*parts)
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """The files of the folder that the statements of one file run. A package runs with each of its
    modules."""
    for level, module, names in _statements(file, file.read_bytes()):
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


@functools.cache  # by content: a sweep reads the same files thousands of times
def _statements(
    file: Path, content: bytes
) -> tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...]:
    """Of each import in a file: its dots, the module's parts, the names taken from it."""
    try:
        tree = ast.parse(content, str(file))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{file}: {error}") from error
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
