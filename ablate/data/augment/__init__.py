"""Augmentation on the device: batches of uint8 (B, H, W, C), each image with its own draw.

All that is random comes from uniform numbers in the arguments, float32 (count, B) in [0, 1); how
many each takes stands beside it.
"""

from ablate.data.augment.colour import JITTER, colour_jitter
from ablate.data.augment.crop import (
    INCEPTION,
    RESIZED_CROP,
    centre_boxes,
    crop_and_resize,
    inception_boxes,
    resize_area,
    resized_crop_boxes,
)
from ablate.data.augment.erase import ERASING, random_erasing
from ablate.data.augment.laws import normal
from ablate.data.augment.layout import constants, count
from ablate.data.augment.mix import MIXTURE, kept, mix, mixture
from ablate.data.augment.mnist import SHAKE, shake
from ablate.data.augment.operate import SETTLED, DrawnLayer
from ablate.data.augment.photometric import PHOTOMETRIC, photometric
from ablate.data.augment.randaugment import (
    TF_LAYER,
    TIMM_LAYER,
    tf_layer,
    tf_randaugment,
    timm_layer,
    timm_randaugment,
)
from ablate.data.augment.warp import flip, flip_and_crop

__all__ = [
    "ERASING",
    "INCEPTION",
    "JITTER",
    "MIXTURE",
    "PHOTOMETRIC",
    "RESIZED_CROP",
    "SETTLED",
    "SHAKE",
    "TF_LAYER",
    "TIMM_LAYER",
    "DrawnLayer",
    "centre_boxes",
    "colour_jitter",
    "constants",
    "count",
    "crop_and_resize",
    "flip",
    "flip_and_crop",
    "inception_boxes",
    "kept",
    "mix",
    "mixture",
    "normal",
    "photometric",
    "random_erasing",
    "resize_area",
    "resized_crop_boxes",
    "shake",
    "tf_layer",
    "tf_randaugment",
    "timm_layer",
    "timm_randaugment",
]
