"""Tasks, designs and formats from outside this package: `ablate_tasks/NAME.py`, in any folder of
Python's path, brings the task NAME. Such a folder is a namespace package, so several may be."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.shared.errors import UserError

# What a module of such a folder says, by the folder.
SAYS = {"ablate_tasks": "TASK", "ablate_designs": "DESIGN", "ablate_formats": "FORMAT"}


def names(folder: str) -> list[str]:
    """The modules of the namespace package; `_NAME` is for others to import."""
    modules = (module.name for module in pkgutil.iter_modules(_places(folder)))
    return sorted(name for name in modules if not name.startswith("_"))


def extend(table: dict[str, Any], folder: str, kind: Any) -> None:
    """Add to the table what each module of the namespace package says, a `kind`, by the module's
    name. Raises UserError for a module that can't be imported, says none, or has a name of ours."""
    for name in names(folder):
        place = f"{folder}/{name}.py"
        if name in table:
            raise UserError(f"{place}: ablate has a {name} of its own; rename the file")
        try:
            brought = getattr(importlib.import_module(f"{folder}.{name}"), SAYS[folder])
        except Exception as error:
            raise UserError(f"{place}: {type(error).__name__}: {error}") from error
        if not isinstance(brought, kind):
            raise UserError(f"{place}: {SAYS[folder]}: expected {kind.__name__}, got {brought!r}")
        table[name] = brought


def files(folder: str) -> Iterator[Path]:
    """Every file of Python of the namespace package, by name."""
    found = (file for place in _places(folder) for file in Path(place).rglob("*.py"))
    yield from sorted(found, key=lambda file: file.name)


def _places(folder: str) -> list[str]:
    spec = importlib.util.find_spec(folder)
    return [*(spec.submodule_search_locations or ())] if spec else []
