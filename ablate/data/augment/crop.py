"""Boxes in an image's own geometry, and the resized content of boxes.

Stored images are square, whatever the shape of their originals, whose width / height is `aspect`
(B,). A box (B, 4) is (top, left, height, width) in shares of the image, 0 to 1, so it is the same
in both; a box that is called square is square in the original.

Resizing by area is separable and linear: a matrix for the rows and one for the columns of each
image, two bmm. With TF32 levels may be off by one; don't call it under autocast.

Used by `data/image_changes.py` and, for crops of whole pictures, `data/picture_crop.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data.augment import layout
from ablate.data.augment.layout import constants_on, count, lines, pixels, planes

INCEPTION = 4  # uniforms that a box takes
ATTEMPTS = 10
RESIZED_CROP = 2 * ATTEMPTS + 2
TIE = 2.0**-20  # of a level


def inception_boxes(
    aspect: Tensor,
    uniform: Tensor,
    area: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (0.75, 1.33),
) -> Tensor:
    """Draw boxes (B, 4) by `uniform` (INCEPTION, B), as big_vision's inception_crop: TF's
    sample_distorted_bounding_box.

    tensorflow/core/kernels/image/sample_distorted_bounding_box_op.cc: width / height is uniform in
    `ratio`; then the *height* is uniform between those at which the area is the least and the most
    in `area`, or the box as large as the image (so the area itself isn't uniform: small ones are
    likelier); then the place is uniform. TF draws up to 100 times until a ratio fits, else takes
    the whole image; the ratios that fit are an interval, so one draw from it has the same
    distribution. Boxes there are whole pixels of the original; here `crop_and_resize` rounds to
    those that are stored.
    """
    min_area, max_area = area
    low = (min_area * aspect).clamp(min=ratio[0])  # as high as the image, and large enough
    high = (aspect / min_area).clamp(max=ratio[1])  # as wide as the image, and large enough
    shape = low + uniform[0] * (high - low)
    tallest = (
        torch.minimum(max_area * aspect / shape, (aspect / shape).square()).clamp(max=1).sqrt()
    )
    shortest = (min_area * aspect / shape).sqrt()
    height = shortest + uniform[1] * (tallest - shortest)
    width = height * shape / aspect
    box = torch.stack([height, width], 1).clamp(max=1).where((low <= high)[:, None], 1.0)
    return torch.cat([uniform[2:].T * (1 - box), box], 1)


def resized_crop_boxes(
    aspect: Tensor,
    uniform: Tensor,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Draw boxes (B, 4) by `uniform` (RESIZED_CROP, B), as RandomResizedCrop of torchvision and
    timm.

    The *area* is uniform, the ratio log-uniform. After `ATTEMPTS` that don't fit, the box is the
    largest central one of a ratio in range.
    """
    place = uniform[:2].T
    share = area[0] + uniform[2 : 2 + ATTEMPTS] * (area[1] - area[0])
    shape = layout.quantiles_at(layout.log_uniform(*ratio, aspect.device), uniform[2 + ATTEMPTS :])
    box = torch.stack([share * aspect / shape, share * shape / aspect], -1).sqrt()  # (tries, B, 2)
    fits = (box <= 1).all(-1)
    attempt = fits.byte().argmax(0)
    box = box.gather(0, attempt[None, :, None].expand(1, -1, 2))[0]
    shape = aspect.clamp(*ratio)
    central = torch.stack([aspect / shape, shape / aspect], 1).clamp(max=1)
    has_fit = fits.any(0)[:, None]
    box = box.where(has_fit, central)
    return torch.cat([place.where(has_fit, 0.5) * (1 - box), box], 1)


def centre_boxes(aspect: Tensor, share: float) -> Tensor:
    """Return boxes (B, 4): the central square with sides of `share` x the original's shorter side.

    A share of 224 / 256 shows what "shorter side to 256, central 224" does (big_vision's
    evaluation).
    """
    box = share * torch.stack([aspect, 1 / aspect], 1).clamp(max=1)
    return torch.cat([(1 - box) / 2, box], 1)


