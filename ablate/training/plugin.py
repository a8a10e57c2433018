"""What a run has by import path: imported, from the folder that the run names or from an installed
package, as it was when the run was planned."""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ablate.shared import choices
from ablate.shared.errors import UserError
from ablate.shared.parts import PARTS, Used, parts_of
from ablate.shared.plugin import find, version_of
from ablate.shared.spec import Run


def load(key: str, name: str, folder: str | None, version: str) -> Any:
    """The class or function `module:name` of a file in `folder`; None: of an installed package.

    The folder stands last on the import path: what is installed keeps its name. Raises UserError
    where the file can't be imported, something installed has its name, or the code is of another
    `version` by now than when the run was planned: what it trains would stand under a wrong id.
    """
    module, _, wanted = name.partition(":")
    file = None if folder is None else find(key, name, Path(folder))
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        where = "" if file is None else f"{file}: "
        raise UserError(f"{key}: {name}: {where}{type(error).__name__}: {error}") from error
    if file is not None and Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{key}: {name}: {module!r} is {loaded.__file__} already; give {file} another name"
        )
    part = next((part for part in PARTS if part.key == key), None)
    if (now := version_of(key, name, folder, part)) != version:  # after the import: it ran that
        raise UserError(
            f"{key}: {name}: was planned as version {version} and is {now} by now; "
            f"give the command again, which plans it as it is"
        )
    return getattr(loaded, wanted)


def found(used: Used) -> Any:
    """The class or function of a part. Raises UserError as `load` does."""
    return load(used.key, used.name, used.folder, used.version)


def settings_of(used: Used) -> dict[str, Any]:
    """As Python's defaults have them: what JSON has as a list is a tuple."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in used.settings.items()}


def made(used: Used) -> Callable[..., Any]:
    """A part with its settings: an instance of the class, or the function. Raises UserError as
    `load` does, and where the class can't be made."""
    with blamed(used):
        part, settings = found(used), settings_of(used)
        what: Callable[..., Any] = part(**settings) if isinstance(part, type) else part
        if not callable(what):
            raise UserError(f"{used.key}: {used.name}: can't be called, it is {what!r}")
        return what if isinstance(part, type) else partial(what, **settings)


@contextmanager
def blamed(used: Used) -> Iterator[None]:
    """What goes wrong in a part by import path is told in its file and line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{used.key}: {used.name}: {told(error, [used.folder] if used.folder else [])}"
        ) from error


def told(error: Exception, folders: list[str]) -> str:
    """What an error says, and where: the last line of a file in one of these folders."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename.startswith(tuple(folders))]
    where = (theirs or frames)[-1]
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said} ({where.filename}, line {where.lineno})"


def own_folders(run: Run) -> dict[str, str]:
    """By the key of each part of a run that is of the user's own: its folder."""
    chosen = {kind: getattr(run, kind).plugin for kind in choices.CHOICES}
    folders = {kind: plugin.folder for kind, plugin in chosen.items() if plugin is not None}
    kept = {"optim.name": "optim"}  # as results have it
    parts = {kept.get(used.key, used.key): used.folder for used in parts_of(run) if used.folder}
    return folders | parts


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
        if file.is_relative_to(folder):
            inside = file.relative_to(folder).parts
            if "site-packages" not in inside and not inside[0].startswith("."):
                text.update(name.encode() + b"\0" + file.read_bytes())
    return text.hexdigest()[:16]
