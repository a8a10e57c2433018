"""The mask of an image: the class of each pixel. Pillow and numpy only, as `picture`.

Used by `data/source.py`, which opens sets with masks, `data/storage.py` and `data/splits.py`. A
change of the classes that it reads also needs `FORMAT` in `data/splits.py` raised.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from ablate.data.picture import Example, _with_image
from ablate.data.stored_set import Source, part_of, wanted_splits
from ablate.run import (
    MASKS,
    NO_CLASS,
    PICTURES,
    Data,
    Listing,
    local_splits,
)
from ablate.shared import UserError

_LEVELS = 256
_MODES = ("L", "P", "1", "I;16", "I")


def classes(example: Example, data: Data) -> np.ndarray:
    """Return the class of each pixel, uint8 (H, W); NO_CLASS where it has none.

    The levels of a grey picture, or the numbers of a palette's colours, are class numbers. 255 and
    `data.ignore` stand for no class, and levels above `data.ignore` count one less. Raises
    BrokenImage for a file that is no whole picture with one number a pixel, UserError for a number
    that is no class.
    """
    pixel_classes: np.ndarray = numbers(data)[_with_image(example, _levels)]
    wrong = pixel_classes == _WRONG
    if wrong.any():
        row, column = (int(place[0]) for place in np.nonzero(wrong))
        level = int(_with_image(example, _levels)[row, column])
        ignored = "" if data.ignore is None else f", or data.ignore={data.ignore}"
        raise UserError(
            f"data.label: {example.place}: pixel ({column}, {row}) has level {level}: expected one "
            f"of {data.classes} classes (data.classes){ignored}, or 255 for none"
        )
    return pixel_classes


_WRONG = 254  # no class number: there are fewer classes


def numbers(data: Data) -> np.ndarray:
    """Return the class that each level stands for, uint8 (256,): NO_CLASS for none, `_WRONG` where
    the level is not allowed."""
    ignore = data.ignore
    levels = [level for level in range(_LEVELS - 1) if level != ignore][: data.classes]
    class_of_level = np.full(_LEVELS, _WRONG, np.uint8)
    class_of_level[levels] = np.arange(len(levels))
    if ignore is not None and ignore < _LEVELS:
        class_of_level[ignore] = NO_CLASS
    class_of_level[NO_CLASS] = NO_CLASS
    return class_of_level


def _levels(image: Image.Image) -> np.ndarray:
    if image.format == "JPEG":
        raise ValueError("a mask must be stored without losses, and JPEG is not; store PNG")
    if image.mode not in _MODES:
        raise ValueError(f"a mask has one number a pixel, this is {image.mode}")
    levels = np.asarray(image)
    if levels.size and (levels.max() >= _LEVELS or levels.min() < 0):
        raise ValueError(f"a mask has levels from 0 to 255, this one {levels.max()}")
    return levels.astype(np.uint8)


# --- Folders of images and masks, as ADE20k has them ----------------------------------------------

# images/SPLIT/NAME.jpg, and for each annotations/SPLIT/NAME.png.


def open_masks(data: Data, listing: Listing) -> Source:
    """Open a folder of images and masks. Raises UserError for an image without a mask, a mask
    without an image, and two files of one name."""
    if not (listing.path / MASKS).is_dir():
        raise UserError(
            f"data.path: {listing.path}: expected {PICTURES}/SPLIT/NAME.jpg with masks "
            f"{MASKS}/SPLIT/NAME.png, or parquet files; there is no {MASKS}"
        )
    parts = {}
    for split in wanted_splits(data, local_splits(listing)):
        images, masks = (_by_name(listing, kind, split) for kind in (PICTURES, MASKS))
        for name in sorted(images.keys() ^ masks.keys()):
            file, lacks = (images[name], "mask") if name in images else (masks[name], "image")
            raise UserError(f"data.path: {file}: has no {lacks} of its name")
        pairs = [(images[name], masks[name]) for name in sorted(images)]
        parts[split] = part_of(pairs, _example)
    return Source(parts, None)


def _by_name(listing: Listing, kind: str, split: str) -> dict[str, str]:
    """Return the files of a split by their names without the extension. Raises UserError for two of
    one name, since either could belong to the image, or mask, of that name."""
    prefix = os.path.join(listing.path / kind / split, "")
    files_by_name: dict[str, str] = {}
    for file in listing.files:
        if file.startswith(prefix):
            name = os.path.splitext(file.removeprefix(prefix))[0]
            if name in files_by_name:
                raise UserError(
                    f"data.path: {file}: has the name of "
                    f"{os.path.basename(files_by_name[name])}, but for "
                    f"what stands behind the dot; remove one of the two"
                )
            files_by_name[name] = file
    return files_by_name


def _example(pair: tuple[str, str]) -> Example:
    image, mask = pair
    return Example(image, Path(image), Example(mask, Path(mask), None))