def crop_and_resize(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Crop and resize images: uint8 (B, H, W, C) to (B, size, size, C), bilinear, no antialiasing,
    half-pixel centres.

    It is TF 2's resize of the cropped image: no pixel beyond the box's edge is used. Boxes are
    rounded to whole pixels, at least one, as TF's and torchvision's are. Levels are rounded half
    up; big_vision's cast cuts the fraction off, which darkens by half a level.
    """
    start, length = boxes.T.reshape(2, 2, -1) * sides(images)
    span = pixel_span(start, length, sides(images))
    # torch's kernel for bytes takes a sixth of grid_sample's time on a CPU, and is there only. It
    # rounds after each axis, as PIL does, so that a level may be off by one.
    resize = resize_slices if layout.by_groups(images) else sample
    return resize(images, *span, size)


Span = tuple[Tensor, Tensor]  # where boxes start and how long they are along an axis, (B,) each


def resize_slices(images: Tensor, start: Tensor, length: Tensor, size: int) -> Tensor:
    """Do the same as `crop_and_resize` for boxes in whole pixels, image by image. start and length:
    (2, B), for rows and columns."""
    (top, left_edge), (end_row, end_column) = start, start + length
    edges = torch.stack([top, end_row, left_edge, end_column], 1).int().tolist()
    parts = [
        bilinear(image[:, y:end_y, x:end_x], (size, size))
        for image, (y, end_y, x, end_x) in zip(images.split(1), edges, strict=True)
    ]
    return torch.cat(parts)


def bilinear(images: Tensor, shape: tuple[int, int]) -> Tensor:
    """Resize images on a CPU without antialiasing, half-pixel centres: uint8 (B, H, W, C) to (B,
    *shape, C)."""
    planes = F.interpolate(images.permute(0, 3, 1, 2), shape, mode="bilinear")
    return planes.permute(0, 2, 3, 1)


def sample(images: Tensor, start: Tensor, length: Tensor, size: int) -> Tensor:
    """Do the same as `crop_and_resize` for boxes in pixels, all images at once. start and length:
    (2, B), for rows and columns."""
    edge = sides(images)[..., None]
    places = torch.minimum(centres(start, length, size).clamp(min=0), edge - 1)
    y, x = (2 * places + 1) / edge - 1  # (B, size) each, from -1 to 1 between the edges
    grid = torch.stack([x[:, None].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], 3)
    levels = F.grid_sample(planes(images).float(), grid, padding_mode="border", align_corners=False)
    return to_levels(levels)


def resize_area(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Crop and resize images by area: uint8 (B, H, W, C) to (B, size, size, C).

    A pixel is the mean over its part of the box, edge pixels weighted by their share (TF's area
    resize); an axis that is magnified is bilinear. Levels are rounded half up.

    Images of a test set are shown so, the same on every device: in float64, and with a bias that
    decides ties, whose sums end on either side of a half, depending on how a device adds them up.
    """
    (top, height), (left_edge, width) = in_pixels(images, boxes.double())
    rows = area_weights(top, height, images.shape[1], size)
    columns = area_weights(left_edge, width, images.shape[2], size)
    return to_levels(resample(images, rows, columns) + TIE)


def in_pixels(images: Tensor, boxes: Tensor) -> tuple[Span, Span]:
    """Return ((top, height), (left, width)) of `boxes` in pixels, (B,) each."""
    top, left_edge, height, width = boxes.unbind(1)
    _, tall, wide, _ = images.shape
    return (top * tall, height * tall), (left_edge * wide, width * wide)


def sides(images: Tensor) -> Tensor:
    """Return height and width in pixels: float32 (2, 1)."""
    return constants_on(tuple(images.shape[1:3]), images.device).view(2, 1)


def pixel_span(start: Tensor, length: Tensor, size: Tensor) -> Span:
    """Round a span to the nearest whole pixels within `size` (one for all, or one for each); at
    least one pixel."""
    first_pixel = torch.minimum(start.round(), size - 1)
    return first_pixel, ((start + length).round() - first_pixel).clamp(min=1)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows (B, h, H) @ plane @ columns (B, w, W)^T for each plane of (B, H, W, C): float (B,
    C, h, w)."""
    batch, _, width, channels = images.shape
    height = rows.shape[1]
    few = torch.bmm(rows, lines(images).to(rows.dtype)).view(batch, height, width, channels)
    planes = few.permute(0, 3, 1, 2).reshape(batch, channels * height, width)
    return torch.bmm(planes, columns.mT).view(batch, channels, height, columns.shape[1])


def to_levels(planes: Tensor) -> Tensor:
    """Round (B, C, h, w) in 0..255 half up: uint8 (B, h, w, C)."""
    return pixels((planes + 0.5).to(torch.uint8))


def centres(start: Tensor, length: Tensor, out: int) -> Tensor:
    """Return `out` places in the box, in pixels from the centre of the image's first one: (..., B,
    out).

    start and length (..., B): the box in pixels. No place is nearer to the box's edge than the
    centre of its first pixel, just as if the box were cropped first.
    """
    place = count(out, start.device, start.dtype) + 0.5
    half = (length - 1) / 2
    reach = half.clamp(min=0)[..., None]
    from_middle = place * (length / out)[..., None] - length[..., None] / 2
    return (start + half)[..., None] + from_middle.clamp(-reach, reach)


def bilinear_weights(start: Tensor, length: Tensor, size: int, out: int) -> Tensor:
    """Return the weights of `size` pixels at each of `centres`, which lies between two of them: (B,
    out, size)."""
    pixel = count(size, start.device)
    places = centres(start, length, out).clamp(0, size - 1)
    return (1 - (places[:, :, None] - pixel).abs()).clamp(min=0)


def area_weights(start: Tensor, length: Tensor, size: int, out: int) -> Tensor:
    """Return the share of each of `size` pixels in each of `out` equal parts of the box: (B, out,
    size). Where a part is smaller than a pixel, weights are bilinear."""
    edges = start[:, None] + count(out + 1, start.device) * (length / out)[:, None]
    pixel = count(size, start.device)
    end = torch.minimum(edges[:, 1:, None], pixel + 1)
    overlap = (end - torch.maximum(edges[:, :-1, None], pixel)).clamp(min=0)
    shares = overlap / overlap.sum(2, keepdim=True)
    return shares.where((length >= out)[:, None, None], bilinear_weights(start, length, size, out))
