"""RandAugment: each image goes through a few operators drawn for it. arXiv 1909.13719, in the
versions of big_vision and timm.

Used by `data/image_changes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ablate.data.augment import colour, colour_tf, layout
from ablate.data.augment.colour import invert, posterize, smooth, solarize, solarize_add
from ablate.data.augment.mix import cutout
from ablate.data.augment.operate import (
    Blended,
    Counted,
    Drawn,
    DrawnLayer,
    Fill,
    Levels,
    Operator,
    Warped,
    operate,
    settled,
)
from ablate.data.augment.warp import (
    CORNER,
    rotation,
    shear_x,
    shear_y,
    translation,
    warp,
    warp_bilinear,
)

GREY = 128  # TF's fill


def cut_out(images: Tensor, draws: Drawn, fill: Fill) -> Tensor:
    """Apply Cutout about the place that was drawn."""
    height, width = images.shape[1:3]
    row, column = (draws.row * height).int(), (draws.column * width).int()
    return cutout(images, row, column, draws.integer_level(40), GREY)


def increasing(draws: Drawn) -> Tensor:
    """Return a factor, (b,), that moves away from 1, up or down, as the magnitude grows."""
    return (1 + draws.signed(0.9)).clamp(min=0.1)


def spread(planes: Tensor) -> Tensor:
    """View (B, C, H, W) as (B, H, W, C), in the same memory."""
    return planes.permute(0, 2, 3, 1)


EQUALIZE = Counted(colour.equalize, colour.flattened)
INVERT = Levels(lambda x, d: invert(x))
SOLARIZE_ADD = Levels(lambda x, d: solarize_add(x, d.integer_level(110)))

# big_vision/pp/autoaugment.py: level_to_arg, and distort_image_with_randaugment's list, on levels
# as TensorFlow executes it.
TF: dict[str, Operator] = {
    "AutoContrast": Counted(colour_tf.autocontrast, colour_tf.autocontrast_table),
    "Equalize": EQUALIZE,
    "Invert": INVERT,
    "Rotate": Warped(warp, lambda d, h, w: rotation(d.signed(30), h, w)),
    "Posterize": Levels(lambda x, d: colour_tf.posterize(x, d.integer_level(4))),
    "Solarize": Levels(lambda x, d: colour_tf.solarize(x, d.integer_level(256))),
    "Color": Blended(
        colour_tf.saturation, lambda x: spread(colour_tf.grey(x.planes)), Drawn.factor
    ),
    "Contrast": Blended(
        colour_tf.contrast, lambda x: colour_tf.contrast_grey(x.images), Drawn.factor
    ),
    "Brightness": Blended(colour.brightness, lambda x: None, Drawn.factor),
    "Sharpness": Blended(colour_tf.sharpness, lambda x: smooth(x.images, 0), Drawn.factor),
    "ShearX": Warped(warp, lambda d, h, w: shear_x(d.signed(0.3))),
    "ShearY": Warped(warp, lambda d, h, w: shear_y(d.signed(0.3))),
    "TranslateX": Warped(warp, lambda d, h, w: translation(d.signed(100), d.signed(0))),
    "TranslateY": Warped(warp, lambda d, h, w: translation(d.signed(0), d.signed(100))),
    "Cutout": cut_out,
    "SolarizeAdd": SOLARIZE_ADD,
}

# timm/data/auto_augment.py: _RAND_INCREASING_TRANSFORMS and LEVEL_TO_ARG ("inc1").
TIMM: dict[str, Operator] = {
    "AutoContrast": Counted(colour.autocontrast, colour.autocontrast_table),
    "Equalize": EQUALIZE,
    "Invert": INVERT,
    "Rotate": Warped(warp_bilinear, lambda d, h, w: rotation(d.signed(30), h, w)),
    "PosterizeIncreasing": Levels(lambda x, d: posterize(x, 4 - d.integer_level(4))),
    "SolarizeIncreasing": Levels(lambda x, d: solarize(x, 256 - d.integer_level(256))),
    "SolarizeAdd": SOLARIZE_ADD,
    "ColorIncreasing": Blended(colour.saturation, lambda x: spread(x.grey), increasing),
    "ContrastIncreasing": Blended(colour.contrast, lambda x: colour.mean_of(x.grey), increasing),
    "BrightnessIncreasing": Blended(colour.brightness, lambda x: None, increasing),
    "SharpnessIncreasing": Blended(colour.sharpness, lambda x: smooth(x.images, 6.5), increasing),
    "ShearX": Warped(warp_bilinear, lambda d, h, w: shear_x(d.signed(0.3), CORNER)),
    "ShearY": Warped(warp_bilinear, lambda d, h, w: shear_y(d.signed(0.3), CORNER)),
    "TranslateXRel": Warped(
        warp_bilinear, lambda d, h, w: translation(d.signed(0.45 * w), d.signed(0))
    ),
    "TranslateYRel": Warped(
        warp_bilinear, lambda d, h, w: translation(d.signed(0), d.signed(0.45 * h))
    ),
}

TF_LAYER, TIMM_LAYER = 4, 6  # uniforms that a layer takes


def tf_layer(uniform: Tensor, size: tuple[int, int], magnitude: float) -> DrawnLayer:
    """Draw a layer of big_vision's `randaug` for images of `size` (height, width): one of 16
    operators, always applied, at a fixed magnitude. `uniform`: (TF_LAYER, B), in [0, 1)."""
    choice, turn, row, column = uniform
    magnitudes = torch.full_like(choice, magnitude, dtype=torch.float64)
    return _layer(TF, choice, Drawn(magnitudes, sign(turn), row, column), size)


def tf_randaugment(images: Tensor, layers: Iterable[DrawnLayer]) -> Tensor:
    """Apply big_vision's `randaug(layers, magnitude)`: uint8 (B, H, W, C) to the same, by layers
    from `tf_layer`.

    Magnitude 0 is not the identity: it enhances by 0.1, inverts everything where it solarizes (as
    do 10 and 20), and leaves one bit where it posterizes (a larger magnitude leaves more).
    """
    for layer in layers:
        images = operate(images, layer, TF.values(), GREY)
    return images


def timm_layer(
    uniform: Tensor,
    size: tuple[int, int],
    magnitude: float = 9.0,
    deviation: float = 0.5,
    probability: float = 0.5,
) -> DrawnLayer:
    """Draw a layer of timm's `rand-m9-mstd0.5-inc1` for images of `size` (height, width).

    Each image draws one of 15 operators, applied with `probability`, at a magnitude from
    N(magnitude, deviation), clamped to 0..10. `uniform`: (TIMM_LAYER, B), in [0, 1).
    """
    choice, chance, turn, row, column, height = uniform
    normal = layout.quantiles_at(layout.normals(uniform.device, torch.float64), height)
    magnitudes = (magnitude + deviation * normal).clamp_(0, 10)
    choice = choice.where(chance < probability, 1.0)  # past the last
    return _layer(TIMM, choice, Drawn(magnitudes, sign(turn), row, column), size)


def timm_randaugment(images: Tensor, layers: Iterable[DrawnLayer], fill: Fill) -> Tensor:
    """Apply timm's `rand-m9-mstd0.5-inc1`: uint8 (B, H, W, C) to the same, by layers from
    `timm_layer`. `fill`: a level, or (C,).

    Interpolation is bilinear; timm's is the data's, bicubic for DeiT, or drawn between the two. An
    image posterized to no bits (magnitude 10) is black, as with the Pillow of timm 0.4.9; today's
    refuses.
    """
    for layer in layers:
        images = operate(images, layer, TIMM.values(), fill)
    return images


def _layer(
    operators: dict[str, Operator], choice: Tensor, draws: Drawn, size: tuple[int, int]
) -> DrawnLayer:
    """Return the layer in which `choice`, (B,) in [0, 1], picks each image's operator; 1 picks
    none.

    On a CPU, where each operator takes only the images that drew it, `fixed` stays empty; elsewhere
    the layer is `settled`.
    """
    number = (choice * len(operators)).long()
    if layout.by_groups(choice):
        return DrawnLayer(number, draws, {})
    return settled(number, draws, operators.values(), *size)


def sign(uniform: Tensor) -> Tensor:
    """Return -1 or 1 with equal chances."""
    return (uniform < 0.5).float() * 2 - 1
