"""Image-text sets: see `ablate.shared.captions`. A label is the number of a text."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ablate.data.picture import Example
from ablate.data.stored_set import Part, Source, wanted_splits
from ablate.shared import captions
from ablate.shared.dataset import Listing, local_splits
from ablate.shared.errors import UserError
from ablate.shared.sections import Data


def open_captions(data: Data, found: Listing) -> Source:
    """Raises UserError for tables and columns that can't be read, and rows without a text."""
    splits = wanted_splits(data, local_splits(found))
    names = captions.classes(found, splits, str(data.text))
    numbers = {text: number for number, text in enumerate(names)}
    parts = {}
    for split in splits:
        own = [numbers[text] for text in captions.texts(found, split, str(data.text))]

        def examples(first: int = 0, split: str = split, own: list[int] = own) -> Iterator[Example]:
            for row, (where, image) in enumerate(_images(data, found, split)):
                if row >= first:
                    yield Example(where, image, own[row])

        def labels(split: str = split, own: list[int] = own) -> Iterator[tuple[str, Any]]:
            return ((f"row {row} of {split}", number) for row, number in enumerate(own))

        parts[split] = Part(len(own), examples, labels)
    return Source(parts, names)


def _images(data: Data, found: Listing, split: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, the image: its file, or its bytes) of each row."""
    column, known = data.image or captions.PATH, frozenset(found.files)
    for file in captions.files(found, split):
        for number, cell in enumerate(captions.column(file, "data.image", column)):
            content, path = cell, cell
            if isinstance(cell, dict):
                content, path = cell.get("bytes"), cell.get("path")
            if isinstance(content, bytes):
                yield f"row {number} of {file}", content
                continue
            if not isinstance(path, str):
                raise UserError(f"data.image: row {number} of {file}: no path and no image")
            image = _listed(found.path, path, known, f"row {number} of {file}")
            yield f"row {number} of {file} ({path})", Path(image)


def _listed(folder: Path, path: str, known: Collection[str], where: str) -> str:
    """The file of an image. Raises UserError for one that is not among the `known`, which make the
    fingerprint: its content could change, and the runs would be taken for the same.

    Links are followed, as where files are listed. A path is taken by its text alone: behind a link
    `..` might lead elsewhere.
    """
    file = os.path.normpath(folder / path)
    if file in known:
        return file
    if not file.startswith(os.path.join(folder, "")):
        what = f"lies outside of {folder}"
    elif not os.path.exists(file):
        what = "no such file"
    else:
        what = (
            "is passed over: names of images end in .png, .jpg or the like, and neither they nor "
            "their folders' begin with a dot; rename it"
        )
    raise UserError(f"data.image: {where}: {path}: {what}")
