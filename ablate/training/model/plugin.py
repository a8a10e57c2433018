"""Classes of the user's own: imported from the folder that the run names, and from nowhere else."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

from ablate.shared import choices
from ablate.shared.errors import UserError
from ablate.shared.plugin import find
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
        raise UserError(f"{kind}: {name}: {file}: {type(error).__name__}: {error}") from error
    if Path(loaded.__file__ or "").resolve() != file.resolve():
        raise UserError(
            f"{kind}: {name}: {module!r} is {loaded.__file__} already; give {file} another name"
        )
    return getattr(loaded, cls)


def digests(run: Run) -> dict[str, str]:
    """Of each part of a run that is a class of the user's own: see `digest`."""
    chosen = {kind: getattr(run, kind).plugin for kind in choices.CHOICES}
    folders = {kind: plugin.folder for kind, plugin in chosen.items() if plugin is not None}
    if run.optim.folder is not None:
        folders["optim"] = run.optim.folder
    if run.own_probes is not None and run.own_probes.folder is not None:
        folders["probe"] = run.own_probes.folder
    return {kind: digest(Path(folder)) for kind, folder in folders.items()}


def digest(folder: Path) -> str:
    """A hash of the code that a class of the user's own, which lies there, has loaded by now.

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
