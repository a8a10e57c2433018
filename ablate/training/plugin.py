"""The parts that a run has by import path: imported from the folder that the run names or from an
installed package, as they were when the run was planned.

Used wherever a part is made from its import path: model/, training/optim.py and probes/ among
others. A new kind of part also needs its row in run/parts.py `PART_KINDS`; the version that `load`
compares is computed in run/plugin.py.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ablate.run import (
    Run,
    UsedPart,
    find_source,
    is_own_file,
    own_line,
    parts,
    raising_line,
    version_of,
)
from ablate.shared import UserError


def _unwatched(description: str) -> AbstractContextManager[None]:
    return nullcontext()


importing: Callable[[str], AbstractContextManager[None]] = _unwatched  # see `answers.answer`


def load(used: UsedPart) -> Any:
    """Return the class or function `module:name` from a file in its folder, or from an installed
    package.

    The folder is last on the import path, so installed packages keep their names. Raises UserError
    where the file can't be imported, where something installed has its name, or where the code's
    version has changed since the run was planned: its results would have a wrong id.
    """
    key, name, folder = used.key, used.name, used.folder
    module, _, attribute = name.partition(":")
    file = None if folder is None else find_source(key, name, Path(folder))
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
    try:
        with importing(f"{key}: {name}: {file or module}"):
            loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        place = own_line(error, [folder]) if folder else None
        location = f"{place or file}: " if file else ""
        raise UserError(f"{key}: {name}: {location}{type(error).__name__}: {error}") from error
    if file is not None and Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{key}: {name}: {module!r} is {loaded.__file__} already; give {file} another name"
        )
    version = version_of(parts.kind_of(key), name, folder)  # after the import: it ran that
    if version != used.version:
        raise UserError(
            f"{key}: {name}: was planned as version {used.version} and is {version} by now; "
            f"give the command again, which plans it as it is"
        )
    return getattr(loaded, attribute)


def object_at(path: str) -> Any:
    """Return the object at an import path of the package's own tables, `module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def settings_of(used: UsedPart) -> dict[str, Any]:
    """Return the part's settings with tuples, as Python's defaults have them, for the lists of
    JSON."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in used.settings.items()}


def make_part(used: UsedPart) -> Callable[..., Any]:
    """Return a part with its settings: an instance of the class, or the function. Raises UserError
    as `load` does, and where the class can't be instantiated."""
    with blame(used):
        part, settings = load(used), settings_of(used)
        function: Callable[..., Any] = part(**settings) if isinstance(part, type) else part
        if not callable(function):
            raise UserError(f"{used.key}: {used.name}: can't be called, it is {function!r}")
        return function if isinstance(part, type) else partial(function, **settings)


@contextmanager
def blame(*used_parts: UsedPart) -> Iterator[None]:
    """Within the block, raise UserError in place of any other error: it is in the given parts by
    import path, so for the user to fix. Its text names the user's file and line or, where the error
    came through none, the lines where the parts begin to work. Without parts the error is left as
    it is."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not used_parts:
            raise
        part_names = ", ".join(f"{used.key}: {used.name}" for used in used_parts)
        raise UserError(f"{part_names}: {error_text(error, used_parts)}") from error


def error_text(error: Exception, used_parts: Sequence[UsedPart]) -> str:
    """Return what an error says, and where: the last line of the user's own that it came through,
    else the lines where these parts begin to work, else the place that raised it."""
    location = own_line(error, [used.folder for used in used_parts if used.folder])
    if location is None:
        begins = [
            line_of(load(used), parts.kind_of(used.key).method)
            for used in used_parts
            if used.folder
        ]
        location = "; ".join(begins) or raising_line(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({location})"


def line_of(part: Any, method: str) -> str:
    """Return "FILE, line 7": the place where a function, or a method of a class, begins; "FILE"
    where it isn't written in Python."""
    code = getattr(inspect.unwrap(getattr(part, method, part)), "__code__", None)
    if code is None:
        return inspect.getfile(part)
    return f"{code.co_filename}, line {code.co_firstlineno}"


def by_path(run: Run) -> list[UsedPart]:
    """Return all parts that a run has by import path, except models of timm."""
    return [
        used for used in run.spec.own_parts if not parts.kind_of(used.key).of_library(used.name)
    ]


def own_folders(run: Run) -> dict[str, str]:
    """Return {key: folder} of each part of a run that is of the user's own."""
    return {used.key.removesuffix(".name"): used.folder for used in by_path(run) if used.folder}


def digests(run: Run) -> dict[str, str]:
    """Return {key: `digest`} of each part of a run that is of the user's own."""
    return {kind: digest(Path(folder)) for kind, folder in own_folders(run).items()}


def digest(folder: Path) -> str:
    """Return a hash, 16 hex digits, of the user's own code in a folder that is loaded by now.

    That is every loaded file of the folder, except those of environments that lie in it.
    """
    text = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if is_own_file(file, folder):
            text.update(name.encode() + b"\0" + file.read_bytes())
    return text.hexdigest()[:16]
