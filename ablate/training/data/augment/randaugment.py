"""RandAugment: each image through a few operators drawn for it. arXiv 1909.13719, two dialects.

All images that drew an operator go through it together. An operator is a function of its images
uint8 (b, H, W, C) and of what was drawn for them, (b,) each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ablate.training.data.augment import colour_tf, laws
from ablate.training.data.augment.colour import (
    autocontrast,
    brightness,
    contrast,
    equalize,
    invert,
    posterize,
    saturation,
    sharpness,
    solarize,
    solarize_add,
)
from ablate.training.data.augment.erase import cutout
from ablate.training.data.augment.warp import (
    CORNER,
    rotation,
    shear_x,
    shear_y,
    translation,
    warp,
    warp_bilinear,
)


class Drawn(NamedTuple):
    """What was drawn for each image, (b,): its magnitude (float64, as int() hangs on it), a sign,
    and, for Cutout, a place in U[0, 1)."""

    magnitude: Tensor
    sign: Tensor
    row: Tensor
    column: Tensor

    def level(self, most: float) -> Tensor:
        """float32 (b,): `most` at magnitude 10, in proportion."""
        return (self.magnitude / 10 * most).float()

    def factor(self) -> Tensor:
        """float32 (b,): 0.1 at magnitude 0, 1.9 at 10. In float64 until then: a last digit decides
        where the product with a level is a whole number."""
        return (self.magnitude / 10 * 1.8 + 0.1).float()

    def whole(self, most: float) -> Tensor:
        """int32 (b,): the level cut to a whole number."""
        return (self.magnitude / 10 * most).int()

    def signed(self, most: float) -> Tensor:
        """float32 (b,): the level, half of them negative."""
        return self.level(most) * self.sign


GREY = 128  # TF's fill
Fill = float | Tensor  # a level, or (C,)
Operator = Callable[[Tensor, Drawn, Fill], Tensor]

# big_vision/pp/autoaugment.py: level_to_arg, and distort_image_with_randaugment's list. On levels
# PIL's operators: so are runs that don't say `randaug_levels`.
TF_PIL: dict[str, Operator] = {
    "AutoContrast": lambda x, d, fill: autocontrast(x),
    "Equalize": lambda x, d, fill: equalize(x),
    "Invert": lambda x, d, fill: invert(x),
    "Rotate": lambda x, d, fill: warp(x, rotation(d.signed(30), *x.shape[1:3]), fill),
    "Posterize": lambda x, d, fill: posterize(x, d.whole(4)),
    "Solarize": lambda x, d, fill: solarize(x, d.whole(256)),
    "Color": lambda x, d, fill: saturation(x, 0.1 + d.level(1.8)),
    "Contrast": lambda x, d, fill: contrast(x, 0.1 + d.level(1.8)),
    "Brightness": lambda x, d, fill: brightness(x, 0.1 + d.level(1.8)),
    "Sharpness": lambda x, d, fill: sharpness(x, 0.1 + d.level(1.8)),
    "ShearX": lambda x, d, fill: warp(x, shear_x(d.signed(0.3)), fill),
    "ShearY": lambda x, d, fill: warp(x, shear_y(d.signed(0.3)), fill),
    "TranslateX": lambda x, d, fill: warp(x, translation(d.signed(100), d.signed(0)), fill),
    "TranslateY": lambda x, d, fill: warp(x, translation(d.signed(0), d.signed(100)), fill),
    "Cutout": lambda x, d, fill: cutout(
        x,
        (d.row * x.shape[1]).int(),
        (d.column * x.shape[2]).int(),
        d.whole(40),
        GREY,
    ),
    "SolarizeAdd": lambda x, d, fill: solarize_add(x, d.whole(110)),
}

# The same list as TensorFlow executes it.
TF: dict[str, Operator] = TF_PIL | {
    "AutoContrast": lambda x, d, fill: colour_tf.autocontrast(x),
    "Posterize": lambda x, d, fill: colour_tf.posterize(x, d.whole(4)),
    "Solarize": lambda x, d, fill: colour_tf.solarize(x, d.whole(256)),
    "Color": lambda x, d, fill: colour_tf.saturation(x, d.factor()),
    "Contrast": lambda x, d, fill: colour_tf.contrast(x, d.factor()),
    "Brightness": lambda x, d, fill: brightness(x, d.factor()),
    "Sharpness": lambda x, d, fill: colour_tf.sharpness(x, d.factor()),
}

# timm/data/auto_augment.py: _RAND_INCREASING_TRANSFORMS and LEVEL_TO_ARG ("inc1").
TIMM: dict[str, Operator] = {
    "AutoContrast": TF_PIL["AutoContrast"],
    "Equalize": TF_PIL["Equalize"],
    "Invert": TF_PIL["Invert"],
    "Rotate": lambda x, d, fill: warp_bilinear(x, rotation(d.signed(30), *x.shape[1:3]), fill),
    "PosterizeIncreasing": lambda x, d, fill: posterize(x, 4 - d.whole(4)),
    "SolarizeIncreasing": lambda x, d, fill: solarize(x, 256 - d.whole(256)),
    "SolarizeAdd": TF_PIL["SolarizeAdd"],
    "ColorIncreasing": lambda x, d, fill: saturation(x, increasing(d)),
    "ContrastIncreasing": lambda x, d, fill: contrast(x, increasing(d)),
    "BrightnessIncreasing": lambda x, d, fill: brightness(x, increasing(d)),
    "SharpnessIncreasing": lambda x, d, fill: sharpness(x, increasing(d)),
    "ShearX": lambda x, d, fill: warp_bilinear(x, shear_x(d.signed(0.3), CORNER), fill),
    "ShearY": lambda x, d, fill: warp_bilinear(x, shear_y(d.signed(0.3), CORNER), fill),
    "TranslateXRel": lambda x, d, fill: warp_bilinear(
        x, translation(d.signed(0.45 * x.shape[2]), d.signed(0)), fill
    ),
    "TranslateYRel": lambda x, d, fill: warp_bilinear(
        x, translation(d.signed(0), d.signed(0.45 * x.shape[1])), fill
    ),
}


def increasing(drawn: Drawn) -> Tensor:
    """(b,): a factor that moves away from 1, either way, as the magnitude grows."""
    return (1 + drawn.signed(0.9)).clamp(min=0.1)


TF_LAYER, TIMM_LAYER = 4, 6  # uniforms that a layer takes


def tf_randaugment(images: Tensor, uniform: Tensor, magnitude: float, levels: str = "tf") -> Tensor:
    """big_vision's `randaug(layers, magnitude)` by `uniform` (layers, TF_LAYER, B): uint8
    (B, H, W, C) to the same.

    In each layer one of 16 operators, always applied, at a fixed magnitude. 0 is not the identity:
    enhancements by 0.1, all inverted if solarized (as at 10 and 20), one bit left if posterized (a
    larger magnitude leaves more). `levels`: operators on levels as TensorFlow executes them ("tf"),
    or PIL's ("pil"), by which 10 and more solarize nothing, Contrast has the mean that it is named
    for, and 0 bits are black.
    """
    operators = (TF if levels == "tf" else TF_PIL).values()
    for choice, which, row, column in uniform:
        magnitudes = choice.new_full(choice.shape, magnitude, dtype=torch.float64)
        drawn = Drawn(magnitudes, sign(which), row, column)
        images = operate(images, (choice * len(operators)).long(), operators, drawn, GREY)
    return images


def timm_randaugment(
    images: Tensor,
    uniform: Tensor,
    fill: Fill,
    magnitude: float = 9.0,
    deviation: float = 0.5,
    probability: float = 0.5,
) -> Tensor:
    """timm's `rand-m9-mstd0.5-inc1` by `uniform` (layers, TIMM_LAYER, B): uint8 (B, H, W, C) to the
    same; fill a level or (C,).

    In each layer one of 15 operators, applied with `probability`, at N(magnitude, deviation) in
    0..10. Interpolation is bilinear; timm's is the data's, bicubic for DeiT, or drawn between the
    two. No bits left (magnitude 10) is black, as with the Pillow of timm 0.4.9; today's refuses.
    """
    normal = laws.normals(images.device, torch.float64)
    for which, chance, turn, row, column, height in uniform:
        magnitudes = (magnitude + deviation * laws.chosen(normal, height)).clamp_(0, 10)
        choice = (which * len(TIMM)).long().where(chance < probability, len(TIMM))
        drawn = Drawn(magnitudes, sign(turn), row, column)
        images = operate(images, choice, TIMM.values(), drawn, fill)
    return images


def sign(uniform: Tensor) -> Tensor:
    """-1 or 1 with equal chances."""
    return (uniform < 0.5).float() * 2 - 1


def operate(
    images: Tensor, choice: Tensor, operators: Collection[Operator], drawn: Drawn, fill: Fill
) -> Tensor:
    """Image b through operator number choice[b], int64 (B,); past the last: as it is.

    Sorted by operator, so that each takes a slice; index_copy_ of scattered images is slow.
    """
    order = choice.argsort(stable=True)
    counts = choice.bincount(minlength=len(operators) + 1).tolist()  # one sync for all operators
    pieces = images.index_select(0, order).split(counts)
    told = zip(*(values.index_select(0, order).split(counts) for values in drawn), strict=True)
    done = [
        operator(piece, Drawn(*values), fill) if len(piece) else piece
        for operator, piece, values in zip((*operators, unchanged), pieces, told, strict=True)
    ]
    return torch.cat(done).index_select(0, order.argsort())


def unchanged(images: Tensor, drawn: Drawn, fill: Fill) -> Tensor:
    """The operator of those that are spared."""
    return images
