"""Which verdicts were printed: `looks.jsonl` in the store, a line a look.

Adding seeds after a look is optional stopping, so a table must know the looks before it. A look is
a verdict printed for a complete sweep, recorded once per set of seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ablate.rundir import Lock, sync_folder

Seeds = tuple[int, ...]


def read(path: Path, sweep: str) -> list[Seeds]:
    """The sets of seeds at which this sweep's verdicts were printed, oldest first."""
    found: list[Seeds] = []
    for look in _lines(path):
        if look["sweep"] == sweep and (seeds := tuple(sorted(look["seeds"]))) not in found:
            found.append(seeds)
    return found


def record(path: Path, sweep: str, seeds: Iterable[int]) -> None:
    """Append this look, unless it is there: on disk when this returns."""
    look = {"sweep": sweep, "seeds": sorted(seeds)}
    with Lock(path).held():
        if tuple(look["seeds"]) in read(path, sweep):
            return
        content = path.read_bytes()
        torn = content and not content.endswith(b"\n")
        line = (b"\n" if torn else b"") + json.dumps(look).encode() + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not content:  # the file is new
            sync_folder(path.parent)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one that a crash tore is left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    looks = []
    for line in content.split(b"\n"):
        try:
            look = json.loads(line)
        except ValueError:
            continue
        if isinstance(look, dict) and {"sweep", "seeds"} <= look.keys():
            looks.append(look)
    return looks
