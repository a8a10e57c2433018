"""Has the file of a sweep changed since the sweep was planned?

A plan keeps two hashes of its file: of its bytes, which are quickly compared, and of what it
declares at the plan's scale, so that a comment, or another scale, is no change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ablate.planning.plan import Plan
from ablate.planning.sweep_file import load
from ablate.planning.sweep_paths import find, place_of
from ablate.shared.errors import UserError
from ablate.shared.files import sha256_of


def hashes(path: Path, scale: str | None) -> dict[str, str]:
    """Of a sweep file that can be read. Raises UserError for another."""
    said = {} if scale is None else {"scale": scale}
    return {"sha256": sha256_of(path), "declares": _declared(path, scale), **said}


def _declared(path: Path, scale: str | None) -> str:
    _, content = load(path)
    scales = content.get("scales")
    if isinstance(scales, dict):
        content = {**content, "scales": {scale: scales.get(scale)}}
    # In its order, which is that of rows and columns.
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()


def edited(plan: Plan, command: Callable[..., str]) -> Iterator[str]:
    """A line where the file that the plan's words name, if it is in reach, declares another sweep
    now. `command`: of the plan's store."""
    if not (plan.file and plan.words):
        return
    try:
        path = find(plan.words[0])
        sha256 = sha256_of(path)
    except (UserError, OSError):  # it is not in reach: this may be another folder
        return
    if sha256 == plan.file.get("sha256"):
        return
    try:
        if _declared(path, plan.file.get("scale")) == plan.file.get("declares"):
            return
    except UserError:
        pass  # `ablate sweep` will say what is wrong with it
    yield (
        f"{place_of(path)} has changed since `{command('sweep', *plan.words)}` planned it: all "
        f"that is shown is of that plan; the same command trains the file as it is now, "
        f"`{command('plan', *plan.words)}` shows its runs"
    )
