"""Data sets: decoded once, batched, augmented, and drawn from at random.

A decoded set lies in a store's cache under its fingerprint, appears whole by one rename, and is
never changed afterwards; any number of processes may prepare it at once, and one of them does.
Every random draw is a function of its place (seed, purpose, step, row), so that nothing has to be
saved and no device, thread or batch size changes a bit. Raises `UserError` for data that can't be
read as declared, `building.Full`, an `OSError`, where the disk is full (the worker answers the
driver with `NoRoom`), and `BrokenImage` for an image file that is damaged.
"""

from ablate.doors import lazy

__all__ = [
    # Decoded sets
    "prepare_cache",  # decode a set, or open it where it is decoded
    "inspect_data",  # check what can be told of a set without decoding it
    "count_examples",  # count train, validation and test examples
    "open_cached",  # open a decoded set, or None
    "Cached",  # a whole decoded set
    "Split",  # the images, labels and aspect ratios of a split
    "AnySplit",  # a split, decoded or as its files' own bytes
    "BrokenImage",  # an image whose bytes are none, or not whole
    "fraction_rows",  # the training rows that `data.fraction` leaves
    "shared_images",  # count the images that two splits share
    # Classes
    "class_names",  # a set's class names, where they are known early
    "check_names",  # refuse texts that ask for class names a set lacks
    "match_labels",  # map the labels of one set to the classes of another
    # Batches
    "Batches",  # the global batches of a training
    "Delivery",  # how they reach the process that trains on them
    "evaluation_batches",  # every example once, in stored order
    "resident_split",  # a split on the device, where it fits
    "ImageView",  # how images are shown: size, scaling, crop
    "shake_once",  # a split for evaluation, augmented as in training
    "constants_on",  # constants that stay on a device
    # Draws
    "Draws",  # the draws of a seed, on one device
    "draw_key",  # the key of a draw, from its parts
    "uniform_of",  # random words as numbers in [0, 1)
    "normal_of",  # random words as normal numbers
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ablate.data.augment.layout import constants_on, normal_of
    from ablate.data.batches import (
        Batches,
        Delivery,
        evaluation_batches,
        resident_split,
    )
    from ablate.data.cache import (
        check_names,
        class_names,
        count_examples,
        inspect_data,
        match_labels,
        prepare_cache,
        shared_images,
    )
    from ablate.data.draws import Draws, draw_key, uniform_of
    from ablate.data.image_changes import ImageView, shake_once
    from ablate.data.picture import BrokenImage
    from ablate.data.source import fraction_rows
    from ablate.data.splits import AnySplit, Cached, Split, open_cached
else:
    __getattr__ = lazy(__name__, __file__)
