"""What of a run may be the user's own, by import path `module:name`: a row of `KINDS` each.

A norm, stem, block or whole model is a section, which says its settings, version and folder itself.
Of others the value of a key is the import path, and these three stand in fields beside it.

Tasks, designs and formats come from outside this package, too: `ablate_tasks/NAME.py`, in any
folder of Python's path, brings the task NAME. Such a folder is a namespace package, so several may
be.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ablate.shared.errors import UserError

_IMPORT_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def is_plugin(name: Any) -> TypeGuard[str]:
    """Is it an import path, `package.module:Class`?"""
    return isinstance(name, str) and re.fullmatch(_IMPORT_PATH, name) is not None


@dataclass(frozen=True)
class PartKind:
    """`key`: under which it is named. `beside`: how the names of the three fields beside begin.
    `given`: with how many arguments a function of that name is called, whose other parameters are
    settings; None: only a class will do. To make a class takes `making` arguments, whose others are
    settings; None: only keyword-only ones are. `several`: the field is a list, the three are by
    name."""

    key: str
    beside: str = ""
    given: int | None = None
    making: int | None = None
    several: bool = False

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def field(self) -> str:
        return self.key.partition(".")[2] or "name"

    @property
    def computed(self) -> tuple[str, str]:
        """The fields of its version and its folder."""
        return f"{self.beside}version", f"{self.beside}folder"

    @property
    def settings(self) -> str:
        return f"{self.beside}settings"

    def of(self, section: Any) -> list[UsedPart]:
        """`used`, of a section of a run, checked."""
        return self.used({self.section: vars(section)})

    def one(self, section: Any) -> UsedPart | None:
        """`of`, of a field that is no list."""
        return next(iter(self.of(section)), None)

    def used(self, tree: Mapping[str, Any]) -> list[UsedPart]:
        """What the completed plain tree of a run has by import path."""
        if self is PROBE:
            own = tree.get("own_probes") or {"versions": {}}
            return [
                UsedPart(self.key, name, {}, of, own["folder"])
                for name, of in own["versions"].items()
            ]
        section = tree.get(self.section) or {}
        version, folder = (section.get(key) for key in self.computed)
        if version is None:
            return []
        named, settings = section[self.field], section.get(self.settings) or {}
        if self.making is None:
            beside = (self.field, *self.computed, *["input"] * (self is MODEL))
            settings = {key: section[key] for key in section if key not in beside}
        if not self.several:
            return [UsedPart(self.key, named, settings, version, folder)]
        return [
            UsedPart(self.key, name, settings.get(own, {}), version[own], (folder or {}).get(own))
            for name in named or ()
            for own in [part_name(name)]
        ]


@dataclass(frozen=True)
class UsedPart:
    """A part by import path, as a run has it. `folder`: None of an installed package."""

    key: str
    name: str
    settings: Mapping[str, Any]
    version: str
    folder: str | None


def part_name(name: str) -> str:
    """The name behind the module's."""
    return name.partition(":")[2]


NORM, STEM, BLOCK, MODEL, PROBE = map(PartKind, ("norm", "stem", "block", "model", "probe"))
OPTIMIZER = PartKind("optim.name", making=1)
SCHEDULE = PartKind("optim.schedule", "schedule_", given=2, making=0)
LOSS = PartKind("train.loss", "loss_", given=2, making=0)
ACTIVATION = PartKind("model.act", "act_", given=1, making=0)
EXTRA = PartKind("augment.extra", "extra_", given=2, making=0, several=True)
PARTS = (OPTIMIZER, SCHEDULE, LOSS, ACTIVATION, EXTRA)
PART_KINDS = (NORM, STEM, BLOCK, MODEL, PROBE, *PARTS)


TIMM = "timm:"  # how whole models of timm's begin, which are no import paths


def parts_by_path(tree: Mapping[str, Any]) -> list[UsedPart]:
    """All that the completed plain tree of a run has by import path, models of timm, too."""
    return [used for kind in PART_KINDS for used in kind.used(tree)]


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
