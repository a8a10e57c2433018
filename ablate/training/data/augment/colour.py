"""PIL's operators on levels, each image with its own parameter: uint8 (B, H, W, C) to the same.

Parameters are (B,). Their arithmetic is PIL's (ImageOps, ImageEnhance), so timm's; `colour_tf` has
the operators that TensorFlow executes otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.training.data.augment.layout import along_lines, lines, pixels, planes


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
    low, span = extremes(images)
    stretched = (lines(images) - along_lines(low, width)).float().mul_(255)
    # a float quotient is the nearest one, so never up to a whole number that the true one is below
    return stretched.div_(along_lines(span, width)).to(torch.uint8).view(images.shape)


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest level uint8 (B, C) of each channel, and float32 (B, C) how far the highest is from
    it. Where all are the same: 0 and 255, so that stretching leaves them."""
    batch, _, width, channels = images.shape
    levels = lines(images)
    low = levels.amin(1).view(batch, width, channels).amin(1)
    high = levels.amax(1).view(batch, width, channels).amax(1)
    flat = high == low
    return low.masked_fill(flat, 0), (high - low).masked_fill(flat, 255).float()


def equalize(images: Tensor) -> Tensor:
    """Each channel's histogram flattened: PIL's ImageOps.equalize, exactly."""
    batch, height, width, channels = images.shape
    table = torch.arange(batch * channels, device=images.device, dtype=torch.int32)
    first = along_lines(256 * table.view(batch, channels), width)
    entry = lines(images).int().add_(first).view(-1)
    histogram = entry.bincount(minlength=batch * channels * 256).view(-1, 256)
    level = torch.arange(256, device=images.device)
    last = histogram.gather(1, (level * (histogram > 0)).argmax(1, keepdim=True))
    step = (height * width - last) // 255
    before = histogram.cumsum(1) - histogram
    table = (before + step // 2) // step.clamp(min=1)
    table = table.where(step > 0, level).clamp_(max=255).to(torch.uint8)
    return table.view(-1).index_select(0, entry).view(images.shape)


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
    mean = grey(planes(images).float()).double().mean((1, 2, 3), keepdim=True)
    return blend(mean.add_(0.5).floor_().float(), images, factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
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
