"""One picture, from what is stored to pixels. Pillow and numpy only: the processes that decode
load this and no torch."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from ablate.shared.errors import UserError


@dataclass(frozen=True)
class Example:
    """One image, still encoded (or a file, or an 8-bit image made here), and its class number.

    `where` names it for error messages.
    """

    where: str
    image: bytes | Path | Image.Image
    label: Any  # as stored; `source.class_number` says whether it is one


def decode(example: Example, size: int, channels: int) -> np.ndarray:
    """The pixels: uint8 (size, size, channels), channels 1 or 3.

    Grey is repeated over RGB, RGB weighted to grey (ITU-R 601), an alpha channel dropped, 16-bit
    grey cut to its high byte (as Pillow does for 16-bit RGB), a photo turned upright by its EXIF
    orientation. Another size: the centred square, its side the shorter one, resized (bilinear,
    antialiased). Raises UserError naming the example where its bytes are no whole image.
    """
    return _read(example, size, channels, squeezed=False)[0]


def squeeze(example: Example, size: int, channels: int) -> tuple[np.ndarray, float]:
    """The pixels of the whole image, as `decode` gives those of its centre, and the width over the
    height that it had upright."""
    return _read(example, size, channels, squeezed=True)


def _read(example: Example, size: int, channels: int, squeezed: bool) -> tuple[np.ndarray, float]:
    try:
        if isinstance(example.image, Image.Image):
            return _pixels(example.image, size, channels, squeezed)
        content = example.image
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            return _pixels(image, size, channels, squeezed)
    except Exception as error:  # Pillow's decoders raise whatever they meet: SyntaxError, struct...
        what = str(error) or type(error).__name__
        raise UserError(f"data: {example.where}: not a readable image: {what}") from error


def _pixels(
    image: Image.Image, size: int, channels: int, squeezed: bool
) -> tuple[np.ndarray, float]:
    width, height = image.size
    if squeezed:
        # A JPEG is decoded at 1/2, 1/4 or 1/8 where twice the size is left: 3 times as fast for
        # photographs. With less left, how sharp an image is would hang on how large it was.
        image.draft(None, (2 * size, 2 * size))
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if orientation != 1:
        image = ImageOps.exif_transpose(image)
        if orientation in _TURNED:
            width, height = height, width
    if image.mode == "F":
        raise ValueError("floating-point pixels (mode F) have no known range; store 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip to 255; older ones say "I"
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns of the palette's alpha
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (size, size):
        box = None if squeezed else _centre(*image.size)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels), width / height


_TURNED = (5, 6, 7, 8)  # EXIF orientations in which width and height change places


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    """The centred square, its side the shorter one."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
