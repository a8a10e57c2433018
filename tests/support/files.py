"""Write files, and change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def flip_digit(path: Path, before: bytes) -> None:
    """Flip the lowest bit of the byte behind the first `before`: another digit."""
    content = path.read_bytes()
    place = content.index(before) + len(before)
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def changed_json(path: Path, *keys: Any, to: Any) -> str:
    """Return the file's JSON with the value `to` at the place that `keys` lead to."""
    tree = part = json.loads(path.read_bytes())
    *above, last = keys
    for key in above:
        part = part[key]
    part[last] = to
    return json.dumps(tree)


def write_files(folder: Path, **files: str) -> None:
    """Write texts to files: `conf__trainer__toy_yaml` names conf/trainer/toy.yaml."""
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
