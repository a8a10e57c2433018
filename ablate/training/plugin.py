"""What a run has by import path: imported, from the folder that the run names or from an installed
package, as it was when the run was planned."""

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

from ablate.shared import (
    EXTRA,
    OPTIMIZER,
    PART_KINDS,
    SCHEDULE,
    Run,
    UsedPart,
    UserError,
    find_source,
    is_own_file,
    own_line,
    parts,
    raising_line,
    to_tree,
    version_of,
)


def _unwatched(what: str) -> AbstractContextManager[None]:
    return nullcontext()


importing: Callable[[str], AbstractContextManager[None]] = _unwatched  # see `answers.answer`


def load(used: UsedPart) -> Any:
    """The class or function `module:name` of a file in its folder, or of an installed package.

    The folder stands last on the import path: what is installed keeps its name. Raises UserError
    where the file can't be imported, something installed has its name, or the code is of another
    version by now than when the run was planned: what it trains would stand under a wrong id.
    """
    key, name, folder = used.key, used.name, used.folder
    module, _, wanted = name.partition(":")
    file = None if folder is None else find_source(key, name, Path(folder))
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
    try:
        with importing(f"{key}: {name}: {file or module}"):
            loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        place = own_line(error, [folder]) if folder else None
        where = f"{place or file}: " if file else ""
        raise UserError(f"{key}: {name}: {where}{type(error).__name__}: {error}") from error
    if file is not None and Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{key}: {name}: {module!r} is {loaded.__file__} already; give {file} another name"
        )
    kind = next(kind for kind in PART_KINDS if kind.key == key)
    if (now := version_of(kind, name, folder)) != used.version:  # after the import: it ran that
        raise UserError(
            f"{key}: {name}: was planned as version {used.version} and is {now} by now; "
            f"give the command again, which plans it as it is"
        )
    return getattr(loaded, wanted)


def named(path: str) -> Any:
    """What stands at an import path of the package's own tables, `module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def settings_of(used: UsedPart) -> dict[str, Any]:
    """As Python's defaults have them: what JSON has as a list is a tuple."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in used.settings.items()}


def make_part(used: UsedPart) -> Callable[..., Any]:
    """A part with its settings: an instance of the class, or the function. Raises UserError as
    `load` does, and where the class can't be made."""
    with blame(used):
        part, settings = load(used), settings_of(used)
        what: Callable[..., Any] = part(**settings) if isinstance(part, type) else part
        if not callable(what):
            raise UserError(f"{used.key}: {used.name}: can't be called, it is {what!r}")
        return what if isinstance(part, type) else partial(what, **settings)


@contextmanager
def blame(*own: UsedPart) -> Iterator[None]:
    """What goes wrong in parts by import path is the user's to mend: told in their file and line;
    where the error came through none, in those that the parts begin to work at."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not own:
            raise
        named = ", ".join(f"{used.key}: {used.name}" for used in own)
        raise UserError(f"{named}: {error_text(error, own)}") from error


def error_text(error: Exception, own: Sequence[UsedPart]) -> str:
    """What an error says, and where: the last line of the user's own that it came through, else
    where these begin to work, else its own place."""
    where = own_line(error, [used.folder for used in own if used.folder])
    if where is None:
        begins = [
            line_of(load(used), WORKS_AT.get(used.key, "forward")) for used in own if used.folder
        ]
        where = "; ".join(begins) or raising_line(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"


WORKS_AT = {OPTIMIZER.key: "step", SCHEDULE.key: "__call__", EXTRA.key: "__call__"}


def line_of(part: Any, method: str) -> str:
    """ "FILE, line 7": where a method of a class begins, or a function; "FILE" where it isn't of
    Python."""
    code = getattr(inspect.unwrap(getattr(part, method, part)), "__code__", None)
    if code is None:
        return inspect.getfile(part)
    return f"{code.co_filename}, line {code.co_firstlineno}"


def by_path(run: Run) -> list[UsedPart]:
    """All that a run has by import path, but for models of timm."""
    every = parts.parts_by_path(to_tree(run))
    return [used for used in every if used.folder or used.key != parts.MODEL.key]


def own_folders(run: Run) -> dict[str, str]:
    """By the key of each part of a run that is of the user's own: its folder."""
    kept = {OPTIMIZER.key: "optim"}  # as results have it
    return {kept.get(used.key, used.key): used.folder for used in by_path(run) if used.folder}


def digests(run: Run) -> dict[str, str]:
    """Of each part of a run that is of the user's own: see `digest`."""
    return {kind: digest(Path(folder)) for kind, folder in own_folders(run).items()}


def digest(folder: Path) -> str:
    """A hash of the code of the user's own, which lies there, that was loaded by now.

    That is every file of its folder, but for environments that lie in there, too.
    """
    text = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if is_own_file(file, folder):
            text.update(name.encode() + b"\0" + file.read_bytes())
    return text.hexdigest()[:16]
