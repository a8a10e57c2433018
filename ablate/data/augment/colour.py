"""Changes of levels and colours, each image by numbers of its own.

PIL's operators are uint8 (B, H, W, C) to the same. Parameters are (B,). Their arithmetic is PIL's
(ImageOps, ImageEnhance), so timm's; `colour_tf` has the operators that TensorFlow executes
otherwise.

Photometric distortion is mmsegmentation's:
mmseg/datasets/pipelines/transforms.py PhotoMetricDistortion, which swaps no channels. What takes
part there by chance takes part here with a factor of 1 or a shift of 0 otherwise, so that a GPU
need not be asked how many do. Hues and saturations are those of OpenCV on 8 bits: degrees / 2, and
levels of 255.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ablate.data.augment.layout import along_lines, count, lines, pixels, planes


def per_image(parameter: Tensor) -> Tensor:
    """(B, 1, 1, 1) of (B,)."""
    return parameter.view(-1, 1, 1, 1)


def invert(images: Tensor) -> Tensor:
    """255 - level."""
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """The highest `bits` int (B,) of each level; 0 bits are black (PIL refuses)."""
    mask = 256 - (1 << (8 - bits).clamp(0, 8))
    return images & per_image(mask.to(torch.uint8))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Levels from `threshold` int (B,) on inverted; 0 inverts all, 256 none."""
    # x - t is -1 after the shift where x < t, else 0; and x ^ 255 is 255 - x. A comparison and a
    # torch.where take a CPU 20 times longer.
    spared = (
        images.to(torch.int16).sub_(per_image(threshold.to(torch.int16))).bitwise_right_shift_(15)
    )
    return images ^ spared.bitwise_not_().to(torch.uint8)


def solarize_add(images: Tensor, addition: Tensor) -> Tensor:
    """`addition` int (B,), 0 or more, to levels below 128, up to 255."""
    gain = torch.minimum(~images, per_image(addition.clamp(max=255).to(torch.uint8)))
    return images + gain.bitwise_and_((images >> 7) - 1)  # 255 below 128, else 0


def autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched to 0..255: floor(255 (x - low) / (high - low)), exactly.

    PIL works that out in floats, which now and then fall a level short.
    """
    width = images.shape[2]
    low, span = (along_lines(found, width) for found in extremes(images))
    return stretched(lines(images), low, span).view(images.shape)


def stretched(levels: Tensor, low: Tensor, span: Tensor) -> Tensor:
    """floor(255 (x - low) / span) of uint8 levels, none below `low`."""
    # a float quotient is the nearest one, so never up to a whole number that the true one is below
    return (levels - low).float().mul_(255).div_(span).to(torch.uint8)


def contrasted(counts: Counts) -> Tensor:
    """uint8 (B C, 256): `autocontrast` as a table."""
    return stretched(counts.levels, *counts.ends)


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest level uint8 (B, C) of each channel, and float32 (B, C) how far the highest is from
    it. Where all are the same: 0 and 255, so that stretching leaves them."""
    batch, _, width, channels = images.shape
    levels = lines(images)
    low = levels.amin(1).view(batch, width, channels).amin(1)
    high = levels.amax(1).view(batch, width, channels).amax(1)
    return spanned(low, high)


