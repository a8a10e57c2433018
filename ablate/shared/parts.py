"""Keys whose value may be an import path, `module:name`: a part of the training of one's own.

A norm, stem or block is a section of its own (`choices.CHOICES`); these are fields, and what a part
is made of stands in three fields beside: its settings, the version of its code, and its folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

_IMPORT_PATH = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def is_plugin(name: Any) -> TypeGuard[str]:
    """Is it an import path, `package.module:Class`?"""
    return isinstance(name, str) and re.fullmatch(_IMPORT_PATH, name) is not None


@dataclass(frozen=True)
class PartKey:
    """A field of a section. `beside`: how the names of the three fields begin. `given`: with how
    many arguments a function of that name is called, whose other parameters are settings; to make a
    class takes `making` arguments. `several`: the field is a list, the three are by name."""

    key: str
    beside: str
    given: int
    making: int = 0
    several: bool = False

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def field(self) -> str:
        return self.key.partition(".")[2]

    @property
    def computed(self) -> tuple[str, str]:
        """The fields of its version and its folder."""
        return f"{self.beside}version", f"{self.beside}folder"

    @property
    def settings(self) -> str:
        return f"{self.beside}settings"

    def one(self, section: Any) -> Used | None:
        """`used`, of a field that is no list."""
        return next(iter(self.used(section)), None)

    def used(self, section: Any) -> list[Used]:
        """What a section of a run, checked, has by import path; a whole model's has no fields."""
        if not hasattr(section, self.field):
            return []
        named, version, folder, settings = (
            getattr(section, name) for name in (self.field, *self.computed, self.settings)
        )
        if not self.several:
            plain = version is None
            return [] if plain else [Used(self.key, named, settings or {}, version, folder)]
        return [
            Used(
                self.key, name, (settings or {}).get(own, {}), version[own], (folder or {}).get(own)
            )
            for name in named or ()
            for own in [called(name)]
        ]


@dataclass(frozen=True)
class Used:
    """A part by import path, as a run has it. `folder`: None of an installed package."""

    key: str
    name: str
    settings: Mapping[str, Any]
    version: str
    folder: str | None


def called(name: str) -> str:
    """The name behind the module's."""
    return name.partition(":")[2]


OPTIMIZER = PartKey("optim.name", "", given=1, making=1)
SCHEDULE = PartKey("optim.schedule", "schedule_", given=2)
LOSS = PartKey("train.loss", "loss_", given=2)
ACT = PartKey("model.act", "act_", given=1)
EXTRA = PartKey("augment.extra", "extra_", given=2, several=True)
PARTS = (OPTIMIZER, SCHEDULE, LOSS, ACT, EXTRA)


def parts_of(run: Any) -> list[Used]:
    """All that a run has by import path but norm, stem and block."""
    return [used for part in PARTS for used in part.used(getattr(run, part.section))]
