"""Coloured digits with captions: scikit-learn's digits, each drawn in several colours on black.

"a red seven": 100 pairs of a colour and a digit. 15 pairs are never seen in training; they are the
test set, of images of digits that training does not show in any colour. They can only be told by
the words of their captions, each of which is seen in other pairs.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from ablate.data.bundled_sets import DIGITS, digits
from ablate.data.picture import Example
from ablate.data.stored_set import Source, part_of, wanted_splits
from ablate.shared.dataset import BUNDLED
from ablate.shared.sections import Data

COLOURS = {
    "red": (230, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 230),
    "yellow": (240, 220, 50),
    "cyan": (60, 220, 230),
    "magenta": (220, 60, 220),
    "orange": (250, 140, 30),
    "purple": (130, 60, 180),
    "brown": (140, 90, 50),
    "white": (255, 255, 255),
}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Three colours of five digits each: who sees the colour alone is right once in 5 of these classes,
# who sees the digit alone once in 3.
HELD_OUT = frozenset((colour, digit) for colour in (0, 4, 7) for digit in (1, 3, 5, 7, 9))
# Of scikit-learn's digits: (first, one behind the last), and whether of pairs held out. Of other
# pairs a digit has every second colour.
ROWS = {
    "train": (0, 1197, False),
    "validation": (1197, 1497, False),
    "seen": (1497, DIGITS, False),
    "test": (1497, DIGITS, True),
}


def open_coloured(data: Data) -> Source:
    """`data.label`: digit, of 10 classes; null: a class is a caption, of 100. Raises UserError
    where scikit-learn is not there."""
    names = captions() if data.label is None else list(NUMBERS)  # modulo 10 a caption is its digit
    images, numbers = digits(data)

    def example(place: tuple[int, int]) -> Example:
        row, colour = place
        shades = images[row, :, :, None] / 255 * list(COLOURS.values())[colour]
        picture = Image.fromarray(np.rint(shades).astype(np.uint8))
        label = len(NUMBERS) * colour + int(numbers[row])
        return Example(f"row {row} of digits, colour {colour}", picture, label % len(names))

    wanted = wanted_splits(data, BUNDLED["coloured"])
    parts = {split: part_of(rows(split, numbers), example) for split in wanted}
    return Source(parts, names)


def captions() -> list[str]:
    """By class: colour by colour, in each digit by digit."""
    return [
        f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} {number}"
        for colour in COLOURS
        for number in NUMBERS
    ]


def rows(split: str, numbers: np.ndarray) -> list[tuple[int, int]]:
    """(row of scikit-learn's digits, colour) of each image of a split."""
    first, last, held_out = ROWS[split]
    return [
        (row, colour)
        for row in range(first, last)
        for colour in range(len(COLOURS))
        if ((colour, int(numbers[row])) in HELD_OUT) == held_out
        and (held_out or (row + colour) % 2 == 0)
    ]


def counts(data: Data) -> dict[str, int]:
    """Images of each split that `data` names."""
    _, numbers = digits(data)
    return {split: len(rows(split, numbers)) for split in wanted_splits(data, BUNDLED["coloured"])}
