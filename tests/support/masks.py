"""Make images with masks, datasets of them, and the settings of runs that segment them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ablate.run.sections import NO_CLASS, Data
from support.data_sections import describe
from support.images import cells

BLOCK, CLASSES = 12, 5  # of a checkerboard: pixels of a square, and how many classes


def checkers(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Compute the class at these places, a checkerboard; a stripe at the left has none."""
    found = (rows // BLOCK + columns // BLOCK) % CLASSES
    return np.where(columns < BLOCK // 2, NO_CLASS, found).astype(np.uint8)


def image_and_mask(width: int, height: int) -> tuple[Image.Image, Image.Image]:
    """Make an image whose red is a pixel's column and whose green is its row, and its mask."""
    rows, columns = np.indices((height, width))
    levels = np.stack([columns, rows, np.full_like(rows, 200)], 2).astype(np.uint8)
    return Image.fromarray(levels), Image.fromarray(checkers(rows, columns))


def write_masks(file: Path, images: list[bytes], masks: list[bytes]) -> None:
    """Write images and masks to Parquet, as `datasets` writes two columns of images."""
    import datasets
    import pyarrow
    from pyarrow import parquet

    file.parent.mkdir(exist_ok=True)
    features = datasets.Features({"image": datasets.Image(), "annotation": datasets.Image()})
    columns = {"image": cells(images), "annotation": cells(masks)}
    parquet.write_table(pyarrow.table(columns, schema=features.arrow_schema), file)


MASKS = {"image": "image", "label": "annotation", "labels": "masks", "cache": "encoded"}
SPLIT = {"train": "train", "validation": 4, "test": "test"}


def masked_data(folder: Path, **more: Any) -> Data:
    """Make the `data` section of a dataset with masks in `folder`."""
    return describe(path=folder, **{**MASKS, **SPLIT, "size": 48, "classes": CLASSES, **more})


def masked_settings() -> dict[str, Any]:
    """Return the settings that make a run of `tiny` segment images."""
    return {
        **{f"data.{key}": value for key, value in MASKS.items()},
        **{"data.source": "datasets", "data.size": 48, "data.classes": CLASSES},
        **{"model.arch": "mu/8", "task": "segment"},
    }


# A sweep of segmentation, on the folder `streets`.
SMALL = {
    **{"data.size": 48, "data.classes": CLASSES, "data.cache": "encoded", "data.labels": "masks"},
    **{"data.image": "image", "data.label": "annotation", "data.validation": 3, "data.test": 4},
}
SEGMENT_WORDS = (
    *("stem=none,dpn", "recipe=segment", "data=parquet", "data.path=streets", "model.arch=mu/8"),
    *(f"{key}={value}" for key, value in SMALL.items()),
    *("train.precision=fp32", "train.micro_batch=2", "train.batch=4", "optim.lr=0.003"),
    *("from.recipe=quick", "from.data=mnist5k", "from.data.size=16", "from.data.channels=3"),
    *("from.train.steps=2", "from.optim.warmup_epochs=0", "from.model.input=range"),
)
