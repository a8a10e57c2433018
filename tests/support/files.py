"""Write files, and change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def flip_digit(path: Path, before: bytes) -> None:
    """One digit more, behind `before`."""
    content = path.read_bytes()
    place = content.index(before) + len(before)
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def changed_json(path: Path, *keys: Any, to: Any) -> str:
    """The file's JSON with another value at a place."""
    tree = part = json.loads(path.read_bytes())
    *above, last = keys
    for key in above:
        part = part[key]
    part[last] = to
    return json.dumps(tree)


def write_files(folder: Path, **files: str) -> None:
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
