"""Changes of levels and colours, each image with parameters of its own.

PIL's operators map uint8 (B, H, W, C) to the same; parameters are (B,). Their arithmetic is that of
PIL (ImageOps, ImageEnhance), so timm's; `colour_tf` has the operators that TensorFlow computes
differently.

Photometric distortion is mmsegmentation's: mmseg/datasets/pipelines/transforms.py
PhotoMetricDistortion, which swaps no channels. Where a change is skipped by chance there, it is
applied here with a factor of 1 or a shift of 0, so that no GPU need be asked how many images
change. Hues and saturations are those of OpenCV on 8 bits: degrees / 2, and levels of 255.

Used by `data/image_changes.py` (jitter), `data/batches.py` (photometric distortion) and
`data/augment/randaugment.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ablate.data.augment.layout import along_lines, count, lines, pixels, planes


def per_image(parameter: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, 1, 1)."""
    return parameter.view(-1, 1, 1, 1)


def invert(images: Tensor) -> Tensor:
    """Return 255 - level."""
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` int (B,) of each level; 0 bits are black (PIL refuses)."""
    mask = 256 - (1 << (8 - bits).clamp(0, 8))
    return images & per_image(mask.to(torch.uint8))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels from `threshold` int (B,) on; 0 inverts all, 256 none."""
    # x - t is -1 after the shift where x < t, else 0; and x ^ 255 is 255 - x. A comparison and a
    # torch.where take a CPU 20 times longer.
    spared = (
        images.to(torch.int16).sub_(per_image(threshold.to(torch.int16))).bitwise_right_shift_(15)
    )
    return images ^ spared.bitwise_not_().to(torch.uint8)


def solarize_add(images: Tensor, addition: Tensor) -> Tensor:
    """Add `addition` int (B,), 0 or more, to levels below 128, up to 255."""
    gain = torch.minimum(~images, per_image(addition.clamp(max=255).to(torch.uint8)))
    return images + gain.bitwise_and_((images >> 7) - 1)  # 255 below 128, else 0


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255: floor(255 (x - low) / (high - low)), exactly.

    PIL computes that in floats, which now and then are a level too low.
    """
    width = images.shape[2]
    low, span = (along_lines(values, width) for values in extremes(images))
    return stretched(lines(images), low, span).view(images.shape)


def stretched(levels: Tensor, low: Tensor, span: Tensor) -> Tensor:
    """Return floor(255 (x - low) / span) of uint8 levels x, none of which is below `low`."""
    # a float quotient is the nearest one, so never up to a whole number that the true one is below
    return (levels - low).float().mul_(255).div_(span).to(torch.uint8)


def autocontrast_table(counts: Counts) -> Tensor:
    """Return `autocontrast` as a table, uint8 (B C, 256)."""
    return stretched(counts.levels, *counts.ends)


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest level of each channel, uint8 (B, C), and the distance from it to the
    highest, float32 (B, C).

    A channel of one level has 0 and 255, so that stretching leaves it as it is.
    """
    batch, _, width, channels = images.shape
    levels = lines(images)
    low = levels.amin(1).view(batch, width, channels).amin(1)
    high = levels.amax(1).view(batch, width, channels).amax(1)
    return spanned(low, high)


def spanned(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    flat = high == low
    return low.masked_fill(flat, 0), (high - low).masked_fill(flat, 255).float()


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram of each channel: PIL's ImageOps.equalize, exactly."""
    batch, _, _, channels = images.shape
    entry = entries(images, torch.int32)
    histogram = entry.view(-1).bincount(minlength=batch * channels * 256).view(-1, 256)
    return through(flattened(Counts(histogram)), entry).view(images.shape)


class Counts:
    """The histogram of each channel of an image, int64 (B C, 256), and the values derived from
    it."""

    def __init__(self, histogram: Tensor) -> None:
        self.histogram = histogram
        self.levels = count(256, histogram.device, torch.uint8).expand(histogram.shape)

    @cached_property
    def highest(self) -> Tensor:
        """The highest level that occurs in each channel: int64 (B C, 1)."""
        return (self.levels * (self.histogram > 0)).argmax(1, keepdim=True)

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The lowest level and the span of each channel, as `extremes` returns them, (B C, 1)
        each."""
        low = (self.histogram > 0).to(torch.uint8).argmax(1, keepdim=True)
        return spanned(low.to(torch.uint8), self.highest.to(torch.uint8))


def entries(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the entries at which `through` looks up each value of the images: (B, H, W C), in
    tables (B C, 256), one for each channel of an image."""
    batch, _, width, channels = images.shape
    table = torch.arange(0, batch * channels * 256, 256, device=images.device, dtype=dtype)
    return lines(images).to(dtype).add_(along_lines(table.view(batch, channels), width))


def through(tables: Tensor, entry: Tensor) -> Tensor:
    """Look up each value in its table: `tables` (B C, 256), at `entry` as `entries` returns it.
    Returns the shape of `entry`."""
    return tables.view(-1).index_select(0, entry.view(-1)).view(entry.shape)


def flattened(counts: Counts) -> Tensor:
    """Return `equalize` as a table, uint8 (B C, 256)."""
    sums = counts.histogram.cumsum(1)
    step = (sums[:, -1:] - counts.histogram.gather(1, counts.highest)) // 255
    table = (sums - counts.histogram).add_(step // 2).floor_divide_(step.clamp(min=1))
    return table.where(step > 0, counts.levels).clamp_(max=255).to(torch.uint8)


def grey(planes: Tensor) -> Tensor:
    """Return the luma (B, 1, H, W), in whole levels, of float32 (B, C, H, W).

    It is PIL's convert("L"): ITU-R 601-2 in 16 bits. All sums are whole numbers below 2^24, so
    exact.
    """
    if planes.shape[1] == 1:
        return planes
    red, green, blue = planes.split(1, 1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return total.add_(32768).div_(65536).floor_()


def blend(base: Tensor | float, images: Tensor, factor: Tensor) -> Tensor:
    """Return base + factor (images - base), cut to 0..255, fractions cut off: PIL's Image.blend."""
    mixed = (images.float() - base).mul_(per_image(factor)).add_(base)
    return mixed.clamp_(0, 255).to(torch.uint8)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend black (factor 0) with the image (factor 1): ImageEnhance.Brightness."""
    return blend(0.0, images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend the image's mean grey (factor 0) with the image (factor 1): ImageEnhance.Contrast."""
    return blend(mean_of(grey(planes(images).float())), images, factor)


def mean_of(greys: Tensor) -> Tensor:
    """Return the mean of (B, 1, H, W), rounded to whole levels: (B, 1, 1, 1)."""
    mean = greys.mean((1, 2, 3), keepdim=True, dtype=torch.float64)
    return mean.add_(0.5).floor_().float()


def saturation(images: Tensor, factor: Tensor, grey: Callable[[Tensor], Tensor] = grey) -> Tensor:
    """Blend grey (factor 0) with the image (factor 1): ImageEnhance.Color. Images of one channel
    stay as they are."""
    if images.shape[3] == 1:
        return images
    levels = planes(images).float()
    return pixels(blend(grey(levels), levels, factor))


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend a blurred image (factor 0) with the image (factor 1): ImageEnhance.Sharpness.

    It is blurred by PIL's SMOOTH (3 x 3 ones, 5 in the middle, / 13), except for the border.
    """
    return blend(smooth(images, 6.5), images, factor)  # never a tie: thirteenths


def smooth(images: Tensor, rest: float) -> Tensor:
    """Return whole levels, float32 (B, H, W, C): floor((sum + rest) / 13) of PIL's SMOOTH, with the
    border unchanged."""
    base = images.float()
    if min(images.shape[1:3]) > 2:
        levels = images.to(torch.int16)
        lines = levels[:, :-2] + levels[:, 1:-1] + levels[:, 2:]
        total = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:]
        total = total.add_(levels[:, 1:-1, 1:-1], alpha=4).float()
        base[:, 1:-1, 1:-1] = total.add_(rest).div_(13).floor_()
    return base


JITTER = 3  # uniforms that an image takes


def colour_jitter(images: Tensor, strength: float, uniform: Tensor) -> Tensor:
    """Change brightness, contrast and saturation, in this order, by factors uniform in 1 +-
    strength, drawn by `uniform` (JITTER, B).

    torchvision's ColorJitter(strength, strength, strength) draws the order, too.
    """
    low = max(0.0, 1 - strength)
    factors = low + uniform * (1 + strength - low)
    for operator, factor in zip((brightness, contrast, saturation), factors, strict=True):
        images = operator(images, factor)
    return images


PHOTOMETRIC = 9  # uniforms that an image takes
BRIGHTNESS, FACTORS, HUE = 32.0, (0.5, 1.5), 18  # levels; of contrast and saturation; half degrees
TURN = 180  # half degrees


def photometric(images: Tensor, uniform: Tensor) -> Tensor:
    """Distort brightness, contrast, saturation and hue, each with probability 1/2: uint8 (B, H, W,
    3) to the same, by `uniform` (PHOTOMETRIC, B).

    Contrast comes before saturation and hue, or after them. Each change leaves whole levels, the
    fractions cut off.
    """
    is_on, amount = uniform[1::2] < 0.5, uniform[2::2]  # (4, B) each
    shift = BRIGHTNESS * (2 * amount[0] - 1)
    low, high = FACTORS
    contrast, saturation = (
        torch.where(is_on[n], low + amount[n] * (high - low), 1.0) for n in (1, 2)
    )
    turn = torch.where(is_on[3], (amount[3] * 2 * HUE).floor() - HUE, 0.0)
    contrast_first = uniform[0] < 0.5
    neutral = torch.ones_like(contrast)

    levels = planes(images).float()
    levels = truncated(levels + _per_image(torch.where(is_on[0], shift, 0.0)))
    levels = truncated(levels * _per_image(torch.where(contrast_first, contrast, neutral)))
    levels = _selected(is_on[2], saturated(levels, saturation), levels)
    levels = _selected(is_on[3], turned(levels, turn), levels)
    levels = truncated(levels * _per_image(torch.where(contrast_first, neutral, contrast)))
    return pixels(levels.to(torch.uint8))


def truncated(levels: Tensor) -> Tensor:
    """Cut levels to 0..255, and their fractions off."""
    return levels.clamp(0, 255).floor()


def saturated(levels: Tensor, factor: Tensor) -> Tensor:
    """Multiply saturations by `factor` (B,): float32 (B, 3, H, W), whole levels, to the same."""
    hue, saturation, value = to_hsv(levels)
    return from_hsv(hue, truncated(saturation * _per_image(factor)[:, 0]), value)


def turned(levels: Tensor, angle: Tensor) -> Tensor:
    """Turn hues by `angle` (B,) half degrees: float32 (B, 3, H, W), whole levels, to the same."""
    hue, saturation, value = to_hsv(levels)
    return from_hsv((hue + _per_image(angle)[:, 0]) % TURN, saturation, value)


def to_hsv(levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue in half degrees, and saturation and value in levels, of red, green and blue (B, 3,
    H, W): each float32 (B, H, W), in whole numbers."""
    red, green, blue = levels.unbind(1)
    value, minimum = levels.amax(1), levels.amin(1)
    chroma = value - minimum
    saturation = (255 * chroma / value.clamp(min=1)).round()
    some = chroma.clamp(min=1)
    sixth = torch.where(
        value == red,
        (green - blue) / some,
        torch.where(value == green, 2 + (blue - red) / some, 4 + (red - green) / some),
    )
    return (sixth * (TURN / 6)).round() % TURN, saturation, value


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return red, green and blue, float32 (B, 3, H, W), in whole levels, rounded: the inverse of
    `to_hsv`, for hue, saturation and value as it returns them."""
    sixth = hue / (TURN / 6)
    share = saturation / 255
    parts = []
    for offset in (5, 3, 1):  # how many sixths before a turn's end red begins to fall, and so on
        place = (offset + sixth) % 6
        falls = torch.minimum(place, 4 - place).clamp(0, 1)
        parts.append((value * (1 - share * falls)).round())
    return torch.stack(parts, 1)


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _selected(is_on: Tensor, changed: Tensor, levels: Tensor) -> Tensor:
    return torch.where(_per_image(is_on), changed, levels)
