"""What a dataset *is*, whatever path it lies at: a hash that plans need and workers check.

Files count by the sha256 of their contents, image folders by sorted names and sizes, hub sets by
name and pinned revision, bundled sets by name: so that planning reads no image. The same data by
another path is the same run.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ablate.rundir import read_json, to_json, write_whole
from ablate.spec import UserError

IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}

# What of the `data` section belongs to the data's content: how it is read and split.
_READING = ("source", "hub", "revision", "image", "label", "size", "channels", "validation", "test")


def fingerprint(data: dict[str, Any], memo: Path | None = None) -> str:
    """16 hex digits for a plain `data` section (without its `fingerprint`).

    `memo`: a JSON file that remembers hashes by (path, size, mtime), so that a plan re-reads no
    gigabytes. Raises UserError where `data.path` does not exist or holds no images.
    """
    if data["path"] is None:
        content: Any = [data["name"], data["hub"], data["revision"]]
        if data["source"] == "datasets" and data["hub"] is None:
            raise UserError(
                f"data.path: data={data['name']} needs data.path=FOLDER with its parquet files "
                f"or folders of images"
            )
    else:
        content = _files(Path(data["path"]).expanduser(), str(data["name"]), memo)
    reading = {key: data[key] for key in (*_READING, "train")}
    text = json.dumps([content, reading], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def local_files(path: Path, name: str) -> tuple[str, list[Path]]:
    """("parquet" | "folder", files in name order) of the data that lies at `path`.

    Raises UserError where there is none.
    """
    hint = f"give data.path=FOLDER with the files of data={name}"
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "no such folder"
        raise UserError(f"data.path: {path}: {what}; {hint}")
    parquet = sorted(path.glob("*.parquet"))
    if parquet:
        return "parquet", parquet
    images = sorted(
        Path(folder, file)
        for folder, _, files in os.walk(path)
        for file in files
        if Path(file).suffix.lower() in IMAGES
    )
    if images:
        return "folder", images
    raise UserError(f"data.path: {path}: holds neither *.parquet nor images in folders; {hint}")


def class_folders(path: Path) -> list[str]:
    """The class names of an image folder: of `path/train` where that exists, else of `path`."""
    root = path / "train" if (path / "train").is_dir() else path
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir())


def _files(path: Path, name: str, memo: Path | None) -> Any:
    kind, files = local_files(path, name)
    if kind == "folder":
        return [(str(file.relative_to(path)), file.stat().st_size) for file in files]
    known: dict[str, list[Any]] = (read_json(memo) if memo else None) or {}
    hashes, fresh = [], False
    for file in files:
        stat = file.stat()
        key, stamp = str(file.resolve()), [stat.st_size, stat.st_mtime_ns]
        if known.get(key, [None])[:-1] != stamp:
            with open(file, "rb") as stream:
                known[key] = [*stamp, hashlib.file_digest(stream, "sha256").hexdigest()]
            fresh = True
        hashes.append((file.name, known[key][-1]))
    if memo and fresh:
        memo.parent.mkdir(parents=True, exist_ok=True)
        write_whole(memo, to_json(known))
    return hashes
