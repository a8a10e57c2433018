"""Make images, and write them as datasets: PNG, JPEG, Parquet, a folder a class."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet


def noise(seed: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Image.Image:
    """Make an image of random pixels; `size` is (width, height)."""
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def stored(image: Image.Image, kind: str, **settings: Any) -> bytes:
    """Encode an image as a file of that kind: "PNG", "JPEG"."""
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def png(image: Image.Image) -> bytes:
    """Encode an image as PNG."""
    return stored(image, "PNG")


def jpeg(image: Image.Image, **settings: Any) -> bytes:
    """Encode an image as JPEG of quality 95."""
    return stored(image, "JPEG", quality=95, **settings)


def cells(images: list[Any]) -> list[dict[str, Any]]:
    """Make the cells of a Parquet column of encoded images."""
    return [{"bytes": image, "path": None} for image in images]


def write_parquet(file: Path, images: list[bytes], labels: list[Any], **more: Any) -> None:
    """Write images and labels as `datasets` does: the file notes Image and ClassLabel."""
    import datasets

    classes = [f"class {i}" for i in range(more.pop("classes", 3))]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=classes)}
    features |= {name: datasets.Value("int64") for name in more}
    columns = {"image": cells(images), "label": labels, **more}
    schema = datasets.Features(features).arrow_schema
    parquet.write_table(pyarrow.table(columns, schema=schema), file)


def write_plain(file: Path, images: list[Any], **columns: list[Any]) -> None:
    """Write a Parquet file that notes nothing about its columns; `images` are cells or bytes."""
    file.parent.mkdir(exist_ok=True)
    each = images if isinstance(images[0], dict) else cells(images)
    parquet.write_table(pyarrow.table({"image": each, **columns}), file)


def folders(root: Path, classes: str, number: int, seed: int = 0) -> None:
    """Write `number` PNG files of noise in a folder per class; each letter names a class."""
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(number):
            noise(seed + 100 * c + i).save(root / name / f"{i}.png")


def take(source: Path, folder: Path, **rows: int) -> None:
    """Copy the first rows of the splits of a real dataset, with what it notes about its columns."""
    folder.mkdir()
    for split, number in rows.items():
        with parquet.ParquetFile(source / f"{split}.parquet") as file:
            piece = pyarrow.Table.from_batches([next(file.iter_batches(number))])
            piece = piece.replace_schema_metadata(file.schema_arrow.metadata)
            parquet.write_table(piece, folder / f"{split}.parquet")
