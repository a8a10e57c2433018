"""What two folders of a run of the user's own trainer have in common, by every bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ablate.shared.rundir import RunDir
from ablate.training import sealed_file

TIMES = ("seconds", "peak_bytes", "env_sha256")  # of a result: no two runs have the same


def compare(one: Path, other: Path) -> dict[str, Any]:
    """{"parts": how many there are, "differing": the names of those that differ}: of the newest
    saved states, or of the results where both have ended; and of the metrics."""
    sides = [_parts(RunDir(folder)) for folder in (one, other)]
    names = [*dict.fromkeys([*sides[0], *sides[1]])]
    differing = [name for name in names if sides[0].get(name) != sides[1].get(name)]
    return {"parts": len(names), "differing": differing}


def _parts(folder: RunDir) -> dict[str, Any]:
    metrics = {"metrics.jsonl": folder.metrics_content()}
    if (result := folder.read_result()) is not None:
        return {**{k: v for k, v in result.items() if k not in TIMES}, **metrics}
    [(_, newest), *_] = folder.checkpoints()
    arrays, told = sealed_file.read_arrays(newest)
    parts: dict[str, Any] = {}
    _walk(json.loads(told["state"]), "state", arrays, parts)
    return {**parts, **metrics}


def _walk(tree: Any, place: str, arrays: Any, parts: dict[str, Any]) -> None:
    """Every leaf of a state by its place, an array by its bytes."""
    if isinstance(tree, list):
        for n, part in enumerate(tree):
            _walk(part, f"{place}[{n}]", arrays, parts)
    elif isinstance(tree, dict) and isinstance(tree.get("is"), list):
        for n, part in enumerate(tree["is"]):
            if tree["~"] == "dict":
                key = part[0]
                _walk(part[1], f"{place}[{key!r}]", arrays, parts)
            else:
                _walk(part, f"{place}[{n}]", arrays, parts)
    else:
        told = json.dumps(tree)
        has = isinstance(tree, dict) and "at" in tree
        parts[place] = (told, arrays[tree["at"]].tobytes() if has else b"")
