"""One picture, from what is stored to pixels. Pillow and numpy only."""

from __future__ import annotations

import importlib.util
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ablate.shared.errors import Failure, UserError

# Pillow tries no other decoder on what a stranger sent; the most frequent come first. AVIF is read
# by versions from 11.3 on.
FORMATS: tuple[str, ...] = ("PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF")
if importlib.util.find_spec("PIL.AvifImagePlugin"):
    FORMATS += ("AVIF",)


class Broken(UserError):
    """An image whose bytes are none, or not whole: what `data.broken=skip` leaves out. What is
    wrong with the machine (a disk that can't be read, too little memory) is no such thing."""


@dataclass(frozen=True)
class Example:
    """One image, still encoded (or a file, or an 8-bit image made here), and its class number.

    `where` names it for error messages; None is a row of a table that has no image.
    """

    where: str
    image: bytes | Path | Image.Image | None
    label: Any  # as stored; `source.class_number` says whether it is one


def decode(example: Example, size: int, channels: int) -> np.ndarray:
    """The pixels: uint8 (size, size, channels), channels 1 or 3.

    Grey is repeated over RGB, RGB weighted to grey (ITU-R 601), an alpha channel dropped, grey of
    12 or 16 bits cut to the highest 8 (as Pillow does for 16-bit RGB), a photo turned upright by
    its EXIF orientation. Another size: the centred square, its side the shorter one, resized
    (bilinear, antialiased). Raises Broken naming the example where its bytes are no whole image in
    one of FORMATS, UserError where its file can't be read, Failure where the memory is too small.
    """
    return _read(example, lambda image: _square(image, size, channels, squeezed=False))[0]


def squeeze(example: Example, size: int, channels: int) -> tuple[np.ndarray, float]:
    """The pixels of the whole image, as `decode` gives those of its centre, and the width over the
    height that it had upright."""
    return _read(example, lambda image: _square(image, size, channels, squeezed=True))


def decode_whole(example: Example, channels: int) -> Image.Image:
    """All pixels as the file has them, upright, their levels and channels as `decode` gives them;
    of mode L or RGB. Raises as `decode` does."""

    def show(image: Image.Image) -> Image.Image:
        image, _ = _upright(image, channels)
        image.load()  # while its file is open
        return image

    return _read(example, show)


def encoded(example: Example) -> bytes | None:
    """The file's own bytes; None where there are none. Raises UserError where it can't be read."""
    content = example.image
    if isinstance(content, str | Path):
        return _content(example.where, content)
    return content if isinstance(content, bytes) else None


def size_of(example: Example) -> int:
    """How long `encoded` is, with that of its mask; 0 where there are no bytes."""
    mask = size_of(example.label) if isinstance(example.label, Example) else 0
    if isinstance(example.image, str | Path):
        try:
            return mask + os.stat(example.image).st_size
        except OSError as error:
            raise UserError(f"data: {example.where}: {error.strerror}") from error
    return mask + (len(example.image) if isinstance(example.image, bytes) else 0)


T = TypeVar("T")


def _read(example: Example, show: Callable[[Image.Image], T]) -> T:
    """What is shown of the image, while its file is open."""
    try:
        if isinstance(example.image, Image.Image):
            return show(example.image)
        content = encoded(example)
        if content is None:
            raise ValueError("none there")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return show(image)
    except UserError:
        raise
    except MemoryError as error:
        raise Failure(f"data: {example.where}: too little memory to decode it") from error
    except UnidentifiedImageError as error:
        what = (
            f"no whole {', '.join(FORMATS[:-1])} or {FORMATS[-1]}" if content else "an empty file"
        )
        raise Broken(f"data: {example.where}: not a readable image: {what}") from error
    except Exception as error:  # Pillow's decoders raise whatever they meet: SyntaxError, struct...
        what = str(error) or type(error).__name__
        raise Broken(f"data: {example.where}: not a readable image: {what}") from error


def _content(where: str, path: str | Path) -> bytes:
    """A file's bytes. Opened only after it is known to be a file: a fifo would wait for ever."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"data: {where}: is no regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"data: {where}: {error.strerror}") from error


def _square(
    image: Image.Image, size: int, channels: int, squeezed: bool
) -> tuple[np.ndarray, float]:
    """The pixels, and the width over the height that the upright image had."""
    # A JPEG is decoded at 1/2, 1/4 or 1/8 where twice the size is left: 3 times as fast for
    # photographs. With less left, how sharp an image is would hang on how large it was.
    image, shape = _upright(image, channels, 2 * size if squeezed else None)
    if image.size != (size, size):
        box = None if squeezed else _centre(*image.size)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels), shape


def _upright(
    image: Image.Image, channels: int, least: int | None = None
) -> tuple[Image.Image, float]:
    """The image, and the width over the height that it has in its file, both upright. `least`: of
    its sides, where they need not be those of its file."""
    width, height = image.size
    depth = _depth(image)
    if least is not None:
        image.draft(None, (least, least))
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if orientation != 1:
        image = ImageOps.exif_transpose(image)
        if orientation in _TURNED:
            width, height = height, width
    if depth > 8:  # Pillow would clip it to 255
        high = np.asarray(image).astype(np.int64) >> (depth - 8)
        image = Image.fromarray(high.astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns of the palette's alpha
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    return image, width / height


def _depth(image: Image.Image) -> int:
    """Bits of a pixel's channel: 8, or of grey the 12 or 16 that its file states. ValueError where
    the file does not say from where to where its numbers go."""
    tiff = image.format == "TIFF"
    if image.mode == "F" or (image.mode == "I" and tiff):
        kind = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise ValueError(f"{kind} pixels have no known range; store 8 or 16 bits")
    if not image.mode.startswith("I"):
        return 8
    if tiff:
        tags: Any = image
        return int(tags.tag_v2[_BITS_PER_SAMPLE][0])
    return 16  # of PGM, too, which Pillow scales to 16 bits; older ones call it "I"


_BITS_PER_SAMPLE = 258
_TURNED = (5, 6, 7, 8)  # EXIF orientations in which width and height change places


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    """The centred square, its side the shorter one."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
