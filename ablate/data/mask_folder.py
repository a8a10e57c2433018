"""A folder of images and masks, as ADE20k's release has them:

images/SPLIT/NAME.jpg, and for each annotations/SPLIT/NAME.png."""

from __future__ import annotations

import os
from pathlib import Path

from ablate.data.picture import Example
from ablate.data.stored_set import Source, part_of, wanted_splits
from ablate.shared.dataset import MASKS, PICTURES, Listing, local_splits
from ablate.shared.errors import UserError
from ablate.shared.sections import Data


def open_masks(data: Data, found: Listing) -> Source:
    """Raises UserError for an image without a mask, a mask without an image, and two of a name."""
    if not (found.path / MASKS).is_dir():
        raise UserError(
            f"data.path: {found.path}: expected {PICTURES}/SPLIT/NAME.jpg with masks "
            f"{MASKS}/SPLIT/NAME.png, or parquet files; there is no {MASKS}"
        )
    parts = {}
    for split in wanted_splits(data, local_splits(found)):
        images, masks = (_by_name(found, kind, split) for kind in (PICTURES, MASKS))
        for name in sorted(images.keys() ^ masks.keys()):
            file, lacks = (images[name], "mask") if name in images else (masks[name], "image")
            raise UserError(f"data.path: {file}: has no {lacks} of its name")
        pairs = [(images[name], masks[name]) for name in sorted(images)]
        parts[split] = part_of(pairs, _example)
    return Source(parts, None)


def _by_name(found: Listing, kind: str, split: str) -> dict[str, str]:
    """The files of a split, by their names without what stands behind the dot. Raises UserError for
    two of one name: it can't be told which belongs to its image, or mask."""
    prefix = os.path.join(found.path / kind / split, "")
    named: dict[str, str] = {}
    for file in found.files:
        if file.startswith(prefix):
            name = os.path.splitext(file.removeprefix(prefix))[0]
            if name in named:
                raise UserError(
                    f"data.path: {file}: has the name of {os.path.basename(named[name])}, but for "
                    f"what stands behind the dot; remove one of the two"
                )
            named[name] = file
    return named


def _example(pair: tuple[str, str]) -> Example:
    image, mask = pair
    return Example(image, Path(image), Example(mask, Path(mask), None))
