"""A room is a first-level package, and its `__init__` is the room's door: other rooms import from
there, and from none of its files (`make lint` refuses it).

The door lists its names in `__all__`, a line of help each, and says below, under `TYPE_CHECKING`,
which file each comes from. A file is loaded when a name of it is first imported: so `--help` loads
neither numpy nor scipy, and no part of the control half loads torch.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMPORT = re.compile(r"^ +from (\S+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def lazy(package: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a door.

    `package`, `file`: the door's `__name__` and `__file__`. The imports of its block under
    `TYPE_CHECKING` are read as text. A name is looked up in its module each time, so that a test
    may replace it there.
    """
    modules = {
        name.partition(" as ")[0].strip(): module
        for module, wrapped, line in IMPORT.findall(Path(file).read_text(encoding="utf-8"))
        for name in (wrapped or line).split(",")
    }

    def look_up(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:  # a module that the door shows
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return look_up
