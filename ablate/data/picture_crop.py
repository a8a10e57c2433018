"""Crops of whole pictures, cut on the host, one picture at a time, from the pixels of its file.

The rules are big_vision's (`tf`) and timm's (`timm`), in whole pixels of the picture, as theirs
are. Random numbers come in the arguments, so no result depends on the process or thread that
decodes a picture.

Images with masks are resized, cut and mirrored together with their masks, by mmsegmentation's
Resize, RandomCrop and RandomFlip (mmseg/datasets/pipelines/transforms.py), again by random numbers
in the arguments.

Used by `data/batches.py`, `data/image_changes.py` and `data/splits.py`. A change of what is drawn
also needs `DRAWS` in `run/spec.py` raised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ablate.data.augment import crop
from ablate.data.draws import Draws
from ablate.run import NO_CLASS, Augment

REDRAWS = 10
LONGEST = 4  # the longer side is at most so many times the size, before it is scaled
SCALE, PLACE, FLIP = 0, 1, 1 + 2 * (1 + REDRAWS)  # where each of an image's uniforms begins
UNIFORMS = FLIP + 1


@dataclass(frozen=True)
class MaskedCrops:
    """The random crops of a batch of images with masks. `uniforms`: the UNIFORMS numbers of each
    image."""

    uniforms: Sequence[np.ndarray]
    size: int
    augment: Augment

    def take(self, places: Tensor) -> MaskedCrops:
        """Return the crops of the images at `places` of the batch."""
        return replace(self, uniforms=[self.uniforms[place] for place in places.tolist()])

    def show_both(
        self, place: int, picture: Image.Image, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cut the picture at `place` of the batch and its mask (H, W) alike: uint8 (h, w, C) and
        (h, w), at most size x size."""
        uniform = self.uniforms[place]
        shape = self._shape(mask.shape, float(uniform[SCALE]))
        (y, x), (tall, wide) = self._box(mask, shape, uniform[PLACE:FLIP])
        rows, columns = (nearest(*lengths) for lengths in zip(mask.shape, shape, strict=True))
        labels = mask[rows[y : y + tall, None], columns[x : x + wide]]
        levels = np.asarray(picture).reshape(*mask.shape, -1)
        if shape != mask.shape:
            levels = crop.bilinear(torch.from_numpy(levels.copy())[None], shape)[0].numpy()
        pixels = levels[y : y + tall, x : x + wide]
        if self.augment.flip and uniform[FLIP] < 0.5:
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        return pixels, labels

    def _shape(self, shape: tuple[int, ...], uniform: float) -> tuple[int, int]:
        """Return the height and width that the image is resized to."""
        tall, wide = shape
        max_scale = self.augment.rescale
        if max_scale is None:
            return tall, wide
        return resized_shape(
            tall, wide, self.size, 1 / max_scale + uniform * (max_scale - 1 / max_scale)
        )

    def _box(
        self, mask: np.ndarray, shape: tuple[int, int], uniform: np.ndarray
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the corner (y, x) of the crop in the resized image, and its height and width.

        It is the first drawn crop in which no class has `class_share` of the pixels that have a
        class, or the last of all.
        """
        rows, columns = (nearest(*lengths) for lengths in zip(mask.shape, shape, strict=True))
        tall, wide = (min(self.size, length) for length in shape)
        for place in uniform.reshape(-1, 2):
            y, x = (
                int(u * (length - part + 1))
                for u, length, part in zip(place, shape, (tall, wide), strict=True)
            )
            if self.augment.class_share == 1:
                break
            part = mask[rows[y : y + tall, None], columns[x : x + wide]]
            pixels = np.bincount(part.reshape(-1), minlength=NO_CLASS + 1)[:NO_CLASS]
            if pixels.max() < self.augment.class_share * pixels.sum():  # so there are two, too
                break
        return (y, x), (tall, wide)


def resized_shape(tall: int, wide: int, size: int, scale: float) -> tuple[int, int]:
    """Return the height and width of an image that is made as large as fits within `scale` times
    (LONGEST x size, size), the longer side within the first, the shorter within the second."""
    longer, shorter = int(LONGEST * size * scale), int(size * scale)
    factor = min(longer / max(tall, wide), shorter / min(tall, wide))
    return max(1, int(tall * factor + 0.5)), max(1, int(wide * factor + 0.5))


def nearest(length: int, new: int) -> np.ndarray:
    """Return for each of `new` pixels the one of `length` pixels that it shows, int64 (new,): the
    nearest by its left edge (OpenCV's INTER_NEAREST, torch's "nearest")."""
    return np.arange(new) * length // new


class MaskedCuts:
    """The random cuts of images with masks, for each step."""

    def __init__(self, size: int, augment: Augment, draws: Draws) -> None:
        """`draws` must be on the host."""
        self._size, self._augment, self._draws = size, augment, draws

    def __call__(self, rows: Tensor, step: int) -> MaskedCrops:
        uniforms = self._draws.uniform("masked crop", step, UNIFORMS, len(rows)).double().numpy()
        return MaskedCrops([*np.ascontiguousarray(uniforms.T)], self._size, self._augment)


Style = Literal["tf", "timm"]


@dataclass(frozen=True)
class Crops:
    """Boxes of the pictures of a batch, (left, top, right, bottom) in whole pixels, which are
    resized to squares of `size`.

    tf: bilinear, without antialiasing, as `crop.crop_and_resize`. timm: Pillow's bicubic,
    antialiased, of the picture that is cropped first (torchvision's resized_crop).
    """

    boxes: Sequence[tuple[int, int, int, int]]
    size: int
    style: Style

    @classmethod
    def from_boxes(cls, boxes: Tensor, shapes: Tensor, size: int, style: Style) -> Crops:
        """Make crops from `boxes` (B, 4) in shares of the pictures, whose heights and widths are
        `shapes` (B, 2)."""
        top, left_edge, height, width = boxes.unbind(1)
        tall, wide = shapes.unbind(1)
        y, rows = crop.pixel_span(top * tall, height * tall, tall)
        x, columns = crop.pixel_span(left_edge * wide, width * wide, wide)
        ends = torch.stack([x, y, x + columns, y + rows], 1).int().tolist()
        return cls([tuple(box) for box in ends], size, style)

    def take(self, places: Tensor) -> Crops:
        """Return the crops of the images at `places` of the batch."""
        return replace(self, boxes=[self.boxes[place] for place in places.tolist()])

    def show(self, place: int, picture: Image.Image) -> np.ndarray:
        """Cut the picture at `place` of the batch: uint8 (size, size, C)."""
        part = picture.crop(self.boxes[place])
        return resized(part, self.size, self.size, self.style)


@dataclass(frozen=True)
class Centre:
    """The central square of `size` of a picture that is resized first, until `size` is `share` of
    its shorter side, or (`squeezed`) of both sides.

    tf: resize_small or resize of big_vision, and central_crop: box means (bilinear where a picture
    is magnified), or, squeezed, bilinear without antialiasing. timm: torchvision's Resize, bicubic,
    and CenterCrop.
    """

    size: int
    share: float
    squeezed: bool
    style: Style

    def take(self, places: Tensor) -> Centre:
        """Return the cut of the images at `places` of the batch: the same for all."""
        return self

    def show(self, place: int, picture: Image.Image) -> np.ndarray:
        """Cut the central square of the picture: uint8 (size, size, C)."""
        side = self.size / self.share
        # timm's (transforms_factory.py) and DeiT's own code cut the fraction off.
        side = math.floor(side) if self.style == "timm" else round(side)
        tall, wide = (side, side) if self.squeezed else self._shape(side, picture)
        if self.style == "tf" and not self.squeezed:
            return self._box_means(picture, tall, wide)
        resized_pixels = resized(picture, tall, wide, self.style)
        y, x = self._first_pixel(tall), self._first_pixel(wide)
        return resized_pixels[y : y + self.size, x : x + self.size]

    def _shape(self, side: int, picture: Image.Image) -> tuple[int, int]:
        """Return the height and width of the picture when its shorter side is `side`."""
        sides = (picture.height, picture.width)
        if self.style == "timm":  # torchvision's cuts the fraction off
            tall, wide = (side * length // min(sides) for length in sides)
        else:
            tall, wide = (round(length * (side / min(sides))) for length in sides)
        return tall, wide

    def _first_pixel(self, length: int) -> int:
        """Return the first of the central `size` pixels, out of `length`."""
        spare = length - self.size
        return round(spare / 2) if self.style == "timm" else spare // 2

    def _box_means(self, picture: Image.Image, tall: int, wide: int) -> np.ndarray:
        """Return the central square, uint8 (size, size, C), of the picture as resized to tall x
        wide.

        Each pixel is the mean of the part of the picture that it covers, as `crop.resize_area`
        computes it.
        """
        levels = np.asarray(picture).reshape(picture.height, picture.width, -1)
        for length in (tall, wide):  # each time the other axis comes first
            scale = len(levels) / length
            levels = means(levels, self._first_pixel(length) * scale, self.size * scale, self.size)
            levels = levels.swapaxes(0, 1)
        return (levels + 0.5 + crop.TIE).astype(np.uint8)


def means(levels: np.ndarray, start: float, length: float, out: int) -> np.ndarray:
    """Apply `crop.area_weights` along the first axis of levels (H, ...), by sums: float64 (out,
    ...).

    A product with a matrix would need all of the picture in float64.
    """
    if length < out:
        offset, long = (torch.tensor([value], dtype=torch.float64) for value in (start, length))
        weights = crop.bilinear_weights(offset, long, len(levels), out)[0]
        return np.tensordot(weights.numpy(), levels, 1)
    # On a grid, so that edges of whole pixels are whole, and no two fall into one pixel.
    edges = np.round(start + np.arange(out + 1) * (length / out), 9).clip(0, len(levels))
    floors = edges.astype(np.int64)
    share = (edges - floors).reshape(-1, *(1,) * (levels.ndim - 1))
    ends = levels[floors.clip(max=len(levels) - 1)] * share
    sums = np.add.reduceat(levels[: floors[-1]], floors[:-1], axis=0, dtype=np.float64)
    return (sums - ends[:-1] + ends[1:]) / (length / out)


Cut = Crops | Centre | MaskedCrops


class Cuts:
    """The cut of each step: which part of each whole picture it shows, by the same draws as for
    stored squares.

    shapes: (N, 2), height and width of all pictures of the set. `centre`: the cut where crops are
    not random.
    """

    def __init__(self, shapes: Tensor, centre: Centre, augment: Augment, draws: Draws) -> None:
        self._shapes, self._centre, self._augment, self._draws = shapes, centre, augment, draws

    def __call__(self, rows: Tensor, step: int) -> Cut:
        if self._augment.crop_area is None:
            return self._centre
        shapes = self._shapes[rows]
        boxes = random_boxes(shapes[:, 1] / shapes[:, 0], self._augment, self._draws, step)
        return Crops.from_boxes(boxes, shapes, self._centre.size, self._augment.style)


def random_boxes(aspects: Tensor, spec: Augment, draws: Draws, step: int) -> Tensor:
    """Draw the box of each image that a step shows, (B, 4) in shares, where `spec` has inception
    crops."""
    assert spec.crop_area is not None
    area, batch = (spec.crop_area, 1.0), len(aspects)
    if spec.style == "tf":
        uniforms = draws.uniform("crop", step, crop.INCEPTION, batch)
        return crop.inception_boxes(aspects, uniforms, area)
    uniforms = draws.uniform("crop", step, crop.RESIZED_CROP, batch)
    return crop.resized_crop_boxes(aspects, uniforms, area)


def pixels(picture: Image.Image) -> Tensor:
    """Return the pixels of the picture, uint8 (H, W, C), as a copy."""
    levels = np.array(picture)  # a copy: torch warns of what it can't write to
    return torch.from_numpy(levels.reshape(picture.height, picture.width, -1))


def resized(picture: Image.Image, tall: int, wide: int, style: Style) -> np.ndarray:
    """Return the pixels of the picture, resized in the given style: uint8 (tall, wide, C)."""
    if style == "timm":
        resized_picture = picture.resize((wide, tall), Image.Resampling.BICUBIC)
        return np.asarray(resized_picture).reshape(tall, wide, -1)
    return crop.bilinear(pixels(picture)[None], (tall, wide))[0].numpy()