def spanned(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    flat = high == low
    return low.masked_fill(flat, 0), (high - low).masked_fill(flat, 255).float()


def equalize(images: Tensor) -> Tensor:
    """Each channel's histogram flattened: PIL's ImageOps.equalize, exactly."""
    batch, _, _, channels = images.shape
    entry = entries(images, torch.int32)
    histogram = entry.view(-1).bincount(minlength=batch * channels * 256).view(-1, 256)
    return through(flattened(Counts(histogram)), entry).view(images.shape)


class Counts:
    """How often each level is in each channel of an image: int64 (B C, 256), and what follows."""

    def __init__(self, histogram: Tensor) -> None:
        self.histogram = histogram
        self.levels = count(256, histogram.device, torch.uint8).expand(histogram.shape)

    @cached_property
    def last(self) -> Tensor:
        """int64 (B C, 1): the highest level that is there."""
        return (self.levels * (self.histogram > 0)).argmax(1, keepdim=True)

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """`extremes`, (B C, 1) each."""
        low = (self.histogram > 0).to(torch.uint8).argmax(1, keepdim=True)
        return spanned(low.to(torch.uint8), self.last.to(torch.uint8))


def entries(images: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, H, W C): where each value is looked up in tables (B C, 256), one for each channel."""
    batch, _, width, channels = images.shape
    table = torch.arange(0, batch * channels * 256, 256, device=images.device, dtype=dtype)
    return lines(images).to(dtype).add_(along_lines(table.view(batch, channels), width))


def through(tables: Tensor, entry: Tensor) -> Tensor:
    """What tables (B C, 256) have at `entries`."""
    return tables.view(-1).index_select(0, entry.view(-1)).view(entry.shape)


def flattened(counts: Counts) -> Tensor:
    """uint8 (B C, 256): `equalize` as a table."""
    sums = counts.histogram.cumsum(1)
    step = (sums[:, -1:] - counts.histogram.gather(1, counts.last)) // 255
    table = (sums - counts.histogram).add_(step // 2).floor_divide_(step.clamp(min=1))
    return table.where(step > 0, counts.levels).clamp_(max=255).to(torch.uint8)


def grey(planes: Tensor) -> Tensor:
    """Luma (B, 1, H, W), whole levels, of float32 (B, C, H, W): PIL's convert("L"), which is ITU-R
    601-2 in 16 bits. All sums are whole numbers below 2^24, so exact."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = planes.split(1, 1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return total.add_(32768).div_(65536).floor_()


def blend(base: Tensor | float, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (images - base), cut to 0..255, fractions cut off: PIL's Image.blend."""
    mixed = (images.float() - base).mul_(per_image(factor)).add_(base)
    return mixed.clamp_(0, 255).to(torch.uint8)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """0 is black, 1 the image: ImageEnhance.Brightness."""
    return blend(0.0, images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """0 is the image's mean grey, 1 the image: ImageEnhance.Contrast."""
    return blend(mean_of(grey(planes(images).float())), images, factor)


def mean_of(greys: Tensor) -> Tensor:
    """(B, 1, 1, 1): the nearest whole level to the mean of (B, 1, H, W)."""
    mean = greys.mean((1, 2, 3), keepdim=True, dtype=torch.float64)
    return mean.add_(0.5).floor_().float()


def saturation(images: Tensor, factor: Tensor, grey: Callable[[Tensor], Tensor] = grey) -> Tensor:
    """0 is grey, 1 the image: ImageEnhance.Color. With one channel nothing changes."""
    if images.shape[3] == 1:
        return images
    levels = planes(images).float()
    return pixels(blend(grey(levels), levels, factor))


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """0 is blurred by PIL's SMOOTH (3 x 3 ones, 5 in the middle, / 13; not the border), 1 the
    image: ImageEnhance.Sharpness."""
    return blend(smooth(images, 6.5), images, factor)  # never a tie: thirteenths


def smooth(images: Tensor, rest: float) -> Tensor:
    """Whole levels float32 (B, H, W, C): floor((sum + rest) / 13) of PIL's SMOOTH; the border as it
    is."""
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
    """Brightness, contrast and saturation, in this order, by factors uniform in 1 +- strength, as
    `uniform` (JITTER, B) has them.

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
    """uint8 (B, H, W, 3) to the same by `uniform` (PHOTOMETRIC, B): brightness, contrast,
    saturation and hue, each half of the time; contrast before the last two or after them. Each
    leaves whole levels, the fractions cut off."""
    is_on, amount = uniform[1::2] < 0.5, uniform[2::2]  # (4, B) each
    shift = BRIGHTNESS * (2 * amount[0] - 1)
    low, high = FACTORS
    contrast, saturation = (
        torch.where(is_on[n], low + amount[n] * (high - low), 1.0) for n in (1, 2)
    )
    turn = torch.where(is_on[3], (amount[3] * 2 * HUE).floor() - HUE, 0.0)
    first = uniform[0] < 0.5
    one = torch.ones_like(contrast)

    levels = planes(images).float()
    levels = whole(levels + _each(torch.where(is_on[0], shift, 0.0)))
    levels = whole(levels * _each(torch.where(first, contrast, one)))
    levels = _where(is_on[2], saturated(levels, saturation), levels)
    levels = _where(is_on[3], turned(levels, turn), levels)
    levels = whole(levels * _each(torch.where(first, one, contrast)))
    return pixels(levels.to(torch.uint8))


def whole(levels: Tensor) -> Tensor:
    """0 to 255, fractions cut off."""
    return levels.clamp(0, 255).floor()


def saturated(levels: Tensor, factor: Tensor) -> Tensor:
    """float32 (B, 3, H, W), whole levels, with saturations times `factor` (B,)."""
    hue, saturation, value = to_hsv(levels)
    return from_hsv(hue, whole(saturation * _each(factor)[:, 0]), value)


def turned(levels: Tensor, by: Tensor) -> Tensor:
    """float32 (B, 3, H, W), whole levels, with hues moved `by` (B,) half degrees."""
    hue, saturation, value = to_hsv(levels)
    return from_hsv((hue + _each(by)[:, 0]) % TURN, saturation, value)


def to_hsv(levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in half degrees, saturation and value in levels, each float32 (B, H, W) and whole, of
    red, green and blue (B, 3, H, W)."""
    red, green, blue = levels.unbind(1)
    value, least = levels.amax(1), levels.amin(1)
    chroma = value - least
    saturation = (255 * chroma / value.clamp(min=1)).round()
    some = chroma.clamp(min=1)
    sixth = torch.where(
        value == red,
        (green - blue) / some,
        torch.where(value == green, 2 + (blue - red) / some, 4 + (red - green) / some),
    )
    return (sixth * (TURN / 6)).round() % TURN, saturation, value


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """What `to_hsv` takes apart, in whole levels, rounded."""
    sixth = hue / (TURN / 6)
    share = saturation / 255
    parts = []
    for first in (5, 3, 1):  # how many sixths before a turn's end red begins to fall, and so on
        place = (first + sixth) % 6
        falls = torch.minimum(place, 4 - place).clamp(0, 1)
        parts.append((value * (1 - share * falls)).round())
    return torch.stack(parts, 1)


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _where(is_on: Tensor, changed: Tensor, levels: Tensor) -> Tensor:
    return torch.where(_each(is_on), changed, levels)
