"""Augmentation on the device: batches of uint8 (B, H, W, C), each image with its own draw.

All that is random comes from the generator in the arguments, drawn for the whole batch at once.
"""

from ablate.training.data.augment.colour import colour_jitter
from ablate.training.data.augment.crop import (
    centre_boxes,
    crop_and_resize,
    inception_boxes,
    resize_area,
    resized_crop_boxes,
)
from ablate.training.data.augment.erase import random_erasing
from ablate.training.data.augment.mix import kept, mix
from ablate.training.data.augment.mnist import shake
from ablate.training.data.augment.randaugment import tf_randaugment, timm_randaugment
from ablate.training.data.augment.warp import flip

__all__ = [
    "centre_boxes",
    "colour_jitter",
    "crop_and_resize",
    "flip",
    "inception_boxes",
    "kept",
    "mix",
    "random_erasing",
    "resize_area",
    "resized_crop_boxes",
    "shake",
    "tf_randaugment",
    "timm_randaugment",
]
