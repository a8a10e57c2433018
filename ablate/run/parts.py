"""The kinds of parts that a run may take from the user's own code, by import path `module:name`:
`PART_KINDS`.

A norm, stem, block or whole model is a section, which holds its settings, version and folder
itself. For every other kind, the value of a key is the import path, and fields next to it hold
these three. A new kind also needs these fields in `sections`, its contract in
`training.model.count` and its module among those of `training.answers`.

Tasks, designs and formats come from outside this package, too: `ablate_tasks/NAME.py`, in any
folder of Python's path, brings the task NAME. Such a folder is a namespace package, so there may be
several.
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

from ablate.shared import (
    UserError,
)

_IMPORT_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def is_plugin(name: Any) -> TypeGuard[str]:
    """Return whether a name is an import path, `package.module:Class`."""
    return isinstance(name, str) and re.fullmatch(_IMPORT_PATH, name) is not None


@dataclass(frozen=True)
class PartKind:
    """A kind of part that a run may name by import path.

    `key`: the key that names the part. `prefix`: that of the three fields with its settings,
    version and folder. `call_arguments`: how many arguments ablate passes when it calls a function;
    its other parameters are settings; None: a function is not accepted. `making`: the same for a
    class when it is made; None: only keyword-only parameters are settings. `several`: whether the
    field is a list; the three fields are then by name.
    """

    key: str
    prefix: str = ""
    call_arguments: int | None = None
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
        """The names of the fields of its version and its folder."""
        return f"{self.prefix}version", f"{self.prefix}folder"

    @property
    def settings(self) -> str:
        return f"{self.prefix}settings"

    def used(self, tree: Mapping[str, Any]) -> list[UsedPart]:
        """List the parts of this kind that the completed plain tree of a run has by import path."""
        if self is PROBE:
            probes = tree.get("own_probes") or {"versions": {}}
            return [
                UsedPart(self.key, name, {}, probe_version, probes["folder"])
                for name, probe_version in probes["versions"].items()
            ]
        section = tree.get(self.section) or {}
        version, folder = (section.get(key) for key in self.computed)
        if version is None:
            return []
        part_names, settings = section[self.field], section.get(self.settings) or {}
        if self.making is None:
            reserved_keys = (self.field, *self.computed, *["input"] * (self is MODEL))
            settings = {key: section[key] for key in section if key not in reserved_keys}
        if not self.several:
            return [UsedPart(self.key, part_names, settings, version, folder)]
        return [
            UsedPart(
                self.key,
                name,
                settings.get(short_name, {}),
                version[short_name],
                (folder or {}).get(short_name),
            )
            for name in part_names or ()
            for short_name in [part_name(name)]
        ]


@dataclass(frozen=True)
class UsedPart:
    """A part by import path, as a run has it. `folder`: None for an installed package."""

    key: str
    name: str
    settings: Mapping[str, Any]
    version: str
    folder: str | None


def part_name(name: str) -> str:
    """Return the name after the module's, of an import path."""
    return name.partition(":")[2]


NORM, STEM, BLOCK, MODEL, PROBE = map(PartKind, ("norm", "stem", "block", "model", "probe"))
OPTIMIZER = PartKind("optim.name", making=1)
SCHEDULE = PartKind("optim.schedule", "schedule_", call_arguments=2, making=0)
LOSS = PartKind("train.loss", "loss_", call_arguments=2, making=0)
ACTIVATION = PartKind("model.act", "act_", call_arguments=1, making=0)
EXTRA = PartKind("augment.extra", "extra_", call_arguments=2, making=0, several=True)
ATTENTION = PartKind("model.attention", "attention_", making=1)
POSITIONS = PartKind("model.posemb", "posemb_", making=1)
PARTS = (OPTIMIZER, SCHEDULE, LOSS, ACTIVATION, ATTENTION, POSITIONS, EXTRA)
PART_KINDS = (NORM, STEM, BLOCK, MODEL, PROBE, *PARTS)


def own_parts(key: str, section: Any) -> list[UsedPart]:
    """List the parts that `key`, such as "augment.extra", names by import path in its section of a
    checked run."""
    kind = next(kind for kind in PARTS if kind.key == key)
    return kind.used({kind.section: vars(section)})


def own_part(key: str, section: Any) -> UsedPart | None:
    """Return the part that `key`, such as "model.act", names by import path in its section of a
    checked run; None where it names one of ablate's own."""
    return next(iter(own_parts(key, section)), None)


TIMM = "timm:"  # how whole models of timm's begin, which are no import paths

# The constant that each module of a namespace package declares, by the package.
SAYS = {"ablate_tasks": "TASK", "ablate_designs": "DESIGN", "ablate_formats": "FORMAT"}


def names(folder: str) -> list[str]:
    """List the modules of the namespace package, without those named `_NAME`, which only others
    import."""
    modules = (module.name for module in pkgutil.iter_modules(_places(folder)))
    return sorted(name for name in modules if not name.startswith("_"))


def extend(table: dict[str, Any], folder: str, kind: Any) -> None:
    """Add to the table what each module of the namespace package declares, a `kind`, under the
    module's name. Raise UserError for a module that can't be imported, declares none, or has a name
    of ablate's own."""
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
    """Yield every Python file of the namespace package, by name."""
    python_files = (file for place in _places(folder) for file in Path(place).rglob("*.py"))
    yield from sorted(python_files, key=lambda file: file.name)


def _places(folder: str) -> list[str]:
    spec = importlib.util.find_spec(folder)
    return [*(spec.submodule_search_locations or ())] if spec else []
