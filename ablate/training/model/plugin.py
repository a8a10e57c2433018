"""Classes of the user's own: imported from the folder that the run names, and from nowhere else.

What goes wrong in one of them is told in its file and line.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ablate.shared import choices
from ablate.shared.errors import UserError
from ablate.shared.plugin import find
from ablate.shared.sections import Whole
from ablate.shared.spec import Run


def load(kind: str, name: str, folder: Path) -> Any:
    """The class `module:Class` of a file in `folder`.

    The folder stands last on the import path: what is installed keeps its name. Raises UserError
    where the file can't be imported, or something installed has its name.
    """
    file = find(kind, name, folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module, _, cls = name.partition(":")
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        place = own_line(error, [folder]) or str(file)
        raise UserError(f"{kind}: {name}: {place}: {type(error).__name__}: {error}") from error
    if Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{kind}: {name}: {module!r} is {loaded.__file__} already; give {file} another name"
        )
    return getattr(loaded, cls)


def own_line(error: Exception, folders: Iterable[str | Path]) -> str | None:
    """ "FILE, line 7": the last line of the user's own that an error came through; None: there is
    none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if any(_is_own(Path(frame.filename), Path(folder)) for folder in folders):
            return f"{frame.filename}, line {frame.lineno}"
    return None


def line_of(cls: Any, method: str) -> str:
    """ "FILE, line 7": where a method of a class begins; "FILE" where it isn't of Python."""
    code = getattr(inspect.unwrap(getattr(cls, method)), "__code__", None)
    if code is None:
        return inspect.getfile(cls)
    return f"{code.co_filename}, line {code.co_firstlineno}"


def _is_own(file: Path, folder: Path) -> bool:
    """Is it the user's? What an environment in the same folder has is not, nor is what is ours."""
    if not file.is_relative_to(folder) or file.is_relative_to(_OURS):
        return False
    inside = file.relative_to(folder).parts
    return "site-packages" not in inside and not inside[0].startswith(".")


_OURS = Path(__file__).parents[2]


def digests(run: Run) -> dict[str, str]:
    """Of each part of a run that is a class of the user's own: see `digest`."""
    folders = own_folders(run)
    return {kind: digest(Path(folder)) for kind, folder in folders.items()}


def own_folders(run: Run) -> dict[str, str]:
    """Where each part of a run lies that is a class of the user's own."""
    chosen = {kind: getattr(run, kind) for kind in choices.CHOICES}
    folders = {kind: part.plugin.folder for kind, part in chosen.items() if part and part.plugin}
    if isinstance(run.model, Whole) and run.model.folder is not None:
        folders["model"] = run.model.folder
    if run.optim.folder is not None:
        folders["optim"] = run.optim.folder
    return folders


def digest(folder: Path) -> str:
    """A hash of the code that a class of the user's own, which lies there, has loaded by now.

    That is every file of its folder, but for environments that lie in there, too.
    """
    text = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if _is_own(file, folder):
            text.update(name.encode() + b"\0" + file.read_bytes())
    return text.hexdigest()[:16]
