"""A whole model in the place of the shipped one: `timm:NAME`, or `module:Class` of the user's own.

Of one of timm's only timm knows the settings; they are checked where it is built. Those of the
user's own are read from its text, as a norm's are.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.shared import plugin
from ablate.shared.errors import UserError
from ablate.shared.packages import installing
from ablate.shared.parts import is_plugin

TIMM = "timm:"
# What the constructor is given by the run, and `from.weights` in the place of a download.
GIVEN = {
    "num_classes": "is the number of classes of the data",
    "in_chans": "is data.channels",
    "img_size": "is data.size",
    "pretrained": "weights come from a file, by from.weights=FILE",
    "checkpoint_path": "weights come from a file, by from.weights=FILE",
}


def is_whole_name(name: Any) -> bool:
    """Does `model=NAME` name a whole model, and no size of the shipped one?"""
    return isinstance(name, str) and (name.startswith(TIMM) or is_plugin(name))


def complete_model(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section of a whole model, every setting that is known given, its version and folder.

    Raises UserError where timm is not installed, as `plugin.complete` does for a class, and for a
    setting that the run itself gives.
    """
    name, shown = section["name"], section["input"]
    settings = {key: value for key, value in section.items() if key not in ("name", "input")}
    if not name.startswith(TIMM):
        whole = plugin.complete("model", {"name": name, **settings}, folder)
        if "input" in whole:
            raise UserError(f"model: {name}: a setting can't be called 'input'; rename it")
        return {**whole, "input": shown}
    for key in ("version", "folder"):
        if key in settings:
            raise UserError(f"model.{key}: is read from {name}; leave it out")
    for key in settings:
        if key in GIVEN:
            raise UserError(f"model.{key}: {GIVEN[key]}; leave it out")
    return {"name": name, "folder": None, "version": _version(name), "input": shown, **settings}


def _version(name: str) -> str:
    """Of timm, which is not imported for that."""
    try:
        return f"timm {importlib.metadata.version('timm')}"
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"model: {name}: timm is not installed; {installing('timm')}") from None
