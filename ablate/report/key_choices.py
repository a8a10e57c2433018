"""The keys of a command line and the values that are enumerated, from where they are declared, for
the shell's completion: nothing is composed."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ablate.planning.analysis_keys import METRICS, Analysis
from ablate.planning.cell import Tune
from ablate.planning.conf import shipped
from ablate.planning.launcher import DRIVER, LAUNCHERS
from ablate.planning.logger import LOGGERS, SHARED
from ablate.planning.tuning import OWN
from ablate.shared.choices import ARCHS, CHOICES, PROBES
from ablate.shared.keys import hints, keys
from ablate.shared.metrics import TASKS
from ablate.shared.sections import Model, Text, Weights
from ablate.shared.spec import Run

Values = tuple[str, ...]
FILES = ("data", "recipe", "trainer")  # groups whose choices are files of `conf`
PATCHES = (2, 4, 8, 16, 32)
WORDS = ("N", "NUMBER", "TEXT", "LABEL")  # for what is not enumerated


def key_choices() -> dict[str, Values]:
    """key -> its values; of a key that takes any number or text one of WORDS."""
    archs = tuple(name if a.patch else f"{name}/{p}" for name, a in ARCHS.items() for p in PATCHES)
    found = dict(_of_run())
    found |= {f"text.{key}": values_of(hints(Text)[key]) for key in keys(Text)}
    found |= {f"from.{key}": values for key, values in found.items()}
    found |= {f"from.{group}": files(group) for group in FILES[:2]}
    found |= {"from.weights": ("TEXT",), "from.names": values_of(hints(Weights)["names"])}
    found |= {group: files(group) for group in FILES}
    sized = tuple(dict.fromkeys(archs))
    found |= {"model": sized, "model.arch": sized, "probe": tuple(PROBES), "task": tuple(TASKS)}
    found["launcher"] = tuple(LAUNCHERS)
    for params in (DRIVER, *(launcher.params for launcher in LAUNCHERS.values())):
        found |= {f"launcher.{key}": values_of(param.type) for key, param in params.items()}
    found |= {"logger": tuple(LOGGERS), "notify": ("TEXT",)}
    for params in (SHARED, *(logger.params for logger in LOGGERS.values())):
        found |= {f"logger.{key}": values_of(param.type) for key, param in params.items()}
    found |= {f"analysis.{key}": values_of(hints(Analysis)[key]) for key in keys(Analysis)}
    found["analysis.metric"] = METRICS
    found |= {f"tune.{key}": values_of(hints(Tune)[key]) for key in OWN}
    return {**found, "tune.trials": ("N",), "seeds": ("N",), "baseline": ("LABEL",)}


def _of_run() -> Iterator[tuple[str, Values]]:
    for section, hint in hints(Run).items():
        if section in CHOICES:
            yield section, tuple(CHOICES[section])
            for choice in CHOICES[section].values():
                for key, param in choice.params.items():
                    yield f"{section}.{key}", values_of(param.type)
        elif section in keys(Run):
            if section != "seed":  # `seeds` is what a sweep takes
                yield section, values_of(hint)
        elif dataclasses.is_dataclass(cls := Model if section == "model" else hint):
            for key in keys(cls):
                yield f"{section}.{key}", values_of(hints(cls)[key])


def files(group: str) -> Values:
    """The choices of a group that are files, the user's first."""
    folders = (Path("conf"), shipped("conf"))
    paths = (path for folder in folders for path in sorted((folder / group).glob("*.yaml")))
    return tuple(dict.fromkeys(path.stem for path in paths))


def values_of(hint: Any) -> Values:
    """What a type takes: the values of a Literal, true and false, or one of WORDS."""
    if get_origin(hint) is Literal:
        return tuple("null" if v is None else str(v) for v in get_args(hint))
    if get_origin(hint) in (types.UnionType, Union):
        every = (value for part in get_args(hint) for value in values_of(part))
        return tuple(dict.fromkeys(every))
    if hint is type(None):
        return ("null",)
    return {bool: ("true", "false"), int: ("N",), float: ("NUMBER",)}.get(hint, ("TEXT",))
